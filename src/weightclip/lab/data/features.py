"""Making the features of mini-ImageNet: images through a ResNet-50 that ends before its last layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weightclip.checks import check_count
from weightclip.lab.data.description import Bytes
from weightclip.lab.data.errors import DataError
from weightclip.lab.data.mini_imagenet import CLASSES, FEATURES, all_finite
from weightclip.lab.files import writing
from weightclip.lab.networks.resnet import ResNet, resnet50

SIDE = 84
_ENDINGS = {".bmp", ".jpeg", ".jpg", ".png", ".webp"}


def make_features(
    images: Path, weights: Path, out: Path, *, batch: int = 64, on_progress: Callable[[int, int], None] | None = None
) -> tuple[int, int]:
    """Write the features and labels of all images to `out`, an `.npz`; how many images and classes there were.

    Args:
        images: a directory with a folder for each class; the sorted names of the folders are the labels 0, 1, ...
        weights: a state dict with torchvision's names for a ResNet-50; its last layer `fc` is not needed.
        out: where to write `features` float16 [n, 2048] and `labels` uint8 [n].
        batch: images at a time.
        on_progress: called with the images done and the images in all.
    """
    check_count("batch", batch)
    paths, labels = find_images(images)
    network = load_network(weights)
    with writing(out) as file:  # opened first: a place that cannot be written to should not cost the computation
        features = compute_features(network, paths, batch, on_progress)
        if not all_finite(features):
            raise DataError(f"weights: {weights} gives features that are not finite; expected trained weights")
        np.savez_compressed(file, features=features, labels=labels)
    return len(paths), int(labels.max()) + 1


def find_images(directory: Path) -> tuple[list[Path], Bytes]:
    """The images in the folders of `directory`, and the number of the folder of each."""
    if not directory.is_dir():
        raise DataError(f"images: {directory} is not a directory; expected one with a folder for each class")
    folders = sorted(path for path in directory.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not 1 <= len(folders) <= CLASSES:
        raise DataError(f"images: {directory} has {len(folders)} folders, expected one for each class, 1 to {CLASSES}")
    paths: list[Path] = []
    counts: list[int] = []
    for folder in folders:
        own = sorted(path for path in folder.iterdir() if path.suffix.lower() in _ENDINGS)
        if not own:
            raise DataError(f"images: {folder} has no images; expected files ending in {', '.join(sorted(_ENDINGS))}")
        paths += own
        counts.append(len(own))
    return paths, np.repeat(np.arange(len(folders), dtype=np.uint8), counts)


def load_network(weights: Path) -> ResNet:
    """A ResNet-50 with the weights of a file, which can hold nothing but tensors."""
    try:
        state = torch.load(weights, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # files that are something else make it fail in many ways
        raise DataError(f"weights: {weights} is not a file of weights that can be loaded safely") from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise DataError(f"weights: {weights} is not a state dict; expected names and tensors")
    network = resnet50()
    problems = misfits(network.state_dict(), state)
    if problems:
        raise DataError(f"weights: {weights} is not of a ResNet-50 with torchvision's names; {problems}")
    network.load_state_dict({name: value for name, value in state.items() if not _spare(name)}, strict=False)
    return network.eval()


def misfits(expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> str:
    """What keeps a state dict from being loaded, in one line; empty if nothing does."""
    problems = {
        "missing": [name for name in expected if name not in given and not _spare(name)],
        "unexpected": [name for name in given if name not in expected],
        "of another shape": [
            name
            for name in expected
            if name in given and expected[name].shape != given[name].shape and not _spare(name)
        ],
    }
    return "; ".join(f"{problem}: {_some(names)}" for problem, names in problems.items() if names)


def _spare(name: str) -> bool:
    """What features do not depend on: the last layer, and counters."""
    return name.startswith("fc.") or name.endswith(".num_batches_tracked")


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(map(str, names[:3])) + more


def compute_features(
    network: ResNet, paths: list[Path], batch: int, on_progress: Callable[[int, int], None] | None = None
) -> NDArray[np.float16]:
    """[n, 2048], of images that are read, scaled and passed through the network `batch` at a time."""
    features = np.empty((len(paths), FEATURES), np.float16)
    with torch.inference_mode(), np.errstate(over="ignore"):
        for start in range(0, len(paths), batch):
            images = np.stack([read_image(path) for path in paths[start : start + batch]])
            scaled = (torch.from_numpy(images).permute(0, 3, 1, 2) / 255 - 0.5) / 0.5
            features[start : start + batch] = network.features(scaled.contiguous()).numpy()
            if on_progress is not None:
                on_progress(min(start + batch, len(paths)), len(paths))
    return features


def read_image(path: Path) -> Bytes:
    """[84, 84, 3], resized if need be."""
    try:
        from PIL import Image
    except ImportError:
        raise DataError("images: reading them needs Pillow: pip install 'weightclip[lab]'") from None
    try:
        with Image.open(path) as image:
            colours = image.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{path}: cannot be read as an image ({error})") from error
    if colours.size != (SIDE, SIDE):
        colours = colours.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return np.asarray(colours)
