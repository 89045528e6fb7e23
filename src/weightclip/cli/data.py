"""`weightclip data`: what there is, getting it, and making features."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from weightclip.checks import check_count, check_name
from weightclip.cli.arguments import PROGRAM, Choose, Parser, count
from weightclip.cli.tables import print_table
from weightclip.lab.data import DATASETS, load
from weightclip.lab.data.description import Description
from weightclip.lab.data.fetch import in_megabytes
from weightclip.lab.data.mini_imagenet import MINI_IMAGENET
from weightclip.lab.data.places import cache_directory
from weightclip.lab.data.status import status


def make_parser() -> argparse.ArgumentParser:
    """The parser of the command."""
    listed = "\n".join(f"  {name:10}{what}" for name, (what, _) in _COMMANDS.items())
    parser = Parser(
        prog=_PROGRAM,
        usage=f"{_PROGRAM} [COMMAND] [options]",
        description="List the data sets, get one, or make the features of mini-ImageNet.",
        epilog=f"commands:\n{listed}",
    )
    _add_directory(parser)
    command = parser.add_argument(
        "step",
        metavar="COMMAND",
        action=Choose,
        names=lambda: _COMMANDS,
        build=lambda name: _COMMANDS[name][1](),
        help=argparse.SUPPRESS,
    )
    command.required = False  # `weightclip data` lists them
    parser.set_defaults(action=_list)
    return parser


def _add_directory(parser: argparse.ArgumentParser) -> None:
    # It may stand before or after the command: the default must not replace a value that was given before.
    parser.add_argument(
        "--data-dir", metavar="DIR", default=argparse.SUPPRESS, help="look here first (default: $WEIGHTCLIP_DATA)"
    )


def _list_parser() -> argparse.ArgumentParser:
    parser = Parser(prog=f"{_PROGRAM} list", description="List the data sets, and where each is found.")
    _add_directory(parser)
    parser.set_defaults(action=_list)
    return parser


def _get_parser() -> argparse.ArgumentParser:
    parser = Parser(prog=f"{_PROGRAM} get", description="Get a data set into the cache.")
    parser.add_argument("name", metavar="NAME", help=", ".join(DATASETS))
    _add_directory(parser)
    parser.set_defaults(action=_get)
    return parser


def _features_parser() -> argparse.ArgumentParser:
    parser = Parser(prog=f"{_PROGRAM} features", description="Make the features of mini-ImageNet from its images.")
    parser.add_argument("--images", metavar="DIR", type=Path, required=True, help="has a folder for each class")
    parser.add_argument(
        "--weights", metavar="FILE", type=Path, required=True, help="a state dict of torchvision's ResNet-50"
    )
    parser.add_argument("--out", metavar="FILE", type=Path, help="the .npz to write (default: in the cache)")
    parser.add_argument("--batch", metavar="N", type=count, default=64, help="batch size (default: 64)")
    parser.set_defaults(action=_features)
    return parser


_PROGRAM = f"{PROGRAM} data"
_COMMANDS: dict[str, tuple[str, Callable[[], argparse.ArgumentParser]]] = {
    "list": ("list the data sets, and where each is found", _list_parser),
    "get": ("get a data set into the cache", _get_parser),
    "features": ("make the features of mini-ImageNet from its images", _features_parser),
}


def _list(arguments: argparse.Namespace) -> int:
    directory = getattr(arguments, "data_dir", None)
    if directory is not None and not Path(directory).expanduser().is_dir():
        raise ValueError(f"--data-dir: got {directory!r}, expected a directory")
    rows = []
    for description in DATASETS.values():
        now = status(description, directory)
        size = "-" if now.size is None else in_megabytes(now.size)
        rows.append((description.name, _holds(description), now.where, size, now.checksum))
    print_table(("data set", "holds", "where it is, or would come from", "size", "checksum"), rows, right=(3,))
    return 0


def _holds(description: Description) -> str:
    return f"{description.summary}, {description.classes} classes"


def _get(arguments: argparse.Namespace) -> int:
    check_name("NAME", arguments.name, DATASETS)
    with _progress(DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()) as progress:
        task = progress.add_task(arguments.name, total=None)
        dataset = load(
            arguments.name,
            data_dir=getattr(arguments, "data_dir", None),
            bundled=False,
            on_event=lambda line: progress.console.print(Text(line), soft_wrap=True),
            on_progress=lambda name, done, total: progress.update(task, description=name, completed=done, total=total),
        )
    print(dataset.source)
    return 0


def _features(arguments: argparse.Namespace) -> int:
    from weightclip.lab.data.features import make_features

    check_count("--batch", arguments.batch)
    out = arguments.out or cache_directory(MINI_IMAGENET.name) / MINI_IMAGENET.all_files[0].name
    with _progress(MofNCompleteColumn(), TimeRemainingColumn()) as progress:
        task = progress.add_task("images", total=None)
        images, classes = make_features(
            arguments.images,
            arguments.weights,
            out,
            batch=arguments.batch,
            on_progress=lambda done, total: progress.update(task, completed=done, total=total),
        )
    print(f"{images:,} images of {classes} classes in {out} ({in_megabytes(out.stat().st_size)})")
    return 0


@contextmanager
def _progress(*columns: ProgressColumn) -> Iterator[Progress]:
    """A bar on stderr that leaves nothing behind."""
    console = Console(stderr=True)
    first = TextColumn("{task.description}", markup=False)
    with Progress(first, BarColumn(), *columns, console=console, transient=True, disable=not console.is_terminal) as it:
        yield it
