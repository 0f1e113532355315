#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# needs: inspect first_save
"""inspect as an operator uses it: exit statuses for scripts, and --watch while a run saves.

usage: test_inspect.py INSPECT FIRST_SAVE
"""

import contextlib
import ctypes
import fcntl
import glob
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading

from python.programs import expect, run

INSPECT, FIRST_SAVE = (os.path.abspath(path) for path in sys.argv[1:3])
FINE, WRONG_OPTIONS, NOTHING_THERE, DAMAGED, UNREADABLE, NOT_REACHED = 0, 2, 3, 4, 5, 6


def manifest(directory, step):
    return f"{directory}/step-{step:08d}/manifest.cairn"


def write_as_version_3(path):
    """Makes of a manifest one whose format has this major version: in byte 8 of the header, whose last 8 bytes are its digest."""
    digest = ctypes.CDLL("libxxhash.so.0").XXH3_64bits
    digest.argtypes, digest.restype = (ctypes.c_char_p, ctypes.c_size_t), ctypes.c_uint64
    with open(path, "r+b") as file:
        header = bytearray(file.read(128))
        assert struct.unpack("<Q", header[120:])[0] == digest(bytes(header[:120]), 120)
        header[8] = 3
        header[120:] = struct.pack("<Q", digest(bytes(header[:120]), 120))
        file.seek(0)
        file.write(header)


