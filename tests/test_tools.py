#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# needs: train_gpt evaluate inspect verify copy export_safetensors import_safetensors diff stat reshard prune scavenge doctor fine_tune helper_s3_server
"""The programs for checkpoints by URL, as a user calls them: training, inspecting, verifying, copying and exporting, on
directories and on the scripted S3 server.

usage: test_tools.py TRAIN_GPT EVALUATE INSPECT VERIFY COPY EXPORT_SAFETENSORS IMPORT_SAFETENSORS DIFF STAT RESHARD PRUNE SCAVENGE DOCTOR FINE_TUNE HELPER_S3_SERVER
"""

import fcntl
import glob
import json
import os
import pty
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import numpy
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

try:
    import torch
    from safetensors.torch import load_file as torch_load_file
except ImportError:
    torch = None

from python import programs
from python.programs import expect
from python.scripted_server import ScriptedServer

TRAIN, EVALUATE, INSPECT, VERIFY, COPY, EXPORT, IMPORT, DIFF, STAT, RESHARD, PRUNE, SCAVENGE, DOCTOR, FINE_TUNE, SERVER = (
    os.path.abspath(path) for path in sys.argv[1:16])
TEXT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "LICENSE")
SHAPE = ["--layers", "1", "--width", "16", "--heads", "2", "--context", "16", "--text", TEXT]
FINE, FAILED, WRONG_OPTIONS, NOTHING_THERE, DAMAGED, UNREADABLE, _, NOT_FINITE = range(8)
DIFFERENT, TROUBLE = 1, 2  # of diff alone
ACCESS, SECRET = "AKIDCAIRNTESTS", "scripted/secret+key=of~the.tests"

for name in [name for name in os.environ if name.startswith("AWS_") or name.lower().endswith("_proxy")]:
    del os.environ[name]
os.environ.update(AWS_ACCESS_KEY_ID=ACCESS, AWS_SECRET_ACCESS_KEY=SECRET)


def run(program, *arguments, status=FINE):
    """The output of a program, which must end with this status and tell nobody the key."""
    told = programs.run(program, *arguments, status=status)
    assert SECRET not in told, told
    return told


