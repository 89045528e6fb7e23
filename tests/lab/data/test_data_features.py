"""From images and weights to the features of mini-ImageNet."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from data_fixtures import isolation  # noqa: F401
from PIL import Image

from weightclip.lab.data import DataError, load
from weightclip.lab.data.features import find_images, make_features, misfits, read_image
from weightclip.lab.networks.resnet import resnet50


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
    """Two classes, made in the reverse order of their names, with 2 and 1 images."""
    draw = np.random.default_rng(0)
    for name in ("zebra/1.png", "ant/2.jpg", "ant/1.PNG"):
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (84, 84, 3), dtype=np.uint8)).save(path)
    (tmp_path / "images" / "ant" / "notes.txt").write_text("not an image")
    (tmp_path / "images" / ".hidden").mkdir()
    return tmp_path / "images"


def test_features_are_those_of_the_scaled_images_in_order(images: Path, weights: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "mini-imagenet-resnet50-features.npz"
    told: list[tuple[int, int]] = []
    assert make_features(images, weights, out, batch=2, on_progress=lambda *now: told.append(now)) == (3, 2)
    assert told == [(2, 3), (3, 3)]

    data = load("mini-imagenet", data_dir=out.parent)
    assert data.labels.tolist() == [0, 0, 1]
    network = resnet50().eval()
    network.load_state_dict(torch.load(weights, weights_only=True))
    for row, name in zip(data.inputs, ("ant/1.PNG", "ant/2.jpg", "zebra/1.png")):
        pixels = torch.from_numpy(np.array(Image.open(images / name))).permute(2, 0, 1)[None].double()
        with torch.inference_mode():
            expected = network.double().features((pixels / 255 - 0.5) / 0.5)[0]
        np.testing.assert_allclose(row, expected.numpy(), rtol=2e-3, atol=2e-3)


def test_labels_follow_the_sorted_names_of_the_folders(tmp_path: Path) -> None:
    names = [f"n{number:04}" for number in np.random.default_rng(0).permutation(50)]
    for name in names:
        (tmp_path / "images" / name).mkdir(parents=True)
        (tmp_path / "images" / name / "1.png").touch()
    paths, labels = find_images(tmp_path / "images")
    assert [path.parent.name for path in paths] == sorted(names)
    assert labels.tolist() == list(range(50))


def test_images_are_brought_to_size_and_colour(tmp_path: Path) -> None:
    Image.new("L", (200, 100), 128).save(tmp_path / "grey.png")
    assert (read_image(tmp_path / "grey.png") == np.full((84, 84, 3), 128)).all()


def test_a_broken_image_is_named_and_nothing_is_written(images: Path, weights: Path, tmp_path: Path) -> None:
    path = images / "zebra" / "1.png"
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(DataError, match=r"zebra/1\.png: cannot be read as an image"):
        make_features(images, weights, tmp_path / "out" / "features.npz")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("layer1.0.conv1.weight"), "missing: layer1.0.conv1.weight"),
        (lambda state: state.update(extra=torch.zeros(1)), "unexpected: extra"),
        (lambda state: state.update({"conv1.weight": torch.zeros(1)}), "of another shape: conv1.weight"),
        (
            lambda state: [state.pop(name) for name in list(state)[:5]],
            "missing: conv1.weight, bn1.weight, bn1.bias and 2 more",
        ),
        (lambda state: [state.pop("fc.weight"), state.pop("bn1.num_batches_tracked")], ""),
        (lambda state: state.update({"fc.bias": torch.zeros(10)}), ""),
    ],
)
def test_weights_that_do_not_fit_are_told(
    expected: dict[str, torch.Tensor], change: Callable[[dict[str, torch.Tensor]], object], message: str
) -> None:
    given = dict(expected)
    change(given)
    assert misfits(expected, given) == message


def save(path: Path, expected: dict[str, torch.Tensor], value: float) -> Path:
    """Weights that are all the same, in a small file."""
    torch.save({name: torch.tensor(value).expand(tensor.shape) for name, tensor in expected.items()}, path)
    return path


def test_a_file_that_does_not_fit_is_named(images: Path, expected: dict[str, torch.Tensor], tmp_path: Path) -> None:
    weights = save(tmp_path / "other.pth", expected | {"extra": torch.zeros(1)}, 0.0)
    with pytest.raises(DataError, match=r"weights: .*other\.pth is not of a ResNet-50 .*; unexpected: extra$"):
        make_features(images, weights, tmp_path / "out.npz")


class Harm:
    done = False

    def __reduce__(self) -> tuple[object, ...]:
        return setattr, (Harm, "done", True)


@pytest.mark.parametrize("content", [Harm(), [1, 2], {"name": "text"}])
def test_weights_are_nothing_but_tensors(images: Path, tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / "other.pth")
    with pytest.raises(DataError, match=r"weights: .*other\.pth is not a "):
        make_features(images, tmp_path / "other.pth", tmp_path / "out.npz")
    assert not Harm.done


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04"])
def test_a_file_that_holds_no_weights_is_told(images: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "other.pth").write_bytes(content)
    with pytest.raises(DataError, match=r"weights: .*other\.pth is not a file of weights"):
        make_features(images, tmp_path / "other.pth", tmp_path / "out.npz")


def test_features_that_are_not_finite_are_refused(
    images: Path, expected: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    weights = save(tmp_path / "other.pth", expected, float("nan"))
    with pytest.raises(DataError, match="gives features that are not finite"):
        make_features(images, weights, tmp_path / "out.npz")
    assert not (tmp_path / "out.npz").exists()


def test_wrong_directories_of_images_are_told(images: Path, weights: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"images: .*nowhere is not a directory"):
        make_features(tmp_path / "nowhere", weights, tmp_path / "out.npz")
    with pytest.raises(DataError, match=r"images: .*ant has 0 folders, expected one for each class, 1 to 100"):
        make_features(images / "ant", weights, tmp_path / "out.npz")
    (images / "empty").mkdir()
    with pytest.raises(DataError, match=r"images: .*empty has no images; expected files ending in \.bmp"):
        make_features(images, weights, tmp_path / "out.npz")


def test_other_mistakes_are_told_before_anything_is_computed(images: Path, weights: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(NotADirectoryError):
        make_features(images, weights, tmp_path / "file" / "folder" / "out.npz")
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
        make_features(images, weights, tmp_path)
    with pytest.raises(FileNotFoundError):
        make_features(images, tmp_path / "nothing.pth", tmp_path / "out.npz")
    with pytest.raises(ValueError, match="batch: got 0, expected a whole number of at least 1"):
        make_features(images, weights, tmp_path / "out.npz", batch=0)


def test_a_full_disk_names_the_file_and_leaves_nothing(
    images: Path, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: .*out\.npz"):
        make_features(images, weights, tmp_path / "out" / "out.npz")
    assert list((tmp_path / "out").iterdir()) == []
