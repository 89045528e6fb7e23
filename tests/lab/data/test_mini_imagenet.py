"""Reading the features of mini-ImageNet, and extracting them from images."""

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import data_files
import numpy as np
import pytest
import torch
from data_fixtures import isolation  # noqa: F401
from PIL import Image

from weightclip.lab.data import DataError, load
from weightclip.lab.data.mini_imagenet import extract_features, find_images, state_dict_mismatch
from weightclip.lab.networks.resnet import resnet50

FEATURES = "mini-imagenet-resnet50-features.npz"


@pytest.mark.parametrize("order", ["C", "F"])
def test_features_are_read_from_an_npz(tmp_path: Path, order: str) -> None:
    features = np.asarray(np.random.default_rng(1).random((30, 2048)), dtype=np.float16, order=order)  # type: ignore[call-overload]
    data_files.write_features(tmp_path / FEATURES, features=features)
    data = load("mini-imagenet", data_dir=tmp_path)
    np.testing.assert_array_equal(data.inputs, features)
    assert data.inputs.flags.c_contiguous
    assert data.source.checksum == hashlib.md5(features.tobytes() + data_files.labels(30, 100).tobytes()).hexdigest()
    assert not data.source.official


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"features": np.zeros((30, 2048), np.float32)}, "features: is float32 [30, 2048], expected float16 [n, 2048]"),
        ({"features": np.zeros((30, 512), np.float16)}, "features: is float16 [30, 512]"),
        ({"features": np.zeros((29, 2048), np.float16)}, "29 inputs and 30 labels"),
        ({"features": np.full((30, 2048), np.nan, np.float16)}, "features: has values that are not finite"),
        ({"features": np.full((30, 2048), np.inf, np.float16)}, "features: has values that are not finite"),
        ({"labels": np.zeros(30, np.int64)}, "labels: is int64 [30], expected uint8 [n]"),
        ({"labels": np.zeros((30, 1), np.uint8)}, "labels: is uint8 [30, 1]"),
        ({"labels": np.full(30, 100, np.uint8)}, "labels: label 100 is out of range, expected 0 to 99"),
    ],
)
def test_invalid_features_are_named(tmp_path: Path, changes: dict[str, np.ndarray], reason: str) -> None:
    data_files.write_features(tmp_path / FEATURES, **changes)
    with pytest.raises(DataError) as error:
        load("mini-imagenet", data_dir=tmp_path)
    assert FEATURES in str(error.value)
    assert reason in str(error.value)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "resnet50.pth"
    torch.save(resnet50().state_dict(), path)
    return path


