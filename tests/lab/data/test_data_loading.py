"""Order of the data sources, and errors if none has the data."""

from pathlib import Path

import data_files
import pytest
from data_fixtures import isolation, offline  # noqa: F401

from weightclip.lab.data import DataError, load

pytestmark = pytest.mark.usefixtures("offline")

FEATURES = "mini-imagenet-resnet50-features.npz"


def test_data_dir_precedes_the_variable_and_the_variable_precedes_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for directory, count in ((tmp_path / "named", 11), (tmp_path / "variable", 12)):
        data_files.write(directory, data_files.mnist_files(count))
    data_files.write_features(tmp_path / "cache" / "mini-imagenet" / FEATURES)
    monkeypatch.setenv("WEIGHTCLIP_DATA", str(tmp_path / "variable"))
    assert len(load("mnist", data_dir=tmp_path / "named").labels) == 11
    assert len(load("mnist").labels) == 12
    assert load("mini-imagenet").source.kind == "cache"


def test_data_dir_must_contain_the_data(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data_dir: .*empty has no mnist; expected train-images-idx3-ubyte, train-l"):
        load("mnist", data_dir=tmp_path / "empty")


def test_data_dir_must_contain_the_data_even_if_the_cache_has_it(tmp_path: Path) -> None:
    data_files.write_features(tmp_path / "cache" / "mini-imagenet" / FEATURES)
    with pytest.raises(DataError, match=r"data_dir: .*empty has no mini-imagenet"):
        load("mini-imagenet", data_dir=tmp_path / "empty")


def test_directory_in_the_variable_need_not_contain_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    monkeypatch.setenv("WEIGHTCLIP_DATA", str(tmp_path / "empty"))
    assert load("mnist", on_event=events.append).source.kind == "bundled"
    assert events == [
        f"mnist: not in WEIGHTCLIP_DATA={tmp_path / 'empty'}",
        "mnist: WEIGHTCLIP_OFFLINE is set",
        "mnist: using the bundled subset of 10,000 digits",
    ]


def test_missing_file_is_named_and_no_other_source_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data_files.write(tmp_path / "mnist", data_files.mnist_files())
    (tmp_path / "mnist" / "train-labels-idx1-ubyte").unlink()
    message = "train-labels-idx1-ubyte: missing, but train-images-idx3-ubyte is in the same directory"
    with pytest.raises(DataError, match=message):
        load("mnist", data_dir=tmp_path)
    monkeypatch.setenv("WEIGHTCLIP_DATA", str(tmp_path))
    with pytest.raises(DataError, match=message):
        load("mnist")


def test_directory_with_the_name_of_a_file_is_ignored(tmp_path: Path) -> None:
    (tmp_path / FEATURES).mkdir()
    with pytest.raises(DataError, match=rf"has no mini-imagenet; expected {FEATURES}"):
        load("mini-imagenet", data_dir=tmp_path)


def test_error_without_any_source_names_the_reasons_and_the_fix(tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        load("emnist")
    assert str(error.value) == (
        f"emnist: not available: not in {tmp_path / 'cache' / 'emnist'}; WEIGHTCLIP_OFFLINE is set. "
        "Set WEIGHTCLIP_DATA or --data-dir to a directory DIR with emnist-balanced-train-images-idx3-ubyte, "
        "emnist-balanced-train-labels-idx1-ubyte (or with .gz), or the official gzip.zip, in DIR/emnist or in DIR"
    )


def test_error_for_mini_imagenet_names_the_command_that_extracts_features() -> None:
    with pytest.raises(DataError, match="extract the features from the images with `weightclip data features`"):
        load("mini-imagenet")


def test_corrupt_file_in_the_cache_is_detected(tmp_path: Path) -> None:
    """The checksums of MNIST are published, so cached files must match them."""
    data_files.write(tmp_path / "cache" / "mnist", data_files.mnist_files())
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte: corrupt: md5 is not 6bbc.*; delete it"):
        load("mnist")


def test_invalid_checksum_record_is_named(tmp_path: Path) -> None:
    data_files.write(tmp_path / "cache" / "emnist", data_files.emnist_files() | {"official.json": b"[1]"})
    with pytest.raises(DataError, match=r"official\.json: not a valid checksum record"):
        load("emnist")


def test_unknown_name_or_split_raises_an_error() -> None:
    with pytest.raises(ValueError, match=r"name: got 'emnits', expected one of mnist, .*; did you mean 'emnist'"):
        load("emnits")
    with pytest.raises(ValueError, match="split: got 'test', expected one of"):
        load("mini-imagenet", split="test")
