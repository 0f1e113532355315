#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# slow
# timeout: 1800
# cost: 400
# needs: train_gpt
"""The scripts in examples/slurm, examples/torchrun and examples/systemd, and the line for containers, as a user starts them, on the hosts of a box (tests/cluster):
whatever the scheduler does to a job, it saves, and goes on from there. Needs root, what `box install` installs, and of slurmctld,
slurmd, munge, torchrun (in PATH, or in CAIRN_TORCHRUN) and systemd-analyze what is to be tried.

usage: test_schedulers.py TRAIN_GPT [PART...]
"""

import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
BOX = os.path.join(HERE, "cluster", "box")
EXAMPLES = os.path.join(os.path.dirname(HERE), "examples")
TRAIN = os.path.abspath(sys.argv[1])
PARTS = sys.argv[2:]
LIMIT = 240  # seconds; nothing here waits so long unless it is wrong
SMALL = "--layers 1 --width 32 --heads 2 --context 16 --micro-batches 4"
ENDLESS = f"{SMALL} --steps 1000000000 --every 5"
UNSAVED = f"{SMALL} --steps 1000000000 --every 1000000000"  # but when it is asked to stop
os.environ["ASAN_OPTIONS"] = os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"  # what Open MPI keeps until its end is no leak of ours
os.environ["PATH"] += ":/usr/sbin:/sbin"


class NotHere(Exception):
    """Why a part cannot be tried on this machine."""


def box(*words, status=0):
    done = subprocess.run([BOX, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=LIMIT, check=False)
    assert status is None or done.returncode == status, f"box {words} ended with {done.returncode}: {done.stdout}"
    return done.stdout


def call(*words, status=0, **environment):
    done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT,
                          check=False, env={**os.environ, **environment})
    assert status is None or done.returncode == status, f"{words} ended with {done.returncode}: {done.stdout}"
    return done.stdout


