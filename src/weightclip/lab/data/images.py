"""Photographs for training in batches: decoded once into a file that is mapped into memory, and shared by processes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weightclip.checks import check_name
from weightclip.lab.data import DATASETS
from weightclip.lab.data.dataset import Dataset, Source
from weightclip.lab.data.description import Description, Split
from weightclip.lab.data.errors import DataError
from weightclip.lab.data.loading import find, load_described
from weightclip.lab.data.places import Found, cache_directory
from weightclip.lab.files import remove_leftovers, writing

_OFFICIAL = {"official": True, "unofficial": False}


@dataclass(frozen=True, eq=False)
class Images:
    """A split of a data set of photographs.

    Args:
        name: of the data set.
        pixels: uint8 [n, height, width, colours]; what a channels-last tensor has in its memory.
        labels: uint8 [n], below `classes`.
        classes: how many there are.
        source: where the files were taken from.
    """

    name: str
    pixels: NDArray[np.uint8]
    labels: NDArray[np.uint8]
    classes: int
    source: Source


def load_images(
    name: str, split: Split, data_dir: str | Path | None = None, on_event: Callable[[str], None] | None = None
) -> Images:
    """The photographs of a split, mapped into memory from a file in the cache, which is made when it is missing.

    The file stands for the data set's own files, by their places, sizes and times. Where the cache cannot be written,
    the photographs are held in memory instead.
    """
    description = DATASETS[check_name("name", name, [known for known, one in DATASETS.items() if len(one.shape) == 3])]
    say = on_event or (lambda _: None)
    found = find(description, split, data_dir, lambda _: None)
    # A directory that the user names and that lacks the files is an error, which loading tells.
    if found is not None and (data_dir is None or found.kind == "directory"):
        ready = _mapped(description, split, found)
        if ready is not None:
            return ready
    dataset = load_described(description, split, data_dir, False, say, None)
    found = find(description, split, data_dir, lambda _: None)
    rows = _rows(dataset)
    if found is not None:
        verdict = "official" if dataset.source.official else "unofficial"
        stem = _stem(description, split, found)
        path = stem.with_name(f"{stem.name}.{dataset.source.checksum}.{verdict}.npy")
        try:
            remove_leftovers(path)
            with writing(path) as file:
                np.save(file, rows)
            rows = np.load(path, mmap_mode="c")
        except OSError as error:
            say(f"{path}: cannot be written ({error.strerror or error}); holding the data in memory")
    return _from_rows(description, rows, dataset.source)


def _mapped(description: Description, split: Split, found: Found) -> Images | None:
    stem = _stem(description, split, found)
    for path in stem.parent.glob(f"{stem.name}.*.npy"):
        _, checksum, verdict, _ = path.name.rsplit(".", 3)
        try:
            rows = np.load(path, mmap_mode="c")  # a write would stay in this process; PyTorch warns of read-only memory
            source = Source(found.kind, str(found.directory), checksum, _OFFICIAL[verdict], description.name)
            return _from_rows(description, rows, source)
        except (OSError, ValueError, KeyError):  # a file that is cut short
            continue
    return None


def _stem(description: Description, split: Split, found: Found) -> Path:
    """The decoded file without checksum and ending."""
    stats = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in found.paths]
    stamp = hashlib.sha256(repr(stats).encode()).hexdigest()[:12]
    return cache_directory(description.name) / f"decoded-{split}-{stamp}"


def _rows(dataset: Dataset) -> NDArray[Any]:
    """[n, 1 + height * width * colours], the label first: one file for both."""
    colours, height, width = dataset.shape
    pixels = dataset.inputs.reshape(-1, colours, height, width).transpose(0, 2, 3, 1)
    rows = np.empty((len(pixels), 1 + dataset.inputs.shape[1]), np.uint8)
    rows[:, 0] = dataset.labels
    rows[:, 1:] = pixels.reshape(len(pixels), -1)
    return rows


def _from_rows(description: Description, rows: NDArray[Any], source: Source) -> Images:
    colours, height, width = description.shape
    if rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != 1 + colours * height * width:
        raise DataError(f"{description.name}: got decoded rows of the shape {rows.shape}; delete the decoded file")
    pixels = rows[:, 1:].reshape(-1, height, width, colours)
    return Images(description.name, pixels, np.ascontiguousarray(rows[:, 0]), description.classes, source)
