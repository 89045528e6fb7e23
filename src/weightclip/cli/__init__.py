"""The command line: `weightclip COMMAND ...`. Each command has its own module."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from argparse import SUPPRESS, ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module

from weightclip.cli.arguments import MISTAKE, PROGRAM, STOPPED, Choose, Parser, join_negative_numbers

TRACEBACK = "WEIGHTCLIP_TRACEBACK"
"""Environment variable that turns one-line errors into tracebacks."""

_ADVICE = {
    errno.ENOSPC: "free some space, then run the same command again",
    errno.EDQUOT: "free some space, then run the same command again",
    errno.EACCES: "choose a directory that you can write to",
    errno.EPERM: "choose a directory that you can write to",
    errno.EROFS: "choose a directory that you can write to",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "choose a directory, not a file",
    errno.EEXIST: "choose a directory, not a file",
}

_EXTRAS = {"gymnasium": "atari,mujoco", "imageio": "mujoco", "ale_py": "atari", "minatar": "atari"}
"""Missing module -> the extra that installs it, if it is not `lab`."""

_DESCRIPTION = """\
Weight clipping for deep continual and reinforcement learning: the paper's experiments.

examples:
  weightclip run input-permuted-mnist --method adam+wc
  weightclip sweep input-permuted-mnist --methods all --best --seeds 20
  weightclip figure streaming results/
  weightclip reproduce --list
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. A user error prints one line to stderr and returns 2."""
    try:
        arguments_given = join_negative_numbers(sys.argv[1:] if argv is None else argv)
        parser = _parser()
        if not arguments_given:
            parser.print_help()
            return 0
        if arguments_given[0].startswith("-") and arguments_given[0] not in parser._option_string_actions:
            parser.error(parser.about(arguments_given[0]))
        arguments = parser.parse_args(arguments_given)
        with _terminable():
            code: int = arguments.action(arguments)
            sys.stdout.flush()
        return code
    except SystemExit as error:  # argparse, after --help or --version
        return int(error.code or 0)
    except KeyboardInterrupt:
        return _say("stopped", STOPPED)
    except BrokenPipeError:  # the reader of the output has exited
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except ImportError as error:
        if TRACEBACK in os.environ or (error.name or PROGRAM).partition(".")[0] == PROGRAM:
            raise
        extra = _EXTRAS.get(error.name or "", "lab")
        return _say(f'error: this command requires {error.name}: pip install "{PROGRAM}[{extra}]"', MISTAKE)
    except (ValueError, OSError) as error:
        if TRACEBACK in os.environ:
            raise
        return _say(f"error: {_in_one_line(error)}", MISTAKE)


@contextmanager
def _terminable() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, so that workers exit. The last checkpoint is kept; no other one is written."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


_COMMANDS = {
    "run": "run a method on a problem",
    "sweep": "run many settings of many methods on a problem",
    "status": "show the progress of sweeps",
    "best": "show the best setting of each method and compare it with the paper's",
    "figure": "draw a figure of the paper from results",
    "report": "write an HTML report of results",
    "reproduce": "reproduce a figure or table of the paper from scratch",
    "watch": "record a video of a trained policy",
    "data": "list data sets, download one, extract features",
}


def _parser() -> Parser:
    from weightclip import __version__

    commands = "\n".join(f"  {name:11}{summary}" for name, summary in _COMMANDS.items())
    parser = Parser(
        prog=PROGRAM,
        usage=f"{PROGRAM} COMMAND ...",
        description=_DESCRIPTION,
        epilog=f"commands ({PROGRAM} COMMAND --help lists its options):\n{commands}",
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    parser.add_argument(
        "command", metavar="COMMAND", action=Choose, names=lambda: _COMMANDS, build=_command_parser, help=SUPPRESS
    )
    return parser


def _command_parser(name: str) -> ArgumentParser:
    parser: ArgumentParser = import_module(f"{__name__}.{name}").make_parser()
    return parser


def _in_one_line(error: ValueError | OSError) -> str:
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        advice = f"; {_ADVICE[error.errno]}" if error.errno in _ADVICE else ""
        return f"{where}{error.strerror}{advice}"
    return " ".join(str(error).split())


def _say(message: str, code: int) -> int:
    print(f"{PROGRAM}: {message}", file=sys.stderr)
    return code
