#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turns the launches in what a compiler preprocessed into calls: `kernel<<<grid, block>>>(` becomes
`emulated_cuda::launch([=](auto... given) { kernel(given...); }, grid, block)(`. Reads stdin, writes stdout."""

import re
import sys

launch = re.compile(r"(?<![\w:])((?!operator\b)[A-Za-z_][\w:]*)<<<(.*?)>>>(?=\()", re.DOTALL)
sys.stdout.write(launch.sub(r"::emulated_cuda::launch([=](auto... given) { \1(given...); }, \2)", sys.stdin.read()))