def read(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def until(what, reached, seconds=LIMIT, tell=lambda: ""):
    limit = time.monotonic() + seconds
    while not (found := reached()):
        assert time.monotonic() < limit, f"waited in vain: {what}\n{tell()}"
        time.sleep(0.1)
    return found


def log(path, pattern, count=1, seconds=LIMIT):
    """What the last of `count` lines that match say in their first group, when they are there."""
    def found():
        lines = re.findall(pattern, read(path), re.MULTILINE)
        return lines[count - 1] if len(lines) >= count else None
    return until(f"{count} times {pattern!r} in {path}", found, seconds, lambda: read(path)[-4000:])


STEP = r"^step +(\d+) "
RESUMED = r"^resumed from the checkpoint of step (\d+)$"
SAVED = r"^asked to stop: step (\d+) is saved"


def committed(checkpoints):
    return sorted(int(path.split("-")[-1].split("/")[0]) for path in glob.glob(f"{checkpoints}/step-*/manifest.cairn"))


def processes(pattern):
    return subprocess.run(["pgrep", "-f", pattern], stdout=subprocess.PIPE, text=True, check=False).stdout.split()


def nothing_is_left():
    """No rank and no worker, on any host: all of them are in the process namespace of the head."""
    until("all ranks and workers have ended", lambda: not processes(f"^{TRAIN} |^cairn-worker "), tell=lambda: call("ps", "axf"))


# --- Slurm -----------------------------------------------------------------------------------------------------------------

CONFIGURATION = """
ClusterName=box
SlurmctldHost=head(10.77.0.254)
SlurmUser=root
AuthInfo=socket={at}/munge.socket,cred_expire=10
CredType=cred/munge
StateSaveLocation={at}/state
SlurmdSpoolDir=/tmp/slurmd
SlurmctldPidFile={at}/slurmctld.pid
SlurmdPidFile=/tmp/slurmd.pid
SlurmctldLogFile={at}/slurmctld.log
SlurmdLogFile={at}/slurmd-%n.log
ProctrackType=proctrack/{proctrack}
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
KillWait=20
SlurmdTimeout=15
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=2,sched_min_interval=500000,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobAcctGatherType=jobacct_gather/none
NodeName=h[1-2] CPUs=2 RealMemory=100 State=UNKNOWN
PartitionName=low Nodes=ALL Default=YES MaxTime=30 PriorityTier=1 PreemptMode=REQUEUE GraceTime=10
PartitionName=high Nodes=ALL MaxTime=30 PriorityTier=10 PreemptMode=OFF
"""


class Slurm:
    """Slurm on two hosts, with a munged for all of them, which they reach by its socket."""

    def __init__(self, proctrack):
        self.at = tempfile.mkdtemp(dir=os.path.join(os.environ["CAIRN_BOX"], "shared"))
        os.mkdir(self.at + "/state")
        with open(self.at + "/slurm.conf", "w", encoding="utf-8") as file:
            file.write(CONFIGURATION.format(at=self.at, proctrack=proctrack))
        with open(self.at + "/cgroup.conf", "w", encoding="utf-8") as file:
            file.write("CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\n")
        os.environ["SLURM_CONF"] = self.at + "/slurm.conf"
        with open(self.at + "/munge.key", "wb") as file:
            os.chmod(file.name, 0o400)
            file.write(os.urandom(1024))
        call("munged", "--force", *[f"--{what}-file={self.at}/munge.{what}" for what in ("key", "log", "pid", "seed")],
             f"--socket={self.at}/munge.socket")
        call("slurmctld", "-f", os.environ["SLURM_CONF"])
        for host in ("h1", "h2"):
            self.start(host)
        self.nodes_are_there()

    def start(self, host):
        box("on", host, "slurmd", "-f", os.environ["SLURM_CONF"])

    def nodes_are_there(self):
        until("both nodes are idle", lambda: call("sinfo", "-h", "-t", "idle", "-o", "%D", status=None).strip() == "2",
              tell=lambda: call("sinfo", "-R") + read(self.at + "/slurmctld.log")[-3000:])

    def stop(self):
        call("scontrol", "shutdown")
        until("Slurm has ended", lambda: not processes("^slurm(ctld|d|stepd)"))
        with open(self.at + "/munge.pid", encoding="utf-8") as file:
            os.kill(int(file.read()), signal.SIGTERM)

    def submit(self, *options, train=ENDLESS):
        """The example; its number, and where it prints."""
        number = call("sbatch", "--parsable", "--chdir", self.at, "--output", self.at + "/%j.out", "--nodes=2", "--ntasks-per-node=1", "--time=20",
                      *options, EXAMPLES + "/slurm/train.sbatch", PROGRAMS=os.path.dirname(TRAIN), RUNS=self.at + "/runs", TRAIN_OPTIONS=train).strip()
        return number, f"{self.at}/{number}.out"

    def checkpoints(self, run):
        return f"{self.at}/runs/{run}/checkpoints"

    def field(self, number, name):
        return re.search(rf"\b{name}=(\S+)", call("scontrol", "show", "job", number)).group(1)

    def ended(self, number, state):
        until(f"job {number} is {state}", lambda: self.field(number, "JobState") == state,
              tell=lambda: call("scontrol", "show", "job", number, status=None))
        nothing_is_left()

    def cancel(self, number):
        """All end, and it does not come again. What the ranks say last may be lost: srun gets the signals, too."""
        call("scancel", number)
        self.ended(number, "CANCELLED")


def slurm(test):
    """With this proctrack a new Slurm."""
    def part():
        missing = [name for name in ("slurmctld", "slurmd", "munged", "sbatch", "openssl") if not shutil.which(name)]
        if missing:
            raise NotHere(f"{', '.join(missing)} missing (apt-get install slurmctld slurmd slurm-client munge openssl)")
        proctrack = getattr(test, "proctrack", "linuxproc")
        if proctrack == "cgroup" and not os.path.isdir("/sys/fs/cgroup/freezer"):
            raise NotHere("this machine has no control groups of version 1, which are what this Slurm is told to use")
        cluster = Slurm(proctrack)
        test(cluster)
        cluster.stop()
        return call("sinfo", "--version").strip()
    part.__name__ = test.__name__
    return part


@slurm
def slurm_time_limit(cluster):
    # USR1 comes up to a minute early, to the ranks. They save, and the job goes on after another start.
    number, out = cluster.submit("--time=2", "--signal=USR1@30")
    log(out, STEP)
    began = time.monotonic()
    step = log(out, SAVED)
    print(f"  USR1 {time.monotonic() - began:.0f} s after the first step, 90 asked for", flush=True)
    assert log(out, RESUMED) == step
    assert cluster.field(number, "Restarts") == "1"
    cluster.cancel(number)


@slurm
def slurm_time_is_over(cluster):
    # Without a signal before, TERM comes up to half a minute late. KillWait is enough for this one to save.
    number, out = cluster.submit("--time=1", "--signal=CONT@1", train=UNSAVED)
    log(out, STEP)
    began = time.monotonic()
    cluster.ended(number, "TIMEOUT")
    print(f"  ended {time.monotonic() - began:.0f} s after the first step, 60 asked for", flush=True)
    assert len(committed(cluster.checkpoints(number))) == 1, read(out)


@slurm
def slurm_preemption(cluster):
    number, out = cluster.submit("--partition=low")
    log(out, STEP)
    began = time.monotonic()
    other = call("sbatch", "--parsable", "--partition=high", "--nodes=2", "--ntasks-per-node=1", "--exclusive", "--output=/dev/null", "--wrap=sleep 5").strip()
    step = log(out, SAVED)
    print(f"  saved {time.monotonic() - began:.1f} s after the other job was submitted", flush=True)
    until("the other job has ended", lambda: cluster.field(other, "JobState") == "COMPLETED", tell=lambda: call("squeue"))
    assert log(out, RESUMED) == step
    cluster.cancel(number)


@slurm
def slurm_node_off(cluster):
    number, out = cluster.submit()
    until("a checkpoint", lambda: committed(cluster.checkpoints(number)))
    box("power-off", "h2")
    began = time.monotonic()
    until("Slurm has taken the job back", lambda: cluster.field(number, "JobState") == "PENDING", tell=lambda: call("sinfo"))
    print(f"  taken back {time.monotonic() - began:.0f} s after the power went (SlurmdTimeout is 15 s)", flush=True)
    newest = committed(cluster.checkpoints(number))[-1]
    box("boot", "h2")
    cluster.start("h2")
    assert int(log(out, RESUMED)) == newest
    cluster.cancel(number)


@slurm
def slurm_array(cluster):
    number, _ = cluster.submit("--array=0-1", "--nodes=1", "--output", cluster.at + "/%A-%a.out", train=f"{SMALL} --steps 4 --every 2")
    for task in (0, 1):
        cluster.ended(f"{number}_{task}", "COMPLETED")
        assert committed(cluster.checkpoints(f"{number}-{task}")) == [2, 4]
    assert len(os.listdir(cluster.at + "/runs")) == 2
    # One task is asked to stop, and starts again: the one whose job has the number of the array, which Slurm takes for all tasks.
    number, _ = cluster.submit("--array=0-1", "--nodes=1", "--output", cluster.at + "/%A-%a.out")
    outs = [f"{cluster.at}/{number}-{task}.out" for task in (0, 1)]
    for out in outs:
        log(out, STEP)
    told = call("scontrol", "show", "job", number)
    stopped = int(re.search(rf"JobId={number} ArrayJobId={number} ArrayTaskId=(\d+)", told).group(1))
    call("scancel", "--signal=USR1", f"{number}_{stopped}")
    assert log(outs[stopped], RESUMED) == log(outs[stopped], SAVED)
    restarts = [int(cluster.field(f"{number}_{task}", "Restarts")) for task in (0, 1)]
    assert restarts == [task == stopped for task in (0, 1)], restarts
    assert "asked to stop" not in read(outs[1 - stopped]) and "CANCELLED" not in read(outs[1 - stopped])
    cluster.cancel(number)


@slurm
def slurm_mpi(cluster):
    if "pmix" not in call("srun", "--mpi=list"):
        print("  not tried with MPI: this Slurm has no PMIx", flush=True)
        return
    out = cluster.at + "/mpi.out"
    store = cluster.at + "/mpi"
    number = call("sbatch", "--parsable", "--nodes=2", "--ntasks-per-node=1", "--output", out,
                  f"--wrap=srun --mpi=pmix --kill-on-bad-exit=0 {TRAIN} --mpi --checkpoints {store} {UNSAVED}").strip()
    log(out, STEP)
    cluster.cancel(number)
    assert len(committed(store)) == 1


def cancelled_under(proctrack):
    def test(cluster):
        number, out = cluster.submit(train=UNSAVED)
        log(out, STEP)
        began = time.monotonic()
        cluster.cancel(number)
        print(f"  gone {time.monotonic() - began:.1f} s after scancel", flush=True)
        assert len(committed(cluster.checkpoints(number))) == 1, read(out)
    test.__name__ = "slurm_cancel_" + proctrack
    test.proctrack = proctrack
    return slurm(test)


# --- torchrun --------------------------------------------------------------------------------------------------------------

class Torchrun:
    """The example on some hosts, each with two ranks and an agent of torchrun."""

    def __init__(self, hosts):
        found = os.environ.get("CAIRN_TORCHRUN") or shutil.which("torchrun")
        if not found:
            raise NotHere("torchrun missing (pip install torch; CAIRN_TORCHRUN=.../bin/torchrun)")
        self.hosts, self.bin = hosts, os.path.dirname(found)
        self.at = tempfile.mkdtemp(dir=os.path.join(os.environ["CAIRN_BOX"], "shared"))
        self.checkpoints, self.starts = self.at + "/checkpoints", 0
        with open(self.at + "/key", "w", encoding="utf-8") as file:
            os.chmod(file.name, 0o600)
            file.write(os.urandom(32).hex())

    def out(self):
        """Of all hosts: rank 0 says where the job is, wherever it runs."""
        return f"{self.at}/out.{self.starts}"

    def start(self, options=ENDLESS):
        self.starts += 1
        return [self.start_agent(host, options) for host in self.hosts]

    def start_agent(self, host, options=ENDLESS):
        words = {"PATH": self.bin + ":" + os.environ["PATH"], "HOSTS": len(self.hosts), "RANKS_PER_HOST": 2,
                 "FIRST_HOST": "localhost:0" if len(self.hosts) == 1 else self.hosts[0] + ":29400", "PROGRAMS": os.path.dirname(TRAIN), "RUN": self.at,
                 "CAIRN_JOB_KEY_FILE": self.at + "/key", "TRAIN_OPTIONS": options}
        with open(self.out(), "a", encoding="utf-8") as file:
            return subprocess.Popen([BOX, "on", host, "env", *[f"{name}={value}" for name, value in words.items()], "bash", EXAMPLES + "/torchrun/train.sh"],
                                    stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)

    def show_its_files(self, host):
        """A host has a /tmp of its own, in which torchrun may lie."""
        top = os.path.dirname(self.bin)
        if top.startswith("/tmp/"):
            there = os.environ["CAIRN_BOX"] + "/torch"
            if not os.path.exists(there):
                os.mkdir(there)
                call("mount", "--rbind", top, there)
            box("power-off", host)
            box("boot", host)
            box("on", host, "sh", "-c", 'mkdir -p "$1" && mount --rbind "$0" "$1"', there, top)

    def version(self):
        return call(self.bin + "/python3", "-c", "import torch; print('torch', torch.__version__)").strip()


def torchrun(*hosts):
    def part():
        run = Torchrun(hosts)
        for host in hosts:
            run.show_its_files(host)
        agents = run.start()
        log(run.out(), STEP)
        before = until("a checkpoint", lambda: committed(run.checkpoints))[-1]
        ranks = processes(f"^{TRAIN} ")
        assert len(ranks) == 2 * len(hosts), call("ps", "axf")
        began = time.monotonic()
        os.kill(int(ranks[-1]), signal.SIGKILL)
        assert int(log(run.out(), RESUMED)) >= before
        print(f"  goes on {time.monotonic() - began:.1f} s after a rank was killed", flush=True)
        log(run.out(), STEP, 1 + len(re.findall(STEP, read(run.out()), re.MULTILINE)))
        for process in processes("torchrun --nnodes"):
            os.kill(int(process), signal.SIGTERM)
        step = int(log(run.out(), SAVED))
        assert all(agent.wait(LIMIT) != 0 for agent in agents)
        nothing_is_left()
        assert committed(run.checkpoints)[-1] == step
        agents = run.start(f"{SMALL} --steps {step + 2} --every 5")
        assert [agent.wait(LIMIT) for agent in agents] == [0] * len(hosts), read(run.out())
        assert int(log(run.out(), RESUMED)) == step
        nothing_is_left()
        return run.version()
    part.__name__ = f"torchrun_{len(hosts)}"
    return part


# --- systemd ---------------------------------------------------------------------------------------------------------------

def systemd():
    """The unit, and its command as systemd runs it: there is no systemd in a box. `stop` sends TERM and CONT to every process."""
    if not shutil.which("systemd-analyze"):
        raise NotHere("systemd-analyze missing (apt-get install systemd)")
    at = os.path.join(os.environ["CAIRN_BOX"], "shared", "systemd")
    os.makedirs(at)
    unit = read(EXAMPLES + "/systemd/train.service").replace("/opt/train/bin", os.path.dirname(TRAIN)).replace("User=train", "User=root")
    with open(at + "/train.service", "w", encoding="utf-8") as file:
        file.write(unit)
    told = call("systemd-analyze", "verify", at + "/train.service")
    assert "train.service" not in told, told
    command = re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE).group(1).replace("/var/lib/train", at).split()
    # A rank that is killed before it has announced a save leaves the other ranks' workers waiting for it until the deadline.
    command = command[:command.index("--steps")] + ENDLESS.split() + ["--timeout", "30"]
    good = re.search(r"^SuccessExitStatus=(\d+)$", unit, re.MULTILINE).group(1)
    # Restart=on-failure passes over what counts as success, so that a run which anybody else asked to stop would be over.
    assert f"\nRestart=on-failure\nRestartForceExitStatus={good}\n" in unit, unit

    def start():
        with open(at + "/out", "w", encoding="utf-8") as file:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)

    main_process = start()
    log(at + "/out", STEP)
    for number in (signal.SIGTERM, signal.SIGCONT):
        for process in processes(f"^{TRAIN} |^cairn-worker "):
            try:
                os.kill(int(process), number)
            except ProcessLookupError:
                pass
    step = int(log(at + "/out", SAVED))
    assert main_process.wait(LIMIT) == int(good)
    nothing_is_left()
    assert committed(at + "/checkpoints")[-1] == step
    # A crash: the ranks end, their workers by themselves, and the next start goes on.
    main_process = start()
    assert int(log(at + "/out", RESUMED)) == step
    main_process.kill()
    main_process.wait()
    nothing_is_left()
    main_process = start()
    assert int(log(at + "/out", RESUMED)) >= step
    main_process.terminate()
    assert main_process.wait(LIMIT) == int(good)
    nothing_is_left()
    return call("systemd-analyze", "--version").split("\n", maxsplit=1)[0]


