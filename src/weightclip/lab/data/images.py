"""Images for training in batches: decoded once into a file in the cache that processes share through memory mapping."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weightclip._validation import check_name
from weightclip.lab.data import DATASETS
from weightclip.lab.data.dataset import DataError, Dataset, DatasetInfo, Source, Split
from weightclip.lab.data.download import cache_directory
from weightclip.lab.data.loading import LocalFiles, find_files, load_dataset
from weightclip.lab.files import remove_leftovers, writing

_OFFICIAL = {"official": True, "unofficial": False}


@dataclass(frozen=True, eq=False)
class Images:
    """A split of an image data set.

    Args:
        name: name of the data set.
        pixels: uint8 [n, height, width, channels], the memory layout of a channels-last tensor.
        labels: uint8 [n], less than `classes`.
        classes: number of classes.
        source: origin of the files.
    """

    name: str
    pixels: NDArray[np.uint8]
    labels: NDArray[np.uint8]
    classes: int
    source: Source


def load_images(
    name: str, split: Split, data_dir: str | Path | None = None, on_event: Callable[[str], None] | None = None
) -> Images:
    """Load the images of a split, memory-mapped from a decoded file in the cache, which is created if it is missing.

    The decoded file is identified by paths, sizes and modification times of the data set's files. If the cache is not
    writable, the images are kept in memory.
    """
    info = DATASETS[check_name("name", name, [known for known, one in DATASETS.items() if len(one.shape) == 3])]
    report = on_event or (lambda _: None)
    files = find_files(info, split, data_dir)
    # If `data_dir` is given but lacks the files, load_dataset raises the error.
    if files is not None and (data_dir is None or files.kind == "directory"):
        images = _open_decoded(info, split, files)
        if images is not None:
            return images
    dataset = load_dataset(info, split, data_dir, False, report, None)
    rows = _to_rows(dataset)
    files = find_files(info, split, data_dir)  # again, because they may have been downloaded
    if files is not None:
        stem = _decoded_stem(info, split, files)
        verdict = "official" if dataset.source.official else "unofficial"
        path = stem.with_name(f"{stem.name}.{dataset.source.checksum}.{verdict}.npy")
        try:
            remove_leftovers(path.parent)
            with writing(path) as file:
                np.save(file, rows)
            rows = np.load(path, mmap_mode="c")
        except OSError as error:
            report(f"{path}: not writable ({error.strerror or error}); the images are kept in memory")
    return _from_rows(info, rows, dataset.source)


def _open_decoded(info: DatasetInfo, split: Split, files: LocalFiles) -> Images | None:
    stem = _decoded_stem(info, split, files)
    for path in stem.parent.glob(f"{stem.name}.*.npy"):
        _, checksum, verdict, _ = path.name.rsplit(".", 3)
        try:
            rows = np.load(path, mmap_mode="c")  # copy-on-write, because PyTorch warns about read-only memory
            source = Source(files.kind, str(files.directory), checksum, _OFFICIAL[verdict], info.name)
            return _from_rows(info, rows, source)
        except (OSError, ValueError, KeyError):  # a truncated file
            continue
    return None


def _decoded_stem(info: DatasetInfo, split: Split, files: LocalFiles) -> Path:
    """Return the path of the decoded file without checksum and ending."""
    stats = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files.paths]
    stamp = hashlib.sha256(repr(stats).encode()).hexdigest()[:12]
    return cache_directory(info.name) / f"decoded-{split}-{stamp}"


def _to_rows(dataset: Dataset) -> NDArray[Any]:
    """Return [n, 1 + height * width * channels], label first, so that one file contains both."""
    channels, height, width = dataset.shape
    pixels = dataset.inputs.reshape(-1, channels, height, width).transpose(0, 2, 3, 1)
    rows = np.empty((len(pixels), 1 + dataset.inputs.shape[1]), np.uint8)
    rows[:, 0] = dataset.labels
    rows[:, 1:] = pixels.reshape(len(pixels), -1)
    return rows


def _from_rows(info: DatasetInfo, rows: NDArray[Any], source: Source) -> Images:
    channels, height, width = info.shape
    if rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != 1 + channels * height * width:
        raise DataError(f"{info.name}: decoded rows have the shape {rows.shape}; delete the decoded file")
    pixels = rows[:, 1:].reshape(-1, height, width, channels)
    return Images(info.name, pixels, np.ascontiguousarray(rows[:, 0]), info.classes, source)
