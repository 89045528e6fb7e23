"""Arrays from an `.npz`; nothing is unpickled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.lib.npyio import NpzFile

from weightclip.lab.data.content import reading
from weightclip.lab.data.description import Content
from weightclip.lab.data.errors import DataError


def read_npz(path: Path, keys: tuple[str, ...]) -> list[Content]:
    """The arrays called `keys`, in C order."""
    expected = f"expected an .npz with the arrays {', '.join(keys)}"
    with reading(path):
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                if not isinstance(arrays, NpzFile) or any(key not in arrays for key in keys):
                    raise DataError(f"{path}: has other content, {expected}")
                return [Content(f"{path}: {key}", np.ascontiguousarray(arrays[key])) for key in keys]
        except DataError:
            raise
        except (
            ValueError,
            TypeError,
            MemoryError,
        ) as error:  # a pickle, a single array, a header that promises too much
            raise DataError(f"{path}: not whole, or not numbers; {expected}") from error