# --- Containers ------------------------------------------------------------------------------------------------------------

def container():
    """The line of docs/worker-process.md as process 1: it hears SIGTERM, which the kernel keeps from one that has no handler, and waits for the worker."""
    page = read(os.path.join(os.path.dirname(HERE), "docs", "worker-process.md"))
    line = re.search(r"^\| Kubernetes, Docker \|.*?`(trainer\b[^`]*)`", page, re.MULTILINE).group(1)
    for shell in ("bash", "sh"):
        at = os.path.join(os.environ["CAIRN_BOX"], "shared", "container-" + shell)
        os.makedirs(at)
        words = line.replace("trainer", f"{TRAIN} --ranks 1 --mode process --checkpoints {at}/checkpoints {UNSAVED}", 1)
        with open(at + "/out", "w", encoding="utf-8") as file:
            unshare = subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", shell, "-c", words],
                                       stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
        log(at + "/out", STEP)
        first = call("pgrep", "-P", str(unshare.pid)).strip()
        os.kill(int(first), signal.SIGTERM)
        step = int(log(at + "/out", SAVED, seconds=60))
        assert unshare.wait(LIMIT) == 75, read(at + "/out")
        assert committed(at + "/checkpoints") == [step]
        nothing_is_left()
    return "bash and sh"


