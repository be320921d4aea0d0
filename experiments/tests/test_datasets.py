"""The IDX reader and where it looks."""

import gzip
import struct

import numpy as np
import pytest
from xvarpro_experiments import datasets

from xvarpro.errors import ProblemError

IMAGES = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5)
SQUARE = np.arange(3 * 5 * 5, dtype=np.uint8).reshape(3, 5, 5)


def idx(array):
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.mark.parametrize("pack", [lambda raw: raw, gzip.compress], ids=["plain", "gzip"])
def test_reads_what_was_written(tmp_path, pack):
    path = tmp_path / "images"
    path.write_bytes(pack(idx(IMAGES)))
    np.testing.assert_array_equal(datasets.read_idx(path), IMAGES)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (idx(IMAGES)[:-1], "holds 59 values"),
        (idx(IMAGES) + b"\0", "holds 61 values"),
        (idx(IMAGES)[:9], "ends before its header"),
        (b"", "not an IDX file"),
        (b"\0\0\x0d\x01" + bytes(4), "not an IDX file of unsigned bytes"),
        (b"\x89PNG" + bytes(20), "not an IDX file"),
        (gzip.compress(idx(IMAGES), mtime=0)[:-12], "damaged gzip"),
        (b"\x1f\x8b" + bytes(20), "damaged gzip"),
    ],
)
def test_says_what_is_wrong_with_a_file(tmp_path, raw, reason):
    path = tmp_path / "images"
    path.write_bytes(raw)
    with pytest.raises(ProblemError, match=reason) as caught:
        datasets.read_idx(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "train-images-idx3-ubyte.gz"])
@pytest.mark.parametrize("folder", ["", "mnist"])
def test_finds_mnist_by_argument_and_by_variable(tmp_path, monkeypatch, name, folder):
    path = tmp_path / folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(idx(SQUARE)) if name.endswith("gz") else idx(SQUARE))
    monkeypatch.delenv(datasets.VARIABLE, raising=False)
    assert datasets.find_mnist() is None
    assert datasets.find_mnist(tmp_path) == path
    monkeypatch.setenv(datasets.VARIABLE, str(tmp_path))
    images = datasets.images(2)
    assert images.X.shape == (25, 2)
    np.testing.assert_array_equal(images.X[:, 1] * 255, SQUARE[1].ravel())
    assert "2 training images" in images.source


def test_a_named_folder_without_mnist_is_an_error(tmp_path):
    with pytest.raises(ProblemError, match="no train-images"):
        datasets.images(folder=tmp_path)


@pytest.mark.parametrize("array", [IMAGES.ravel(), IMAGES, IMAGES[:0], SQUARE[:, :0, :0], np.uint8(7)])
def test_what_is_no_set_of_square_images(tmp_path, array):
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(idx(array))
    with pytest.raises(ProblemError, match=r"must hold square images, \(samples, side, side\); got an array of"):
        datasets.mnist(path)


def test_digits_are_bundled(monkeypatch):
    monkeypatch.delenv(datasets.VARIABLE, raising=False)
    images = datasets.images()
    assert images.X.shape == (64, 1797)
    assert images.side == 8
    assert images.X.min() == 0
    assert images.X.max() == 1
