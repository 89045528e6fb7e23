import re
from dataclasses import replace

import pytest

from weightclip.cli import main
from weightclip.lab.experiments.dqn.config import Config, presets, resolve
from weightclip.lab.experiments.dqn.experiment import EXPERIMENT


def identify(config: Config) -> str:
    return EXPERIMENT.identify(config, None)


def test_atari_defaults_match_tianshou() -> None:
    config = resolve(Config(agent="rainbow"))
    assert (config.lr, config.kappa, config.num_envs, config.buffer_size) == (6.25e-5, 1.0, 10, 100_000)
    assert (config.frames, config.steps, config.learning_starts, config.exploration_steps) == (
        10_000_000,
        2_500_000,
        320,
        1_000_000,
    )
    assert (config.sticky_action_prob, config.clip_rewards, config.stack, config.game) == (
        0.0,
        True,
        4,
        "space_invaders",
    )
    assert resolve(Config()).lr == 0.0001
    assert resolve(Config(method="adam")).kappa is None


TIANSHOUS = {
    "batch_size": 32,
    "gamma": 0.99,
    "n_step": 3,
    "double": True,
    "target_update_interval": 500,
    "exploration_initial_eps": 1.0,
    "exploration_final_eps": 0.05,
    "evaluation_eps": 0.005,
    "scale_pixels": False,
    "terminal_on_life_loss": True,
}


@pytest.mark.parametrize(
    ("agent", "own"),
    [
        ("dqn", {"loss": "squared"}),
        (
            "rainbow",
            {"alpha": 0.5, "beta": 0.4, "beta_steps": 5_000_000, "noisy_sigma": 0.1, "dueling": True, "noisy": True},
        ),
        ("rainbow", {"atoms": 51, "v_min": -10.0, "v_max": 10.0}),
    ],
)
def test_agents_match_tianshous_examples(agent: str, own: dict[str, object]) -> None:
    config = resolve(Config(agent=agent))
    assert {name: getattr(config, name) for name in {**TIANSHOUS, **own}} == {**TIANSHOUS, **own}


def test_minatar_runs_are_shorter() -> None:
    config = resolve(Config(suite="minatar", game="Asterix"))
    assert (config.steps, config.stack, config.num_envs, config.game) == (300_000, 1, 1, "asterix")


def test_settings_match_the_papers_tables() -> None:
    assert presets()["grid"] == {"seeds": 5, "lr": [0.0001], "kappa": [1.0, 5.0]}
    assert presets("atari", "rainbow")["best"]["replay-ratio"]["adam+wc"] == {"lr": 6.25e-5, "kappa": 1.0}


def test_bounds_default_to_fan_in() -> None:
    found = [resolve(Config(method="adam+wc", bounds=bounds)).bounds for bounds in (None, "fan_in", "paper")]
    assert found == ["fan_in", "fan_in", "paper"]