def ended_by(number, server, call, program, *arguments):
    """What a program says that gets a signal at its first such call, of which the server refuses each until then."""
    server.tell("clear-journal")
    server.tell(f"fault error {call} all status=503 code=ServiceUnavailable")
    with subprocess.Popen([program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        while process.poll() is None and not any(line.startswith(call) for line in server.tell("journal")):
            time.sleep(0.01)
        process.send_signal(number)
        server.tell("clear-faults")
        told = process.stdout.read()
        assert process.wait(100) == FAILED, told
    return told


def shown(program, *arguments):
    """What a program that ends well writes to a terminal as its standard error."""
    terminal, end = pty.openpty()
    with subprocess.Popen([program, *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=end) as process:
        os.close(end)
        told = b""
        try:
            while piece := os.read(terminal, 4096):
                told += piece
        except OSError:  # nobody writes to it any more
            pass
        os.close(terminal)
        assert process.wait(300) == FINE, told
    return told.decode()


def held_out(output):
    return re.search(r"held-out loss .*\((.*)\)$", output, re.MULTILINE).group(1)


def train(url, ranks, steps, *more):
    return run(TRAIN, *SHAPE, "--every", 2, "--keep", 0, "--steps", steps, "--ranks", ranks, "--store", url, *more)


def evaluated(url):
    return held_out(run(EVALUATE, url, "--text", TEXT))


class Server(ScriptedServer):
    def __init__(self):
        super().__init__(SERVER, "--region=us-east-1")
        self.query = f"?endpoint=http://127.0.0.1:{self.port}&region=us-east-1"

    def url(self, prefix):
        return f"s3://bucket/{prefix}{self.query}"


def files_of(directory):
    return {os.path.relpath(path, directory): open(path, "rb").read()
            for path in glob.glob(directory + "/**", recursive=True)
            if os.path.isfile(path) and not os.path.basename(path).startswith("lease-")}  # of copies that were killed


def same(one, other):
    a, b = files_of(one), files_of(other)
    assert a.keys() == b.keys(), (sorted(a), sorted(b))
    assert a == b, [name for name in a if a[name] != b[name]]


def check_options(root):
    for program in (TRAIN, EVALUATE, INSPECT, VERIFY, COPY, EXPORT, IMPORT, DIFF, STAT, RESHARD, PRUNE, SCAVENGE, DOCTOR):
        expect(run(program, "--help"), r"(?s)Usage: .*s3://BUCKET/PREFIX")
        expect(run(program, "--sideways", status=WRONG_OPTIONS), "sideways|required")
    for program in (INSPECT, VERIFY, COPY, EXPORT, IMPORT, STAT, RESHARD, PRUNE, SCAVENGE, DOCTOR):
        told = run(program, "--help")
        for number in range(6):
            expect(told, rf"\b{number} ")
        more = [root + "/other"] if program in (COPY, EXPORT, IMPORT, RESHARD, SCAVENGE) else ["--keep-last", 1] if program == PRUNE else []
        run(program, root + "/nothing", *more, status=NOTHING_THERE)
        if program == SCAVENGE:  # its first names are directories
            continue
        told = run(program, "s3://user:secret-word@bucket/x", *more, status=WRONG_OPTIONS)
        assert "secret-word" not in told, told
    run(DIFF, root + "/nothing", root + "/nothing", status=TROUBLE)
    for program, *more in ((STAT,), (VERIFY,), (INSPECT,), (EVALUATE,), (COPY, root), (EXPORT, root), (RESHARD, root), (IMPORT, root), (DIFF, root)):
        option = "--step-b" if program == DIFF else "--step"
        for number in ("-1", "9223372036854775808", "1e3", ""):
            expect(run(program, root, *more, option, number, status=WRONG_OPTIONS), f"'{number}' is no whole number from 0 to")
    for option in ("--keep-within", "--live-within"):
        expect(run(PRUNE, root, "--keep-last", 1, option, "nan", status=WRONG_OPTIONS), "'nan' is no number of 0 or more")
    expect(run(PRUNE, root, "--keep-last", 0, status=WRONG_OPTIONS), "no whole number from 1 to")
    assert not os.path.exists(root + "/nothing")


def check_doctor(root, server):
    told = run(DOCTOR, root)
    expect(told, rf"^directory {re.escape(root)} \(\w+\)$")
    assert len(re.findall("^right  ", told, re.MULTILINE)) == 7, told
    assert not re.search("^(weaker|single job|unusable) ", told, re.MULTILINE), told
    expect(told, "^right +a rename replaces nothing: over a file: File exists")
    report = json.loads(run(DOCTOR, root, "--json", "--single-writer"))
    assert report["usable"] and report["single_writer"] and report["free_bytes"] > 0, report
    assert report["kind"] and " on /" in report["mounted"] and {p["outcome"] for p in report["points"]} == {"right"}
    assert not glob.glob(root + "/cairn-probe*") and not glob.glob(root + "/.*")
    odd = os.fsencode(root) + b'/odd\xff"dir'  # a name that is no UTF-8
    os.mkdir(odd)
    told = subprocess.run([DOCTOR, odd, "--json"], stdout=subprocess.PIPE, check=True).stdout
    assert '/odd\ufffd"dir (' in json.loads(told.decode())["store"], told
    told = run(DOCTOR, server.url("examined"))
    expect(told, "^bucket bucket at .*examined")
    expect(told, "^right +a key is given to one writer alone .*: a second PUT was refused$")
    expect(run(DOCTOR, server.url("examined"), "--single-writer", status=WRONG_OPTIONS), "exclusive=single-writer")
    # A signal does not end it before it has removed what it tried.
    told = ended_by(signal.SIGTERM, server, "PutObject", DOCTOR, server.url("doctored"))
    expect(told, "^doctor: ended by a signal")
    assert not [key for key in server.tell("keys") if "doctored" in key]
    told = run(DOCTOR, "/proc", status=UNREADABLE)
    expect(told, "(?m)^unusable +.*proc\n +it is a view of the kernel and keeps no files")
    run(DOCTOR, TEXT, status=NOTHING_THERE)  # a file
    told = run(DOCTOR, root + "/nowhere", status=NOTHING_THERE)
    expect(told, "the store's directory is not there: is its disk mounted")
    for program in (DOCTOR, INSPECT, VERIFY):  # no directory of this name
        expect(run(program, "gs://bucket/run", status=WRONG_OPTIONS), "a store is a path, file:PATH, or,.* s3://BUCKET/PREFIX")


def check_training(root, server):
    """The same run in a directory and in a bucket; both go on elsewhere with the same losses."""
    directory, bucket = root + "/run", server.url("team/run")
    told = [train(directory, 4, 4), train(bucket, 4, 4)]
    assert held_out(told[0]) == held_out(told[1])
    resumed = root + "/resumed"
    shutil.copytree(directory, resumed)
    ends = [train(resumed, 1, 6), train(bucket, 2, 6)]
    for end in ends:
        expect(end, "^resumed from the checkpoint of step 4$")
        assert held_out(end) == held_out(ends[0])
    expect(run(INSPECT, bucket), "^3 checkpoints in s3://bucket/team/run")
    assert evaluated(bucket) == evaluated("file:" + resumed) == held_out(ends[0])
    expect(run(INSPECT, bucket, "--step", 4, "--items", "adam.m"), r"^adam\.m +tensor .*4 chunks, ranks 0-3$")
    expect(run(INSPECT, bucket, "--step", 4), r"^annotations\nloss +\d\.\d+$")
    expect(run(INSPECT, bucket, "--watch", "--until", 6), "^step 6  ")
    told = run(VERIFY, bucket)
    assert len(re.findall("^step [246]  every digest is right: ", told, re.MULTILINE)) == 3, told
    return directory


def check_progress(root, directory):
    """On a terminal, and there alone, a line tells how far the work is."""
    for doing, *command in (("reading", VERIFY, directory), ("sending", COPY, directory, root + "/shown"),
                            ("writing", EXPORT, directory, root + "/shown-model"), ("reading", INSPECT, directory, "--verify")):
        expect(shown(*command), rf"step [24]  {doing}  +\d+ %  [\d.]+ \w+ of [\d.]+ \w+")
    expect(shown(PRUNE, directory, "--keep-last", 1), r"reading manifests  +\d+ %  0 of \d+")
    expect(shown(DOCTOR, root), "trying " + re.escape(root))
    assert "%" not in run(VERIFY, directory)


def check_damage(root, directory):
    broken = root + "/broken"
    shutil.copytree(directory, broken)
    first, second = sorted(glob.glob(broken + "/step-00000004/rank-0000[12].*.safetensors"))
    places = {}
    for path, key in ((first, "adam.m"), (second, "adam.v")):
        with open(path, "r+b") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
            at = 8 + length + header[key]["data_offsets"][0]
            file.seek(at + 1)
            byte = file.read(1)[0]
            file.seek(at + 1)
            file.write(bytes([byte ^ 16]))
        places[key] = (os.path.relpath(path, broken), at)
    told = run(VERIFY, broken, status=DAMAGED)
    for key, (name, at) in places.items():
        expect(told, rf"^verify: step 4: item {re.escape(key)} .*, file {re.escape(name)}, offset {at}, \d+ bytes: damaged")
    expect(told, "^step 2  every digest is right: ")
    expect(told, "^step 4  is damaged in 2 places: ")
    run(VERIFY, broken, "--step", 2)
    run(VERIFY, broken, "--step", 3, status=NOTHING_THERE)

    # A damaged checkpoint is not copied; the others are.
    told = run(COPY, broken, root + "/half", status=DAMAGED)
    expect(told, "^step 2  copied and verified: ")
    expect(told, r"^copy: step 4: item adam\.m ")
    run(VERIFY, root + "/half")
    expect(run(INSPECT, root + "/half"), "^1 checkpoint in ")
    run(EXPORT, broken, root + "/half-model", status=DAMAGED)

    # A file that ends early, one that is gone, a record and a manifest that are damaged: all are told.
    with open(first, "r+b") as file:
        file.truncate(os.path.getsize(first) - 1)
    os.remove(second)
    record = glob.glob(broken + "/step-00000004/rank-00003.*.record")[0]
    with open(record, "r+b") as file:
        file.truncate(100)
    with open(broken + "/step-00000002/manifest.cairn", "r+b") as file:
        file.seek(300)
        file.write(b"damage")
    told = run(VERIFY, broken, status=DAMAGED)
    for name, what in ((first, "has another size"), (second, "is not there"), (record, "cannot be checked without its record")):
        expect(told, rf"^verify: step 4: file {re.escape(os.path.relpath(name, broken))}.*{what}")
    expect(told, r"^verify: step 4: item adam\.v .*: lost with its file$")
    expect(told, "^verify: step 2: file step-00000002/manifest.cairn")


def check_copy(root, directory, server):
    """Directory, bucket, directory: not a byte is another one."""
    bucket, back = server.url("copies"), root + "/back"
    expect(run(COPY, directory, bucket, "--newest"), "^step 4  copied and verified: .* 0 were there$")
    told = run(COPY, directory, bucket)
    expect(told, "^step 2  copied and verified: ")
    expect(told, "^step 4  is there already$")
    run(COPY, bucket, "file:" + back)
    same(directory, back)
    assert evaluated(bucket) == evaluated(back)
    run(COPY, bucket, server.url("elsewhere"), "--step", 2)  # within a bucket
    # What a job removed since it was listed is told to people, and is no object of JSON.
    server.tell("fault error GetObject all key=copies/step-00000002/manifest.cairn status=404 code=NoSuchKey")
    for program, *more in ((VERIFY,), (COPY, root + "/rest")):
        told = run(program, bucket, *more, "--json")
        assert [json.loads(line)["step"] for line in told.splitlines()] == [4], told
        expect(run(program, bucket, *more), "^step 2  is not there any more$")
    server.tell("clear-faults")
    # A bucket that is not there takes no copies: no step counts as removed by a job.
    told = run(COPY, directory, "s3://absent/copies" + server.query, status=NOTHING_THERE)
    expect(told, "^copy: .*there is no such bucket")
    assert "not there any more" not in told and "step 4" not in told, told
    # What stands there and is another checkpoint is left alone.
    other = root + "/other-run"
    train(other, 2, 2)
    before = files_of(other)
    expect(run(COPY, directory, other, "--step", 2, status=UNREADABLE), "another checkpoint of step 2 stands in")
    assert files_of(other) == before

    # What arrived earlier is kept if it is right, and sent again if it is not.
    parts = root + "/parts"
    shutil.copytree(directory, parts)
    shutil.rmtree(parts + "/step-00000002")
    os.remove(parts + "/step-00000004/manifest.cairn")
    data = sorted(glob.glob(parts + "/step-00000004/*.safetensors"))
    os.remove(data[0])
    with open(data[1], "r+b") as file:
        file.seek(5000)
        file.write(b"damage")
    for name in ("manifest.cairn", os.path.basename(data[0])):  # what copies that were killed had begun
        with open(f"{parts}/step-00000004/{name}.00c0ffee00c0ffee.part", "wb") as file:
            file.write(b"begun")
    run(INSPECT, parts, status=NOTHING_THERE)
    expect(run(COPY, directory, parts, "--step", 4), "^step 4  copied and verified: .* in 2 objects sent, 6 were there$")
    shutil.copytree(directory + "/step-00000002", parts + "/step-00000002")
    same(directory, parts)

    # SIGINT ends it, and it says how to go on. It cannot have ended before: no object is taken until the signal was sent.
    stopped = server.url("stopped")
    told = ended_by(signal.SIGINT, server, "PutObject", COPY, directory, stopped)
    expect(told, "^copy: ended by a signal; step 2 is not committed .* The same command goes on")
    run(INSPECT, stopped, status=NOTHING_THERE)
    # And SIGTERM a verify.
    told = ended_by(signal.SIGTERM, server, "GetObject", INSPECT, bucket, "--verify")
    expect(told, "^inspect: ended by a signal after 0 of 2 checkpoints; go on with --step 2 and those behind it$")


def check_under_way(server):
    """A save on its way to a bucket is not called interrupted: nobody sees there whose uploads are."""
    url = server.url("under-way")
    server.tell("fault gather CompleteMultipartUpload all key=rank- count=1000 ms=600000")  # no upload completes
    big = ["--layers", "4", "--width", "256", "--heads", "2", "--context", "16", "--text", TEXT]
    trainer = subprocess.Popen([TRAIN, *big, "--every", "1", "--steps", "2", "--ranks", "1", "--mode", "thread", "--store", url],
                               stdout=subprocess.DEVNULL)
    try:
        told = ""
        while not re.search("^step 1  ", told, re.MULTILINE):
            assert trainer.poll() is None, told
            told = programs.run(INSPECT, url, status=NOTHING_THERE)
        expect(told, "^step 1  is not committed: being saved, or interrupted$")
        watched = programs.run(INSPECT, url, "--watch", "--stale-after", 0, "--for", 3)
        expect(watched, "^step 1  is being saved, or was interrupted: it has unfinished uploads")
        assert "stale" not in watched, watched
    finally:
        trainer.kill()
        trainer.wait()
        server.tell("clear-faults")


def check_output(root, directory):
    """What a program found and could not write down is told by its status."""
    def ends(program, *arguments, status=UNREADABLE):
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = subprocess.run([program, *map(str, arguments)], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        assert done.returncode == status, (program, arguments, done.returncode, done.stderr)
        expect(done.stderr, "^[a-z_]+: standard output could not be written to its end")
    for json_or_text in ([], ["--json"]):
        for program, *more in ((INSPECT,), (INSPECT, "--step", 4), (INSPECT, "--verify"), (VERIFY,), (STAT,), (PRUNE, "--keep-last", 1),
                               (COPY, root + "/whole-output")):
            ends(program, directory, *more, *json_or_text)
        ends(DOCTOR, root, *json_or_text)
        ends(DIFF, directory, directory, *json_or_text, status=TROUBLE)
        ends(DIFF, directory + "/step-00000002", directory + "/step-00000004", *json_or_text, status=TROUBLE)
    ends(INSPECT, directory, "--watch", "--until", 4)
    ends(VERIFY, "--help")
    # Where nothing is printed there is nothing to write.
    run("/bin/sh", "-c", 'exec "$0" "$@" >&-', INSPECT, root + "/nothing", "--json", status=NOTHING_THERE)


def check_unreadable(root, directory, server):
    """A checkpoint that cannot be read hides no other one: neither from inspect nor from copy."""
    bucket, there = server.url("unreadable"), root + "/readable"
    run(COPY, directory, bucket)
    data = os.path.basename(sorted(glob.glob(directory + "/step-00000002/*.safetensors"))[0])
    for key in ("manifest.cairn", data):
        server.tell(f"fault error GetObject all key=unreadable/step-00000002/{key} status=403 code=AccessDenied")
        told = run(COPY, bucket, there, status=UNREADABLE)
        expect(told, r"^copy: step 2: \[cairn\.storage\.permission\]")
        expect(told, "^step 4  copied and verified: ")
        assert glob.glob(there + "/*/manifest.cairn") == [there + "/step-00000004/manifest.cairn"]
        shutil.rmtree(there)
        told = subprocess.run([COPY, bucket, there, "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
        assert told.returncode == UNREADABLE
        two, four = map(json.loads, told.stdout.splitlines())
        assert (two["step"], four["step"], four["was_there"]) == (2, 4, False) and "permission" in two["unreadable"], told.stdout
        shutil.rmtree(there)
        server.tell("clear-faults")
    server.tell("fault error GetObject all key=unreadable/step-00000002/manifest.cairn status=403 code=AccessDenied")
    told = run(INSPECT, bucket, status=UNREADABLE)
    expect(told, r"^step 2  cannot be read: \[cairn\.storage\.permission\]")
    expect(told, "^step 4  .* 4 ranks ")
    told = [json.loads(line) for line in run(INSPECT, bucket, "--json", status=UNREADABLE).splitlines()]
    assert [c["step"] for c in told] == [2, 4] and "permission" in told[0]["unreadable"], told
    told = run(INSPECT, bucket, "--watch", "--until", 4, status=UNREADABLE)
    expect(told, "^step 2  cannot be read: ")
    expect(told, "^newest: step 4, ")

    # A watch goes on when the store is away for a while, and forgets what it could not read when it can again.
    with subprocess.Popen([INSPECT, bucket, "--watch"], stdout=subprocess.PIPE, text=True) as watch:
        def until(pattern):
            lines = []
            while not (lines and re.search(pattern, lines[-1])):
                lines.append(watch.stdout.readline())
                assert lines[-1], f"{pattern!r} did not come: {lines}"
            return lines
        until("^step 2  cannot be read: ")
        until("^newest: step 4, ")
        server.tell("fault error ListObjectsV2 all status=403 code=AccessDenied")
        until(r"^cannot look, and goes on trying: \[cairn\.storage\.permission\]")
        server.tell("clear-faults")
        told = until("^newest: step 4, ")
        assert any(line.startswith("step 2  2") for line in told), told
        watch.send_signal(signal.SIGINT)
        assert watch.wait(100) == FINE
    server.tell("fault error ListObjectsV2 all status=403 code=AccessDenied")
    run(INSPECT, bucket, "--watch", status=UNREADABLE)  # the first look
    server.tell("clear-faults")


def check_kills(root, directory, server):
    """Killed at any moment, a copy is not seen until it is whole, and the next one goes on."""
    chance = random.Random(1)
    begin = time.monotonic()
    run(COPY, directory, root + "/whole")
    whole = time.monotonic() - begin
    for round_, target in enumerate((root + "/killed", server.url("killed"))):
        for _ in range(5):
            with subprocess.Popen([COPY, directory, target], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
                time.sleep(whole * chance.uniform(0.2, 1))  # any moment will do
                process.kill()
            told = subprocess.run([VERIFY, target], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
            assert told.returncode in (FINE, NOTHING_THERE), told.stdout
        run(COPY, directory, target)
        assert run(VERIFY, target).count("every digest is right") == 2
        if round_ == 1:
            run(COPY, target, root + "/from-killed")
            target = root + "/from-killed"
        same(directory, target)


def whole_tensors(step_directory):
    """The tensors of a checkpoint, put together from the files of its ranks by their own headers."""
    found = {}
    for path in glob.glob(step_directory + "/*.safetensors"):
        with safe_open(path, "numpy") as file:
            places = json.loads((file.metadata() or {}).get("DCP_SHARDING_INFO", "{}"))
            for name in file.keys():
                part = file.get_tensor(name)
                place = places.get(name, {"saved_offsets": [0] * part.ndim, "global_shape": list(part.shape)})
                whole = found.setdefault(name, numpy.zeros(place["global_shape"], part.dtype))
                whole[tuple(slice(o, o + n) for o, n in zip(place["saved_offsets"], part.shape))] = part
    return found


def check_export(root, directory, server):
    expected = whole_tensors(directory + "/step-00000004")
    model = root + "/model"
    told = run(EXPORT, directory, model, "--max-shard-size", "10KB")
    expect(told, r"^2 items left out, since bytes and per-rank items are no tensors of the model: data_loader, rng$")
    index = json.load(open(model + "/model.safetensors.index.json", encoding="utf-8"))
    names = sorted(set(index["weight_map"].values()))
    count = len(names)
    assert count > 2 and names == [f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)], names
    assert sorted(os.listdir(model)) == sorted(names + ["model.safetensors.index.json"])
    wanted = {name: tensor for name, tensor in expected.items() if name != "data_loader" and not name.startswith("rng@")}
    assert index["weight_map"].keys() == wanted.keys(), index["weight_map"].keys() ^ wanted.keys()
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in wanted.values())
    for name, tensor in wanted.items():
        with safe_open(f"{model}/{index['weight_map'][name]}", "numpy") as file:
            assert file.metadata() == {"format": "pt"}
            got = file.get_tensor(name)
            assert got.dtype == tensor.dtype and got.shape == tensor.shape and got.tobytes() == tensor.tobytes(), name
    # Nothing that is there is written over.
    before = files_of(model)
    run(EXPORT, directory, model, "--max-shard-size", "10KB", status=UNREADABLE)
    assert files_of(model) == before
    # The model alone, from and to a bucket.
    bucket = server.url("exported")
    run(COPY, directory, server.url("to-export"), "--newest")
    expect(run(EXPORT, server.url("to-export"), root + "/plain", "--items", "model.*", "--strip-prefix", "model."), " in 1 file; ")
    got = load_file(root + "/plain/model-00001-of-00001.safetensors")
    assert got.keys() == {name.removeprefix("model.") for name in wanted if name.startswith("model.")}
    assert all(numpy.array_equal(tensor, wanted["model." + name]) for name, tensor in got.items())
    run(EXPORT, directory, bucket, "--items", "adam.m", "--step", 2, "--name", "moments")
    assert "exported/moments-00001-of-00001.safetensors" in server.tell("keys")
    run(EXPORT, directory, root + "/none", "--items", "nothing", status=NOTHING_THERE)
    for name in ("sub/model", ""):
        expect(run(EXPORT, directory, root + "/none", "--name", name, status=WRONG_OPTIONS), "the name of exported files is empty or has a '/'")
    assert not os.path.exists(root + "/none")


def check_import(root, server):
    """What was exported comes back as a checkpoint, from and to directories and buckets."""
    model, back = root + "/model", root + "/imported"
    expected = {}
    for path in glob.glob(model + "/*.safetensors"):
        expected.update(load_file(path))
    expect(run(IMPORT, model, back, "--step", "00000009"), rf"^step 9  {len(expected)} tensors, .*, committed$")
    expect(run(VERIFY, back), "every digest is right")
    got = whole_tensors(back + "/step-00000009")
    assert got.keys() == expected.keys()
    assert all(got[name].tobytes() == tensor.tobytes() and got[name].shape == tensor.shape for name, tensor in expected.items())
    run(IMPORT, model, back, "--step", 9, status=UNREADABLE)  # it is there
    run(IMPORT, server.url("exported"), server.url("imported"))
    run(VERIFY, server.url("imported"))
    # Killed at any moment, it has made the whole checkpoint or none; test_kill kills it at each of its steps.
    chance, begin = random.Random(1), time.monotonic()
    run(IMPORT, model, root + "/import-whole")
    whole = time.monotonic() - begin
    for round_ in range(5):
        killed = f"{root}/import-killed-{round_}"
        with subprocess.Popen([IMPORT, model, killed], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            time.sleep(whole * chance.uniform(0.2, 1))
            process.kill()
        told = subprocess.run([VERIFY, killed], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        assert told.returncode in (FINE, NOTHING_THERE), told.stdout
        run(IMPORT, model, killed, status=FINE if told.returncode == NOTHING_THERE else UNREADABLE)
        expect(run(DIFF, killed, root + "/import-whole"), "^equal: ")
    run(IMPORT, root + "/nowhere", back, status=NOTHING_THERE)
    run(IMPORT, model, back, "--items", "nothing", status=NOTHING_THERE)
    damaged = sorted(glob.glob(model + "/*.safetensors"))[0]
    os.truncate(damaged, os.path.getsize(damaged) - 1)
    run(IMPORT, model, root + "/of-damaged", status=DAMAGED)


def check_linked(root, server):
    """Steps whose frozen weights share a file: stock readers and every program take each of them for a whole one."""
    directory, bucket = root + "/linked", server.url("linked")
    expect(run(FINE_TUNE, root + "/linked-model", directory), "^start 2 goes on from step 3$")
    step = directory + "/step-00000003"
    shared = [path for path in glob.glob(step + "/*.safetensors") if os.stat(path).st_nlink == 3]
    assert len(shared) == 1, shared
    expected = whole_tensors(step)  # by the stock reader
    assert expected.keys() == {"wte", "blocks.0.mlp", "adam.blocks.0.mlp"}, expected.keys()
    if torch is not None:
        for path in glob.glob(step + "/*.safetensors"):
            for name, tensor in torch_load_file(path).items():
                assert tensor.numpy().tobytes() == expected[name].tobytes(), name
    assert run(VERIFY, directory).count("every digest is right") == 6
    run(COPY, directory, bucket)
    run(COPY, bucket, root + "/linked-copy", "--step", 3)
    for other in (1, 2, 4, 5, 6):  # by hand, as anybody may
        shutil.rmtree(f"{directory}/step-{other:08}")
        expect(run(VERIFY, directory, "--step", 3), "every digest is right")
    assert os.stat(shared[0]).st_nlink == 1
    for there in (bucket, root + "/linked-copy"):
        expect(run(DIFF, directory, there, "--step-b", 3), "^equal: 3 items; 0 bytes read$")
    run(EXPORT, directory, root + "/linked-exported")
    exported = load_file(root + "/linked-exported/model-00001-of-00001.safetensors")
    assert exported.keys() == expected.keys()
    assert all(exported[name].tobytes() == tensor.tobytes() for name, tensor in expected.items())
    run(RESHARD, directory, root + "/linked-resharded", "--ranks", 2)
    expect(run(DIFF, directory, root + "/linked-resharded"), "^equal: 3 items; ")
    expect(run(STAT, directory), r"^wte +F32 +\[16, 8\] ")


def check_diff(root, directory, server):
    """Steps of a run, runs of other ranks, copies and exports, on directories and buckets."""
    expect(run(DIFF, directory, server.url("to-export")), "^equal: 27 items; 0 bytes read$")
    steps = [directory + "/step-00000002", directory + "/step-00000004/"]
    told = run(DIFF, *steps, status=DIFFERENT)
    expect(told, r"^model\.wte  content  F32 \[256, 16\]  1 of 1 block$")
    expect(told, r"^\d+ of 27 items differ; 0 bytes read$")
    assert run(DIFF, directory, server.url("to-export"), "--step-a", 2, "--step-b", 4, status=DIFFERENT) == told
    expected = [whole_tensors(directory + f"/step-0000000{step}") for step in (2, 4)]
    lines = [json.loads(line) for line in run(DIFF, *steps, "--values", "--json", status=DIFFERENT).splitlines()]
    said = lines.pop(0)  # what annotate() said comes first
    assert said["annotation"] == "loss" and isinstance(said["a"], float) and said["a"] != said["b"], said
    expect(told, r"^annotation loss  [\d.]+ \| [\d.]+$")
    assert not lines[-1]["equal"] and lines[-1]["differing_items"] == len(lines) - 1
    assert lines[-1]["differing_annotations"] == 1
    for line in lines[:-1]:
        if line["item"] not in expected[0] or "largest_absolute" not in line:
            continue
        a, b = (side[line["item"]].astype(numpy.float64) for side in expected)
        assert line["differing_elements"] == numpy.count_nonzero(a != b), line
        assert line["largest_absolute"] == numpy.max(numpy.abs(a - b)), line
    # What other ranks wrote, and what was exported, is read and compared.
    one = root + "/on-one-rank"
    train(one, 1, 2)
    expect(run(DIFF, steps[0], one, "--items", "model.*", "adam.*"), r"^equal: \d+ items; \d.* read$")
    run(EXPORT, directory, root + "/of-four", "--step", 4)
    expect(run(DIFF, root + "/of-four", steps[1], "--items", "model.*", "adam.*"), "^equal: ")
    told = run(DIFF, root + "/of-four/model-00001-of-00001.safetensors", steps[1], "--only", "rng", status=DIFFERENT)
    expect(told, "^rng  only in B  4 ranks, ")
    run(DIFF, root + "/broken", directory, "--step-a", 4, status=TROUBLE)
    expect(run(DIFF, *steps, "--items", "nothing", status=TROUBLE), "no item matches this pattern")


def check_reshard(root, directory, server):
    """One file of four, and two of it in a bucket, which loads as the first did."""
    one, two = root + "/one-file", server.url("for-two")
    told = run(RESHARD, directory, one, "--one-file")
    expect(told, "^left out, since there are fewer ranks now: rng of 3 ranks$")
    expect(told, "^step 4  27 items, .* for 1 rank, committed$")
    assert len(glob.glob(one + "/step-00000004/*.safetensors")) == 1
    run(VERIFY, one)
    expect(run(DIFF, one, directory, "--items", "model.*", "adam.*", "config.*", "data_loader"), "^equal: ")
    told = json.loads(run(RESHARD, one, two, "--ranks", 2, "--to-step", 7, "--json"))
    assert told["step"] == 7 and told["ranks"] == 2 and not told["left_out"], told
    expect(run(DIFF, one, two, "--only", "model.*"), "^equal: ")
    assert evaluated(two) == evaluated(directory)
    run(RESHARD, one, two, "--to-step", 7, status=UNREADABLE)  # it is there
    run(RESHARD, one, two, "--items", "nothing", status=NOTHING_THERE)
    expect(run(RESHARD, one, two, "--items", "adam.m", "nothing", status=NOTHING_THERE), "no item matches this pattern.*nothing")
    run(RESHARD, one, two, "--one-file", "--ranks", 2, status=WRONG_OPTIONS)
    told = run(RESHARD, one + "/step-00000004", two, "--step", 2, "--to-step", 8, status=WRONG_OPTIONS)
    expect(told, "the URL names another step than the option does.*expected 4, got 2")
    run(RESHARD, one + "/step-00000004", root + "/of-named", "--step", 4)
    run(RESHARD, root + "/broken", root + "/of-broken", status=DAMAGED)
    for told, wanted in ((run(VERIFY, one, "--json"), {"step": 4, "good": True, "damaged_places": 0}),
                         (run(COPY, one, root + "/one-copied", "--json"), {"step": 4, "was_there": False, "kept_objects": 0}),
                         (run(EXPORT, one, root + "/one-exported", "--json", "--only", "model.wte"), {"step": 4, "tensors": 1}),
                         (run(IMPORT, root + "/one-exported", root + "/one-back", "--json"), {"step": 0, "tensors": 1, "files": 1})):
        told = json.loads(told)
        assert wanted.items() <= told.items(), told
    told = [json.loads(line) for line in run(VERIFY, root + "/broken", "--json", "--step", 4, status=DAMAGED).splitlines() if line[0] == "{"]
    assert not told[-1]["good"] and {line["what"] for line in told[:-1]} > {"lost with its file"}, told
    expect(run(DIFF, server.url("exported"), directory + "/step-00000002", "--items", "adam.m"), "^equal: 1 item; ")


def check_stat(root, directory):
    expected = whole_tensors(directory + "/step-00000004")
    lines = [json.loads(line) for line in run(STAT, directory, "--json").splitlines()]
    assert lines[-1]["step"] == 4 and lines[-1]["items"] == len(lines) - 1 and lines[-1]["nan"] == 0
    for line in lines[:-1]:
        values = expected[line["item"]].astype(numpy.float64)
        assert line["shape"] == list(values.shape) and line["numbers"] == values.size, line
        assert line["min"] == values.min() and line["max"] == values.max(), line
        assert line["zeros"] == numpy.count_nonzero(values == 0), line
        for ours, theirs in (("mean", values.mean()), ("std", values.std()), ("norm", numpy.linalg.norm(values.ravel()))):
            assert abs(line[ours] - theirs) <= 1e-12 * max(1, abs(theirs)), (ours, theirs, line)
    expect(run(STAT, directory + "/step-00000002", "--items", "model.wte"), r"^model\.wte +F32 +\[256, 16\] +-?[\d.]+ ")
    run(STAT, directory, "--items", "nothing", status=NOTHING_THERE)
    run(STAT, root + "/broken", status=DAMAGED)
    odd = root + "/odd.safetensors"
    save_file({"mask": numpy.array([0, -numpy.inf], numpy.float32), "x": numpy.ones(3, numpy.float16)}, odd)
    run(STAT, odd)
    expect(run(STAT, odd, "--fail-on", "inf", status=NOT_FINITE), "^stat: 0 items with NaN, 1 item with infinities$")
    save_file({"x": numpy.array([1, numpy.nan], numpy.float32)}, odd)
    expect(run(STAT, odd, status=NOT_FINITE), "^stat: 1 item with NaN, 0 items with infinities$")
    run(STAT, odd, "--fail-on", "none")
    long = "x" * 300
    save_file({long: numpy.array([1, numpy.nan], numpy.float32)}, odd)
    expect(run(STAT, odd, status=NOT_FINITE), rf"^{long} F32 +\[2\] .* 1 +0$")


def check_prune(root, directory, server):
    """What no policy keeps goes, when it is told to; pins are seen by everybody."""
    pruned, bucket = root + "/pruned", server.url("pruned")
    for to in (pruned, bucket):
        run(COPY, directory, to)  # steps 2 and 4
    train(pruned, 1, 8)
    losses = {c["step"]: c["annotations"]["loss"] for c in map(json.loads, run(INSPECT, pruned, "--json").splitlines())}
    assert losses.keys() == {2, 4, 6, 8}, losses
    best = min((loss, -step) for step, loss in losses.items())
    expect(run(PRUNE, pruned, status=WRONG_OPTIONS), "say what stays")
    expect(run(PRUNE, pruned, "--keep-best", "loss", status=WRONG_OPTIONS), "such as loss:3")
    expect(run(PRUNE, pruned, "--pin", 2, "--remove", status=WRONG_OPTIONS), "excludes")
    told = run(PRUNE, pruned, "--keep-last", 1, "--keep-best", "loss:1", "--live-within", 0)
    expect(told, "nothing was changed: --remove")
    expect(told, rf"^step {-best[1]}  stays: one of the " + ("last 1$" if best[1] == -8 else "best 1 by loss$"))
    assert run(INSPECT, pruned).count("step ") == 4
    expect(run(PRUNE, pruned, "--pin", 2), "^step 2  pinned$")
    run(PRUNE, pruned, "--pin", 3, status=NOTHING_THERE)
    expect(run(PRUNE, pruned, "--pins"), "^step 2  is pinned$")
    expect(run(INSPECT, pruned), "^step 2  .* items  pinned$")
    verdicts = [json.loads(line) for line in run(PRUNE, pruned, "--keep-last", 1, "--remove", "--json").splitlines()]
    assert [(v["step"], v["verdict"]) for v in verdicts] == [
        (2, "stays"), (4, "stays"), (6, "removed"), (8, "stays")], verdicts  # 4: the copied run's last, a moment ago
    run(VERIFY, pruned)
    run(PRUNE, pruned, "--unpin", 2)
    run(PRUNE, pruned, "--unpin", 2)  # as often as one likes
    expect(run(PRUNE, pruned, "--unpin", 99, "--unpin", 2, status=NOTHING_THERE), "there is no step 99 in ")
    for option in (["--pins"], ["--unpin", 2], ["--pins", "--json"]):
        expect(run(PRUNE, root + "/nothing", *option, status=NOTHING_THERE), "there is no checkpoint in .*nothing: there is no such directory")
    expect(run(VERIFY, root + "/nothing", status=NOTHING_THERE), "there is no checkpoint in .*nothing: there is no such directory")
    assert not os.path.exists(root + "/nothing")
    expect(run(PRUNE, pruned, "--keep-every", 8, "--live-within", 0, "--remove"), "^2 checkpoints removed, ")
    expect(run(INSPECT, pruned), "^1 checkpoint in ")
    expect(run(PRUNE, bucket, "--keep-last", 1, "--remove"), "^step 2  removed")
    expect(run(INSPECT, bucket), "^1 checkpoint in ")
    hurt = root + "/pruned-hurt"
    run(COPY, directory, hurt)
    with open(hurt + "/step-00000002/manifest.cairn", "r+b") as file:
        file.truncate(50)
    for more in ([], ["--remove"], ["--json"]):
        expect(run(PRUNE, hurt, "--keep-last", 1, *more, status=DAMAGED), "its manifest cannot be read: ")


def check_scavenge(root):
    """A job that holds each step in the memory of two hosts loses one in a save, and never comes back: the newest step gets into the store."""
    store = os.path.join(root, "scavenged")
    begun = time.time()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        left = os.path.join(memory, "host-0")
        told = run(TRAIN, *SHAPE, "--steps", 8, "--every", 1, "--ranks", 4, "--store", store, "--tier", memory, "--hosts", 2,
                   "--partner-copies", 1, "--persist", 3, "--kill-before-release", 5, "--kill-host", 1, status=None)
        if "this build has no links" in told:
            print("not tried: scavenge, as this build has no links")
            return
        shutil.rmtree(os.path.join(memory, "host-1"))
        told = run(SCAVENGE, left, store, "--dry-run")
        expect(told, f"^the job saved to .*{re.escape(store)}$")
        expect(told, "^step 4  2 images lost, which can be rebuilt$")
        with open(os.path.join(left, "rank-00000.lock"), "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            expect(run(SCAVENGE, left, store, status=UNREADABLE), "host-0 is in use: end the job first, or let it resume")
        os.symlink("nowhere", os.path.join(left, "rank-00009.lock"))
        expect(run(SCAVENGE, left, store, status=UNREADABLE), "it cannot be seen whether a job uses this local tier")
        os.unlink(os.path.join(left, "rank-00009.lock"))
        told = run(SCAVENGE, left, store)
        expect(told, "^step 4  2 images rebuilt$")
        expect(told, "^step 4  saved and verified: ")
        saved_at = json.loads(run(INSPECT, store, "--step", 4, "--json").splitlines()[0])["unix_time"]
        assert begun - 1 <= saved_at <= time.time(), f"the time of the save is told as {saved_at}"
        expect(run(SCAVENGE, left, store), "^step 4  is the newest of the store already; nothing was saved$")
        # What the tiers hold is the only good copy once that of the store is damaged.
        saved, aside = os.path.join(store, "step-00000004"), os.path.join(root, "scavenged-aside")
        shutil.copytree(saved, aside)
        largest = max(glob.glob(saved + "/*.safetensors"), key=os.path.getsize)
        with open(largest, "r+b") as file:
            file.seek(os.path.getsize(largest) - 1)
            last = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([last[0] ^ 1]))
        for more in ([], ["--step", 4]):
            told = run(SCAVENGE, left, store, *more, status=DAMAGED)
            expect(told, "step 4 of the store: .*the bytes are not what was written")
            expect(told, "step 4 is damaged in the store, and nothing was saved: keep the tiers")
        open(saved + "/manifest.cairn", "wb").close()
        expect(run(SCAVENGE, left, store, status=DAMAGED), "step 4 is damaged in the store, and nothing was saved")
        # A newer one that nobody can read is none.
        os.rename(saved, os.path.join(store, "step-00000009"))
        expect(run(SCAVENGE, left, store), "^step 4  saved and verified: ")
        shutil.rmtree(os.path.join(store, "step-00000009"))
        assert sorted(os.listdir(saved)) == sorted(os.listdir(aside)), "the same save"
        assert os.listdir(memory) == ["host-0"], "the tier of the host that is left stays"
    expect(run(SCAVENGE, root, store, status=NOTHING_THERE), "has no local tier")
    run(VERIFY, store)
    expect(run(TRAIN, *SHAPE, "--steps", 5, "--ranks", 2, "--store", store), "^resumed from the checkpoint of step 4$")


def check_installation(root):
    """Installed under names that say whose they are, which they call themselves, with manual pages."""
    build = os.path.dirname(os.path.dirname(INSPECT))
    subprocess.run(["cmake", "--install", build, "--component", "cairn_tools", "--prefix", root + "/prefix"], check=True,
                   stdout=subprocess.DEVNULL)
    names = ["cairn-" + name for name in ("copy", "diff", "doctor", "export", "import", "inspect", "prune", "reshard", "scavenge", "stat", "verify")]
    assert sorted(os.listdir(root + "/prefix/bin")) == names, os.listdir(root + "/prefix/bin")
    for name in names:
        program = f"{root}/prefix/bin/{name}"
        expect(run(program, "--help"), rf"(?m)^Usage: {name} ")
        page = open(f"{root}/prefix/share/man/man1/{name}.1", encoding="utf-8").read()
        expect(page, rf"(?m)\A\.TH {name.upper()} 1 ")
        expect(page, r"(?m)^Usage: ")
    said = subprocess.run([root + "/prefix/bin/cairn-inspect", root + "/nowhere"], stderr=subprocess.PIPE, text=True, check=False)
    expect(said.stderr, r"^cairn-inspect: .*/nowhere does not exist$")


def main():
    server = Server()
    with tempfile.TemporaryDirectory() as root:
        check_installation(root)
        check_options(root)
        check_doctor(root, server)
        directory = check_training(root, server)
        check_progress(root, directory)
        check_damage(root, directory)
        check_copy(root, directory, server)
        check_output(root, directory)
        check_unreadable(root, directory, server)
        check_kills(root, directory, server)
        check_export(root, directory, server)
        check_linked(root, server)
        check_diff(root, directory, server)
        check_stat(root, directory)
        check_reshard(root, directory, server)
        check_import(root, server)
        check_prune(root, directory, server)
        check_scavenge(root)
    server.close()
    server = Server()  # one on which nothing is left under way
    check_under_way(server)
    server.process.kill()


if __name__ == "__main__":
    main()
