"""Files after faults: kills, full disks, several writers, damage, and metadata that was made up."""

import io
import os
import zipfile

import numpy as np
import pytest

from xvarpro.errors import ProblemError
from xvarpro.results import files

# -- written whole or not at all ---------------------------------------------------------------------------------------


def failing(error):
    def write(file):
        file.write(b"half of it")
        file.flush()
        raise error

    return write


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("no"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(error, tmp_path):
    path = tmp_path / "kept"
    files.write_atomically(path, lambda file: file.write(b"old"))
    with pytest.raises(type(error)) as raised:
        files.write_atomically(path, failing(error))
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["kept"]
    if isinstance(error, OSError):
        assert (raised.value.errno, raised.value.filename) == (28, str(path))


def test_a_file_keeps_its_mode_and_its_links(tmp_path):
    path, link = tmp_path / "x", tmp_path / "link"
    path.write_bytes(b"old")
    path.chmod(0o600)
    link.symlink_to(path)
    files.write_atomically(link, lambda file: file.write(b"new"))
    assert link.is_symlink()
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    files.write_atomically(os.fsencode(tmp_path / "fresh"), lambda file: file.write(b"new"))
    (tmp_path / "plain").write_bytes(b"")
    assert (tmp_path / "fresh").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_what_is_no_file_is_not_replaced(tmp_path):
    files.write_atomically("/dev/null", lambda file: file.write(b"gone"))
    assert not os.path.isfile("/dev/null")
    with pytest.raises(IsADirectoryError):
        files.write_atomically(tmp_path, lambda file: file.write(b"x"))
    with pytest.raises(FileNotFoundError, match="none/x"):
        files.write_atomically(tmp_path / "none" / "x", lambda file: file.write(b"x"))


# -- read after checks -------------------------------------------------------------------------------------------------


def npy(shape, content=b"", descr="<f8"):
    """An array's file with a header that may claim anything."""
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": descr, "fortran_order": False, "shape": shape})
    return out.getvalue() + content


def archive(path, members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as out:
        for name, content in members.items():
            out.writestr(name, content)
    return path


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (npy((2**27,), b"\0" * 64), r"shape \(134217728,\) of float64, and the file holds 64 bytes"),
        (npy((10**30,)), "holds 0 bytes"),
        (npy((-3,), b"\0" * 24), r"shape \(-3,\)"),
        (npy((2,), b"\0" * 24), "holds 24 bytes"),
        (npy((1,), b"\0" * 8, "|O"), "dtype object"),
        (npy((1,), b"\0" * 8, "<M8[s]"), "dtype datetime64"),
        (npy((1,), b"\0" * 8, [("a", "<f8")]), "dtype"),
        (b"\x93NUMPY\x02\x00" + npy((0,))[8:], "another version"),
        (b"text", "magic"),
    ],
)
def test_an_array_that_is_not_what_its_header_claims_is_not_read(member, message, tmp_path):
    path = archive(tmp_path / "x.npz", {"x.npy": member})
    with pytest.raises(ProblemError, match=message), files.reading(path, "a test") as file:
        file.array("x")


def test_compressed_and_overlapping_arrays_are_refused(tmp_path):
    """A small file could hold any number of bytes in them."""
    member = npy((2**20,), bytes(2**23))
    path = archive(tmp_path / "x.npz", {"x.npy": member}, zipfile.ZIP_DEFLATED)
    with pytest.raises(ProblemError, match="x is compressed"), files.reading(path, "a test") as file:
        file.array("x")
    np.savez(path, x=np.ones(9))
    with pytest.raises(ProblemError, match="claim more bytes"), files.reading(path, "a test") as file:
        [file.array("x") for _ in range(9)]


def test_arrays_come_back_as_they_were(tmp_path):
    path = tmp_path / "x.npz"
    arrays = {"a": np.arange(6.0).reshape(2, 3), "b": np.float32(3.0), "c": np.zeros((0, 3), complex)}
    arrays["d"] = np.asfortranarray(arrays["a"])
    np.savez(path, **arrays, big=arrays["a"].astype(">f8"), name="text")
    with files.reading(path, "a test") as file:
        for name, x in arrays.items():
            back = file.array(name)
            assert (back.dtype, back.shape, back.tobytes()) == (x.dtype, x.shape, x.tobytes())
        assert file.array("big").dtype == np.dtype("float64")
        assert file.text("name") == "text"
    for bad in ({"name": "none"}, {"name": "a", "shape": (2, 4)}, {"name": "a", "kinds": "i"}, {"name": "name"}):
        with pytest.raises(ProblemError), files.reading(path, "a test") as file:
            file.array(**bad)
