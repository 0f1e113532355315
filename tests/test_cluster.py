#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# needs: helper_s3_server socket_ranks
"""The cluster in a box (tests/cluster/box): its hosts and faults are what they are called, and nothing of it remains, however it
ends. Needs root and what `box install` installs.

usage: test_cluster.py HELPER_S3_SERVER SOCKET_RANKS
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
BOX = os.path.join(HERE, "cluster", "box")
S3_SERVER, SOCKET_RANKS = map(os.path.abspath, sys.argv[1:3])
LIMIT = 60  # seconds; nothing here waits so long unless it is wrong


# --- What runs on the hosts ------------------------------------------------------------------------------------------------

# Echoes datagrams' payloads to its standard output, one a line, until one says "end".
HEAR = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, 33, 1 << 24)  # SO_RCVBUFFORCE: none is lost here
s.bind(("0.0.0.0", 4000))
print("ready", flush=True)
while True:
    text = s.recv(2000).decode()
    print(text, flush=True)
    if text == "end":
        break
"""
# say.py ADDRESS COUNT TEXT
SAY = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for i in range(int(sys.argv[2])):
    s.sendto(sys.argv[3].encode(), (sys.argv[1], 4000))
"""
# Accepts one connection, says so, and keeps it.
ACCEPT = """
import socket, time
s = socket.create_server(("0.0.0.0", 4001))
print("ready", flush=True)
c, _ = s.accept()
c.sendall(b"x")
time.sleep(3600)
"""
# Connects, then says the state of its connection (1: ESTABLISHED) after each line of its input.
CONNECT = """
import socket, sys
s = socket.create_connection((sys.argv[1], 4001))
assert s.recv(1) == b"x"
print("connected", flush=True)
for line in sys.stdin:
    print(s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)[0], flush=True)
"""
# Sends a megabyte and waits until all of it has arrived: prints the seconds.
SINK = """
import socket
s = socket.create_server(("0.0.0.0", 4002))
print("ready", flush=True)
c, _ = s.accept()
n = 0
while n < 1 << 20:
    n += len(c.recv(1 << 16))
