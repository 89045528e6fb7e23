from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from toy_env import LIMIT, NAME, Toy, config, identify, path_of

from weightclip.cli import main
from weightclip.lab.callbacks import Callbacks
from weightclip.lab.experiments.ppo import video
from weightclip.lab.experiments.ppo.ppo import Learners
from weightclip.lab.experiments.ppo.training import run_configs
from weightclip.lab.experiments.ppo.video import Moment, find_policy, play, write_video
from weightclip.lab.networks.actor_critic import ActorCritic


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store")
    run_configs([config(seed=seed) for seed in (0, 1)], path)
    return path


def test_a_policy_is_found_by_a_prefix_of_its_path(store: Path) -> None:
    saved = find_policy(store / path_of(config(seed=1)))
    assert saved.config["seed"] == 1
    assert saved.path == store / f"{path_of(config(seed=1))}_{identify(config(seed=1))}.parquet"
    assert find_policy(saved.path).path == saved.path


def test_a_finished_record_contains_the_learners_weights(store: Path) -> None:
    learners = Learners([config(seed=0)])
    for iteration in range(4):
        learners.iterate(iteration)
    saved = find_policy(store / path_of(config(seed=0)))
    np.testing.assert_allclose(saved.arrays["weights"], learners.stack.row(0).numpy(), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(saved.arrays["mean"], learners.normalizer.observations.mean[0], rtol=1e-3, atol=1e-4)


def test_playback_normalizes_and_acts_like_the_learner(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = find_policy(store / path_of(config(seed=0)))
    acted: list[np.ndarray] = []
    step = Toy.step
    monkeypatch.setattr(Toy, "step", lambda self, action: (acted.append(action), step(self, action))[1])
    list(play(saved, seed=5, steps=1))
    env = Toy()
    seen, _ = env.reset(seed=5)
    x = np.clip((seen - saved.arrays["mean"]) / np.sqrt(saved.arrays["var"] + 1e-8), -10, 10)
    network = ActorCritic(3, 2, (8, 8))
    torch.nn.utils.vector_to_parameters(torch.from_numpy(saved.arrays["weights"]), network.parameters())
    expected = network.actor_mean(torch.from_numpy(x).float()).detach().numpy()
    np.testing.assert_allclose(acted[0], np.clip(expected, -1, 1), rtol=1e-5)
    assert not np.allclose(seen, x)


def test_a_prefix_for_seed_1_does_not_match_seed_10(tmp_path: Path) -> None:
    run_configs([config(seed=seed) for seed in (1, 10)], tmp_path)
    assert find_policy(tmp_path / path_of(config(seed=1))).config["seed"] == 1


def test_several_runs_are_listed_with_their_differences(tmp_path: Path) -> None:
    run_configs([config(seed=0)], tmp_path)
    run_configs([config(seed=0, gamma=0.5)], tmp_path)
    with pytest.raises(
        ValueError, match=r"with 2 runs, .*_seed0_\w+.parquet \(gamma 0.(5|99)\), .*\(gamma 0.(5|99)\);"
    ):
        find_policy(tmp_path / path_of(config(seed=0)))


def test_playing_a_diverged_run_raises_an_error(tmp_path: Path) -> None:
    run_configs([config("sgd", lr=1e30)], tmp_path)
    with pytest.raises(ValueError, match="the run stopped because its weights were not finite"):
        find_policy(tmp_path)


def test_an_episode_can_be_replayed(store: Path) -> None:
    saved = find_policy(store / path_of(config(seed=0)))
    one, other, noisy = (list(played) for played in (play(saved, 3), play(saved, 3), play(saved, 3, noise=True)))
    assert one[-1].score == other[-1].score != noisy[-1].score
    assert 2 <= len(one) <= LIMIT + 1
    assert len(list(play(saved, 3, steps=1))) == 2
    assert {moment.rate for moment in one} == {20}
    assert one[0].score == 0


def test_a_video_is_written_frame_by_frame(tmp_path: Path) -> None:
    """Frames are not kept in memory, regardless of the length of the episode."""
    alive: list[int] = []

    class Picture(np.ndarray):
        def __del__(self) -> None:
            alive.pop()

    def moments(rate: float) -> Iterator[Moment]:
        for step in range(40):
            alive.append(step)
            picture = np.full((16, 16, 3), 6 * step, np.uint8).view(Picture)
            yield Moment(picture, rate, float(step))
            del picture
            assert len(alive) < 5

    for name, pictures in (("long.gif", 40), ("short.GIF", 20), ("long.MP4", None)):
        rate = 100.0 if name == "short.GIF" else 20.0
        assert write_video(moments(rate), tmp_path / name) == (39, 39.0)
        if pictures:
            with Image.open(tmp_path / name) as seen:
                assert seen.n_frames == pictures
                assert seen.info["duration"] == (20 if name == "short.GIF" else 50)
    assert (tmp_path / "long.MP4").stat().st_size > 100


def test_a_video_of_a_running_run_uses_its_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    def stop(steps: int, score: float) -> None:
        if steps == 128:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_configs([config()], tmp_path, callbacks=Callbacks(on_progress=stop))
    saved = find_policy(tmp_path)
    assert saved.path.name.endswith(".checkpoint.npz")
    assert saved.config["env"] == NAME
    assert len(list(play(saved))) > 1


def test_the_command_writes_a_video(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(store / path_of(config(seed=0))), "-o", str(tmp_path / "seen.gif")]) == 0
    with Image.open(tmp_path / "seen.gif") as picture:
        assert picture.n_frames > 1
    assert "return " in capsys.readouterr().out
    assert main(["watch", str(store / path_of(config(seed=0)))]) == 0
    (video,) = store.rglob("*.mp4")
    assert video.stat().st_size > 100


def test_errors_are_reported_in_one_line(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        ([str(store)], "with 2 runs, lr0.0003_kappa3_seed0_"),
        ([str(tmp_path / "nothing")], "with no run; expected the path of one run, or a prefix of it"),
        ([str(store), "--steps", "0"], "--steps: got 0, expected a whole number of at least 1"),
        ([str(store), "--seed", "0-3"], "--seed: got '0-3', expected a seed such as 4"),
        ([str(store), "-o", "video.avi"], "--out: got 'video.avi', expected a file that ends in .mp4 or .gif"),
    ):
        assert main(["watch", *arguments]) == 2
        assert message in capsys.readouterr().err


def test_searching_a_directory_tree_that_is_too_large_stops_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(video, "MOST_FILES", 10)
    for number in range(12):
        (tmp_path / str(number)).touch()
    with pytest.raises(ValueError, match="with more than 10 files; expected one run"):
        find_policy(tmp_path)
