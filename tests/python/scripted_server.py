# SPDX-License-Identifier: Apache-2.0
"""The scripted S3 server of the tests, helper_s3_server, as a process that is told what to do by its standard input."""

import re
import subprocess


class ScriptedServer:
    """Listens on `port` of the loopback interface when it is made."""

    def __init__(self, program, *options):
        self.process = subprocess.Popen([program, "--commands", *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port = int(re.fullmatch(r"listening on 127\.0\.0\.1:(\d+)\n", self.process.stdout.readline()).group(1))

    def tell(self, command):
        """The lines that it answers, none of which may be an error."""
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        lines = []
        while (line := self.process.stdout.readline()) != ".\n":
            assert line, "the server has ended"
            lines.append(line.rstrip("\n"))
        assert not any(line.startswith("error: ") for line in lines), lines
        return lines

    def close(self):
        self.process.stdin.close()
        assert self.process.wait(timeout=60) == 0
