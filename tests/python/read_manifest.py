#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads a manifest as docs/format.md says, with nothing of cairn's, and prints what it holds, a line for each thing.

usage: read_manifest.py FILE

Digests are not checked (the standard library has no XXH3). Exits with 1 where the file breaks a rule.
"""

import collections
import struct
import sys

KINDS = ["tensor", "value", "bytes"]
DTYPES = ["BOOL", "U8", "I8", "I16", "U16", "I32", "U32", "I64", "U64", "F16", "BF16", "F32", "F64", "C64", "F8_E5M2",
          "F8_E4M3", "F8_E8M0", "F6_E2M3", "F6_E3M2", "F4"]


class Broken(Exception):
    pass


Item = collections.namedtuple("Item", "name kind dtype shape per_rank codec chunks")  # chunks: [(rank, offsets, sizes)]
Record = collections.namedtuple("Record", "step attempt files bytes digest")
Manifest = collections.namedtuple("Manifest", "step attempt world per_file per_directory items records said")


def require(condition, what):
    if not condition:
        raise Broken(what)


class Bytes:
    """Takes things off the front of some bytes."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, size):
        require(size <= len(self.data) - self.at, "the input ends early")
        self.at += size
        return self.data[self.at - size:self.at]

    def fixed(self, form):
        return struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))

    def number(self):
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                require(byte or shift == 7, "a number is longer than it needs to be")
                return value

    def numbers(self, count):
        return [self.number() for _ in range(count)]

    def finish(self):
        require(self.at == len(self.data), "bytes follow the end")


def sections_of(data, count):
    at, found = 128 + 32 * count, {}
    for s in range(count):
        number, flags, offset, size, _ = struct.unpack_from("<IIQQQ", data, 128 + 32 * s)
        require(offset == at and flags == (number in (7, 8, 9)) and offset + size <= len(data), "a section does not follow the one before")
        found[number] = data[offset:offset + size]
        at = offset + size
        while at % 8:
            require(data[at] == 0, "padding is not zero")
            at += 1
    require(at == len(data), "bytes follow the last section")
    return found


def parts_of(section, begin, count):
    starts = list(struct.unpack_from(f"<{count}I", section, begin)) + [len(section)]
    require(starts[0] == begin + 4 * count and sorted(set(starts)) == starts, "a table is wrong")
    return [section[a:b] for a, b in zip(starts, starts[1:])]


def progression(data, dimensions):
    """The chunks, as (rank, offsets, sizes)."""
    head = data.number()
    offsets, sizes = data.numbers(dimensions), data.numbers(dimensions)
    chunks = [(head >> 3, offsets)]
    for _ in range(head & 7):
        count, step = data.numbers(2)
        dimension = (count & 15) - 1
        move = data.number() if dimension >= 0 else 0
        chunks = [(rank + i * step, [o + (i * move if d == dimension else 0) for d, o in enumerate(at)])
                  for rank, at in chunks for i in range(count >> 4)]
    return [(rank, at, sizes) for rank, at in chunks]


def definition(part):
    data = Bytes(part)
    kind, dtype, flags, dimensions = data.take(4)
    codec = data.number()
    shape = data.numbers(dimensions)
    chunks = [c for _ in range(data.number()) for c in progression(data, dimensions)]
    data.finish()
    return Item("", KINDS[kind], DTYPES[dtype], shape, flags == 1, codec, chunks)


def items_of(sections, count):
    definitions = parts_of(sections[8], 4, struct.unpack_from("<I", sections[8])[0])
    done = 0
    for block in parts_of(sections[7], 0, (count + 15) // 16):
        data, name = Bytes(block), b""
        for i in range(min(16, count - done)):
            kept = data.number() if i else 0
            name = name[:kept] + data.take(data.number())
            yield definition(definitions[data.number()])._replace(name=name.decode())
        data.finish()
        done += 16


def records_of(section, world):
    data = Bytes(section)

    def column():
        values = []
        while len(values) < world:
            count, value = data.numbers(2)
            require(count > 0, "an empty run")
            values += [value] * count
        require(len(values) == world, "a run is too long")
        return values

    columns = [column() for _ in range(4)] + [data.fixed(f"{world}Q")]
    data.finish()
    return [Record(*values) for values in zip(*columns)]


def said(section):
    """The version of the state, and lines for the annotations."""
    data = Bytes(section)
    version, lines = data.number(), []
    for _ in range(data.number()):
        name, kind = data.take(data.number()).decode(), data.take(1)[0]
        require(kind <= 3, "an unknown kind of annotation")
        if kind == 0:
            value = "text " + data.take(data.number()).decode()
        elif kind == 2:
            value = f"real {data.fixed('Q')[0]:016x}"
        else:
            value = data.fixed("q")[0] if kind == 1 else data.take(1)[0]
        lines.append(f"{name}: {value}")
    data.finish()
    return [f"state version {version}"] + lines


def manifest_of(data):
    magic, major, _, required, _, count, total = struct.unpack_from("<8sHHIIIQ", data)
    require(magic == b"cairnman" and major == 2 and required <= 1 and total == len(data), "the header is wrong")
    per_file, per_directory = struct.unpack_from("<ii", data, 96) if required else (1, 0)
    require(1 <= per_file <= 64 and per_directory >= 0, "files are placed in an impossible way")
    step, attempt = struct.unpack_from("<qQ", data, 48)
    world, items = struct.unpack_from("<iI", data, 80)
    sections = sections_of(data, count)
    return Manifest(step, attempt, world, per_file, per_directory, list(items_of(sections, items)),
                    records_of(sections[9], world), said(sections[10]) if 10 in sections else [])


def main(path):
    with open(path, "rb") as file:
        manifest = manifest_of(file.read())
    print(f"step {manifest.step}, {manifest.world} ranks")
    for item in manifest.items:
        require(item.codec == 0, "a codec")
        what = f"{item.kind} {item.dtype} {item.shape}" + (" per rank" if item.per_rank else "")
        print(f"{item.name}: {what}: " + ", ".join(f"rank {r} {o} {s}" for r, o, s in sorted(item.chunks)))
    for rank, r in enumerate(manifest.records):
        print(f"record of rank {rank}: step {r.step}, attempt {r.attempt:016x}, {r.files} files, {r.bytes} bytes, {r.digest:x}")
    for line in manifest.said:
        print(line)


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except Broken as broken:
        sys.exit(f"read_manifest: {sys.argv[1]}: {broken}")
