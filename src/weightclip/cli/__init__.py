"""The command line: `weightclip COMMAND ...`, a small file for each command."""

from __future__ import annotations

import errno
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from functools import partial

from weightclip.cli.arguments import MISTAKE, PROGRAM, STOPPED, Parser, join_negative_numbers

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
        arguments = _parser(words).parse_args(words)
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


def _parser(words: Sequence[str]) -> ArgumentParser:
    from weightclip import __version__
    from weightclip.cli import best, data, figure, report, reproduce, run, status, sweep, watch
    from weightclip.lab.plugins import experiments, find_experiment

    parser: ArgumentParser = Parser(prog=PROGRAM, description=_DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    parser.set_defaults(action=partial(_help, parser))
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    # The options of `run` and `sweep` are those of the experiment that has the problem.
    known = (one for one in experiments().values() if set(one.problems()) & set(words))
    experiment = next(known, None) or find_experiment("streaming")
    run.add(commands, experiment)
    sweep.add(commands, experiment)
    for command in (status, best, figure, report, reproduce, watch, data):
        command.add(commands)
    return parser


def _help(parser: ArgumentParser, arguments: Namespace) -> int:
    parser.print_help()
    return 0


def _in_one_line(error: ValueError | OSError) -> str:
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        advice = f"; {_ADVICE[error.errno]}" if error.errno in _ADVICE else ""
        return f"{where}{error.strerror}{advice}"
    return " ".join(str(error).split())


def _say(message: str, code: int) -> int:
    print(f"{PROGRAM}: {message}", file=sys.stderr)
    return code
