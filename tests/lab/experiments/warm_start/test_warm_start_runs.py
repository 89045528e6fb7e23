import re
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from synthetic_images import config, image_data

from weightclip.lab.callbacks import Callbacks
from weightclip.lab.experiments.warm_start.experiment import EXPERIMENT
from weightclip.lab.experiments.warm_start.training import run_config
from weightclip.lab.records.record import read_record
from weightclip.lab.records.store import relative_path

DATA = image_data()


def interrupted_after(images: int) -> object:
    def progress(done: int, accuracy: float) -> None:
        if done >= images:
            raise KeyboardInterrupt

    return progress


def test_a_record_has_a_row_for_each_epoch_of_all_stages() -> None:
    record = run_config(config("sgd+wc"), DATA)
    table = record.table
    assert table["epoch"].to_list() == [1, 2, 3, 4]
    assert table["stage"].to_list() == [1, 1, 2, 2]
    assert table["samples"].to_list() == [24, 48, 72, 96]
    assert table["seed"].unique().to_list() == [0]
    assert table.drop("seed", "epoch", "stage", "samples").dtypes == [pl.Float64] * 7
    one = run_config(config("sgd+wc", stages=1), DATA).table
    assert one["samples"].to_list() == [48, 96]


def test_training_reduces_the_loss() -> None:
    table = run_config(config("sgd", epochs=8, lr=0.1), DATA).table
    assert table["train_loss"][-1] < table["train_loss"][0]
    assert table["test_accuracy"].max() > 0.5


@pytest.mark.parametrize(
    "method", ["sgd", "sgd+wc", "sgd+wc@switch", "adam+l2+wc", "sgd+sp", "sgd+l2init", "sgd+sp@switch"]
)
@pytest.mark.parametrize("images", [30, 60])
def test_an_interrupted_run_resumes_bit_for_bit(method: str, images: int, tmp_path: Path) -> None:
    wanted = config(method, lr=0.01, augment=True, **({"decay": 0.1, "kappa": 2.0} if method == "adam+l2+wc" else {}))
    expected = run_config(wanted, DATA).table
    with pytest.raises(KeyboardInterrupt):
        run_config(wanted, DATA, out=tmp_path, callbacks=Callbacks(on_progress=interrupted_after(images)))  # type: ignore[arg-type]
    lines: list[str] = []
    record = run_config(wanted, DATA, out=tmp_path, callbacks=Callbacks(on_event=lines.append))
    assert lines == [f"warm-start {method} seed 0: resuming after epoch {images // 24 if images > 24 else 0}"]
    assert_frame_equal(record.table, expected, check_exact=True)
    assert record.resumed == "exact"
    assert not list(tmp_path.rglob("*.checkpoint.*"))


def test_a_finished_run_is_read(tmp_path: Path) -> None:
    first = run_config(config("sgd+wc"), DATA, out=tmp_path)
    lines: list[str] = []
    again = run_config(config("sgd+wc"), DATA, out=tmp_path, callbacks=Callbacks(on_event=lines.append))
    assert lines == ["warm-start sgd+wc seed 0: already finished"]
    assert_frame_equal(first.table, again.table)
    assert_frame_equal(first.tables["boxes"], again.tables["boxes"])


def test_a_record_contains_the_clipped_tensors_and_the_platform(tmp_path: Path) -> None:
    run_config(config("sgd+wc", variant="paper"), DATA, out=tmp_path)
    record = read_record(next(path for path in tmp_path.rglob("*.parquet") if "boxes" not in path.name))
    assert record.experiment == "warm-start"
    assert record.data["checksum"] == "checksum1+checksum2"
    assert "threads" in record.platform
    assert record.tables["boxes"].columns == ["tensor", "entries", "box", "largest", "at_box"]
    assert "device" not in record.config
    assert not run_config(config("sgd"), DATA).tables


def test_the_requested_threads_are_used() -> None:
    assert "1 threads" in run_config(config(threads=1), DATA).platform


def test_threads_and_device_do_not_change_the_identity() -> None:
    identify = EXPERIMENT.identify
    assert identify(config(threads=1), DATA) == identify(config(threads=2, device="cpu"), DATA)
    assert identify(config(seed=1), DATA) != identify(config(seed=2), DATA)


def test_the_path_of_a_record_names_stages_and_settings() -> None:
    found = relative_path(EXPERIMENT.schema, config("sgd+wc@switch", kappa=20.0, variant="paper", seed=3))
    assert found == "warm-start/stages2/sgd+wc@switch/lr0.05_kappa20_seed3"


def test_more_images_than_available_are_rejected() -> None:
    for name, most in (("images", 48), ("test_images", 20)):
        message = f"{name}: got 1000, expected at most the {most} of cifar10"
        with pytest.raises(ValueError, match=re.escape(message)):
            run_config(config(**{name: 1000}), DATA)  # type: ignore[arg-type]


def test_validation_uses_the_remaining_images() -> None:
    message = "test_images: got 20, expected at most the 8 of cifar10 that are not trained on"
    with pytest.raises(ValueError, match=message):
        run_config(config(images=40, validation=True), DATA)


def test_runs_without_newer_options_keep_their_identity() -> None:
    facts = config().facts()
    assert not {"validation", "init_kappa"} & set(facts)
    assert config(validation=True).facts() == facts | {"validation": True}
    assert config(init_kappa=0.5).facts() == facts | {"init_kappa": 0.5}


def test_validation_is_a_deviation_from_the_paper() -> None:
    record = run_config(config(images=40, test_images=8, validation=True, epochs=1), DATA)
    assert record.deviations["validation"] is True


def test_divergence_is_reported() -> None:
    lines: list[str] = []
    run_config(config(lr=1e30), DATA, callbacks=Callbacks(on_event=lines.append))
    assert any("the loss diverged in epoch" in line for line in lines)


def test_progress_counts_images() -> None:
    lines: list[int] = []
    run_config(config(), DATA, callbacks=Callbacks(on_progress=lambda images, _: lines.append(images)))
    assert lines == list(range(8, 97, 8))
