"""Small files in the official formats, and data sets that treat them as official."""

import dataclasses
import gzip
import hashlib
import io
import json
import os
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from weightclip.lab.data import DATASETS, DatasetInfo
from weightclip.lab.data.dataset import Archive, File


def idx(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes() + array.astype(np.uint8).tobytes()


def images(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 28, 28), dtype=np.uint8)


def labels(count: int, classes: int = 10) -> np.ndarray:
    return (np.arange(count) % classes).astype(np.uint8)


def mnist_files(train: int = 40, test: int = 10) -> dict[str, bytes]:
    return {
        "train-images-idx3-ubyte": idx(images(train)),
        "train-labels-idx1-ubyte": idx(labels(train)),
        "t10k-images-idx3-ubyte": idx(images(test, seed=1)),
        "t10k-labels-idx1-ubyte": idx(labels(test)),
    }


def emnist_files(train: int = 94, test: int = 47) -> dict[str, bytes]:
    return {
        "emnist-balanced-train-images-idx3-ubyte": idx(images(train)),
        "emnist-balanced-train-labels-idx1-ubyte": idx(labels(train, 47)),
        "emnist-balanced-test-images-idx3-ubyte": idx(images(test, seed=1)),
        "emnist-balanced-test-labels-idx1-ubyte": idx(labels(test, 47)),
    }


def color_images(count: int, seed: int) -> np.ndarray:
    """[count, 3, 32, 32]"""
    return np.random.default_rng(seed).integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)


def cifar_files(count: int = 10) -> dict[str, bytes]:
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    records = [np.column_stack([labels(count), color_images(count, i).reshape(count, -1)]) for i in range(6)]
    return {name: record.tobytes() for name, record in zip(names, records)}


def write(directory: Path, files: Mapping[str, bytes], *, compressed: bool = False) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = directory / (f"{name}.gz" if compressed else name)
        path.write_bytes(gzip.compress(content) if compressed else content)
    return directory


def zipped(members: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def tarred(members: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def emnist_zip() -> bytes:
    other = {"gzip/emnist-letters-train-images-idx3-ubyte.gz": b"not needed", "../outside": b"malicious"}
    return zipped(other | {f"gzip/{name}.gz": gzip.compress(content) for name, content in emnist_files().items()})


def cifar_tar() -> bytes:
    other = {"cifar-10-batches-bin/readme.html": b"not needed", "/outside": b"malicious"}
    return tarred(other | {f"cifar-10-batches-bin/{name}": content for name, content in cifar_files().items()})


def mnist_package() -> bytes:
    return tarred({"package/package.json": b"{}"} | {f"package/data/{k}": v for k, v in mnist_files().items()})


def cifar_package(count: int = 10) -> bytes:
    members: dict[str, bytes] = {}
    for i, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        rows = color_images(count, i).transpose(0, 2, 3, 1).reshape(count, 1024, 3)
        buffer = io.BytesIO()
        Image.fromarray(rows).save(buffer, "png")
        members[f"package/{name}.png"] = buffer.getvalue()
    batch = labels(count).tolist()
    members["package/train_lables.json"] = json.dumps(batch * 5).encode()
    members["package/test_lables.json"] = json.dumps(batch).encode()
    return tarred(members)


def write_features(path: Path, count: int = 30, **changes: np.ndarray) -> Path:
    features = np.random.default_rng(0).random((count, 2048)).astype(np.float16)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **({"features": features, "labels": labels(count, 100)} | changes))
    return path


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def as_official(name: str, contents: Mapping[str, bytes], served: Mapping[str, bytes], url: str) -> DatasetInfo:
    """Return the data set `name` with `contents` as its official files and `served` as its downloads at `url`."""
    original = DATASETS[name]
    published = all(file.md5 for file in original.all_files)
    files = {
        split: tuple(File(file.name, md5(contents[file.name]) if published else None) for file in files)
        for split, files in original.files.items()
    }
    archives = tuple(
        Archive(f"{url}/{each.name}", md5(served[each.name]), len(served[each.name]), each.members)
        for each in original.archives
    )
    return dataclasses.replace(original, files=files, archives=archives)


def official_mnist(url: str) -> tuple[DatasetInfo, dict[str, bytes]]:
    contents = mnist_files()
    served = {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in contents.items()}
    return as_official("mnist", contents, served, url), served


def fake_npm(directory: Path, package: bytes, *, fails: str = "") -> Path:
    """Write a program `npm` that creates the tar file `package`, or fails with an error code."""
    directory.mkdir()
    (directory / "package.tgz").write_bytes(package)
    fail = f'echo "npm error code {fails}" >&2; exit 1' if fails else ""
    script = f'#!/bin/sh\n{fail}\n[ "$1" = pack ] && /bin/cp "{directory}/package.tgz" ./package-1.0.0.tgz\nexit 0\n'
    npm = directory / "npm"
    npm.write_text(script)
    os.chmod(npm, 0o755)
    return directory
