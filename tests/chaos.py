#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains on three hosts of two ranks each (tests/cluster), with a fault every 30 seconds, and starts again what ended:

    python3 tests/chaos.py --minutes 10 --seed 7
    python3 tests/chaos.py --minutes 10 --seed 7 --store nfs

A host loses power, or stands still for a minute; it is cut off from the others, or its packets are lost; a rank or a worker is killed; the store is slow, or away. With
`--store nfs` hosts are instances, each with a kernel of its own, whose store is an NFS server, which also loses power for 5 to 60 s.
The faults come in an order that the seed chooses. Every step's loss must be that of an undisturbed run, bit by bit, however often it was
trained; at the end the store must be whole. Prints what each fault cost: the steps that were trained again, and the parts of the recovery.

Needs root, what `tests/cluster/box install` installs, and the programs of a build (--build)."""
import argparse
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "cluster"))
from jobs import BOX, Job, box, on_each, signal_on  # noqa: E402  pylint: disable=wrong-import-position

HOSTS = {"s3": ["h1", "h2", "h3"], "nfs": ["i2", "i3", "i4"]}
STORE = {"s3": "h4", "nfs": "i1"}
STEP = re.compile(r"^step +(\d+)  loss")
STOPPED = 75  # the status of a rank that saved because it was asked to stop
FAULTS = ["lose_host", "freeze_host", "cut_host", "kill_rank", "kill_worker", "slow_store", "lose_store", "restart_store", "lose_packets"]
LATE = 25  # seconds after a fault the job has heard of it
START = {"s3": 60, "nfs": 150}  # seconds that a start may take, with a store that is away
# An instance has one processor, which its ranks and its kernel share: it is slow, and may say nothing for seconds.
SHAPE = {"s3": "--layers 2 --context 64 --heads 4 --micro-batches 12".split(), "nfs": "--layers 1 --context 16 --heads 4 --micro-batches 12".split()}
WAITS = {"s3": "--timeout 10 --lost-after 0.5 --stopped-after 0.5".split(), "nfs": "--timeout 30 --lost-after 3 --stopped-after 10".split()}
FAILED_STARTS = 5  # one after another, of which none is due to a fault that is over
PARTS = ("detect", "end", "start", "agree and read", "first step")


class Supervisor:
    """Keeps one run of train_gpt going on the hosts that are there."""

    def __init__(self, options):
        self.options, self.random = options, random.Random(options.seed)
        # What hosts share, or what instances do: its name on the head, and on them.
        nfs = options.store == "nfs"
        self.here = os.environ["CAIRN_BOX"] + ("/share" if nfs else "/shared")
        self.shared = "/mnt/share" if nfs else self.here
        self.hosts, self.store, self.limit = HOSTS[options.store], STORE[options.store], START[options.store]
        self.out, self.job, self.losses, self.best, self.starts, self.twice = {}, None, {}, 0, 0, 0
        self.faults, self.later, self.timers, self.store_is_away = [], [], [], False
        self.environment = {}
        if nfs:
            self.serve_nfs()
            for host in self.hosts:
                self.boot(host)
            self.url = "/mnt/nfs/run"
            return
        address = box("s3", self.store, self.shared + "/helper_s3_server", "--all-addresses", "--access-key=A", "--secret-key=S",
                      "--bucket=bucket").split()[-1]
        self.url = f"s3://bucket/run?endpoint=http://{address}"
        self.environment = {"AWS_ACCESS_KEY_ID": "A", "AWS_SECRET_ACCESS_KEY": "S", "AWS_EC2_METADATA_DISABLED": "true"}

    def serve_nfs(self):
        # Its programs keep what they inherit.
        subprocess.run([BOX, "nfs-server", self.store], check=True, timeout=240, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def boot(self, host):
        box("boot", host, limit=240)
        if self.options.store == "nfs":
            box("nfs-mount", host, self.store, "actimeo=60,hard", limit=240)

    # --- The run

    def shape(self):
        return [*SHAPE[self.options.store], "--width", str(self.options.width)]

    def start(self):
        hosts = [host for host in self.hosts if host not in self.out]
        self.starts += 1
        self.losses_file = f"{self.here}/losses.{self.starts}"
        self.job = Job(self.shared + "/train_gpt", hosts,
                       [*self.shape(), "--store", self.url, "--steps", "1000000", "--every", "1", *WAITS[self.options.store],
                        "--tier", "/dev/shm/tier",
                        "--persist", "10", "--partner-copies", "1", "--losses", f"{self.shared}/losses.{self.starts}"],
                       environment=self.environment)

    def start_first(self):
        """Until it trains. A rank that lives may be taken for lost, as in any other start."""
        for left in reversed(range(FAILED_STARTS)):
            self.start()
            try:
                self.job.wait_for(STEP.pattern, 120)
                return
            except AssertionError as e:
                assert left > 0, f"the job does not start: {e}"
                self.say(f"the start failed, and is tried again: {str(e)[-1500:]}")
                self.job.kill()
                self.take_losses()

    def keep_log(self, job):
        if self.options.logs:
            with open(os.path.join(self.options.logs, f"start-{self.starts}.log"), "w", encoding="utf-8") as file:
                file.writelines(f"{when - self.begun:9.3f} {line}\n" for when, line in job.lines)

    def take_losses(self):
        """Of the start that has ended."""
        if not os.path.exists(self.losses_file):
            return
        with open(self.losses_file, encoding="utf-8") as file:
            for line in file:
                if not line.endswith("\n"):
                    continue
                step, loss = line.split()
                self.twice += step in self.losses
                assert self.losses.setdefault(step, loss) == loss, f"step {step} was trained again, with another loss"

    def say(self, text):
        print(f"{time.monotonic() - self.begun:7.1f} s  {text}", flush=True)

    def moment_of(self, pattern, job):
        with job.told:
            for when, line in job.lines:
                found = re.search(pattern, line)
                if found:
                    return when, found
        return None, None

    def restart(self, fault, why):
        """Ends what is left of the job and starts it on the hosts that are there; the parts of it go to `fault`."""
        job, noticed = self.job, time.monotonic()
        # Whom the ranks name has left the job, whatever the supervisor believes of its host.
        job.kill(without=[host for host, state in self.out.items() if state != "cut"])
        self.take_losses()
        self.keep_log(job)
        ended = time.monotonic()
        last = max(job.last_step(), 0)
        last_moment = max([when for when, line in job.lines if STEP.match(line)], default=fault["at"])
        failed_now = 0
        while True:
            self.start()
            new = self.job
            try:
                resumed = int(new.wait_for(r"^resumed from the checkpoint of step (\d+)", self.limit).group(1))
                first = int(new.wait_for(STEP.pattern, self.limit).group(1))
                break
            except AssertionError as e:
                self.say(f"the start failed, and is tried again: {str(e)[-1500:]}")
                fault["failed starts"] = fault.get("failed starts", 0) + 1
                failed_now += 1
                assert failed_now < FAILED_STARTS, f"the job does not start: {e}"
                new.kill(without=[host for host, state in self.out.items() if state != "cut"])
        began = self.moment_of(r"parameters, ", new)[0]
        read = self.moment_of(r"^resumed from", new)[0]
        stepped = self.moment_of(STEP.pattern, new)[0]
        new_again = None
        if last >= first:
            new.wait_for(rf"^step +{last} +loss", self.limit)
            new_again = self.moment_of(rf"^step +{last} +loss", new)[0]
        lost = max(0, last - resumed)
        fault.setdefault("restarts", []).append({
            "why": why, "steps lost": lost, "hosts": len(new.hosts), "detect": noticed - fault["at"], "end": ended - noticed, "start": began - ended,
            "agree and read": read - began, "first step": stepped - read, "without a new step": (new_again or stepped) - last_moment})
        source = self.moment_of(r"loaded .*|rebuilt", new)[1]
        self.say(f"goes on at step {resumed}, {lost} lost, on {len(new.hosts)} hosts, "
                 + ", ".join(f"{name} {fault['restarts'][-1][name]:.2f}" for name in PARTS) + f" s: {source.string[:160] if source else ''}")

    def ask_to_stop(self, fault):
        """A host is there again: the job saves, ends, and begins on all of them."""
        job = self.job
        fault["at"] = time.monotonic()
        on_each(job.hosts, lambda host: signal_on(host, "TERM", "^[^ ]*train_gpt "))
        until = time.monotonic() + self.limit / 2
        while not job.ended() and time.monotonic() < until:
            time.sleep(0.05)
        self.restart(fault, "a host came back")
        for each in self.faults:  # one that was about to end the job
            each["ends"] = False

    def failed(self):
        """The line of a rank that gave up, if the job is failing."""
        return self.moment_of(r"^train_gpt: rank \d+: .*", self.job)[1] or (self.job.ended() and re.search(".*$", self.job.text()))

    # --- The faults

    def after(self, seconds, what):
        self.later.append((time.monotonic() + seconds, what))

    def at_once_after(self, seconds, what):
        """Also while the job is being started."""
        timer = threading.Timer(seconds, what)
        self.timers.append(timer)
        timer.start()

    def store_back_after(self, seconds, how):
        self.store_is_away = True

        def come_back():
            how()
            self.store_is_away = False
            self.say("the store is as it was")
        self.at_once_after(seconds, come_back)

    def back(self, host, how, fault):
        def come_back():
            how()
            del self.out[host]
            self.say(f"{host} is back")
            self.ask_to_stop(fault)
        return come_back

    def lose_host(self, fault):
        host = self.random.choice(self.hosts)
        fault["what"] = f"{host} loses power"
        self.out[host] = "off"
        box("power-off", host)
        self.after(20, self.back(host, lambda: self.boot(host), fault))

    def freeze_host(self, fault):
        host = self.random.choice(self.hosts)
        fault["what"] = f"{host} stands still for a minute"
        self.out[host] = "frozen"
        box("freeze", host)

        def thaw():
            box("thaw", host)
            # Its ranks find out by themselves that the job went on without them.
            until = time.monotonic() + 40
            while signal_on(host, "0", "^[^ ]*(train_gpt|cairn-worker) "):
                assert time.monotonic() < until, f"ranks of an old job live on: {box('on', host, 'ps', '-ef')}"
                time.sleep(0.2)
        self.after(60, self.back(host, thaw, fault))

    def cut_host(self, fault):
        host = self.random.choice(self.hosts)
        others = [other for other in self.hosts if other != host]
        how = self.random.choice(["the others", "one host", "one host, which it still reaches,"])
        if how != "the others":
            others = [self.random.choice(others)]
        fault["what"] = f"{host} no longer hears {how} for 20 s"
        self.out[host] = "cut"
        cuts = [pair for other in others for pair in ((host, other), (other, host))]
        if "reaches" in how:
            cuts = cuts[:1]
        for pair in cuts:
            box("cut", *pair)

        def mend():
            for pair in cuts:
                box("mend", *pair)
        self.after(20, self.back(host, mend, fault))

    def lose_packets(self, fault):
        host = self.random.choice([each for each in self.hosts if each not in self.out])
        fault["what"] = f"every twentieth packet of {host} is lost for 20 s"
        box("loss", host, "50")
        self.at_once_after(20, lambda: box("loss", host, "0"))

    def kill_one(self, fault, kind, pattern):
        """On a host that is up: one that was just lost may still be in the job, and what is found may end by itself."""
        host = self.random.choice([each for each in self.job.hosts if self.out.get(each) != "off"])
        found = box("on", host, "pgrep", "-f", pattern, status=None).split()
        fault["what"] = f"a {kind} on {host} is killed" if found else f"no {kind} was there to be killed on {host}"
        if found:
            fault["at"] = time.monotonic()
            box("on", host, "env", "kill", "-KILL", self.random.choice(found), status=None)

    def kill_rank(self, fault):
        self.kill_one(fault, "rank", "^[^ ]*train_gpt ")

    def kill_worker(self, fault):
        self.kill_one(fault, "worker", "^cairn-worker ")

    def slow_store(self, fault):
        fault["what"] = "the store takes 1 Mbit/s for 20 s"
        box("rate", self.store, "1mbit")
        self.store_back_after(20, lambda: box("rate", self.store, "0"))

    def lose_store(self, fault):
        fault["what"] = "the store stands still for 20 s"
        box("freeze", self.store)
        self.store_back_after(20, lambda: box("thaw", self.store))

    def restart_store(self, fault):
        seconds = self.random.choice([5, 20, 60])
        fault["what"] = f"the server of the store loses power, and boots after {seconds} s"
        box("power-off", self.store)
        self.store_back_after(seconds, self.serve_nfs)

    # --- All of it

    def run(self):
        options = self.options
        self.begun = time.monotonic()
        self.start_first()
        began = time.monotonic()
        time.sleep(options.undisturbed)  # is what is measured
        undisturbed = (self.job.last_step() - 1) / (time.monotonic() - began)
        self.say(f"{undisturbed:.2f} steps a second without faults")
        begin, first = time.monotonic(), self.job.last_step()
        next_fault, end = begin, begin + options.minutes * 60
        kinds = [getattr(self, name) for name in options.faults]
        of_hosts = [self.lose_host, self.freeze_host, self.cut_host]
        of_store = [self.slow_store, self.lose_store, self.restart_store]
        # The last fault has its time to end the job.
        while time.monotonic() < end or self.later or self.out or any(time.monotonic() < each["at"] + LATE for each in self.faults[-1:]):
            now = time.monotonic()
            for each in [each for each in self.later if each[0] <= now]:
                self.later.remove(each)
                each[1]()
            if now >= next_fault and now < end:
                next_fault = max(next_fault, now - 1) + options.every  # a start that took long brings no two at once
                fault = {"at": time.monotonic()}
                able = [kind for kind in kinds if not (kind in of_hosts and self.out or kind in of_store and self.store_is_away)]
                if not able:
                    continue
                kind = self.random.choice(able)
                fault["ends"] = kind in (self.lose_host, self.freeze_host, self.cut_host, self.kill_rank)
                fault["kind"] = kind.__name__
                kind(fault)
                self.faults.append(fault)
                self.say(fault["what"])
            failed = self.failed()
            if failed:
                self.say(failed.string[-300:])
                # Some faults end a job, some only much later than others do.
                pending = [fault for fault in self.faults if fault["ends"]] or self.faults[-1:] or [{"at": now}]
                self.restart(pending[0], failed.string[-300:])
                for fault in pending:
                    fault["ends"] = False
            time.sleep(0.02)
        for timer in self.timers:
            timer.join()
        finish = time.monotonic()
        last = self.job.last_step()
        on_each(self.job.hosts, lambda host: signal_on(host, "TERM", "^[^ ]*train_gpt "))
        statuses = self.job.wait(120)
        self.keep_log(self.job)
        self.take_losses()
        assert set(statuses) == {STOPPED}, (statuses, self.job.text()[-3000:])
        return self.figures(undisturbed, finish - begin, last - first)

    def figures(self, undisturbed, seconds, steps):
        restarts = [each for fault in self.faults for each in fault.get("restarts", [])]
        back = "a host came back"
        by_faults = [each for each in restarts if each["why"] != back]
        resized = [each["without a new step"] for each in restarts if each["why"] == back]
        waited = sum(each["without a new step"] for each in restarts)
        told = {"test": "chaos", "seed": self.options.seed, "seconds": round(seconds), "faults": len(self.faults), "starts": self.starts,
                "steps": steps, "steps a second without faults": round(undisturbed, 2),
                "goodput by steps": round(steps / (undisturbed * seconds), 3), "goodput by time": round(1 - waited / seconds, 3),
                "goodput by time, but for hosts that come back": round(1 - (waited - sum(resized)) / seconds, 3), "times a host came back": len(resized),
                "steps trained twice": self.twice, "most steps lost by one fault": max((each["steps lost"] for each in restarts), default=0),
                "failed starts": sum(fault.get("failed starts", 0) for fault in self.faults)}
        for name in PARTS:
            values = [each[name] for each in by_faults]
            if values:
                told[name] = f"{statistics.median(values):.2f} s, at most {max(values):.2f} s"
        for kind in dict.fromkeys(each["kind"] for each in self.faults):
            of_kind = [each for fault in self.faults if fault["kind"] == kind for each in fault.get("restarts", []) if each["why"] != back]
            if of_kind:
                told[kind] = f"{len(of_kind)} restarts, " + ", ".join(f"{name} {statistics.median(each[name] for each in of_kind):.2f}"
                                                                       for name in (*PARTS, "without a new step")) + " s"
        if resized:
            told["without a new step where a host came back"] = f"{statistics.median(resized):.2f} s, at most {max(resized):.2f} s"
        return told

    def check(self):
        """Every loss, against one rank on one host; and all that is in the store."""
        steps = max(map(int, self.losses))
        here = os.environ["CAIRN_BOX"] + "/undisturbed"
        subprocess.run([self.here + "/train_gpt", *self.shape(), "--ranks", str(min(os.cpu_count() or 1, 4) // 2 * 2 or 1), "--steps", str(steps),
                        "--every", "1000000000", "--store", here, "--losses", here + ".losses"], check=True, stdout=subprocess.DEVNULL)
        with open(here + ".losses", encoding="utf-8") as file:
            expected = dict(line.split() for line in file)
        wrong = [step for step, loss in self.losses.items() if expected[step] != loss]
        assert not wrong and len(self.losses) == steps, f"steps with other losses: {wrong}; {steps - len(self.losses)} steps are missing"
        if self.options.store == "nfs":
            told = box("on", self.hosts[0], self.shared + "/verify", self.url, limit=600)
        else:
            told = subprocess.run([self.shared + "/verify", self.url], env={**os.environ, **self.environment}, stdout=subprocess.PIPE, text=True,
                                  check=False).stdout
        assert "every digest is right" in told, told
        for host in self.hosts:
            left = signal_on(host, "0", "^[^ ]*(train_gpt|cairn-worker) ")
            assert not left, f"{left} processes live on, on {host}"
        print(f"{len(self.losses)} steps have the losses of an undisturbed run, bit by bit", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--every", type=float, default=30, help="seconds between faults")
    parser.add_argument("--undisturbed", type=float, default=30, help="seconds without faults at the beginning, for the comparison")
    parser.add_argument("--logs", help="a directory for what each start of the ranks printed, with its times")
    parser.add_argument("--store", default="s3", choices=sorted(STORE), help="where the checkpoints are")
    parser.add_argument("--faults", nargs="+", default=FAULTS, choices=FAULTS, help="restart_store is for NFS alone")
    parser.add_argument("--width", type=int, help="of the model: what a step costs (64, or 32 in instances)")
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "release"), help="where the programs are")
    options = parser.parse_args()
    if options.logs:
        os.makedirs(options.logs, exist_ok=True)
    if options.store != "nfs":
        options.faults = [fault for fault in options.faults if fault != "restart_store"]
    options.width = options.width or {"s3": 64, "nfs": 32}[options.store]
    instances = ["--instances"] if options.store == "nfs" else []
    if not os.environ.get("CAIRN_BOX"):
        told = subprocess.run([BOX, "run", "--hosts", "0", *instances, "true"], stderr=subprocess.PIPE, text=True, check=False)
        if told.returncode:
            print(told.stderr, end="")
            return told.returncode
        print(f"chaos: {options.minutes:g} minutes, seed {options.seed} (--seed {options.seed} repeats its faults)", flush=True)
        return subprocess.run([BOX, "run", "--hosts", "0" if instances else "4", *instances, sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--seed", str(options.seed)],
                              check=False).returncode
    shared = os.environ["CAIRN_BOX"] + ("/share" if instances else "/shared")
    for program in ("examples/train_gpt", "tests/helper_s3_server", "examples/verify"):
        shutil.copy(os.path.join(options.build, program), shared)
    supervisor = Supervisor(options)
    figures = supervisor.run()
    print("\n".join(f"  {name}: {value}" for name, value in figures.items()), flush=True)
    supervisor.check()
    path = os.environ.get("CAIRN_TEST_FIGURES")
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(figures) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
