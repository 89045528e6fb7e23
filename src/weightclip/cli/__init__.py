"""The command line: `weightclip COMMAND ...`, a small file for each command."""

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
"""Set in the environment, it shows where an error came from."""

_ADVICE = {
    errno.ENOSPC: "free some space, then give the same command again",
    errno.EDQUOT: "free some space, then give the same command again",
    errno.EACCES: "choose a directory that you can write to",
    errno.EPERM: "choose a directory that you can write to",
    errno.EROFS: "choose a directory that you can write to",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "choose a directory, not a file",
    errno.EEXIST: "choose a directory, not a file",
}

_EXTRAS = {"gymnasium": "atari,mujoco", "imageio": "mujoco", "ale_py": "atari", "minatar": "atari"}
"""A module that is missing -> what installs it, where that is not `lab`."""

_DESCRIPTION = """\
Weight clipping for deep continual and reinforcement learning: the paper's experiments.

examples:
  weightclip run input-permuted-mnist --method adam+wc
  weightclip sweep input-permuted-mnist --methods all --best --seeds 20
  weightclip figure streaming results/
  weightclip reproduce --list
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; its exit code. A user's mistake gives one line on stderr and exit code 2."""
    try:
        words = join_negative_numbers(sys.argv[1:] if argv is None else argv)
        parser = _parser()
        if not words:
            parser.print_help()
            return 0
        if words[0].startswith("-") and words[0] not in parser._option_string_actions:
            parser.error(parser.about(words[0]))
        arguments = parser.parse_args(words)
        with _terminable():
            code: int = arguments.action(arguments)
            sys.stdout.flush()
        return code
    except SystemExit as end:  # argparse, after --help or --version
        return int(end.code or 0)
    except KeyboardInterrupt:
        return _say("stopped", STOPPED)
    except BrokenPipeError:  # whoever read our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except ImportError as error:
        if TRACEBACK in os.environ or (error.name or PROGRAM).partition(".")[0] == PROGRAM:
            raise
        extra = _EXTRAS.get(error.name or "", "lab")
        return _say(f'error: this needs {error.name}: pip install "{PROGRAM}[{extra}]"', MISTAKE)
    except (ValueError, OSError) as error:
        if TRACEBACK in os.environ:
            raise
        return _say(f"error: {_in_one_line(error)}", MISTAKE)


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends a command as Ctrl-C does: checkpoints are written, workers end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


_COMMANDS = {
    "run": "run a method on a problem",
    "sweep": "run many settings of many methods on a problem",
    "status": "show the progress of sweeps",
    "best": "show the best setting of each method, and the paper's",
    "figure": "draw a figure of the paper from results",
    "report": "make a report of results: one HTML file",
    "reproduce": "make a figure or a table of the paper from scratch",
    "watch": "make a video of a policy",
    "data": "list the data sets, get one, make features",
}


def _parser() -> Parser:
    from weightclip import __version__

    commands = "\n".join(f"  {name:11}{what}" for name, what in _COMMANDS.items())
    parser = Parser(
        prog=PROGRAM,
        usage=f"{PROGRAM} COMMAND ...",
        description=_DESCRIPTION,
        epilog=f"commands ({PROGRAM} COMMAND --help shows the options of one):\n{commands}",
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
