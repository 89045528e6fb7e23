import argparse
from dataclasses import dataclass, field
from typing import Annotated

import pytest

from weightclip.cli import main
from weightclip.cli.arguments import (
    Parser,
    add_config,
    count,
    counts,
    given,
    join_negative_numbers,
    nearest_option,
    rename_options,
    seeds,
    setting,
)
from weightclip.lab.config import METHOD, PROBLEM, Help
from weightclip.lab.constraints import OneOf

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
def test_a_value_that_is_not_an_integer_raises_an_error(text: str) -> None:
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
def test_invalid_seeds_raise_an_error(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected a number of seeds such as 4, or 0-3 or 0,2,5"):
        seeds(text)


def test_settings() -> None:
    assert setting("beta1=0.95") == ("beta1", 0.95)
    for text in ("beta1", "=1", "beta1="):
        with pytest.raises(argparse.ArgumentTypeError, match="expected NAME=NUMBER"):
            setting(text)
    with pytest.raises(argparse.ArgumentTypeError, match="got 'x', expected a number"):
        setting("beta1=x")


def test_options_accept_negative_numbers() -> None:
    joined = join_negative_numbers(["run", "--lr", "-1e-3", "--kappa=2", "-5", "--flag", "--seed", "-1"])
    assert joined == ["run", "--lr=-1e-3", "--kappa=2", "-5", "--flag", "--seed=-1"]


@dataclass(frozen=True)
class Settings:
    where: Annotated[str, OneOf("here", "there"), Help("a place")] = "there"
    steps: Annotated[int, Help("how many")] = 1_000_000
    lr: Annotated[float | None, Help("50% of it")] = None
    widths: Annotated[tuple[int, ...], Help("wide")] = (3, 4)
    loud: Annotated[bool, Help("shout")] = True
    file: str | None = field(default=None, metadata={"help": "one", "metavar": "FILE"})  # plain metadata
    settings: Annotated[dict[str, float], Help("more")] = field(default_factory=dict)


def parser(
    defaults: dict[str, object] | None = None, several: bool = False, exclude: tuple[str, ...] = ("file",)
) -> argparse.ArgumentParser:
    made = Parser(prog="prog")
    add_config(made, Settings, exclude=exclude, defaults=defaults, several=several)
    return made


def test_arguments_are_made_from_a_configuration() -> None:
    read = parser().parse_args(
        [
            "--where",
            "here",
            "--steps",
            "2k",
            "--lr",
            "0.1",
            "--widths",
            "5,6",
            "--no-loud",
            "--set",
            "a=1",
            "--set",
            "b=2",
        ]
    )
    assert Settings(**given(read, Settings)) == Settings("here", 2000, 0.1, (5, 6), False, None, {"a": 1.0, "b": 2.0})


def test_omitted_options_keep_the_defaults_of_the_configuration() -> None:
    assert given(parser().parse_args(["--where", "here"]), Settings) == {"where": "here"}


def test_metavars_are_taken_from_the_field(capsys: pytest.CaptureFixture[str]) -> None:
    parser(exclude=()).print_help()
    shown = capsys.readouterr().out
    for line in ("--where {here,there}", "--steps N", "--widths N,N,...", "--file FILE", "--set NAME=NUMBER"):
        assert line in shown


def test_every_argument_has_help_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
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
        lr: Annotated[float, Help("step size", METHOD)] = 0.1
        steps: Annotated[int, Help("how many", PROBLEM)] = 1
        gamma: Annotated[float, Help("discount")] = 1.0

    made = Parser(prog="prog")
    add_config(made, Grouped)
    made.print_help()
    words = capsys.readouterr().out.split()
    order = [words.index(word) for word in ("method:", "--lr", "problem:", "--steps", "algorithm:", "--gamma")]
    assert order == sorted(order)


def test_an_option_with_several_values() -> None:
    read = parser(several=True).parse_args(["--lr", "0.1, 0.2,0.1", "--steps", "1k,2k", "--widths", "5,6"])
    assert (read.lr, read.steps, read.widths) == ((0.1, 0.2), (1000, 2000), (5, 6))
    with pytest.raises(ValueError, match="--lr: got 'x', expected a number"):
        parser(several=True).parse_args(["--lr", "0.1,x"])


@pytest.mark.parametrize(
    ("option", "known", "suggestion"),
    [
        ("--kapa", ["--kappa", "--lr"], "--kappa"),
        ("--learning-rate", ["--kappa", "--lr"], "--lr"),
        ("--steps", ["--frames", "--exploration-steps"], "--frames"),
        ("--total-timesteps", ["--epochs", "--images"], "--epochs"),
        ("--xyz", ["--kappa", "--lr"], None),
    ],
)
def test_a_misspelled_option_gets_a_suggestion(option: str, known: list[str], suggestion: str | None) -> None:
    assert nearest_option(option, known) == suggestion


def test_an_error_prints_one_line_that_refers_to_the_help() -> None:
    with pytest.raises(ValueError, match=r"^--steps: got 'x', expected .* \(see prog --help\)$"):
        parser().parse_args(["--steps", "x"])
    with pytest.raises(ValueError, match=r"^--step: unknown option; did you mean --steps\? \(see prog --help\)$"):
        parser().parse_args(["--step=3"])  # no abbreviations
    with pytest.raises(ValueError, match=r"^unexpected argument 'here' \(see prog --help\)$"):
        parser().parse_args(["here", "there"])


@pytest.mark.parametrize("text", ["1e400", "1e999999999", "-1e30", "nan"])
def test_a_count_that_is_too_large_raises_an_error(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected a whole number"):
        count(text)


def test_too_many_seeds_raise_an_error() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="or 0-3 or 0,2,5"):
        seeds("0-99999999999")


def test_a_network_without_hidden_layers() -> None:
    assert counts("none") == ()


def test_old_option_names_are_accepted_with_one_note_each(capsys: pytest.CaptureFixture[str]) -> None:
    old = "--rollout 64 --minibatches=4 --no-clip-values --rollout 32 --set largest=5 --lr 1"
    new = "--num-steps 64 --num-minibatches=4 --no-clip-vloss --num-steps 32 --set max_update=5 --lr 1"
    assert rename_options("policy-collapse", old.split()) == new.split()
    assert capsys.readouterr().err.splitlines() == [
        "--rollout is now --num-steps",
        "--minibatches is now --num-minibatches",
        "--no-clip-values is now --no-clip-vloss",
        "--set largest is now --set max_update",
    ]
    assert rename_options("warm-start", ["--epochs", "3"]) == ["--epochs", "3"]
    assert capsys.readouterr().err == ""


def test_a_run_accepts_old_options(capsys: pytest.CaptureFixture[str]) -> None:
    short = "--env Pendulum-v1 --steps 32 --rollout 16 --minibatches 2 --epochs 1 --hidden 4 --no-clip-values"
    assert main(["run", "policy-collapse", *short.split()]) == 0
    assert "--rollout is now --num-steps\n" in capsys.readouterr().err
