"""Command-line options generated from the fields of a configuration, and parsers for their values."""

from __future__ import annotations

import argparse
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from weightclip._renamed import FIELDS, OPTIONS, SETTINGS
from weightclip._text import read_count
from weightclip._validation import check_name
from weightclip.lab.config import GROUPS, KAPPA, OUTPUT, PROBLEM, FieldType, field_types, nearest_name, split_kappa
from weightclip.lab.registry import problems

if TYPE_CHECKING:
    from weightclip.lab.experiment import Experiment
    from weightclip.lab.sweep.loggers import Loggers

PROGRAM = "weightclip"
MISTAKE = 2
"""Exit code of a user error."""

SOME_FAILED = 1
"""Exit code of a sweep with failed runs."""

STOPPED = 130
"""Exit code after Ctrl-C, as in a shell."""

MOST_SEEDS = 100_000
"""Maximum number of seeds per command."""

_T = TypeVar("_T")

Build = Callable[[argparse.ArgumentParser, "Experiment[Any]", "Mapping[str, Any] | None"], None]


class Parser(argparse.ArgumentParser):
    """A parser that accepts no abbreviations, keeps line breaks in descriptions and reports errors in one line."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(**{"allow_abbrev": False, **options})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments. Unknown arguments are reported as an error of this command, not of the whole program."""
        namespace, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(self.about(unknown[0]))
        return namespace, []

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message.removeprefix('argument ')} (see {self.prog} --help)")

    def about(self, unknown: str) -> str:
        """The error message for an unknown argument."""
        if not unknown.startswith("-"):
            return f"unexpected argument {unknown!r}"
        name = unknown.partition("=")[0]
        near = nearest_option(name, [one for action in self._actions for one in action.option_strings])
        return f"{name}: unknown option" + (f"; did you mean {near}?" if near else "")


def nearest_option(name: str, known: Sequence[str]) -> str | None:
    """The option that is a synonym of an unknown one or has a similar spelling, or None."""
    near = nearest_name(name.lstrip("-"), [one[2:] for one in known if one.startswith("--")])
    return None if near is None else f"--{near}"


class Choose(argparse.Action):
    """A positional argument that selects the parser of the remaining arguments. The parser is built on demand.

    Args:
        names: returns the accepted names.
        build: returns the parser of a name.
    """

    def __init__(
        self, *, names: Callable[[], Iterable[str]], build: Callable[[str], argparse.ArgumentParser], **options: Any
    ) -> None:
        super().__init__(nargs=argparse.PARSER, **options)
        self._names, self._build = names, build

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        name, *rest = values
        try:
            check_name(str(self.metavar), name, self._names())
        except ValueError as error:
            parser.error(str(error))
        setattr(namespace, self.dest, name)
        chosen = self._build(name)
        namespace.action = chosen.get_default("action")
        chosen.parse_args(rest, namespace)


def problem_command(
    command: str, description: str, add_options: Callable[[argparse.ArgumentParser], None], build: Build
) -> Parser:
    """The parser of `run` or `sweep`, whose PROBLEM determines the options after it.

    Args:
        command: name of the command.
        description: description in its help.
        add_options: adds the options of all problems, which may precede PROBLEM.
        build: adds all options of an experiment to a parser; the defaults, if any, are for the help.
    """
    usage = f"{PROGRAM} {command} PROBLEM [options]"

    def problem_parser(problem: str, defaults: Mapping[str, Any] | None = None) -> _ProblemParser:
        experiment = problems()[problem]
        found = _ProblemParser(
            lambda settings: problem_parser(problem, resolved_defaults(experiment, problem, settings)),
            experiment,
            prog=f"{PROGRAM} {command} {problem}",
            usage=f"{PROGRAM} {command} {problem} [options]",
            description=description,
            epilog=epilog(experiment, command),
        )
        build(found, experiment, defaults)
        return found

    found = problems()
    width = max(map(len, found), default=0)
    listed = "\n".join(f"  {name:{width}}  {about(found[name], name)}".rstrip() for name in found)
    parser = _CommandParser(
        prog=f"{PROGRAM} {command}",
        usage=usage,
        description=description,
        epilog=f"problems, each with its own options ({PROGRAM} {command} PROBLEM --help):\n{listed}",
    )
    parser.add_argument(
        "problem", metavar="PROBLEM", action=Choose, names=problems, build=problem_parser, help=argparse.SUPPRESS
    )
    add_options(parser)
    return parser


