#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The long proof that nothing is lost: `tests/run.sh --soak [MINUTES] [--seed N]` builds what it needs and starts this.

Two lanes side by side, each for the whole time:
  - every cell of the kill matrix, those with worker processes for a fifth of the time, then random kills;
  - hosts that are lost with the memory of their tier, schedules of requests that go astray, sequences of runs that retain, states after power
    losses, a cluster with a fault every 30 seconds for a fifth of the time, where it can be made (tests/chaos.py), then the fuzz targets.
At least as many cases are tried as the aims below say, in proportion to the time, however slow the machine is. Figures go
to build/results/soak.json, each part's output to build/results/soak.PART.log."""
import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RESULTS = os.path.join(ROOT, "build", "results")
AIM_KILLS = 10_000  # in AIM_MINUTES; the states of power losses have their own, and are never fewer
AIM_HOSTS = 2000  # lost, in AIM_MINUTES
AIM_MINUTES = 30
FUZZ_TARGETS = 11  # that tests/fuzz/run.sh goes through


class Part:
    """One command, its figures, and whether it passed."""

    def __init__(self, name, command, environment):
        self.name, self.command, self.environment = name, command, environment
        self.passed, self.seconds, self.figures = False, 0.0, []

    def repeat(self):
        return " ".join([f"{k}={v}" for k, v in self.environment.items()] + [shlex.join(self.command)])

    def run(self):
        print(f"soak: {self.name} begins: {self.repeat()}", flush=True)
        figures = os.path.join(RESULTS, f"soak.{self.name}.figures")
        log = os.path.join(RESULTS, f"soak.{self.name}.log")
        if os.path.exists(figures):
            os.remove(figures)
        begin = time.monotonic()
        with open(log, "wb") as out:
            status = subprocess.run(self.command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                    env={**os.environ, **self.environment, "CAIRN_TEST_FIGURES": figures}, check=False).returncode
        self.seconds = time.monotonic() - begin
        if os.path.exists(figures):
            with open(figures, encoding="utf-8") as file:
                self.figures = [json.loads(line) for line in file]
        with open(log, encoding="utf-8", errors="replace") as file:
            text = file.read()
        executions = [int(n) for n in re.findall(r"(?m)^.*?\b(\d+) executions\b", text)]
        if executions:
            self.figures.append({"test": self.name, "executions": sum(executions), "targets": len(executions)})
        self.passed = status == 0 and bool(self.figures)  # a test without figures tried nothing
        print(f"soak: {self.name} {'passed' if self.passed else 'FAILED'} after {self.seconds:.0f} s", flush=True)
        if not self.passed:
            print(text[-6000:], flush=True)
            print(f"soak: this repeats it: {self.repeat()}", flush=True)


def test_command(build, test, cases):
    """Runs cases of a test, in the program that it is a part of."""
    with open(os.path.join(build, "tests", "test_targets.txt"), encoding="utf-8") as file:
        program = dict(line.split() for line in file).get(test, test)
    part = [] if program == test else [f"--source-file=*/{test}.cpp"]
    return [os.path.join(build, "tests", program), *part, f"--test-case={cases}"]


def lanes(arguments):
    """The parts of each lane."""
    seconds = arguments.minutes * 60
    long_run = {"CAIRN_TEST_LONG": "1", "CAIRN_TEST_SEED": str(arguments.seed)}

    def kills(cases):
        return test_command(arguments.build, "test_kill_ranks", cases)

    def matrix():
        return Part("kill_matrix", kills("*at a named step*,*whose peer is killed*,*still there*"), long_run)

    def workers():
        return Part("kill_workers", kills("*outlive their workers*"),
                    {**long_run, "CAIRN_TEST_SECONDS": str(int(seconds * 0.2))})

    def random_kills(begin):
        left = max(1, int(seconds - (time.monotonic() - begin)))
        wanted = max(200, round(AIM_KILLS * arguments.minutes / AIM_MINUTES))
        return Part("random_kills", kills("*at any moment*"),
                    {**long_run, "CAIRN_TEST_KILLS": str(wanted), "CAIRN_TEST_SECONDS": str(left)})

    def power_loss():
        return Part("power_loss", test_command(arguments.build, "test_power_loss", "after*"),
                    {**long_run, "CAIRN_TEST_SECONDS": str(int(seconds * 0.4))})

    def zombies():
        return Part("zombies", test_command(arguments.build, "test_zombies", "*lose nothing*"), long_run)

    def retention():
        return Part("retention", test_command(arguments.build, "test_retention", "whatever runs*"), long_run)

    def lost_hosts():
        wanted = max(50, round(AIM_HOSTS * arguments.minutes / AIM_MINUTES))
        return Part("lost_hosts", test_command(arguments.build, "test_killed_hosts", "*at random moments*"),
                    {**long_run, "CAIRN_TEST_LOSSES": str(wanted)})

    def fuzz(begin):
        left = max(30, int(seconds - (time.monotonic() - begin)))
        return Part("fuzz", ["bash", "tests/fuzz/run.sh", "--seconds", str(max(5, left // FUZZ_TARGETS)),
                             "--jobs", "1", "--seed", str(arguments.seed)], {})

    def chaos(store):
        return Part(f"chaos_{store}", [sys.executable, "tests/chaos.py", "--minutes", f"{arguments.minutes * 0.1:g}", "--seed", str(arguments.seed),
                                       "--store", store, "--build", arguments.build], {})

    def box_runs(*options):
        return subprocess.run([os.path.join(ROOT, "tests", "cluster", "box"), "run", "--hosts", "0", *options, "true"], check=False).returncode == 0

    second = [lambda _: lost_hosts(), lambda _: zombies(), lambda _: retention(), lambda _: power_loss()]
    if box_runs():
        second.append(lambda _: chaos("s3"))
    if box_runs("--instances"):
        second.append(lambda _: chaos("nfs"))
    if os.path.exists(os.path.join(ROOT, "tests", "fuzz", "run.sh")):
        second.append(fuzz)
    return [[lambda _: matrix(), lambda _: workers(), random_kills], second]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "release"), help="where the optimised programs are")
    arguments = parser.parse_args()
    os.makedirs(RESULTS, exist_ok=True)
    print(f"soak: {arguments.minutes:g} minutes, seed {arguments.seed} (--seed {arguments.seed} repeats it)", flush=True)
    begin = time.monotonic()
    done = []

    def run_lane(lane):
        for make in lane:
            part = make(begin)
            done.append(part)
            part.run()

    threads = [threading.Thread(target=run_lane, args=(lane,)) for lane in lanes(arguments)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    failed = sum(not part.passed for part in done)
    with open(os.path.join(RESULTS, "soak.json"), "w", encoding="utf-8") as file:
        json.dump({"minutes": arguments.minutes, "seed": arguments.seed, "seconds": round(time.monotonic() - begin),
                   "passed": len(done) - failed, "failed": failed,
                   "parts": [{"name": part.name, "passed": part.passed, "seconds": round(part.seconds),
                              "command": part.repeat(), "figures": part.figures} for part in done]}, file, indent=1)
        file.write("\n")
    print("\n=== figures")
    for part in done:
        for figures in part.figures:
            print("  " + figures["test"] + ": " + ", ".join(f"{k} {v}" for k, v in figures.items() if k != "test"))
    print(f"build/results/soak.json has them\n\n{len(done) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
