# SPDX-License-Identifier: Apache-2.0
"""How the tests call programs, and what they expect them to say."""

import re
import subprocess


def run(program, *arguments, status=0):
    """The output of a program, which must end with this status; None: with any."""
    done = subprocess.run([program, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=600, check=False)
    if status is not None and done.returncode != status:
        raise AssertionError(f"{program} {arguments} ended with {done.returncode}, not {status}:\n{done.stdout}")
    return done.stdout


def expect(text, pattern):
    assert re.search(pattern, text, re.MULTILINE), f"nothing matches {pattern!r} in:\n{text}"
