# SPDX-License-Identifier: Apache-2.0
"""train_gpt on the hosts of a box, two ranks on each: what test_hosts.py and chaos.py start, watch and end."""

import concurrent.futures
import os
import re
import secrets
import signal
import subprocess
import threading
import time

from python.mpi import starter

HERE = os.path.dirname(os.path.abspath(__file__))
BOX = os.path.join(HERE, "box")
RANKS_ON_A_HOST = 2


def box(*words, status=0, limit=240):
    done = subprocess.run([BOX, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=limit, check=False)
    assert status is None or done.returncode == status, f"box {words} ended with {done.returncode}: {done.stdout}"
    return done.stdout


def mpi_start(program, hosts, words):
    """What starts its ranks on hosts, with these words in their environment, by the MPI that the program was built with."""
    command, whose = starter(os.path.join(os.environ["CAIRN_BOX"], "shared", os.path.basename(program)))
    agent, ranks = os.path.join(HERE, "rsh_agent"), str(len(hosts) * RANKS_ON_A_HOST)
    if whose == "MPICH":
        # The card that leads to the others: UCX would take the loopback, too.
        words = {**words, "UCX_NET_DEVICES": "vec0" if hosts[0].startswith("i") else "eth0"}
        start = [command, "-launcher", "rsh", "-launcher-exec", agent, "-iface", "br0", "-hosts", ",".join(hosts), "-ppn", str(RANKS_ON_A_HOST),
                 "-bind-to", "none", "-n", ranks]
        return start + [word for each in words.items() for word in ("-genv", *each)]
    network = "10.77.0.0/24"
    start = [command, "--allow-run-as-root", "--mca", "plm_rsh_agent", agent, "--mca", "pml", "ob1", "--mca", "btl", "tcp,self",
             "--mca", "btl_tcp_if_include", network, "--mca", "oob_tcp_if_include", network,
             "--host", ",".join(f"{host}:{RANKS_ON_A_HOST}" for host in hosts), "--map-by", f"ppr:{RANKS_ON_A_HOST}:node", "--bind-to", "none", "-np", ranks]
    return start + [word for each in words.items() for word in ("-x", "=".join(each))]


class Job:
    """One start of train_gpt on some hosts. What its ranks print is read as it comes, with the moment of each line."""

    def __init__(self, program, hosts, arguments, by="sockets", environment=None):
        self.hosts, self.lines, self.told = hosts, [], threading.Condition()
        self.begun = time.monotonic()
        words = dict(environment or {}, CAIRN_JOB_KEY=secrets.token_hex(32))
        if by == "mpi":
            commands = [[*mpi_start(program, hosts, words), program, "--mpi", *arguments]]
        else:
            words.update(WORLD_SIZE=str(len(hosts) * RANKS_ON_A_HOST), MASTER_ADDR=hosts[0], MASTER_PORT="29400",
                         TORCHELASTIC_RUN_ID=secrets.token_hex(8))
            commands = [[BOX, "on", hosts[rank // RANKS_ON_A_HOST], "env", f"RANK={rank}", *[f"{name}={value}" for name, value in words.items()],
                         program, "--sockets", *arguments] for rank in range(len(hosts) * RANKS_ON_A_HOST)]
        self.processes = [subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                           start_new_session=True) for command in commands]
        self.readers = [threading.Thread(target=self.read, args=(process,), daemon=True) for process in self.processes]
        for reader in self.readers:
            reader.start()

    def read(self, process):
        for line in process.stdout:
            with self.told:
                self.lines.append((time.monotonic(), line.rstrip("\n")))
                self.told.notify_all()
        with self.told:
            process.wait()
            self.told.notify_all()

    def ended(self):
        return all(process.poll() is not None for process in self.processes)

    def text(self):
        with self.told:
            return "\n".join(line for _, line in self.lines)

    def wait_for(self, pattern, limit=240, after=0):
        """The match of the first line after so many that has the pattern."""
        until = time.monotonic() + limit
        with self.told:
            while True:
                # Looked at before the lines: what a rank says last may be read after its end.
                over = not any(reader.is_alive() for reader in self.readers)
                for _, line in self.lines[after:]:
                    found = re.search(pattern, line)
                    if found:
                        return found
                after = len(self.lines)
                assert not over and time.monotonic() < until, f"no line has {pattern!r}:\n" + "\n".join(line for _, line in self.lines[-40:])
                self.told.wait(0.2)

    def wait(self, limit=240):
        """The statuses, when all have ended."""
        until = time.monotonic() + limit
        for process in self.processes:
            try:
                process.wait(max(0.01, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"a rank did not end:\n{self.text()[-4000:]}") from None
        for reader in self.readers:
            reader.join(max(0.01, until - time.monotonic()))
        return [process.returncode for process in self.processes]

    def kill(self, without=()):
        """Ends it on all hosts but those that lost power, as a scheduler does: its ranks, and what writes for them."""
        for process in self.processes:
            if process.poll() is None:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        for process in self.processes:
            process.wait(60)
        ended = r"""i=0; while pkill -KILL -f "$0"; do sleep 0.01; i=$((i + 1)); [ $i -lt 3000 ] || { ps -ef; exit 1; }; done"""
        on_each([host for host in self.hosts if host not in without],
                lambda host: box("on", host, "sh", "-c", ended, "^[^ ]*(train_gpt|cairn-worker|orted|hydra_pmi_proxy) "))

    def last_step(self):
        """The last step that was trained."""
        steps = re.findall(r"^step +(\d+)  loss", self.text(), re.MULTILINE)
        return int(steps[-1]) if steps else 0

    def committed(self):
        steps = re.findall(r"step (\d+) committed", self.text())
        return int(steps[-1]) if steps else 0


def on_each(hosts, what):
    """Does it for all hosts at once. @throws what one of them threw"""
    with concurrent.futures.ThreadPoolExecutor(max(1, len(hosts))) as pool:
        return list(pool.map(what, hosts))


def signal_on(host, name, pattern):
    """Sends a signal to all programs on a host whose command line has the pattern; how many there were."""
    found = box("on", host, "pgrep", "-f", pattern, status=None).split()
    if found:
        # Not the word of a shell, which is outside. Some may have ended meanwhile.
        subprocess.run([BOX, "on", host, "env", "kill", f"-{name}", *found], stderr=subprocess.DEVNULL, timeout=60, check=False)
    return len(found)