@pytest.fixture(scope="module")
def expected() -> dict[str, torch.Tensor]:
    return resnet50().state_dict()


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Two classes with 2 and 1 images, created in the reverse order of their names."""
    draw = np.random.default_rng(0)
    for name in ("zebra/1.png", "ant/2.jpg", "ant/1.PNG"):
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (84, 84, 3), dtype=np.uint8)).save(path)
    (tmp_path / "images" / "ant" / "notes.txt").write_text("not an image")
    (tmp_path / "images" / ".hidden").mkdir()
    return tmp_path / "images"


def test_features_are_computed_from_scaled_images_in_order(images: Path, weights: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / FEATURES
    reported: list[tuple[int, int]] = []
    assert extract_features(images, weights, out, batch=2, on_progress=lambda *now: reported.append(now)) == (3, 2)
    assert reported == [(2, 3), (3, 3)]

    data = load("mini-imagenet", data_dir=out.parent)
    assert data.labels.tolist() == [0, 0, 1]
    network = resnet50().eval()
    network.load_state_dict(torch.load(weights, weights_only=True))
    for row, name in zip(data.inputs, ("ant/1.PNG", "ant/2.jpg", "zebra/1.png")):
        pixels = torch.from_numpy(np.array(Image.open(images / name))).permute(2, 0, 1)[None].double()
        with torch.inference_mode():
            expected = network.double().features((pixels / 255 - 0.5) / 0.5)[0]
        np.testing.assert_allclose(row, expected.numpy(), rtol=2e-3, atol=2e-3)


def test_labels_are_indices_of_the_sorted_folder_names(tmp_path: Path) -> None:
    names = [f"n{number:04}" for number in np.random.default_rng(0).permutation(50)]
    for name in names:
        (tmp_path / "images" / name).mkdir(parents=True)
        (tmp_path / "images" / name / "1.png").touch()
    paths, labels = find_images(tmp_path / "images")
    assert [path.parent.name for path in paths] == sorted(names)
    assert labels.tolist() == list(range(50))


def test_corrupt_image_is_named_and_no_file_is_written(images: Path, weights: Path, tmp_path: Path) -> None:
    path = images / "zebra" / "1.png"
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(DataError, match=r"zebra/1\.png: cannot be read as an image"):
        extract_features(images, weights, tmp_path / "out" / "features.npz")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("layer1.0.conv1.weight"), "missing: layer1.0.conv1.weight"),
        (lambda state: state.update(extra=torch.zeros(1)), "unexpected: extra"),
        (lambda state: state.update({"conv1.weight": torch.zeros(1)}), "wrong shape: conv1.weight"),
        (
            lambda state: [state.pop(name) for name in list(state)[:5]],
            "missing: conv1.weight, bn1.weight, bn1.bias and 2 more",
        ),
        (lambda state: [state.pop("fc.weight"), state.pop("bn1.num_batches_tracked")], ""),
        (lambda state: state.update({"fc.bias": torch.zeros(10)}), ""),
    ],
)
def test_state_dict_mismatches_are_described(
    expected: dict[str, torch.Tensor], change: Callable[[dict[str, torch.Tensor]], object], message: str
) -> None:
    given = dict(expected)
    change(given)
    assert state_dict_mismatch(expected, given) == message


def save(path: Path, expected: dict[str, torch.Tensor], value: float) -> Path:
    """Save constant weights in a small file."""
    torch.save({name: torch.tensor(value).expand(tensor.shape) for name, tensor in expected.items()}, path)
    return path


def test_weights_of_another_network_are_named(images: Path, expected: dict[str, torch.Tensor], tmp_path: Path) -> None:
    weights = save(tmp_path / "other.pth", expected | {"extra": torch.zeros(1)}, 0.0)
    with pytest.raises(
        DataError, match=r"weights: .*other\.pth does not match torchvision's ResNet-50; unexpected: extra$"
    ):
        extract_features(images, weights, tmp_path / "out.npz")


class Malicious:
    executed = False

    def __reduce__(self) -> tuple[object, ...]:
        return setattr, (Malicious, "executed", True)


@pytest.mark.parametrize("content", [Malicious(), [1, 2], {"name": "text"}])
def test_weights_other_than_tensors_are_rejected(images: Path, tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / "other.pth")
    with pytest.raises(DataError, match=r"weights: .*other\.pth is not a "):
        extract_features(images, tmp_path / "other.pth", tmp_path / "out.npz")
    assert not Malicious.executed


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04"])
def test_file_without_weights_is_named(images: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "other.pth").write_bytes(content)
    with pytest.raises(DataError, match=r"weights: .*other\.pth is not a file of weights"):
        extract_features(images, tmp_path / "other.pth", tmp_path / "out.npz")


def test_features_that_are_not_finite_are_rejected(
    images: Path, expected: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    weights = save(tmp_path / "other.pth", expected, float("nan"))
    with pytest.raises(DataError, match="gives features that are not finite"):
        extract_features(images, weights, tmp_path / "out.npz")
    assert not (tmp_path / "out.npz").exists()


def test_invalid_image_directories_are_named(images: Path, weights: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"images: .*nowhere is not a directory"):
        extract_features(tmp_path / "nowhere", weights, tmp_path / "out.npz")
    with pytest.raises(DataError, match=r"images: .*ant has 0 folders, expected one per class, 1 to 100"):
        extract_features(images / "ant", weights, tmp_path / "out.npz")
    (images / "empty").mkdir()
    with pytest.raises(DataError, match=r"images: .*empty has no images; expected files ending in \.bmp"):
        extract_features(images, weights, tmp_path / "out.npz")


def test_other_errors_are_raised_before_the_computation(images: Path, weights: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(NotADirectoryError):
        extract_features(images, weights, tmp_path / "file" / "folder" / "out.npz")
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
        extract_features(images, weights, tmp_path)
    with pytest.raises(FileNotFoundError):
        extract_features(images, tmp_path / "nothing.pth", tmp_path / "out.npz")
    with pytest.raises(ValueError, match="batch: got 0, expected a whole number of at least 1"):
        extract_features(images, weights, tmp_path / "out.npz", batch=0)


def test_full_disk_names_the_file_and_leaves_no_partial_file(
    images: Path, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: .*out\.npz"):
        extract_features(images, weights, tmp_path / "out" / "out.npz")
    assert list((tmp_path / "out").iterdir()) == []
