# SPDX-License-Identifier: Apache-2.0
"""Runs commands in an instance of box, over its second network card, which no fault of the first one touches.

instance.py serve ADDRESS           in the instance: serves until it is killed
instance.py call ADDRESS COMMAND... on the head: runs COMMAND there; what it prints is printed, its status is this one's.
                                    What comes in by a pipe is its input, but for the end.
"""
import json
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import threading

PORT = 1
END = b"\0box: status "  # what the server says last


def answer(connection):
    with connection:
        asked = b""
        while not asked.endswith(b"\n"):  # not a byte more: the rest is the command's input
            byte = connection.recv(1)
            if not byte:
                return
            asked += byte
        asked = json.loads(asked)
        try:
            # The command writes to the connection itself; it is the leader of a session, so that all of it can be ended.
            # Its input comes through here: it is not to see the end of it before it is killed.
            process = subprocess.Popen(asked["command"], stdin=subprocess.PIPE if asked["input"] else subprocess.DEVNULL,
                                       stdout=connection, stderr=connection, bufsize=0,
                                       env={**os.environ, **asked["environment"]}, start_new_session=True)
        except OSError as e:
            connection.sendall(f"box: {asked['command'][0]}: {e.strerror}\n".encode() + END + b"127\n")
            return
        ended = threading.Event()

        def watch():
            hears = select.poll()
            hears.register(connection, select.POLLRDHUP | select.POLLHUP | (select.POLLIN if asked["input"] else 0))
            while not ended.is_set():
                if not hears.poll(200):
                    continue
                try:
                    data = connection.recv(65536) if asked["input"] else b""
                except OSError:
                    data = b""
                if data:
                    try:
                        process.stdin.write(data)
                    except BrokenPipeError:  # it wants no more of it
                        pass
                    continue
                if not ended.is_set():  # who asked has gone: so does the command
                    try:
                        os.killpg(process.pid, signal.SIGKILL)
                    except ProcessLookupError:
                        pass
                return

        watcher = threading.Thread(target=watch)
        watcher.start()
        status = process.wait()
        ended.set()
        watcher.join()
        try:
            connection.sendall(END + b"%d\n" % (status if status >= 0 else 128 - status))
        except OSError:
            pass


def serve(address):
    server = socket.create_server((address, PORT), backlog=16)
    while True:
        connection, _ = server.accept()
        threading.Thread(target=answer, args=(connection,), daemon=True).start()


def call(address, command):
    passed = {k: v for k, v in os.environ.items() if k.startswith("CAIRN_") and k != "CAIRN_BOX"}
    try:
        connection = socket.create_connection((address, PORT), timeout=5)
    except OSError as e:
        sys.exit(f"box: the instance does not answer: {e}")
    connection.settimeout(None)
    piped = stat.S_ISFIFO(os.fstat(0).st_mode)
    connection.sendall(json.dumps({"command": command, "environment": passed, "input": piped}).encode() + b"\n")

    def pass_on():
        while True:
            data = os.read(0, 65536)
            if not data:
                return
            connection.sendall(data)

    if piped:
        threading.Thread(target=pass_on, daemon=True).start()
    held = b""
    while True:
        data = connection.recv(65536)
        if not data:
            sys.stdout.buffer.write(held)
            sys.stdout.flush()
            print("box: the instance was lost", file=sys.stderr, flush=True)
            os._exit(1)
        held += data
        at = held.find(END)
        if at >= 0 and held.endswith(b"\n", at + len(END)):
            sys.stdout.buffer.write(held[:at])
            sys.stdout.flush()
            os._exit(int(held[at + len(END):]))  # whatever waits for more input
        # All but what may be the beginning of the end.
        sure = at if at >= 0 else next((i for i in range(max(0, len(held) - len(END)), len(held)) if END.startswith(held[i:])), len(held))
        sys.stdout.buffer.write(held[:sure])
        sys.stdout.flush()
        held = held[sure:]


if sys.argv[1] == "serve":
    serve(sys.argv[2])
else:
    call(sys.argv[2], sys.argv[3:])
