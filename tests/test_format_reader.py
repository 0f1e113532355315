#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# needs: helper_saves_of_all_kinds
"""A reader that knows docs/format.md alone finds in each kind of checkpoint what was saved, and notices damage in every file.

usage: test_format_reader.py HELPER
"""

import os
import pathlib
import struct
import sys
import tempfile

sys.path.append(f"{os.path.dirname(os.path.abspath(__file__))}/python")
import read_checkpoint  # pylint: disable=wrong-import-position
from files_of_step import files_of_step  # pylint: disable=wrong-import-position
from programs import expect, run  # pylint: disable=wrong-import-position
from read_checkpoint import Broken, Checkpoint, digest  # pylint: disable=wrong-import-position


def lines_of(kind, step):
    return {f"{kind} {int(step.name[5:])} {key} {dtype} {shape} {digest(data):016x}"
            for key, (dtype, shape, data) in Checkpoint(step).read().items()}


def flip_bit(path, at):
    with open(path, "r+b") as file:
        file.seek(at)
        byte, = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 4]))


def check_damage(step):
    """Wherever a bit of a file of the checkpoint differs, the reader refuses it."""
    for file in filter(pathlib.Path.is_file, step.rglob("*")):
        size = file.stat().st_size
        for at in 0, size // 2, size - 1:
            flip_bit(file, at)
            try:
                Checkpoint(step).read()
            except (Broken, ValueError, KeyError, struct.error):
                continue
            finally:
                flip_bit(file, at)
            raise AssertionError(f"nothing was noticed of damage in byte {at} of {file}")


def check_stock_readers(root, steps):
    """They take the files that docs/interop.md names: no others, and none is forgotten."""
    for step in steps:
        named = sorted(file for file in Checkpoint(step).files if file.suffix == ".safetensors")
        assert files_of_step(step) == named, f"{step}: {files_of_step(step)}, not {named}"
    try:
        import safetensors  # pylint: disable=import-outside-toplevel,unused-import
    except ImportError:
        return
    told = run(sys.executable, f"{os.path.dirname(__file__)}/python/check_safetensors.py", root)
    expect(told, r"again/step-00000002: 6 files, 18 tensors")


def main(helper):
    with tempfile.TemporaryDirectory() as root:
        expected = set(run(helper, root).splitlines())
        kinds = {line.split()[0] for line in expected}
        steps = sorted(pathlib.Path(root).glob("*/step-*"))
        forms = set()
        decode_frame = read_checkpoint.decode_frame
        read_checkpoint.decode_frame = lambda frame, *rest: forms.add(frame[0]) or decode_frame(frame, *rest)
        got = set().union(*(lines_of(step.parent.name, step) for step in steps))
        assert got == expected, f"not there: {sorted(expected - got)}\nnot expected: {sorted(got - expected)}"
        assert "compressed" not in kinds or forms == {0, 1, 2}, f"only these forms of frames were there: {forms}"
        check_stock_readers(root, steps)
        for kind in kinds - {"again"}:
            check_damage(pathlib.Path(root, kind, "step-00000001"))
        print(f"{len(steps)} checkpoints of {len(kinds)} kinds are read as they were saved")


if __name__ == "__main__":
    main(sys.argv[1])