def about(experiment: Experiment[Any], problem: str) -> str:
    """One line about a problem."""
    line = (type(experiment).__doc__ or "").partition("\n")[0].removesuffix(".")
    return str(experiment.presets().get("problems", {}).get(problem, line))


class _CommandParser(Parser):
    """A parser that reports a PROBLEM that is missing or follows an option."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        known = {one: action for action in self._actions for one in action.option_strings}
        values: dict[str, str] = {}
        words = iter(args)
        for word in words:
            name, equals, _ = word.partition("=")
            if not word.startswith("-") or word in ("-h", "--help"):
                return super().parse_known_args(args, namespace)
            if name not in known:
                raise ValueError(f"PROBLEM: got {word!r}, expected it before the options (see {self.prog} --help)")
            if not equals and known[name].nargs != 0:
                values[name] = next(words, "")
        swallowed = {name: value for name, value in values.items() if value in problems()}
        taken = "".join(f"; {value!r} was parsed as the value of {name}" for name, value in swallowed.items())
        raise ValueError(f"PROBLEM: got none, expected it before the options{taken} (see {self.prog} --help)")


class _ProblemParser(Parser):
    """A parser whose help shows the defaults given the options before `--help`. It accepts old names of options."""

    def __init__(
        self, rebuild: Callable[[Mapping[str, Any]], Parser], experiment: Experiment[Any], **options: Any
    ) -> None:
        super().__init__(**options, add_help=False)
        self._rebuild, self._experiment = rebuild, experiment
        self.add_argument("-h", "--help", action=_Help, help="show this help, with the defaults for the options given")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        return super().parse_known_args(rename_options(self._experiment.name, args), namespace)

    def print_help_with(self, namespace: argparse.Namespace) -> None:
        self._rebuild(given(namespace, self._experiment.config)).print_help()


class _Help(argparse.Action):
    def __init__(self, **options: Any) -> None:
        super().__init__(nargs=0, **{"default": argparse.SUPPRESS, **options})

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        parser.print_help_with(namespace)
        parser.exit()


def rename_options(owner: str, arguments: Iterable[str]) -> list[str]:
    """Replace old names of the options of an experiment or of a command by the current ones.

    Each old name is reported once on stderr.
    """
    names = {**FIELDS, **OPTIONS}.get(owner, {})
    renamed = {old.replace("_", "-"): new.replace("_", "-") for old, new in names.items()}
    found: list[str] = []
    notes: dict[str, None] = {}
    previous = ""
    for argument in arguments:
        option, equals, value = argument.partition("=")
        no, name = ("--no-", option[5:]) if option.startswith("--no-") else ("--", option[2:])
        if option.startswith("--") and name in renamed:
            notes[f"{no}{name} is now {no}{renamed[name]}"] = None
            argument = f"{no}{renamed[name]}{equals}{value}"
        elif previous == "--set" and equals and option in SETTINGS:
            notes[f"--set {option} is now --set {SETTINGS[option]}"] = None
            argument = f"{SETTINGS[option]}={value}"
        found.append(argument)
        previous = argument
    for note in notes:
        print(note, file=sys.stderr)
    return found


def resolved_defaults(experiment: Experiment[Any], problem: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The resolved fields of the configuration with these settings, or with the defaults if these are invalid."""
    for tried in (settings, {}):
        try:
            config = experiment.configure(problem, tried)
            return {name: getattr(config, name) for name in field_types(type(config))}
        except (ValueError, TypeError):
            continue
    return {}


def add_config(
    parser: argparse.ArgumentParser,
    config: type[Any],
    exclude: Sequence[str] = (),
    defaults: Mapping[str, Any] | None = None,
    several: bool = False,
) -> None:
    """Add an option for each field of a configuration, in the group of the field.

    Omitted options are absent from the namespace, so that the defaults of the configuration apply.

    Args:
        parser: parser to add the options to.
        config: configuration class.
        exclude: fields without an option.
        defaults: field -> default in the help; None shows no defaults.
        several: whether options accept lists of numbers and names: `1,2,4`.
    """
    for group in GROUPS:
        titled = parser.add_argument_group(group)
        for one in field_types(config).values():
            if one.name not in exclude and one.help.group == group:
                _add_field(titled, one, defaults, several)


