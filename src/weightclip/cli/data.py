"""`weightclip data`: list data sets, download one, or extract features."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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

from weightclip._validation import check_count, check_name
from weightclip.cli.arguments import PROGRAM, Choose, Parser, count, rename_options
from weightclip.cli.results import print_table
from weightclip.lab.data import DATASETS, cache_directory, load
from weightclip.lab.data.download import in_megabytes
from weightclip.lab.data.loading import status
from weightclip.lab.data.mini_imagenet import MINI_IMAGENET, extract_features


def make_parser() -> argparse.ArgumentParser:
    """The parser of the command."""
    commands = "\n".join(f"  {name:10}{text}" for name, (text, _) in _COMMANDS.items())
    parser = Parser(
        prog=_PROGRAM,
        usage=f"{_PROGRAM} [COMMAND] [options]",
        description="List data sets, download one, or extract the features of mini-ImageNet.",
        epilog=f"commands:\n{commands}",
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
    command.required = False  # `weightclip data` lists the data sets
    parser.set_defaults(action=_list)
    return parser


def _add_directory(parser: argparse.ArgumentParser) -> None:
    # The option is accepted before and after the command; a default would overwrite a value given before it.
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        default=argparse.SUPPRESS,
        help="directory to search first (default: $WEIGHTCLIP_DATA)",
    )


def _list_parser() -> argparse.ArgumentParser:
    parser = Parser(prog=f"{_PROGRAM} list", description="List data sets and their locations.")
    _add_directory(parser)
    parser.set_defaults(action=_list)
    return parser


def _get_parser() -> argparse.ArgumentParser:
    parser = Parser(prog=f"{_PROGRAM} get", description="Download a data set into the cache.")
    parser.add_argument("name", metavar="NAME", help=", ".join(DATASETS))
    _add_directory(parser)
    parser.set_defaults(action=_get)
    return parser


class _FeaturesParser(Parser):
    """A parser that accepts old names of options."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        return super().parse_known_args(rename_options("data features", args), namespace)


def _features_parser() -> argparse.ArgumentParser:
    parser = _FeaturesParser(
        prog=f"{_PROGRAM} features", description="Extract the features of mini-ImageNet from its images."
    )
    parser.add_argument("--images", metavar="DIR", type=Path, required=True, help="directory with one folder per class")
    parser.add_argument(
        "--weights", metavar="FILE", type=Path, required=True, help="state dict of torchvision's ResNet-50"
    )
    parser.add_argument("--out", metavar="FILE", type=Path, help="output .npz (default: in the cache)")
    parser.add_argument("--batch-size", metavar="N", type=count, default=64, help="batch size (default: 64)")
    parser.set_defaults(action=_features)
    return parser


_PROGRAM = f"{PROGRAM} data"
_COMMANDS: dict[str, tuple[str, Callable[[], argparse.ArgumentParser]]] = {
    "list": ("list data sets and their locations", _list_parser),
    "get": ("download a data set into the cache", _get_parser),
    "features": ("extract the features of mini-ImageNet from its images", _features_parser),
}


def _list(arguments: argparse.Namespace) -> int:
    directory = getattr(arguments, "data_dir", None)
    if directory is not None and not Path(directory).expanduser().is_dir():
        raise ValueError(f"--data-dir: got {directory!r}, expected a directory")
    rows = []
    for info in DATASETS.values():
        current = status(info, directory)
        size = "-" if current.size is None else in_megabytes(current.size)
        rows.append((info.name, f"{info.summary}, {info.classes} classes", current.location, size, current.checksum))
    print_table(("data set", "contents", "location or source", "size", "checksum"), rows, right=(3,))
    return 0


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
    check_count("--batch-size", arguments.batch_size)
    out = arguments.out or cache_directory(MINI_IMAGENET.name) / MINI_IMAGENET.all_files[0].name
    with _progress(MofNCompleteColumn(), TimeRemainingColumn()) as progress:
        task = progress.add_task("images", total=None)
        images, classes = extract_features(
            arguments.images,
            arguments.weights,
            out,
            batch=arguments.batch_size,
            on_progress=lambda done, total: progress.update(task, completed=done, total=total),
        )
    print(f"{images:,} images of {classes} classes in {out} ({in_megabytes(out.stat().st_size)})")
    return 0


@contextmanager
def _progress(*columns: ProgressColumn) -> Iterator[Progress]:
    """Show a transient progress bar on stderr, if it is a terminal."""
    console = Console(stderr=True)
    label = TextColumn("{task.description}", markup=False)
    is_terminal = console.is_terminal
    with Progress(label, BarColumn(), *columns, console=console, transient=True, disable=not is_terminal) as progress:
        yield progress