def test_schedules() -> None:
    config = resolve(Config())
    assert config.epsilon_after(0) == 1.0
    assert config.epsilon_after(500_000) == pytest.approx(0.525)
    assert config.epsilon_after(10_000_000) == pytest.approx(0.05)
    assert config.beta_after(2_500_000) == pytest.approx(0.7)
    assert config.updates_after(320) == 0
    assert resolve(Config(replay_ratio=0.1)).updates_after(1320) == 100


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"suite": "nes"}, "suite: got 'nes'"),
        ({"agent": "sac"}, "agent: got 'sac'"),
        ({"replay_ratio": 0.0}, "replay_ratio: got 0.0"),
        ({"replay_ratio": -1.0}, "replay_ratio: got -1.0"),
        ({"exploration_initial_eps": 2.0}, "exploration_initial_eps: got 2.0, expected a number from 0 to 1"),
        ({"agent": "rainbow", "v_min": 3.0, "v_max": 2.0}, "v_max: got 2.0, expected more than v_min, 3.0"),
        ({"agent": "rainbow", "v_max": float("inf")}, "v_max: got inf, expected a finite number"),
        ({"agent": "rainbow", "v_min": float("nan")}, "v_min: got nan, expected a finite number"),
        ({"agent": "rainbow", "atoms": 1}, "atoms: got 1, expected a whole number of at least 2"),
        ({"threads": 0}, "threads: got 0, expected a whole number of at least 1"),
        ({"buffer_size": 50}, "buffer_size: got 50, expected at least 90"),
        ({"learning_starts": 10}, "learning_starts: got 10, expected at least 72: enough for a batch"),
        ({"frames": 1280}, "learning_starts: got 320, expected fewer than the run's 320 steps"),
        ({"frames": 30}, "frames: got 30, expected at least 40: one step of all environments"),
        ({"frames": 2000}, "points: got 100, expected at most 50 here"),
        ({"covariance_at": (150,)}, "covariance_at: got 150, expected percentages of the run"),
        ({"covariance": 1}, "covariance: got 1, expected at least 2 transitions, or 0 for none"),
        ({"covariance_at": ()}, "covariance_at: got (), expected percentages of the run, such as (50, 100)"),
        ({"covariance_at": 100}, "covariance_at: got 100, expected whole numbers, such as (100,)"),
        (
            {"covariance_at": (50, 100), "points": 3},
            "covariance_at: got 50, expected percentages of the run, from 1 to 100, at ends of its 3 parts",
        ),
        ({"double": "no"}, "double: got 'no', expected True or False"),
        ({"loss": "l3"}, "loss: got 'l3'"),
        ({"game": 3}, "game: got 3, expected a name"),
        ({"bounds": "default"}, "bounds: got 'default', expected one of paper, fan_in"),
        ({"method": "adam", "kappa": 2.0}, "kappa: got 2.0, but adam has no such setting"),
    ],
)
def test_errors_are_named(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        resolve(Config(**given))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"agent": "dqn", "atoms": 7}, "atoms: got 7, but dqn has no such option"),
        ({"agent": "dqn", "noisy": False}, "noisy: got False, but dqn has no such option"),
        ({"agent": "dqn", "v_max": 20.0}, "v_max: got 20.0, but dqn has no such option"),
        ({"agent": "rainbow", "loss": "huber"}, "loss: got 'huber', but rainbow has no such option"),
        (
            {"suite": "minatar", "terminal_on_life_loss": False},
            "terminal_on_life_loss: got False, but minatar has no such option",
        ),
    ],
)
def test_options_of_another_agent_or_suite_raise_an_error(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        resolve(Config(**given))  # type: ignore[arg-type]


def test_fields_without_effect_do_not_change_the_run() -> None:
    def same(one: Config, **changed: object) -> bool:
        return identify(resolve(one)) == identify(resolve(replace(one, **changed)))  # type: ignore[arg-type]

    rainbow, minatar = Config(agent="rainbow"), Config(suite="minatar", game="asterix")
    assert same(replace(minatar, covariance=0), covariance_at=(50, 100))
    assert same(replace(rainbow, noisy=False), noisy_sigma=0.3)
    assert same(replace(rainbow, alpha=0.0), beta=0.9, beta_steps=10)
    assert same(replace(minatar, covariance_at=(50, 100)), covariance_at=(100, 50, 100))
    assert same(Config(frames=40_000), frames=40_030)  # ten games of four frames a step
    assert not same(rainbow, noisy_sigma=0.3)
    assert not same(rainbow, beta=0.9)
    assert not same(rainbow, alpha=0.9)
    assert not same(Config(), loss="huber")
    assert not same(Config(), terminal_on_life_loss=False)


@pytest.mark.parametrize("agent", ["dqn", "rainbow"])
@pytest.mark.parametrize("suite", ["atari", "minatar"])
def test_a_resolved_configuration_is_unchanged(suite: str, agent: str) -> None:
    config = resolve(Config(suite=suite, agent=agent))
    assert resolve(config) == config


@pytest.mark.parametrize("written", [("UpNDown", "up_n_down", "Up'n Down"), ("RiverRaid", "riverraid", "River Raid")])
def test_spellings_of_a_game_are_the_same_run(written: tuple[str, ...]) -> None:
    assert len({identify(resolve(Config(game=game))) for game in written}) == 1


def test_integers_and_equal_floats_are_the_same_run() -> None:
    whole = Config(replay_ratio=1, gamma=1, beta=1, noisy_sigma=1, v_max=9, agent="rainbow")
    same = Config(replay_ratio=1.0, gamma=1.0, beta=1.0, noisy_sigma=1.0, v_max=9.0, agent="rainbow")
    assert identify(resolve(whole)) == identify(resolve(same))


@pytest.mark.parametrize("suite", ["atari", "minatar"])
def test_help_shows_the_defaults_of_the_suite(suite: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "replay-ratio", "--suite", suite, "--game", "asterix", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for name, metavar in (("frames", "N"), ("learning-starts", "N"), ("sticky-action-prob", "NUMBER")):
        value = getattr(resolve(Config(suite=suite, game="asterix")), name.replace("-", "_"))
        text = f"{value:_}" if isinstance(value, int) else f"{value:g}"
        assert f"(default: {text})" in shown.partition(f"--{name} {metavar}")[2].partition(" --")[0]
