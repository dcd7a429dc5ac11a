"""Compares the variables of an HDF5 file, as h5py reads them, with the tensors of a safetensors file.

    h5py_reads.py HDF5 SAFETENSORS

Dtypes, shapes and bits must be equal. bf16 is compared with the f32 of the same values.
"""
import json
import struct
import sys

import h5py
import numpy

DTYPES = {"F32": "<f4", "F64": "<f8", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "u1", "BOOL": "?"}


def read_safetensors(path):
    with open(path, "rb") as file:
        data = file.read()
    size = struct.unpack("<Q", data[:8])[0]
    tensors = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        raw = data[8 + size + begin:8 + size + end]
        if entry["dtype"] == "BF16":
            values = (numpy.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
        else:
            values = numpy.frombuffer(raw, DTYPES[entry["dtype"]])
        tensors[name] = values.reshape(entry["shape"])
    return tensors


def read_hdf5(path):
    found = {}
    with h5py.File(path, "r") as file:
        file.visititems(lambda name, item: found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    return found


def main():
    found, expected = read_hdf5(sys.argv[1]), read_safetensors(sys.argv[2])
    if not expected or found.keys() != expected.keys():
        sys.exit(f"names: {sorted(found)}, expected {sorted(expected)}")
    for name, values in expected.items():
        other = numpy.asarray(found[name])
        if other.dtype != values.dtype or other.shape != values.shape or other.tobytes() != values.tobytes():
            sys.exit(f"{name}: {other.dtype} {other.shape} differs from {values.dtype} {values.shape}")
    print(f"{len(expected)} tensors")


main()