ALL = [systemd, container, torchrun("h1"), torchrun("h1", "h2"), slurm_time_limit, slurm_time_is_over, slurm_preemption, slurm_node_off, slurm_array, slurm_mpi,
       *map(cancelled_under, ("linuxproc", "pgid", "cgroup"))]


def inside():
    """The status: 77 where no part could be tried."""
    unknown = set(PARTS) - {part.__name__ for part in ALL}
    assert not unknown, f"there is no part {', '.join(unknown)}"
    tried = 0
    for part in ALL:
        if PARTS and part.__name__ not in PARTS:
            continue
        begin = time.monotonic()
        try:
            told = part()
            tried += 1
        except NotHere as why:
            told = f"not tried: {why}"
        print(f"{part.__name__}: {told}, {time.monotonic() - begin:.0f} s", flush=True)
    return 0 if tried else 77


# The control groups of proctrack/cgroup outlive what was in them, this process and the box. It removes them when this process has ended.
CLEANER = """cat
for i in $(seq 100); do
  find /sys/fs/cgroup/freezer/slurm_h[12] -depth -type d -exec rmdir {} + 2>/dev/null
  ls -d /sys/fs/cgroup/freezer/slurm_h[12] >/dev/null 2>&1 || break
  sleep 0.1
done"""


def main():
    if os.environ.get("CAIRN_BOX"):
        return inside()
    told = subprocess.run([BOX, "run", "--hosts", "0", "true"], stderr=subprocess.PIPE, text=True, check=False)
    if told.returncode == 77:
        print(told.stderr, end="")
        return 77
    with subprocess.Popen(["sh", "-c", CLEANER], stdin=subprocess.PIPE, start_new_session=True):
        return subprocess.run([BOX, "run", "--hosts", "2", sys.executable, os.path.abspath(__file__), TRAIN, *PARTS], check=False).returncode


signal.alarm(1700)  # what waits for a line of another program ends, too
sys.exit(main())
