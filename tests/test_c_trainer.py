#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# optimised
# needs: c_trainer
"""The trainer in C: killed with SIGKILL, and resumed on other numbers of ranks with the same losses, bit for bit.

usage: test_c_trainer.py C_TRAINER
"""

import glob
import json
import os
import re
import signal
import subprocess
import sys
import tempfile

TRAINER = os.path.abspath(sys.argv[1])
TEXT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "LICENSE")
STEPS, EVERY = 40, 5


def train(directory, ranks, *more, status=0, steps=STEPS):
    """(step at which it resumed, {step: loss}, stderr) of one run, which must end with this status."""
    command = [TRAINER, "--steps", str(steps), "--every", str(EVERY), "--ranks", str(ranks), "--text", TEXT,
               "--checkpoints", directory, *more]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=600, check=False)
    assert done.returncode == status, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    resumed = re.search(r"^resumed at step (\d+)$", done.stdout, re.MULTILINE)
    losses = {int(step): loss for step, loss in re.findall(r"^step (\d+) loss \S+ \((\S+)\)$", done.stdout, re.MULTILINE)}
    return int(resumed.group(1)) if resumed else 0, losses, done.stderr


def check_equal(losses, reference, first):
    wanted = {step: loss for step, loss in reference.items() if step > first}
    assert losses == wanted, f"after step {first}: {losses} is not {wanted}"


def check_kills(root, reference):
    """A rank is killed at different distances from a save; each time, the next run has another number of ranks."""
    directory = root + "/killed"
    least = 0
    for kill_after, ranks in [(11, 2), (15, 4), (31, 1)]:
        began, losses, told = train(directory, ranks, "--kill-after", str(kill_after), status=1)
        assert "rank 0 ended with signal 9" in told, told
        assert began >= least, f"resumed at {began}, but step {least} was committed before"
        check_equal(losses, {step: loss for step, loss in reference.items() if step <= kill_after}, began)
        # The save before the last one had ended when the last one began.
        least = (kill_after // EVERY - 1) * EVERY
    began, losses, _ = train(directory, 4)
    assert began >= least, (began, least)
    check_equal(losses, reference, began)
    began, losses, _ = train(directory, 3)
    assert (began, losses) == (STEPS, {}), (began, losses)


def check_everybody_killed(root):
    """The process that started the ranks is killed from outside, and they with it."""
    directory = root + "/everybody"
    process = subprocess.Popen([TRAINER, "--steps", "100000000", "--every", str(EVERY), "--ranks", "2", "--text", TEXT,
                                "--checkpoints", directory], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    for line in process.stdout:
        if line.startswith(f"step {3 * EVERY} "):
            break
    process.send_signal(signal.SIGKILL)
    rest = process.stdout.read()  # ends when the last rank has ended
    assert process.wait() == -signal.SIGKILL
    last = max([3 * EVERY, *map(int, re.findall(r"^step (\d+) loss .*\)$", rest, re.MULTILINE))])
    began, losses, _ = train(directory, 1, steps=last + 10)
    assert EVERY <= began <= last + 1, (began, last)  # the save of step 10 had waited for that of step 5
    check_equal(losses, train(root + "/nobody", 4, steps=last + 10)[1], began)


def check_contents(root):
    """Whole tensors under their own names: what ranks held as ranges of the flattened moments is one tensor."""
    names = {}
    for path in glob.glob(f"{root}/reference/step-{STEPS:08d}/*.safetensors"):
        with open(path, "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        for key, entry in header.items():
            names[key] = entry
    joined = " ".join(sorted(names))
    for tensor in ("embedding", "hidden.weight", "hidden.bias", "output.weight", "output.bias"):
        for group in ("model", "adam.m", "adam.v"):
            assert f"{group}.{tensor}" in joined, f"{group}.{tensor} is not in {joined}"


def check_refusals(root):
    for arguments, sentence in [(["--ranks", "9"], "must be a number from 1 to 4"), (["--text", "/dev/null"], "shorter"),
                                (["--steps", "x"], "must be a number"), (["--checkpoints", TEXT], "cairn.")]:
        done = subprocess.run([TRAINER, "--steps", "1", "--checkpoints", root + "/refused", "--text", TEXT, *arguments],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=600, check=False)
        assert done.returncode == 1 and sentence in done.stderr, (arguments, done)


def main():
    with tempfile.TemporaryDirectory(prefix="cairn-c-trainer-") as root:
        began, reference, _ = train(root + "/reference", 2)
        assert began == 0 and sorted(reference) == list(range(1, STEPS + 1)), reference
        assert float.fromhex(reference[STEPS]) < float.fromhex(reference[1]), "it does not learn"
        check_kills(root, reference)
        check_everybody_killed(root)
        check_contents(root)
        check_refusals(root)
    print("killed and resumed with the same losses")


if __name__ == "__main__":
    main()
