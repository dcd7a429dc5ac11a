"""Writes arrays with NumPy in the given format, reads and writes them with the library, and reads the result with NumPy:
the arrays are equal, and zipfile finds no error in an archive."""
import ctypes
import sys
import zipfile

import numpy as np


class Named(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("tensor", ctypes.c_void_p)]


library = ctypes.CDLL(sys.argv[1])
kind = sys.argv[2]
library.ls_error_message.restype = ctypes.c_char_p
library.ls_npz_load.restype = library.ls_npy_read.restype = ctypes.c_void_p
library.ls_npz_at.argtypes = [ctypes.c_void_p, ctypes.c_int]
library.ls_npz_at.restype = Named
library.ls_npz_count.argtypes = library.ls_npz_free.argtypes = library.ls_release.argtypes = [ctypes.c_void_p]
library.ls_npy_write.argtypes = [ctypes.c_char_p, ctypes.c_void_p]


def good(what):
    if not what:
        sys.exit(library.ls_error_message().decode())
    return what


def write_array(path, array):
    with open(path, "wb") as file:
        np.lib.format.write_array(file, array, version=(2, 0) if kind == "version_2" else None)


change = {"fortran": np.asfortranarray, "big_endian": lambda a: a.astype(a.dtype.newbyteorder(">"))}.get(kind, lambda a: a)
rng = np.random.default_rng(7)
arrays = {f"{dtype}/ä": rng.integers(0, 2 if dtype == "?" else 200, (3, 1, 700, 5)).astype(dtype)
          for dtype in ("f4", "f8", "f2", "i4", "i8", "u1", "?")}
arrays["none"] = np.zeros((2, 0, 3), "f4")
arrays = {name: change(array) for name, array in arrays.items()}

(np.savez_compressed if kind == "savez_compressed" else np.savez)("theirs.npz", **arrays)
file = good(library.ls_npz_load(b"theirs.npz"))
count = library.ls_npz_count(file)
named = (Named * count)(*[library.ls_npz_at(file, i) for i in range(count)])
good(library.ls_npz_save(b"ours.npz", named, count) == 0)
library.ls_npz_free(file)
assert zipfile.ZipFile("ours.npz").testzip() is None
with np.load("ours.npz") as ours:
    assert list(ours) == list(arrays)
    for name, array in arrays.items():
        assert ours[name].shape == array.shape and ours[name].dtype == array.dtype.newbyteorder("=")
        assert (ours[name] == array).all()

files = 0
for array in arrays.values():
    write_array("theirs.npy", array)
    tensor = good(library.ls_npy_read(b"theirs.npy"))
    good(library.ls_npy_write(b"ours.npy", tensor) == 0)
    library.ls_release(tensor)
    ours = np.load("ours.npy")
    assert ours.shape == array.shape and ours.dtype == array.dtype.newbyteorder("=") and (ours == array).all()
    files += 1
print(f"{count} arrays, {files} files")