def add_seeds(parser: argparse.ArgumentParser, default: str) -> None:
    """Add `--seed 4` and `--seeds 4`."""
    (group,) = (one for one in parser._action_groups if one.title == PROBLEM)
    which = group.add_mutually_exclusive_group()
    which.add_argument("--seed", type=lambda text: [seed(text)], dest="seeds", metavar="N", help="run this seed")
    which.add_argument(
        "--seeds", type=seeds, metavar="SEEDS", help=f"number of seeds (4), or 0-3 or 0,2,5 (default: {default})"
    )


def add_output(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add the options of records, data and loggers to the group of the configuration's output options."""
    groups = {one.title: one for one in parser._action_groups}
    group = groups.get(OUTPUT) or parser.add_argument_group(OUTPUT)
    group.add_argument(
        "--out", type=Path, default=Path("results"), metavar="DIR", help="directory for records (default: results)"
    )
    group.add_argument("--data-dir", type=Path, metavar="DIR", help="directory with data (default: $WEIGHTCLIP_DATA)")
    group.add_argument("--tensorboard", action="store_true", help="write TensorBoard event files to OUT/tensorboard")
    group.add_argument("--wandb", metavar="PROJECT", help="log to this project of Weights & Biases")
    return group


@contextmanager
def pointing_to_help(command: str, problem: str) -> Iterator[None]:
    """Append a reference to the problem's help page to a ValueError."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{error} (see {PROGRAM} {command} {problem} --help)") from error


def import_torch() -> None:
    """Import PyTorch. Ctrl-C kills the process meanwhile, because an interrupted import can fail in any way."""
    if threading.current_thread() is not threading.main_thread():
        import_module("torch")
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        import_module("torch")
    finally:
        signal.signal(signal.SIGINT, handler)


def loggers_from(namespace: argparse.Namespace) -> Loggers:
    """The live loggers that the options select."""
    from weightclip.lab.sweep.loggers import Loggers, check_loggers

    return check_loggers(Loggers(namespace.out / "tensorboard" if namespace.tensorboard else None, namespace.wandb))


def epilog(experiment: Experiment[Any], command: str) -> str:
    """The methods and examples of an experiment in the help of a command."""
    presets = experiment.presets()
    examples = "".join(f"\n  {PROGRAM} {command} {example}" for example in presets.get("examples", {}).get(command, ()))
    about = presets.get("help") or f"methods:\n  {', '.join(experiment.schema.methods)}"
    return about + (f"\n\nexamples:{examples}" if examples else "")


def field_kind(config: type[Any], name: str) -> Any:
    """The type of a configuration's field, without None."""
    return field_types(config)[name].kind


def read_field(config: type[Any], name: str, option: str, text: str) -> Any:
    """Parse the value of a configuration's field. A ValueError names the option."""
    reader, _ = _READERS[field_kind(config, name)]
    try:
        return reader(text)
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"{option}: {error}") from None


def given(namespace: argparse.Namespace, config: type[Any]) -> dict[str, Any]:
    """The fields of the configuration that were given on the command line, without the problem: name -> value."""
    names = [name for name in field_types(config) if name != "problem" and hasattr(namespace, name)]
    found = {name: getattr(namespace, name) for name in names}
    return {name: dict(value) if name == "settings" else value for name, value in found.items()}


def number(text: str) -> float:
    """Parse a number: `0.001`, `1e-3`, `inf`."""
    return _read(float, text, "a number")


def count(text: str) -> int:
    """Parse an integer: `2500`, `2_500`, `50k`, `1M`, `1e6`.

    Examples:
        >>> count("50k"), count("1.5M"), count("2_500")
        (50000, 1500000, 2500)
    """
    return _read(read_count, text, "a whole number such as 2500, 50k or 1M")


def counts(text: str) -> tuple[int, ...]:
    """Parse integers: `300,150` -> (300, 150); `none` -> ()."""
    if text.strip().lower() == "none":
        return ()
    return tuple(count(part) for part in text.split(","))


