import argparse
from dataclasses import dataclass, field

import pytest

from weightclip.cli.arguments import (
    Parser,
    add_config,
    count,
    counts,
    given,
    join_negative_numbers,
    nearest_option,
    seeds,
    setting,
)
from weightclip.lab.config import METHOD, PROBLEM, option

pytestmark = pytest.mark.usefixtures("empty_directory")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("2500", 2500),
        ("2_500", 2500),
        ("50k", 50_000),
        ("1M", 1_000_000),
        ("1.5m", 1_500_000),
        ("1e6", 10**6),
        ("-3", -3),
    ],
)
def test_counts_can_be_written_short(text: str, number: int) -> None:
    assert count(text) == number


@pytest.mark.parametrize("text", ["", "k", "1.5", "1x", "ten", "1kk", "nan", "inf", "1 000"])
def test_what_is_no_whole_number_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected a whole number such as 2500, 50k or 1M"):
        count(text)


def test_lists_of_counts() -> None:
    assert counts("300,150") == (300, 150)
    with pytest.raises(argparse.ArgumentTypeError):
        counts("300,")


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("4", [0, 1, 2, 3]),
        ("0-3", [0, 1, 2, 3]),
        ("0,2,5", [0, 2, 5]),
        ("0-1,7", [0, 1, 7]),
        ("0,0", [0]),
        ("2,0-3", [2, 0, 1, 3]),
    ],
)
def test_seeds(text: str, numbers: list[int]) -> None:
    assert seeds(text) == numbers


@pytest.mark.parametrize("text", ["", "0", "3-0", "a", "0-", "-1", "1.5", "0,,2", "99999999"])
def test_seeds_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected a number of seeds such as 4, or 0-3 or 0,2,5"):
        seeds(text)


def test_settings() -> None:
    assert setting("beta1=0.95") == ("beta1", 0.95)
    for text in ("beta1", "=1", "beta1="):
        with pytest.raises(argparse.ArgumentTypeError, match="expected NAME=NUMBER"):
            setting(text)
    with pytest.raises(argparse.ArgumentTypeError, match="got 'x', expected a number"):
        setting("beta1=x")


def test_negative_numbers_reach_their_option() -> None:
    joined = join_negative_numbers(["run", "--lr", "-1e-3", "--kappa=2", "-5", "--flag", "--seed", "-1"])
    assert joined == ["run", "--lr=-1e-3", "--kappa=2", "-5", "--flag", "--seed=-1"]


@dataclass(frozen=True)
class Settings:
    where: str = field(metadata={"help": "a place"})
    steps: int = field(default=1_000_000, metadata={"help": "how many"})
    lr: float | None = field(default=None, metadata={"help": "50% of it"})
    widths: tuple[int, ...] = field(default=(3, 4), metadata={"help": "wide"})
    loud: bool = field(default=True, metadata={"help": "shout"})
    file: str | None = field(default=None, metadata={"help": "one", "metavar": "FILE"})
    settings: dict[str, float] = field(default_factory=dict, metadata={"help": "more"})


def parser(defaults: dict[str, object] | None = None, several: bool = False) -> argparse.ArgumentParser:
    made = Parser(prog="prog")
    add_config(made, Settings, leave_out=("file",), defaults=defaults, several=several)
    return made


def test_arguments_are_made_from_a_configuration() -> None:
    read = parser().parse_args(
        ["here", "--steps", "2k", "--lr", "0.1", "--widths", "5,6", "--no-loud", "--set", "a=1", "--set", "b=2"]
    )
    assert Settings(**given(read, Settings)) == Settings("here", 2000, 0.1, (5, 6), False, None, {"a": 1.0, "b": 2.0})


def test_what_is_not_given_keeps_the_configurations_default() -> None:
    assert given(parser().parse_args(["here"]), Settings) == {"where": "here"}


def test_every_argument_has_its_line_of_help_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    parser({"steps": 1_000_000, "lr": 1e-4, "widths": (3, 4), "loud": True, "settings": {"a": 0.5}}).print_help()
    shown = " ".join(capsys.readouterr().out.split())
    for line in (
        "a place",
        "how many (default: 1_000_000)",
        "50% of it (default: 0.0001)",
        "wide (default: 3,4)",
        "shout (default: yes)",
        "more (default: a=0.5)",
    ):
        assert line in shown


def test_options_are_listed_in_the_groups_of_their_fields(capsys: pytest.CaptureFixture[str]) -> None:
    @dataclass(frozen=True)
    class Grouped:
        lr: float = field(default=0.1, metadata=option("step size", METHOD))
        steps: int = field(default=1, metadata=option("how many", PROBLEM))
        gamma: float = field(default=1.0, metadata=option("discount"))

    made = Parser(prog="prog")
    add_config(made, Grouped)
    made.print_help()
    words = capsys.readouterr().out.split()
    order = [words.index(word) for word in ("method:", "--lr", "problem:", "--steps", "algorithm:", "--gamma")]
    assert order == sorted(order)


def test_several_values_of_an_option() -> None:
    read = parser(several=True).parse_args(["here", "--lr", "0.1, 0.2,0.1", "--steps", "1k,2k", "--widths", "5,6"])
    assert (read.lr, read.steps, read.widths) == ((0.1, 0.2), (1000, 2000), (5, 6))
    with pytest.raises(ValueError, match="--lr: got 'x', expected a number"):
        parser(several=True).parse_args(["here", "--lr", "0.1,x"])


@pytest.mark.parametrize(
    ("option", "known", "meant"),
    [
        ("--kapa", ["--kappa", "--lr"], "--kappa"),
        ("--learning-rate", ["--kappa", "--lr"], "--lr"),
        ("--steps", ["--frames", "--exploration-steps"], "--frames"),
        ("--total-timesteps", ["--epochs", "--images"], "--epochs"),
        ("--xyz", ["--kappa", "--lr"], None),
    ],
)
def test_the_option_that_was_meant(option: str, known: list[str], meant: str | None) -> None:
    assert nearest_option(option, known) == meant


def test_a_mistake_is_one_line_that_says_where_help_is() -> None:
    with pytest.raises(ValueError, match=r"^--steps: got 'x', expected .* \(see prog --help\)$"):
        parser().parse_args(["here", "--steps", "x"])
    with pytest.raises(ValueError, match=r"^--step: unknown option; did you mean --steps\? \(see prog --help\)$"):
        parser().parse_args(["here", "--step=3"])  # no abbreviations
    with pytest.raises(ValueError, match=r"^unexpected argument 'there' \(see prog --help\)$"):
        parser().parse_args(["here", "there"])


@pytest.mark.parametrize("text", ["1e400", "1e999999999", "-1e30", "nan"])
def test_a_count_too_large_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected a whole number"):
        count(text)


def test_too_many_seeds_are_refused() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="or 0-3 or 0,2,5"):
        seeds("0-99999999999")


def test_no_hidden_layers() -> None:
    assert counts("none") == ()
