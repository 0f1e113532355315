#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads a checkpoint as docs/format.md says, with nothing of cairn's, and checks every digest and every rule that ties its files together.

usage: read_checkpoint.py STEP      prints what the directory of a step holds, a line for each tensor

A reader in another language can begin with this. XXH3 and zstd come from their libraries, libxxhash.so.0 and libzstd.so.1.
"""

import ctypes
import itertools
import json
import math
import pathlib
import struct
import sys

from read_manifest import DTYPES, Broken, manifest_of, require

BITS = {"I16": 16, "U16": 16, "I32": 32, "U32": 32, "I64": 64, "U64": 64, "F16": 16, "BF16": 16, "F32": 32, "F64": 64,
        "C64": 64, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4}  # of all others 8
XXH3 = ctypes.CDLL("libxxhash.so.0").XXH3_64bits
XXH3.argtypes, XXH3.restype = (ctypes.c_char_p, ctypes.c_size_t), ctypes.c_uint64
BLOCK = 1 << 20


def digest(data):
    return XXH3(bytes(data), len(data))


def check_digest(data, expected, what):
    require(digest(data) == expected, f"the digest of {what} is another one")


def bytes_of(dtype, shape):
    return math.prod(shape) * BITS.get(dtype, 8) // 8


def entries_of(text, data_bytes):
    """{key: entry} of a safetensors header; what an entry lacks of the place of its box is put there."""
    header = json.loads(text.decode())
    metadata = header.pop("__metadata__", None)
    require(text.rstrip(b" ") == text.rstrip() and text[:1] == b"{", "a header has anything but spaces around it")
    at = 0
    for key, entry in header.items():
        begin, end = entry["data_offsets"]
        require(begin == at and end - begin == bytes_of(entry["dtype"], entry["shape"]), f"the data of {key} does not fit")
        entry.update(saved_offsets=[0] * len(entry["shape"]), global_shape=entry["shape"])
        at = end
    require(at == data_bytes, "the data does not end at the end of the file")
    if metadata is not None:
        places = json.loads(metadata.pop("DCP_SHARDING_INFO"))
        require(metadata == {"DCP_VERSION": "1.0", "format": "pt"} and set(places) == set(header), "the metadata is wrong")
        for key, place in places.items():
            header[key].update(place)
    return header


class PlainFile:
    def __init__(self, data, codec):
        length, = struct.unpack_from("<Q", data)
        require(codec == 0 and length <= min(100_000_000, len(data) - 8), "the header reaches beyond the end of the file")
        self.data, self.size, self.begin = data, len(data), 8 + length
        self.entries = entries_of(data[8:self.begin], self.size - self.begin)

    def read(self, _, offset, size):
        return self.data[offset:offset + size]


class CompressedFile:
    def __init__(self, data, codec):
        magic, version, self.codec, zero, self.begin, self.size, count, of_header, of_table = struct.unpack_from(
            "<8sHHIQQQQQ", data, len(data) - 64)
        check_digest(data[-64:-8], struct.unpack("<Q", data[-8:])[0], "a trailer")
        table = data[len(data) - 64 - 16 * count:-64]
        check_digest(data[:self.begin], of_header, "a header")
        check_digest(table, of_table, "a table")
        self.entries = entries_of(data[8:self.begin], self.size - self.begin)
        require((magic, version, self.codec, zero, self.begin, count) == (
            b"cairncmp", 1, codec, 0, 8 + struct.unpack_from("<Q", data)[0], len(self.entries)), "a trailer is wrong")
        lengths = list(struct.iter_unpack("<QQ", table))
        ends = list(itertools.accumulate([frames for frames, _ in lengths] + [index for _, index in lengths], initial=self.begin))
        require(ends[-1] + len(table) + 64 == len(data), "the sections do not fill the file")
        parts = [data[a:b] for a, b in zip(ends, ends[1:])]
        self.parts = dict(zip(self.entries, zip(parts, parts[count:])))

    def read(self, key, _, size):
        frames, index = self.parts[key]
        magic, version, codec, dtype, log, zero, item_bytes, count, of_index = struct.unpack_from("<8sHHBBHQQQ", index, len(index) - 40)
        check_digest(index[:-8], of_index, "an index")
        require((magic, version, codec, DTYPES[dtype], zero, item_bytes) == (
            b"cairnfrm", 1, self.codec, self.entries[key]["dtype"], 0, size) and 16 <= log <= 28, "an index is wrong")
        require(count == -(-size >> log) and len(index) == 12 * count + 40, "an index has another number of frames")
        whole, at = b"", 0
        for length, of_frame in zip(struct.unpack_from(f"<{count}I", index), struct.unpack_from(f"<{count}Q", index, 4 * count)):
            frame = frames[at:at + length]
            check_digest(frame, of_frame, "a frame")
            whole += decode_frame(frame, DTYPES[dtype], min(size - len(whole), 1 << log))
            at += length
        require(at == len(frames), "bytes follow the last frame")
        return whole


def decode_frame(frame, dtype, size):
    """Codec 1."""
    if frame[0] in (0, 1):
        return decode_zstd(frame[1:], size) if frame[0] else frame[1:]
    width = frame[1]  # bytes of an element
    require(frame[0] == 2 and width * 8 == (32 if dtype == "C64" else BITS.get(dtype)), "a frame has another form")
    elements, at, whole = size // width, 2 + 4 * width, bytearray(size)
    for plane, length in enumerate(struct.unpack_from(f"<{width}I", frame, 2)):
        part = frame[at:at + length]
        whole[plane:elements * width:width] = part if length == elements else decode_zstd(part, elements)
        at += length
    whole[elements * width:] = frame[at:]
    return bytes(whole)


def decode_zstd(frame, size):
    zstd = ctypes.CDLL("libzstd.so.1").ZSTD_decompress
    zstd.argtypes, zstd.restype = (ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t), ctypes.c_size_t
    whole = ctypes.create_string_buffer(size)
    require(zstd(whole, size, bytes(frame), len(frame)) == size, "a zstd frame is damaged")
    return whole.raw


def check_record(header, body, rank, manifest):
    """The sizes of the rank's files, and {(digest of a key, digest of a box): (offset, bytes, file, digests of blocks)}."""
    expected = manifest.records[rank]
    magic, major, _, required, _, flags = struct.unpack_from("<8sHHIII", header)
    attempt, step, own, world = struct.unpack_from("<Qqii", header, 40)
    all_bytes, body_bytes, of_body, files = struct.unpack_from("<QQQI", header, 72)
    check_digest(header[:120], struct.unpack_from("<Q", header, 120)[0], "a record's header")
    require((magic, major, required, flags) == (b"cairnrec", 1, 0, 0), "a record is wrong")
    require(struct.unpack_from("<Q", header, 120)[0] == expected.digest and (attempt, step, own, world, files, all_bytes) == (
        expected.attempt, expected.step, rank, manifest.world, expected.files, expected.bytes), "a record is another one")
    check_digest(body, of_body, "a record's body")
    count, items, blocks = struct.unpack_from("<QQQ", body)
    require(body_bytes == len(body) == 24 + 8 * count + 56 * items + 8 * blocks and count == files, "a record's body is wrong")
    sizes = struct.unpack_from(f"<{count}Q", body, 24)
    digests = struct.unpack_from(f"<{blocks}Q", body, 24 + 8 * count + 56 * items)
    require(sum(sizes) == all_bytes, "a record's files have another size than it says")
    found, at = {}, 0
    for key, box, offset, size, of_blocks, first, file, _ in struct.iter_unpack("<QQQQQQII", body[24 + 8 * count:len(body) - 8 * blocks]):
        mine = digests[at:at + -(-size // BLOCK)]
        require(first == at, "an item's blocks do not follow those before")
        check_digest(struct.pack(f"<{len(mine)}Q", *mine), of_blocks, "an item's block digests")
        found[key, box], at = (offset, size, file, mine), at + len(mine)
    return sizes, found


class Checkpoint:
    """The directory of a step. Its records are checked, its data is not yet."""

    def __init__(self, directory):
        self.directory, self.files = pathlib.Path(directory), {}
        data = (self.directory / "manifest.cairn").read_bytes()
        check_digest(data[:120], struct.unpack_from("<Q", data, 120)[0], "the manifest's header")
        check_digest(data[128:], struct.unpack_from("<Q", data, 88)[0], "the manifest")
        self.manifest = manifest_of(data)
        require(f"step-{self.manifest.step:08d}" == self.directory.name, "the manifest is that of another step")
        self.codec = max((item.codec for item in self.manifest.items), default=0)
        self.records = []  # what check_record() gives for each rank
        for rank in range(self.manifest.world):
            sizes, items = check_record(*self.record_of(rank), rank, self.manifest)
            require(all(self.file_of(rank, k).size == size for k, size in enumerate(sizes)), "a data file has another size")
            self.records.append(items)

    def path_of(self, rank, ending):
        first, together = rank - rank % self.manifest.per_file, self.manifest.per_directory
        below = f"ranks-{first - first % together:05d}/" if together else ""
        return self.directory / f"{below}rank-{first:05d}.{self.manifest.records[rank].attempt:016x}.{ending}"

    def file_of(self, rank, index):
        path = self.path_of(rank, f"{index}.cairnz" if self.codec else f"{index}.safetensors")
        if path not in self.files:
            self.files[path] = (CompressedFile if self.codec else PlainFile)(path.read_bytes(), self.codec)
        return self.files[path]

    def record_of(self, rank):
        """Its header and its body."""
        if self.manifest.per_file == 1:
            data = self.path_of(rank, "record").read_bytes()
            return data[:128], data[128:]
        first = rank - rank % self.manifest.per_file
        file, count = self.file_of(rank, 0), min(self.manifest.per_file, self.manifest.world - first)
        headers = [file.data[len(file.data) - 128 * (count - k):][:128] for k in range(count)]
        lengths = [struct.unpack_from("<Q", header, 80)[0] for header in headers]
        entry = file.entries[f"cairn.records@rank{first:05d}"]
        require(entry["shape"] == [sum(lengths) + 128 * count] and entry["dtype"] == "U8", "the records of several ranks are misplaced")
        end = len(file.data) - 128 * count - sum(lengths[rank - first + 1:])
        return headers[rank - first], file.data[end - lengths[rank - first]:end]

    def read(self):
        """{key: (dtype, shape, bytes)} of everything in it."""
        found, used = {}, set()
        for item in self.manifest.items:
            require(item.codec == self.codec, "items have different codecs")
            for rank, offsets, sizes in item.chunks:
                key = item.name + (f"@rank{rank:05d}" if item.per_rank else "")
                box = b"".join(struct.pack(f"<B{len(n)}q", len(n), *n) for n in (offsets, sizes))
                at, size, index, blocks = self.records[rank].pop((digest(key.encode()), digest(box)))
                shape = item.shape
                if item.kind == "bytes":
                    offsets, sizes, shape = [0], [size], [size]
                file = self.file_of(rank, index)
                used.add((id(file), key))
                self.check_place(file, key, item.dtype, (offsets, sizes, shape), (at, size))
                raw = file.read(key, at, size)
                for k, of_block in enumerate(blocks):
                    check_digest(raw[k * BLOCK:(k + 1) * BLOCK], of_block, f"a block of {key}")
                whole = found.setdefault(key, (item.dtype, shape, bytearray(bytes_of(item.dtype, shape))))[2]
                put_box(whole, BITS.get(item.dtype, 8), shape, offsets, sizes, raw)
        require(not any(self.records), "a record has items that the manifest does not name")
        known = {(id(f), key) for f in self.files.values() for key in f.entries if not key.startswith("cairn.records@")}
        require(known == used, "a data file has tensors that the manifest does not name")
        return found

    def check_place(self, file, key, dtype, box, place):
        """What the header of a file says of a box, and the record of where it lies."""
        (offsets, sizes, shape), (at, size), entry = box, place, file.entries[key]
        require(size == bytes_of(dtype, sizes), f"{key} has another size")
        require((entry["dtype"], entry["shape"][1:], entry["saved_offsets"][1:], entry["global_shape"]) == (
            dtype, sizes[1:], offsets[1:], shape), f"{key} is another tensor in its file")
        # Where ranks share files, the tensor of a file may have the rows of several boxes.
        rows, all_rows = (sizes + [1])[0], (entry["shape"] + [1])[0]
        before = (offsets + [0])[0] - (entry["saved_offsets"] + [0])[0]
        require(0 <= before <= all_rows - rows and (rows == all_rows or self.manifest.per_file > 1), f"{key} has another place")
        require(at == file.begin + entry["data_offsets"][0] + before * (size // max(1, rows)), f"{key} lies elsewhere in its file")


def put_box(whole, bits, shape, offsets, sizes, data):
    """Copies a box to its place in a tensor, row by row."""
    row = len(data) // max(1, math.prod(sizes[:-1]))
    for k, index in enumerate(itertools.product(*map(range, sizes[:-1]))):
        at = 0
        for offset, i, size in zip(offsets, (*index, 0), shape):
            at = at * size + offset + i
        whole[at * bits // 8:at * bits // 8 + row] = data[k * row:(k + 1) * row]


if __name__ == "__main__":
    try:
        for name, (dtype, shape, data) in Checkpoint(sys.argv[1]).read().items():
            print(f"{name} {dtype} {shape} {digest(data):016x}")
    except Broken as broken:
        sys.exit(f"read_checkpoint: {sys.argv[1]}: {broken}")