def seeds(text: str) -> list[int]:
    """Parse seeds: `4` gives the first four seeds; `0-3`, `0,2,5` or a combination gives these seeds, each once.

    Examples:
        >>> seeds("4"), seeds("0-2,7,1")
        ([0, 1, 2, 3], [0, 1, 2, 7])
    """
    expected = "a number of seeds such as 4, or 0-3 or 0,2,5"
    if text.strip().isdigit():
        if not 0 < int(text) <= MOST_SEEDS:
            raise argparse.ArgumentTypeError(f"got {text!r}, expected {expected} (--seed 0 runs seed 0)")
        return list(range(int(text)))
    found = _read(lambda text: [seed for part in text.split(",") for seed in _range(part)], text, expected)
    return list(dict.fromkeys(found))


def seed(text: str) -> int:
    """Parse one seed: `4`."""
    number = _read(int, text, "a seed such as 4")
    if number < 0:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a seed of at least 0")
    return number


def kappa(text: str) -> float | str:
    """Parse a clipping range, `2`, or a rule for the ranges of layers: `graded`, `hidden=5,output=1`."""
    try:
        number, rule = split_kappa(text, None)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("kappa: ")) from None
    return rule or float(number)


def kappas(text: str) -> tuple[float | str, ...]:
    """Parse clipping ranges, `1,2,4`, or ranges and rules separated by semicolons: `2;graded;hidden=5,output=1`.

    Examples:
        >>> kappas("1,2"), kappas("2;hidden=5,output=1")
        ((1.0, 2.0), (2.0, 'hidden=5,output=1'))
    """
    several = text.split(";") if ";" in text or "=" in text or "(" in text else text.split(",")
    return tuple(dict.fromkeys(kappa(part) for part in several))


def setting(text: str) -> tuple[str, float]:
    """Parse a setting: `beta1=0.95` -> ("beta1", 0.95)."""
    name, _, value = text.partition("=")
    if not name or not value:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected NAME=NUMBER")
    return name, number(value)


def pair(text: str) -> tuple[str, str]:
    """Parse a pair: `steps=50k` -> ("steps", "50k")."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected NAME=VALUE")
    return name, value


def join_negative_numbers(arguments: Iterable[str]) -> list[str]:
    """`--lr -1e-3` -> `--lr=-1e-3`, because argparse mistakes a negative number for an option."""
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


def _add_field(
    parser: argparse._ActionsContainer, one: FieldType, defaults: Mapping[str, Any] | None, several: bool
) -> None:
    help_text = one.help.text
    option = f"--{one.name.replace('_', '-')}"
    if defaults is not None and (default := _default_text(defaults.get(one.name))):
        help_text += f" (default: {default})"
    options: dict[str, Any] = {"default": argparse.SUPPRESS, "help": help_text.replace("%", "%%")}
    if one.kind is bool:
        parser.add_argument(option, action=argparse.BooleanOptionalAction, **options)
    elif one.is_mapping:
        parser.add_argument("--set", dest=one.name, action="append", type=setting, metavar="NAME=NUMBER", **options)
    elif one.help.metavar == KAPPA:
        if several:
            options["help"] += "; lists are 1,2,4 or, with rules, 2;graded"
            parser.add_argument(option, type=kappas, metavar=f"{KAPPA},...", **options)
        else:
            parser.add_argument(option, type=kappa, metavar=KAPPA, **options)
    else:
        reader, default_metavar = _READERS[one.kind]
        # The configuration checks the choices and suggests the nearest one.
        choices = f"{{{','.join(map(str, one.choices))}}}" if one.choices else ""
        metavar = one.help.metavar or choices or default_metavar
        if several and one.kind in (str, int, float) and metavar != "FILE":
            reader, metavar = _list_of(reader), f"{metavar},..."
        parser.add_argument(option, type=reader, metavar=metavar, **options)


def _list_of(reader: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    """A parser of lists without duplicates: `1,2,4`."""
    return lambda text: tuple(dict.fromkeys(reader(part.strip()) for part in text.split(",")))


def _default_text(default: Any) -> str:
    """A default value in command-line syntax; empty for None and empty mappings."""
    if default is None or default == {}:
        return ""
    if isinstance(default, bool):
        return "yes" if default else "no"
    if isinstance(default, Mapping):
        return ", ".join(f"{name}={value:g}" for name, value in default.items())
    if isinstance(default, tuple):
        return ",".join(map(str, default)) or "none"
    if isinstance(default, float):
        return f"{default:g}"
    return f"{default:_}" if isinstance(default, int) else str(default)


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