c.sendall(b"x")
"""
SEND = """
import socket, sys, time
s = socket.create_connection((sys.argv[1], 4002))
begin = time.monotonic()
s.sendall(bytes(1 << 20))
assert s.recv(1) == b"x"
print(time.monotonic() - begin, flush=True)
"""


def box(*words, status=0):
    done = subprocess.run([BOX, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=LIMIT, check=False)
    assert done.returncode == status, f"box {words} ended with {done.returncode}: {done.stdout}"
    return done.stdout


def until(what, reached):
    limit = time.monotonic() + LIMIT
    while not reached():
        assert time.monotonic() < limit, f"waited in vain: {what}"
        time.sleep(0.02)


def dropped():
    """Packets that cuts have taken since one was made or ended."""
    told = subprocess.run(["nft", "list", "table", "bridge", "box"], stdout=subprocess.PIPE, text=True, check=True).stdout
    return sum(map(int, re.findall(r"packets (\d+)", told)))


class Running:
    """A Python program on a machine, which has said its first line."""

    def __init__(self, machine, program, *arguments, first="ready"):
        self.process = subprocess.Popen([BOX, "on", machine, "python3", "-c", program, *arguments],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.expect(first)

    def line(self):
        return self.process.stdout.readline().rstrip("\n")

    def expect(self, text):
        line = self.line()
        assert line == text, f"{line!r}, not {text!r}"

    def ask(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.line()


def say(machine, to, text, count=1):
    box("on", machine, "python3", "-c", SAY, to, str(count), text)


def hosts_are_apart():
    assert box("on", "h1", "hostname") == "h1\n"
    assert box("on", "h2", "sh", "-c", "exit 5", status=5) == ""
    box("on", "h1", "sh", "-c", "echo 1 >/tmp/x; echo 1 >/dev/shm/x; echo 1 >/run/x; echo both >$CAIRN_BOX/shared/x")
    assert box("on", "h2", "sh", "-c", "cat /tmp/x /dev/shm/x /run/x $CAIRN_BOX/shared/x 2>/dev/null", status=1) == "both\n"
    assert not os.path.exists("/run/x")
    assert box("on", "h1", "sh", "-c", "ps -e -o comm=").count("python3") == 0, "it sees processes of others"


def frozen_hosts_stop():
    hearing = Running("h2", HEAR)

    def state():
        own = box("on", "h2", "sh", "-c", "grep -l 4000 /proc/[0-9]*/cmdline").split("/")[2]
        return box("on", "h2", "sh", "-c", f"sed -n 's/^State:.//p' /proc/{own}/status")[0]

    assert state() != "T"
    box("freeze", "h2")
    until("it is frozen", lambda: state() == "T")
    say("h1", "h2", "one")
    box("thaw", "h2")
    hearing.expect("one")
    say("h1", "h2", "end")
    hearing.expect("end")


def cuts_are_one_way():
    first, second = Running("h1", HEAR), Running("h2", HEAR)
    box("cut", "h2", "h1")
    say("h1", "h2", "lost", 20)
    say("h2", "h1", "heard")
    first.expect("heard")
    until("all are lost", lambda: dropped() == 20)  # one that is on its way would be heard after the cut
    box("cut", "h2", "head")
    subprocess.run([sys.executable, "-c", SAY, "10.77.0.2", "5", "lost"], check=True)
    until("all are lost", lambda: dropped() == 5)
    box("mend", "h2", "h1")
    say("h1", "h2", "after")
    second.expect("after")
    box("mend")
    subprocess.run([sys.executable, "-c", SAY, "10.77.0.2", "1", "of the head"], check=True)
    second.expect("of the head")

    # Half of 400: fewer than 100 or more than 300 come once in 10^23 runs.
    box("loss", "h1", "500")
    say("h1", "h2", "some", 400)
    box("loss", "h1", "0")
    say("h1", "h2", "end")
    heard = 0
    while second.line() == "some":
        heard += 1
    assert 100 <= heard <= 300, heard
    say("h2", "h1", "end")
    first.expect("end")


def cables_are_slow():
    # Lower bounds alone: nobody promises that this machine is quick.
    def seconds():
        Running("h2", SINK)
        return float(box("on", "h1", "python3", "-c", SEND, "h2"))

    box("rate", "h2", "8mbit")  # of the megabyte, 256 KiB pass at once
    limited = seconds()
    assert limited >= 0.7, limited
    box("rate", "h2", "0")
    box("power-off", "h2")
    box("delay", "h2", "50")
    box("boot", "h2")
    delayed = seconds()
    assert delayed >= 0.1, delayed
    box("power-off", "h2")
    box("delay", "h2", "0")
    box("boot", "h2")


def power_goes_without_a_word():
    box("on", "h2", "touch", "/dev/shm/x")
    Running("h2", ACCEPT)
    peer = Running("h1", CONNECT, "h2", first="connected")
    assert peer.ask() == "1"
    box("power-off", "h2")
    assert peer.ask() == "1", "the peer was told, as by a process that ends"
    assert "h2 is not up" in subprocess.run([BOX, "on", "h2", "true"], stderr=subprocess.PIPE, text=True, check=False).stderr
    box("boot", "h2")
    assert box("on", "h2", "sh", "-c", "ls /dev/shm") == "", "its memory was kept"
    hearing = Running("h2", HEAR)
    say("h1", "h2", "end")
    hearing.expect("end")
    box("unplug", "h1")
    box("plug", "h1")
    hearing = Running("h1", HEAR)
    say("h2", "h1", "end")
    hearing.expect("end")


def an_object_store_is_a_host():
    told = box("s3", "h3", S3_SERVER, "--all-addresses")
    assert told.startswith("listening on 10.77.0.3:"), told
    address = told.split()[-1]
    try:
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"http://{address}/bucket/key", timeout=LIMIT)
        raise AssertionError("it answers who has not signed")
    except urllib.error.HTTPError as e:
        assert e.code == 403, e
    assert box("on", "h1", "python3", "-c", f"import socket; socket.create_connection(('{address.split(':')[0]}', {address.split(':')[1]})); print(1)") == "1\n"


def ranks_on_sockets_name_a_lost_host():
    shared = os.environ["CAIRN_BOX"] + "/shared"
    program = shutil.copy(SOCKET_RANKS, shared + "/socket_ranks")  # hosts have a /tmp of their own
    said = ["WORLD_SIZE=6", "MASTER_ADDR=h1", "MASTER_PORT=29400", "TORCHELASTIC_RUN_ID=box", "CAIRN_JOB_KEY=" + "0123456789abcdef" * 4]
    ranks = [subprocess.Popen([BOX, "on", f"h{rank // 2 + 1}", "env", f"RANK={rank}", *said, program, shared + "/checkpoints", "1000000"],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in range(6)]
    for line in ranks[0].stdout:
        if "step 3 committed" in line:
            break
    box("power-off", "h2")
    # A save waits for half an hour for a rank that may come back: these know better.
    for rank in (0, 1, 4, 5):
        errors = ranks[rank].communicate(timeout=LIMIT)[1]
        assert ranks[rank].returncode == 1 and re.search(r"cairn\.peer\.lost.*rank [23]\b", errors), (rank, ranks[rank].returncode, errors)
    box("boot", "h2")


def inside():
    for part in (hosts_are_apart, frozen_hosts_stop, cuts_are_one_way, cables_are_slow, power_goes_without_a_word, an_object_store_is_a_host,
                 ranks_on_sockets_name_a_lost_host):
        begin = time.monotonic()
        part()
        print(f"{part.__name__}: {time.monotonic() - begin:.1f} s", flush=True)


# --- Outside -------------------------------------------------------------------------------------------------------------------

def who_lives_in(space):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/ns/net") in space:
                found.append(pid)
        except OSError:  # it has ended, or is ending
            pass
    return found


def nothing_is_left(spaces):
    """Processes hold namespaces, namespaces hold interfaces and mounts: without a process there is nothing."""
    until("the end of all processes of the cluster", lambda: not who_lives_in(spaces))
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        assert "cairn-box" not in file.read()
    assert not os.path.exists("/run/cairn-box")


TELL = "for m in head h1 h2; do [ $m = head ] && readlink /proc/self/ns/net || $0 on $m readlink /proc/self/ns/net; done; echo .; "


def nothing_remains():
    def begin(end, **how):
        process = subprocess.Popen([BOX, "run", "--hosts", "2", "bash", "-c", TELL + end, BOX], stdout=subprocess.PIPE, text=True, **how)
        spaces = set(iter(lambda: process.stdout.readline().rstrip("\n"), "."))
        assert len(spaces) == 3, spaces
        return process, spaces

    for end, status in (("true", 0), ("exit 9", 9), ("$0 on h1 sleep 3600 & exit 0", 0), ("$0 power-off h1; kill -TERM $$", 143)):
        process, spaces = begin(end)
        assert process.wait(LIMIT) == status, (end, process.returncode)
        nothing_is_left(spaces)
    process, spaces = begin("$0 on h1 setsid sleep 3600 & echo begun; sleep 3600")
    assert process.stdout.readline() == "begun\n"
    process.kill()
    process.wait(LIMIT)
    nothing_is_left(spaces)
    # Its caller alone is killed.
    caller = subprocess.Popen(["bash", "-c", '"$@"; true', "bash", BOX, "run", "--hosts", "2", "bash", "-c", TELL + "sleep 3600", BOX],
                              stdout=subprocess.PIPE, text=True)
    spaces = set(iter(lambda: caller.stdout.readline().rstrip("\n"), "."))
    caller.kill()
    caller.wait(LIMIT)
    nothing_is_left(spaces)


def main():
    if os.environ.get("CAIRN_BOX"):
        inside()
        return 0
    told = subprocess.run([BOX, "run", "true"], stderr=subprocess.PIPE, text=True, check=False)
    if told.returncode == 77:
        print(told.stderr, end="")
        return 77
    done = subprocess.run(["setpriv", "--reuid", "65534", "--clear-groups", "bash", BOX, "run", "true"], stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode in (77, 126, 127), done  # or it may not even read the clone
    assert done.returncode != 77 or "needs root" in done.stderr, done
    assert subprocess.run([BOX, "on", "h1", "true"], stderr=subprocess.DEVNULL, check=False).returncode == 2
    subprocess.run([BOX, "run", sys.executable, os.path.abspath(__file__), S3_SERVER, SOCKET_RANKS], check=True, timeout=5 * LIMIT)
    begin = time.monotonic()
    nothing_remains()
    print(f"nothing_remains: {time.monotonic() - begin:.1f} s", flush=True)
    return 0


signal.alarm(5 * LIMIT)  # what waits for a line of another program ends, too
sys.exit(main())
