"""`weightclip data`: what there is, getting it, and making features."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
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
from weightclip.cli.tables import print_table
from weightclip.lab.data import DATASETS, load
from weightclip.lab.data.description import Description
from weightclip.lab.data.fetch import in_megabytes
from weightclip.lab.data.mini_imagenet import MINI_IMAGENET
from weightclip.lab.data.places import cache_directory
from weightclip.lab.data.status import status


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser("data", help="list the data sets, get one, make features")
    parser.add_argument("--data-dir", metavar="DIR", help="look here first (default: $WEIGHTCLIP_DATA)")
    parser.set_defaults(action=_list)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    get = commands.add_parser("get", help="get a data set into the cache")
    get.add_argument("name", metavar="NAME", help=", ".join(DATASETS))
    # Without SUPPRESS, its default would take the place of what was given before `get`.
    get.add_argument("--data-dir", metavar="DIR", default=argparse.SUPPRESS, help="use the files in this directory")
    get.set_defaults(action=_get)

    features = commands.add_parser("features", help="make the features of mini-ImageNet from its images")
    features.add_argument("--images", metavar="DIR", type=Path, required=True, help="has a folder for each class")
    features.add_argument(
        "--weights", metavar="FILE", type=Path, required=True, help="a state dict of torchvision's ResNet-50"
    )
    features.add_argument("--out", metavar="FILE", type=Path, help="the .npz to write (default: in the cache)")
    features.add_argument("--batch", metavar="N", type=int, default=64, help="images at a time (default: 64)")
    features.set_defaults(action=_features)


def _list(arguments: argparse.Namespace) -> int:
    if arguments.data_dir is not None and not Path(arguments.data_dir).expanduser().is_dir():
        raise ValueError(f"--data-dir: got {arguments.data_dir!r}, expected a directory")
    rows = []
    for description in DATASETS.values():
        now = status(description, arguments.data_dir)
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
            data_dir=arguments.data_dir,
            bundled=False,
            on_event=lambda line: progress.console.print(Text(line), soft_wrap=True),
            on_progress=lambda name, done, total: progress.update(task, description=name, completed=done, total=total),
        )
    print(dataset.source)
    return 0


def _features(arguments: argparse.Namespace) -> int:
    from weightclip.lab.data.features import make_features

    check_count("batch", arguments.batch)
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
