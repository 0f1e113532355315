#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads the data files of checkpoints with the stock safetensors package and checks what it sees.

usage: check_safetensors.py DIRECTORY

Every directory below DIRECTORY that holds manifest.cairn is one checkpoint, with the files of the save that this names; so is any other that holds
*.safetensors. Each file must open, give the bytes that
stand in it, and place every tensor by DCP_SHARDING_INFO, unless all of its tensors are whole; together the files must
cover each tensor exactly once. A file expected.json beside them, {key: {"dtype": "F32", "shape": [4, 3], "hex": bytes}} (or "sha256" in place of "hex"), says
what must come out. Files that ranks share end with their records, cairn.records@rank00000: bytes behind all data, and no part of the state. Prints one line for each tensor; exits with 1 at the first difference.
"""

import hashlib
import json
import os
import struct
import sys

import numpy
import safetensors

from files_of_step import files_of_step

BITS = {"BOOL": 8, "U8": 8, "I8": 8, "I16": 16, "U16": 16, "I32": 32, "U32": 32, "I64": 64, "U64": 64, "F16": 16,
        "BF16": 16, "F32": 32, "F64": 64, "C64": 64, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F6_E2M3": 6,
        "F6_E3M2": 6, "F4": 4}
# What numpy has a type for; of the others only the raw bytes are compared.
NUMPY = {"BOOL", "U8", "I8", "I16", "U16", "I32", "U32", "I64", "U64", "F16", "F32", "F64"}


RECORDS = "cairn.records@rank"


class Difference(Exception):
    pass


def require(condition, what):
    if not condition:
        raise Difference(what)


def without_twice(pairs):
    keys = [key for key, _ in pairs]
    require(len(keys) == len(set(keys)), "a key is there twice")
    return dict(pairs)


def read_file(path):
    """Yields (key, dtype, shape, saved_offsets, global_shape, bytes) of each tensor."""
    with open(path, "rb") as file:
        size, = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size).decode("utf-8"), object_pairs_hook=without_twice)
        data = file.read()
    metadata = header.pop("__metadata__", {})
    require(all(isinstance(value, str) for value in metadata.values()), "__metadata__ holds more than texts")
    if "DCP_SHARDING_INFO" in metadata:
        require(metadata.get("DCP_VERSION") == "1.0" and metadata.get("format") == "pt", "DCP_VERSION or format is missing")
        places = json.loads(metadata["DCP_SHARDING_INFO"], object_pairs_hook=without_twice)
    else:  # a file of whole tensors alone needs none
        places = {key: {"saved_offsets": [0] * len(entry["shape"]), "global_shape": entry["shape"]}
                  for key, entry in header.items()}
    require(set(places) == set(header), "DCP_SHARDING_INFO does not name exactly the keys of the file")
    with safetensors.safe_open(path, framework="numpy") as opened:
        require(set(opened.keys()) == set(header), "safetensors sees other keys")
        require((opened.metadata() or {}) == metadata, "safetensors sees other metadata")
        for key, entry in header.items():
            begin, end = entry["data_offsets"]
            raw = data[begin:end]
            part = opened.get_slice(key)
            require(part.get_shape() == entry["shape"] and part.get_dtype() == entry["dtype"],
                    f"safetensors sees another shape or dtype of {key!r}")
            if entry["dtype"] in NUMPY:
                tensor = opened.get_tensor(key)
                require(list(tensor.shape) == entry["shape"] and tensor.tobytes() == raw,
                        f"safetensors sees other values of {key!r}")
            offsets = places[key]["saved_offsets"]
            whole = places[key]["global_shape"]
            require(len(offsets) == len(whole) == len(entry["shape"]), f"the place of {key!r} has other dimensions")
            yield key, entry["dtype"], entry["shape"], offsets, whole, raw


def assemble(key, parts):
    """The dtype, global shape and bytes of a tensor from all of its parts."""
    dtype, _, _, whole, _ = parts[0]
    require(all(part[0] == dtype and part[3] == whole for part in parts), f"files disagree on {key!r}")
    if len(parts) == 1:
        require(parts[0][1] == whole, f"{key!r} is not complete")
        return dtype, whole, parts[0][4]
    require(BITS[dtype] % 8 == 0, f"{key!r} has parts of a packed dtype, which this check cannot put together")
    element = numpy.dtype(f"V{BITS[dtype] // 8}")
    tensor = numpy.zeros(whole, element)
    times = numpy.zeros(whole, numpy.uint8)
    for _, shape, offsets, _, raw in parts:
        box = tuple(slice(at, at + size) for at, size in zip(offsets, shape))
        require(all(at + size <= most for at, size, most in zip(offsets, shape, whole)), f"a part of {key!r} sticks out")
        tensor[box] = numpy.frombuffer(raw, element).reshape(shape)
        times[box] += 1
    require((times == 1).all(), f"the parts of {key!r} do not cover it exactly once")
    return dtype, whole, tensor.tobytes()


def ranks_in_records(dtype, shape, raw):
    """How many ranks' records these are: each has a header of 128 bytes, at the end."""
    require(dtype == "U8" and shape == [len(raw)], "records are U8 of one dimension")
    ranks = 0
    while raw[:-128 * ranks or None][-128:].startswith(b"cairnrec"):
        ranks += 1
    require(ranks > 0, "there are no headers of records")
    return ranks


def check(directory, files):
    parts = {}
    ranks = 0
    for name in sorted(files):
        try:
            for key, *part in read_file(os.path.join(directory, name)):
                if key.startswith(RECORDS):
                    ranks += ranks_in_records(part[0], part[1], part[4])
                    continue
                parts.setdefault(key, []).append(part)
        except Difference as difference:
            raise Difference(f"{name}: {difference}") from None
    tensors = {key: assemble(key, found) for key, found in parts.items()}
    for key in sorted(tensors):
        dtype, shape, raw = tensors[key]
        print(f"{key} {dtype} {shape} {len(raw)} bytes in {len(parts[key])} parts")
    if ranks:
        print(f"and the records of {ranks} ranks")
    expected_path = os.path.join(directory, "expected.json")
    if os.path.exists(expected_path):
        with open(expected_path, encoding="utf-8") as file:
            expected = json.load(file)
        for key, want in expected.items():
            require(key in tensors, f"{key!r} is missing")
            dtype, shape, raw = tensors[key]
            require(dtype == want["dtype"] and shape == want["shape"], f"{key!r} is {dtype} {shape}, not as expected")
            got = raw.hex() if "hex" in want else hashlib.sha256(raw).hexdigest()
            require(got == want.get("hex", want.get("sha256")), f"{key!r} has other values than expected")
        require(set(tensors) == set(expected), f"there are unexpected tensors: {sorted(set(tensors) - set(expected))}")
    return len(tensors)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    checkpoints = 0
    for directory, below, names in os.walk(sys.argv[1]):
        below.sort()
        files = [name for name in names if name.endswith(".safetensors")]
        if "manifest.cairn" in names:
            files = [os.path.relpath(file, directory) for file in files_of_step(directory)]
            below.clear()
        if not files:
            continue
        checkpoints += 1
        try:
            tensors = check(directory, files)
        except (Difference, KeyError, ValueError, safetensors.SafetensorError) as difference:
            sys.exit(f"check_safetensors: {directory}: {difference}")
        print(f"{directory}: {len(files)} files, {tensors} tensors")
    if checkpoints == 0:
        sys.exit(f"check_safetensors: no *.safetensors below {sys.argv[1]}")


if __name__ == "__main__":
    main()
