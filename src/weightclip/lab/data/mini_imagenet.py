"""mini-ImageNet (Vinyals et al., 2016) as ResNet-50 features, which `extract_features` computes from the images.

PyTorch is imported only for the extraction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from weightclip._validation import check_count
from weightclip.lab.data.dataset import Bytes, DataError, DatasetInfo, File, FileContent, InputsAndLabels
from weightclip.lab.data.formats import check_labels, read_image
from weightclip.lab.files import writing

if TYPE_CHECKING:
    from torch import Tensor

    from weightclip.lab.networks.resnet import ResNet

FEATURES = 2048
IMAGE_SIZE = (84, 84)
_BLOCK = 1024
_ENDINGS = {".bmp", ".jpeg", ".jpg", ".png", ".webp"}


def _decode(info: DatasetInfo, contents: list[FileContent]) -> InputsAndLabels:
    features, labels = contents
    _check_array(features, np.float16, ("n", *info.shape))
    _check_array(labels, np.uint8, ("n",))
    if not _all_finite(features.data):
        raise DataError(f"{features.origin}: has values that are not finite")
    return features.data, check_labels(labels.origin, labels.data, info.classes)


def _check_array(content: FileContent, dtype: type, shape: tuple[str | int, ...]) -> None:
    array = content.data
    if array.dtype != dtype or array.ndim != len(shape) or array.shape[1:] != shape[1:]:
        found, expected = (", ".join(map(str, sizes)) for sizes in (array.shape, shape))
        raise DataError(f"{content.origin}: is {array.dtype} [{found}], expected {np.dtype(dtype)} [{expected}]")


def _all_finite(features: NDArray[Any]) -> bool:
    """Return whether no float16 is infinite or NaN, that is, has all exponent bits set."""
    codes, exponent = features.view(np.uint16), np.uint16(0x7C00)
    blocks = (codes[start : start + _BLOCK] for start in range(0, len(codes), _BLOCK))
    return not any(((block & exponent) == exponent).any() for block in blocks)


MINI_IMAGENET = DatasetInfo(
    name="mini-imagenet",
    summary="ResNet-50 features of images",
    classes=100,
    shape=(FEATURES,),
    files={"train": (File("mini-imagenet-resnet50-features.npz"),)},
    decode=_decode,
    npz_arrays=("features", "labels"),
    hint="no download exists; extract the features from the images with `weightclip data features`",
)


def extract_features(
    images: Path, weights: Path, out: Path, *, batch: int = 64, on_progress: Callable[[int, int], None] | None = None
) -> tuple[int, int]:
    """Compute the features of all images, write them to `out` and return the numbers of images and classes.

    Args:
        images: directory with one folder per class; label i is the i-th folder in sorted order.
        weights: state dict of torchvision's ResNet-50; the output layer `fc` is optional.
        out: the `.npz` to write, with `features` float16 [n, 2048] and `labels` uint8 [n].
        batch: batch size.
        on_progress: called with the number of processed images and the number of all images.
    """
    check_count("batch", batch)
    paths, labels = find_images(images)
    network = _load_network(weights)
    with writing(out) as file:  # opened first, so that an unwritable path fails before the computation
        features = _compute_features(network, paths, batch, on_progress)
        if not _all_finite(features):
            raise DataError(f"weights: {weights} gives features that are not finite; expected trained weights")
        np.savez_compressed(file, features=features, labels=labels)
    return len(paths), int(labels.max()) + 1


def find_images(directory: Path) -> tuple[list[Path], Bytes]:
    """Return the images in the folders of `directory`, and the index of each image's folder."""
    if not directory.is_dir():
        raise DataError(f"images: {directory} is not a directory; expected one with a folder per class")
    folders = sorted(path for path in directory.iterdir() if path.is_dir() and not path.name.startswith("."))
    most = MINI_IMAGENET.classes
    if not 1 <= len(folders) <= most:
        raise DataError(f"images: {directory} has {len(folders)} folders, expected one per class, 1 to {most}")
    paths: list[Path] = []
    counts: list[int] = []
    for folder in folders:
        found = sorted(path for path in folder.iterdir() if path.suffix.lower() in _ENDINGS)
        if not found:
            raise DataError(f"images: {folder} has no images; expected files ending in {', '.join(sorted(_ENDINGS))}")
        paths += found
        counts.append(len(found))
    return paths, np.repeat(np.arange(len(folders), dtype=np.uint8), counts)


def _load_network(weights: Path) -> ResNet:
    """Load a ResNet-50. The file may contain only tensors, so that loading it executes no code."""
    import torch

    from weightclip.lab.networks.resnet import resnet50

    try:
        state = torch.load(weights, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # torch.load raises many types for files of other formats
        raise DataError(f"weights: {weights} is not a file of weights that can be loaded safely") from error
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise DataError(f"weights: {weights} is not a state dict; expected a dict of tensors")
    network = resnet50()
    mismatch = state_dict_mismatch(network.state_dict(), state)
    if mismatch:
        raise DataError(f"weights: {weights} does not match torchvision's ResNet-50; {mismatch}")
    network.load_state_dict({name: value for name, value in state.items() if not _is_optional(name)}, strict=False)
    return network.eval()


def state_dict_mismatch(expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> str:
    """Describe in one line why `given` cannot be loaded; empty if it can."""
    required = [name for name in expected if not _is_optional(name)]
    mismatches = {
        "missing": [name for name in required if name not in given],
        "unexpected": [name for name in given if name not in expected],
        "wrong shape": [name for name in required if name in given and expected[name].shape != given[name].shape],
    }
    return "; ".join(f"{kind}: {_shorten(names)}" for kind, names in mismatches.items() if names)


def _is_optional(name: str) -> bool:
    """Return whether the features do not depend on an entry: the output layer and batch counters."""
    return name.startswith("fc.") or name.endswith(".num_batches_tracked")


def _shorten(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(map(str, names[:3])) + more


def _compute_features(
    network: ResNet, paths: list[Path], batch: int, on_progress: Callable[[int, int], None] | None = None
) -> NDArray[np.float16]:
    """Return the features [n, 2048] of images that are scaled to [-1, 1]."""
    import torch

    features = np.empty((len(paths), FEATURES), np.float16)
    with torch.inference_mode(), np.errstate(over="ignore"):
        for start in range(0, len(paths), batch):
            images = np.stack([read_image(path, str(path), IMAGE_SIZE) for path in paths[start : start + batch]])
            scaled = (torch.from_numpy(images).permute(0, 3, 1, 2) / 255 - 0.5) / 0.5
            features[start : start + batch] = network.features(scaled.contiguous()).numpy()
            if on_progress is not None:
                on_progress(min(start + batch, len(paths)), len(paths))
    return features
