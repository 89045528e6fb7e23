"""The columns of the table of a run of DQN or Rainbow, and its comparison with the paper."""

from __future__ import annotations

from weightclip.lab.experiment import Comparison, config_schema, deviations
from weightclip.lab.experiments.dqn.config import NAME, PAPER_METHODS, PAPER_RATIOS, Config, presets, resolve
from weightclip.lab.experiments.dqn.environments import PAPER_GAMES
from weightclip.lab.records.schema import FRACTION, Metric, by_name

METRICS = by_name(
    Metric(
        "test_return",
        "Return, evaluated",
        "mean over whole games with few random actions, at the end of the part",
        "",
        "higher",
    ),
    Metric(
        "return",
        "Return, in training",
        "mean over the games that ended in the part, or the last ones before",
        "",
        "higher",
    ),
    Metric("length", "Length of games", "mean over the same games, in steps"),
    Metric("ended", "Games", "training games that ended in the part"),
    Metric("updates", "Updates", "number since the start of the run"),
    Metric("training_loss", "Loss", "mean over the updates of the last part that had any", "", "lower"),
    Metric("q", "Value of the best action", "mean over the states of the part's updates"),
    Metric("weight_l2", "Weight l2 norm", "all weight tensors, without biases, at the end of the part"),
    Metric("gradient_l2", "Gradient l2 norm", "same tensors, in the last update of the part"),
    Metric("clipped", "Entries at the bound", "fraction of entries of clipped tensors at a bound", FRACTION),
    Metric(
        "dormant",
        "Dormant units",
        "units with a mean output of at most 0.025 times the layer's mean",
        FRACTION,
        "lower",
    ),
    Metric("exploration", "Random actions", "probability at the end of the part", FRACTION),
    Metric("frames_per_second", "Frames per second", "over the part, without the evaluation"),
    Metric("updates_per_second", "Updates per second", "over the part, without the evaluation"),
)
"""The columns of a part, in addition to `seed`, `part` and `samples`, the frames so far."""

COVARIANCE = "covariance"
"""Name of the additional table of gradient covariances: percent of the run, row, column, value."""

SCHEMA = config_schema(
    Config,
    methods=PAPER_METHODS,
    axes=("method", "agent", "game", "replay_ratio"),
    x_column="part",
    score="test_return",
    unit="frames",
    metrics=METRICS,
    panels=("test_return", "training_loss", "q", "weight_l2"),
    plot_column="samples",
    plot_label="Frames",
)


NOT_LEARNED = ("points", "eval_episodes", "covariance", "covariance_at")
"""Fields that do not affect the result."""


def compare_with_paper(config: Config) -> Comparison:
    """The paper's setting and the deviations from it."""
    game = config.game if config.game in PAPER_GAMES else next(iter(PAPER_GAMES))
    ratio = config.replay_ratio if config.replay_ratio in PAPER_RATIOS else PAPER_RATIOS[0]
    method = config.method if config.method in PAPER_METHODS else PAPER_METHODS[0]
    paper = resolve(Config(agent=config.agent, game=game, replay_ratio=ratio, method=method))
    differing = deviations(config, paper, SCHEMA, NOT_LEARNED)
    if config.method not in PAPER_METHODS or config.suite != "atari" or config.game not in PAPER_GAMES:
        return None, differing
    return presets("atari", config.agent)["best"][NAME][config.method], differing
