# SPDX-License-Identifier: Apache-2.0
"""delay.py NAME PID MS ADDRESS READY: gives the host whose first process is PID a cable on which each packet takes MS each way
(kernels without netem); makes the file READY once it is there. Ends with the host."""
import collections
import ctypes
import fcntl
import os
import select
import struct
import subprocess
import sys
import time

TUNSETIFF = 0x400454CA
IFF_TAP_WITHOUT_HEADER = 0x1002
CLONE_NEWNET = 0x40000000


def tap(name):
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP_WITHOUT_HEADER))
    return fd


def main():
    name, pid, delay, address, ready = sys.argv[1], sys.argv[2], float(sys.argv[3]) / 1e3, sys.argv[4], sys.argv[5]
    head_side = tap("p-" + name)
    host_net = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(host_net, CLONE_NEWNET) != 0:
        sys.exit("delay.py: setns: " + os.strerror(ctypes.get_errno()))
    host_side = tap("eth0")
    mac = f"02:00:00:00:00:{int(name[1:]):02x}"
    for command in (f"ip link set eth0 address {mac} up", f"ip addr add {address}/24 dev eth0"):
        subprocess.run(command.split(), check=True)
    with open(ready, "w", encoding="ascii"):
        pass
    waiting = collections.deque()
    while os.path.exists(f"/proc/{pid}"):
        pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else 1.0
        for fd in select.select([head_side, host_side], [], [], pause)[0]:
            try:
                waiting.append((time.monotonic() + delay, host_side if fd == head_side else head_side, os.read(fd, 65536)))
            except BlockingIOError:
                pass
        while waiting and waiting[0][0] <= time.monotonic():
            _, to, frame = waiting.popleft()
            try:
                os.write(to, frame)
            except OSError:  # the link is down, or its queue is full: the packet is lost
                pass


main()
