"""Command-line arguments: made from a configuration's dataclass, read from text, refused in one line."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from weightclip.lab.plugins import experiments
from weightclip.numerals import read_count

if TYPE_CHECKING:
    from weightclip.lab.experiment import Experiment
    from weightclip.lab.sweep.live import Live

PROGRAM = "weightclip"
MISTAKE = 2
"""The exit code for what a user can mend."""

SOME_FAILED = 1
"""The exit code of a sweep some of whose runs have failed."""

STOPPED = 130
"""The exit code after Ctrl-C, as shells have it."""

MOST_SEEDS = 100_000

_T = TypeVar("_T")


class Parser(argparse.ArgumentParser):
    """Takes no abbreviations, keeps the line breaks of what it describes, and explains a mistake in one line."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(**{"allow_abbrev": False, **options})

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message.removeprefix('argument ')} (see {self.prog} --help)")


def add_config(parser: argparse.ArgumentParser, config: type[Any], leave_out: Sequence[str] = ()) -> None:
    """An argument for each field of a configuration; fields without a default are positional.

    What is not given is not in the namespace, so that the configuration's own defaults hold.
    """
    kinds = get_type_hints(config)
    for one in fields(config):
        if one.name not in leave_out:
            _add_field(parser, one, kinds[one.name])


def add_places(parser: argparse.ArgumentParser) -> None:
    """Where records go and where data comes from."""
    parser.add_argument(
        "--out", type=Path, default=Path("results"), metavar="DIR", help="for records (default: results)"
    )
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="with the data (default: $WEIGHTCLIP_DATA)")


def add_live(parser: argparse._ActionsContainer) -> None:
    """Where rows are shown as they come."""
    parser.add_argument(
        "--tensorboard", action="store_true", help="write TensorBoard's event files, in OUT/tensorboard"
    )
    parser.add_argument("--wandb", metavar="PROJECT", help="show the runs in a project of Weights & Biases, too")


def live_from(namespace: argparse.Namespace) -> Live:
    """What the user wants to be shown live."""
    from weightclip.lab.sweep.live import Live, check_live

    return check_live(Live(namespace.out / "tensorboard" if namespace.tensorboard else None, namespace.wandb))


def epilog(experiment: Experiment[Any], command: str) -> str:
    """What can be named on the command line, and examples, for a command's help."""
    problems = "\n".join(f"  {name}" for name in experiment.problems())
    others = "\n".join(
        f"  {name}" for one in experiments().values() if one is not experiment for name in one.problems()
    )
    examples = "".join(f"\n  {PROGRAM} {command} {example}" for example in experiment.examples.get(command, ()))
    shown = f"\n\nexamples:{examples}" if examples else ""
    more = f"other problems, each with options of its own ({PROGRAM} {command} PROBLEM --help):\n{others}"
    return f"problems:\n{problems}\n\n{more}\n\nmethods:\n  {experiment.methods_help()}{shown}"


def read_field(config: type[Any], name: str, option: str, text: str) -> Any:
    """The value of a configuration's field from text; a ValueError names the option."""
    reader, _ = _READERS[_without_none(get_type_hints(config)[name])]
    try:
        return reader(text)
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"{option}: {error}") from None


def given(namespace: argparse.Namespace, config: type[Any]) -> dict[str, Any]:
    """The fields of the configuration, besides the problem, that the user gave, by name."""
    names = [one.name for one in fields(config) if one.name != "problem" and hasattr(namespace, one.name)]
    found = {name: getattr(namespace, name) for name in names}
    return {name: dict(value) if name == "settings" else value for name, value in found.items()}


def number(text: str) -> float:
    """`0.001`, `1e-3`, `inf`."""
    return _read(float, text, "a number")


def count(text: str) -> int:
    """`2500`, `2_500`, `50k`, `1M`, `1e6` -> a whole number.

    Examples:
        >>> count("50k"), count("1.5M"), count("2_500")
        (50000, 1500000, 2500)
    """
    return _read(read_count, text, "a whole number such as 2500, 50k or 1M")


