from pathlib import Path

from toy_experiment import Toy, toy_plan

from weightclip.lab.records.store import failures, record_path
from weightclip.lab.sweep.locks import locked
from weightclip.lab.sweep.manifest import FOLDER, current, read_manifests, state_of, write_manifest
from weightclip.lab.sweep.worker import mark_failed


def test_a_manifest_is_restored(tmp_path: Path) -> None:
    plan = toy_plan(2)
    written = write_manifest(tmp_path, "weightclip sweep toy", "toy", plan.runs)
    assert read_manifests(tmp_path) == [written]
    assert (written.command, written.experiment, written.problem) == ("weightclip sweep toy", "toy", "toy")


def test_a_manifest_of_an_older_version_is_read(tmp_path: Path) -> None:
    written = write_manifest(tmp_path, "weightclip sweep toy", "toy", toy_plan(2).runs)
    (path,) = (tmp_path / FOLDER).iterdir()
    path.write_text(path.read_text().replace('"method"', '"seconds": 2.5, "method"'))
    assert read_manifests(tmp_path) == [written]


def test_equal_runs_are_the_same_sweep(tmp_path: Path) -> None:
    for command in ("weightclip sweep toy --seeds 2", "weightclip sweep toy --seeds 0-1"):
        write_manifest(tmp_path, command, "toy", toy_plan(2).runs)
    write_manifest(tmp_path, "weightclip sweep toy --seeds 3", "toy", toy_plan(3).runs)
    assert [one.command.split()[-1] for one in read_manifests(tmp_path)] == ["0-1", "3"]


def test_a_damaged_manifest_is_skipped(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "a.json").write_text("{")
    assert read_manifests(tmp_path) == []


def test_a_state_distinguishes_done_running_failed_and_left(tmp_path: Path) -> None:
    plan = toy_plan(4)
    manifest = write_manifest(tmp_path, "", "toy", plan.runs)
    done, failed, held, left = plan.runs
    Toy().run([done.config], None, tmp_path)
    mark_failed(tmp_path, failed, "reason", "traceback")
    assert [failure.reason for failure in failures(tmp_path)] == ["reason"]
    with locked(tmp_path, held.identity, held.relative_path) as mine:
        assert mine is not None
        mine.start()
        state = state_of(tmp_path, manifest)
    assert [run.identity for run in state.done] == [done.identity]
    assert [run.identity for run in state.failed] == [failed.identity]
    assert list(state.running) == [held.identity]
    assert [run.identity for run in state.left] == [held.identity, left.identity]


def test_a_queued_run_is_not_running(tmp_path: Path) -> None:
    (run,) = toy_plan(1).runs
    manifest = write_manifest(tmp_path, "", "toy", [run])
    with locked(tmp_path, run.identity, run.relative_path):
        state = state_of(tmp_path, manifest)
    assert (state.running, state.waiting) == ({}, {run.identity})


def test_a_damaged_record_and_a_directory_in_its_place_count_as_left_and_are_named(tmp_path: Path) -> None:
    plan = toy_plan(3)
    manifest = write_manifest(tmp_path, "", "toy", plan.runs)
    Toy().run([run.config for run in plan.runs[:2]], None, tmp_path)
    damaged, directory = (record_path(tmp_path, run.relative_path, run.identity) for run in plan.runs[1:])
    content = damaged.read_bytes()
    damaged.write_bytes(content[:10] + bytes([content[10] ^ 1]) + content[11:])
    directory.mkdir()
    state = state_of(tmp_path, manifest)
    assert [run.identity for run in state.done] == [plan.runs[0].identity]
    assert len(state.left) == 2
    assert [str(damaged) in state.damaged[0], str(directory) in state.damaged[1]] == [True, True]


def test_a_sweep_contained_in_a_later_one_is_not_current(tmp_path: Path) -> None:
    few, more, others = toy_plan(2), toy_plan(3), toy_plan(2, {"method": "slow"})
    plans = {"few": few, "others": others, "more": more}
    manifests = [write_manifest(tmp_path, name, "toy", plan.runs) for name, plan in plans.items()]
    assert [one.command for one in current(manifests)] == ["others", "more"]
    assert [one.command for one in current(manifests[::-1])] == ["more", "others", "few"]