@contextlib.contextmanager
def unfinished(directory, step, within=""):
    """A file that is being written, in the step's directory or a directory in it: it has a lock as long as its writer lives."""
    begun = f"{directory}.begun"
    name = f"{within}rank-00000.{step:016x}.0.safetensors.{7:016x}.part"
    os.makedirs(f"{begun}/{within}")
    with open(f"{begun}/{name}", "wb") as file:
        file.write(bytes(12345))
        file.flush()
        fcntl.fcntl(file.fileno(), fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        os.rename(begun, f"{directory}/step-{step:08d}")  # nobody sees it without its bytes or its lock
        yield f"{directory}/step-{step:08d}/{name}"


def check_statuses(root):
    directory = os.path.join(root, "run")
    expect(run(INSPECT, directory, status=NOTHING_THERE), "does not exist$")
    os.mkdir(directory)
    expect(run(INSPECT, directory, status=NOTHING_THERE), "^0 checkpoints in ")
    run(INSPECT, directory, "--verify", status=NOTHING_THERE)
    run(FIRST_SAVE, directory)
    expect(run(INSPECT, directory), "^3 checkpoints in ")
    run(INSPECT, directory, "--verify")
    run(INSPECT, directory, "--step", 2, "--items", "w*", "--verify")
    listed = [json.loads(line) for line in run(INSPECT, directory, "--json").splitlines()]
    assert [(c["step"], c["items"], c["annotations"]) for c in listed] == [(s, 2, {}) for s in (1, 2, 3)], listed
    items = [json.loads(line) for line in run(INSPECT, directory, "--step", 2, "--json").splitlines()][1:]
    assert [(i["item"], i["dtype"], i.get("shape")) for i in items] == [
        ("learning_rate", "F64", None), ("weights", "F32", [512, 64])], items
    told = [json.loads(line) for line in run(INSPECT, directory, "--json", "--verify").splitlines()]
    assert [(t["step"], t["good"], t["bytes"] > 0) for t in told] == [(s, True, True) for s in (1, 2, 3)], told
    run(INSPECT, directory, "--step", 9, status=NOTHING_THERE)
    run(INSPECT, directory, "--items", "none", status=NOTHING_THERE)
    run(INSPECT, status=WRONG_OPTIONS)
    run(INSPECT, directory, "--sideways", status=WRONG_OPTIONS)
    run(INSPECT, directory, "--for", 1, status=WRONG_OPTIONS)
    run(INSPECT, directory, "--watch", "--verify", status=WRONG_OPTIONS)
    expect(run(INSPECT, manifest(directory, 1), status=WRONG_OPTIONS), "is a file; give the directory")
    told = run(INSPECT, "--help")
    for number in range(7):
        expect(told, rf"\b{number} ")

    other = os.path.join(root, "damaged")
    shutil.copytree(directory, other)
    data = glob.glob(other + "/step-00000002/*.safetensors")[0]
    with open(data, "r+b") as file:
        file.seek(5000)
        file.write(b"damage")
    run(INSPECT, other)  # the manifests are whole
    expect(run(INSPECT, other, "--verify", status=DAMAGED), "^inspect: step 2 is damaged: ")
    expect(run(INSPECT, other, "--verify", "--json", status=DAMAGED), r'^{"step": 2, "good": false, "why": ')
    run(INSPECT, other, "--verify", "--step", 1)
    # Lengths are compared without reading: cut, missing, and a record that is gone.
    length = os.path.getsize(data)
    with open(data, "r+b") as file:
        file.truncate(length - 1)
    expect(run(INSPECT, other, status=DAMAGED),
           rf"^step 2  .*  damaged: step-00000002/\S+\.safetensors has {length - 1} bytes of {length}$")
    os.rename(data, data + ".away")
    expect(run(INSPECT, other, status=DAMAGED), r"^step 2  .*  damaged: step-00000002/\S+\.safetensors is not there$")
    os.rename(data + ".away", data)
    with open(data, "r+b") as file:
        file.truncate(length)
    record = glob.glob(other + "/step-00000001/*.record")[0]
    os.rename(record, record + ".away")
    expect(run(INSPECT, other, status=DAMAGED), r"^step 1  .*  damaged: step-00000001/\S+\.record is not there$")
    os.rename(record + ".away", record)
    run(INSPECT, other)
    with open(manifest(other, 3), "r+b") as file:
        file.truncate(50)
    expect(run(INSPECT, other, status=DAMAGED), "^step 3  damaged: ")

    # What is there and cannot be read, whoever asks: no symbolic link is followed.
    os.remove(manifest(other, 3))
    os.symlink(manifest(other, 3), manifest(other, 3))
    run(INSPECT, other, "--verify", "--step", 3, status=UNREADABLE)

    # What another version of cairn wrote is not damaged, and hides no other one.
    shutil.copytree(directory, root + "/later")
    write_as_version_3(manifest(root + "/later", 2))
    told = run(INSPECT, root + "/later", status=UNREADABLE)
    expect(told, r"^step 2  cannot be read: \[cairn\.corrupt\.unsupported_version\]")
    expect(told, "^step 3  ")
    told = [json.loads(line) for line in run(INSPECT, root + "/later", "--json", status=UNREADABLE).splitlines()]
    assert [("unreadable" in c, "damaged" in c) for c in told] == [(False, False), (True, False), (False, False)], told
    told = run(INSPECT, root + "/later", "--watch", "--until", 3, status=UNREADABLE)
    expect(told, "^step 2  cannot be read: ")
    expect(told, "^newest: step 3, ")


class Watch:
    """inspect --watch, line by line."""

    def __init__(self, *arguments):
        self.process = subprocess.Popen([INSPECT, "--watch", *map(str, arguments)], stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True)
        self.lines = []
        self.limit = threading.Timer(280, self.process.kill)  # ends reads that would wait for ever
        self.limit.start()

    def until(self, pattern):
        """Reads on until a line matches; what came is in self.lines."""
        for line in self.process.stdout:
            self.lines.append(line)
            if re.search(pattern, line):
                return line
        raise AssertionError(f"no line matched {pattern!r}:\n{''.join(self.lines)}")

    def stop(self):
        self.limit.cancel()
        self.process.kill()

    def ends(self, status):
        rest = self.process.stdout.read()
        got = self.process.wait(280)
        self.limit.cancel()
        assert got == status, (got, self.lines, rest)
        return rest


def check_watch(root):
    directory = os.path.join(root, "watched")
    watch = Watch(directory, "--stale-after", 3600)  # the directory is not there yet
    try:
        watch.until("^watching ")
        watch.until("^no checkpoint yet$")
        run(FIRST_SAVE, directory)
        for step in (1, 2, 3):
            watch.until(rf"^step {step}  .* UTC  1 rank ")
        watch.until(r"^newest: step 3, [0-9]+ (s|min) old$")
        with unfinished(directory, 50):
            watch.until("^step 50  is being saved$")
            watch.until(r"^newest: step 3, .* old; being saved: step 50 \(12.3[0-9] kB\)$")
        watch.until("^step 50  was interrupted: 1 unfinished file, no manifest$")
        watch.until(r"^newest: step 3, .*; stale: step 50 \(")
        with unfinished(directory, 51, "ranks-00000/"):  # as more than 256 ranks write
            watch.until("^step 51  is being saved$")
            watch.until(r"^newest: step 3, .* old; being saved: step 51 \(12.3[0-9] kB\); stale: step 50 \(")
        watch.until("^step 51  was interrupted: 1 unfinished file, no manifest$")
        shutil.rmtree(f"{directory}/step-00000051")
        shutil.rmtree(os.path.join(directory, "step-00000001"))
        watch.until("^step 1  is not a checkpoint any more")
        watch.process.send_signal(signal.SIGINT)
        watch.ends(FINE)
    finally:
        watch.stop()
    # A step that failed is saved again.
    with unfinished(directory, 52) as begun:
        step = os.path.dirname(begun)
        open(f"{step}/aborted.{1:016x}", "wb").close()
        open(f"{step}/rank-00000.{1:016x}.0.safetensors", "wb").close()
        expect(run(INSPECT, directory), "^step 52  is not committed: being saved, or interrupted$")
        whole = f"{step}/rank-00000.{52:016x}.0.safetensors"
        os.rename(begun, whole)  # between two files
        expect(run(INSPECT, directory), "^step 52  is not committed: being saved, or interrupted$")
        os.rename(whole, begun)
    expect(run(INSPECT, directory), "^step 52  was interrupted: 1 unfinished file, no manifest$")
    open(f"{step}/aborted.{52:016x}", "wb").close()
    expect(run(INSPECT, directory), "^step 52  failed: nothing was committed$")
    shutil.rmtree(step)
    # What is there already counts for --until; what is not there by the end is told by the status.
    expect(run(INSPECT, directory, "--watch", "--until", 3), "^step 50  was interrupted")
    expect(run(INSPECT, directory, "--watch", "--until", 4, "--for", 0.3, status=NOT_REACHED), "step 4 was not reached$")
    run(INSPECT, directory, "--watch", "--for", 0.3)
    watch = Watch(directory, "--until", 6)
    try:
        watch.until("^newest: ")
        run(FIRST_SAVE, directory)  # goes on from step 3
        watch.until("^step 6  ")
        watch.ends(FINE)
    finally:
        watch.stop()
    # A whole attempt that nobody commits: its files are there, and no writer.
    os.makedirs(f"{directory}/step-00000060")
    with open(f"{directory}/step-00000060/rank-00000.{60:016x}.0.safetensors", "wb") as file:
        file.write(bytes(100))
    expect(run(INSPECT, directory, "--watch", "--for", 0.3, "--stale-after", 0), "^step 60  is stale: written and not committed")
    with open(manifest(directory, 6), "r+b") as file:
        file.truncate(50)
    expect(run(INSPECT, directory, "--watch", "--for", 0.3, status=DAMAGED), "^step 6  damaged: ")
    expect(run(INSPECT, directory, "--watch", "--until", 100, "--for", 0.3, status=DAMAGED), "step 100 was not reached$")


def main():
    with tempfile.TemporaryDirectory() as root:
        check_statuses(root)
        check_watch(root)


if __name__ == "__main__":
    main()