def counts(text: str) -> tuple[int, ...]:
    """`300,150` -> (300, 150); `none` -> ()."""
    if text.strip().lower() == "none":
        return ()
    return tuple(count(part) for part in text.split(","))


def seeds(text: str) -> list[int]:
    """`4`, `0-3`, `0,2,5` or a mixture -> the seeds, each once.

    Examples:
        >>> seeds("0-2,7,1")
        [0, 1, 2, 7]
    """
    found = _read(lambda text: [seed for part in text.split(",") for seed in _range(part)], text, "4, 0-3 or 0,2,5")
    return list(dict.fromkeys(found))


def setting(text: str) -> tuple[str, float]:
    """`beta1=0.95` -> ("beta1", 0.95)."""
    name, _, value = text.partition("=")
    if not name or not value:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected NAME=NUMBER")
    return name, number(value)


def pair(text: str) -> tuple[str, str]:
    """`steps=50k` -> ("steps", "50k")."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected NAME=VALUE")
    return name, value


def join_negative_numbers(arguments: Iterable[str]) -> list[str]:
    """`--lr -1e-3` as `--lr=-1e-3`: argparse would take the number for an option, and not say what is wrong."""
    joined: list[str] = []
    for argument in arguments:
        if joined and re.fullmatch(r"--[a-z-]+", joined[-1]) and re.match(r"-[\d.]", argument):
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined


_READERS: Mapping[object, tuple[Callable[[str], Any], str]] = {
    str: (str, "NAME"),
    float: (number, "NUMBER"),
    int: (count, "N"),
    tuple[int, ...]: (counts, "N,N,..."),
}


def _add_field(parser: argparse.ArgumentParser, one: Field[Any], kind: Any) -> None:
    help_text = one.metadata["help"]
    kind = _without_none(kind)
    option = f"--{one.name.replace('_', '-')}"
    if one.default is MISSING and one.default_factory is MISSING:
        parser.add_argument(one.name, metavar=one.name.upper(), help=help_text)
        return
    if default := _default(one):
        help_text += f" (default: {default})"
    help_text = help_text.replace("%", "%%")
    if kind is bool:
        action = argparse.BooleanOptionalAction
        parser.add_argument(option, action=action, default=argparse.SUPPRESS, help=help_text)
    elif get_origin(kind) is not None and issubclass(get_origin(kind), Mapping):
        parser.add_argument(
            "--set",
            dest=one.name,
            action="append",
            type=setting,
            metavar="NAME=NUMBER",
            default=argparse.SUPPRESS,
            help=help_text,
        )
    else:
        reader, usual = _READERS[kind]
        metavar = one.metadata.get("metavar", usual)
        parser.add_argument(option, type=reader, metavar=metavar, default=argparse.SUPPRESS, help=help_text)


def _without_none(kind: Any) -> Any:
    """`float | None` -> float."""
    if get_origin(kind) not in (Union, UnionType):
        return kind
    (kind,) = (part for part in get_args(kind) if part is not NoneType)
    return kind


def _default(one: Field[Any]) -> str:
    """What a field has that is not given, perhaps with each scale or suite; empty where that is not known here."""
    if one.default not in (None, MISSING):
        return _shown(one.default)
    usual = {choice: _shown(value) for choice, value in one.metadata.get("usual", {}).items()}
    if len({*usual.values()}) < 2:
        return next(iter(usual.values()), "")
    return ", ".join(f"{choice} {value}" for choice, value in usual.items())


def _shown(default: Any) -> str:
    if isinstance(default, bool):
        return "yes" if default else "no"
    if isinstance(default, tuple):
        return ",".join(map(str, default))
    return f"{default:,}".replace(",", "_") if isinstance(default, int) else str(default)


def _read(reader: Callable[[str], _T], text: str, expected: str) -> _T:
    try:
        return reader(text)
    except (ValueError, ArithmeticError):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected {expected}") from None


def _range(text: str) -> range:
    first, dash, last = text.partition("-")
    seeds = range(int(first), int(last if dash else first) + 1)
    if not 0 < seeds.stop - seeds.start <= MOST_SEEDS:
        raise ValueError(text)
    return seeds
