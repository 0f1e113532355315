#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the record of a run on a GPU from the results of tests/gpu.sh.

usage: record.py --results DIR --commit ID --arch ARCH --output FILE; record.py --self-test

Asks nvidia-smi for the device itself: without a GPU it ends with status 77 and writes nothing.
"""

import argparse
import datetime
import json
import pathlib
import subprocess
import sys
import tempfile


def device():
    fields = "name,driver_version,memory.total,compute_cap"
    try:
        said = subprocess.run(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"], check=True,
                              capture_output=True, text=True, timeout=60).stdout.strip().split("\n")[0]
    except (OSError, subprocess.SubprocessError):
        return None
    parts = [part.strip() for part in said.split(",")]
    return dict(zip(fields.split(","), parts)) if len(parts) == 4 else None


def number(value, unit):
    if value is None:
        return ""
    if unit == "B/s":
        return f"{value / 1e9:.2f} GB/s"
    if unit == "FLOP/s":
        return f"{value / 1e12:.0f} TFLOP/s"
    if unit == "s":
        return f"{value:.3f} s" if value >= 1 else f"{value * 1e3:.3f} ms"
    return f"{value:.4g} {unit}"


def met(row):
    if not row.get("goal"):
        return ""
    sign, bound = row["goal"].split()
    if row["ratio"] is None:
        return "not measured"
    return "met" if (row["ratio"] >= float(bound) if sign == ">=" else row["ratio"] <= float(bound)) else "MISSED"


def page(results, about, commit, arch, date):
    steps = [line.split("\t") for line in (results / "steps.tsv").read_text(encoding="utf-8").splitlines()]
    def count(beginning):
        return sum(1 for step in steps if step[1].startswith(beginning))

    beside = "".join(f", {count(words)} {words}" for words in ("not built", "left out") if count(words))
    passed, wanted = count("passed"), len(steps) - count("left out")
    lines = ["# Record of a run on a GPU", "", "Written by `bash tests/gpu.sh`; see [devices](cuda.md).", "",
             f"| | |", "|---|---|", f"| device | {about['name']}, compute capability {about['compute_cap']}, {about['memory.total']} |",
             f"| driver | {about['driver_version']} |", f"| compiled for | {arch} |", f"| commit | {commit} |", f"| date | {date} |",
             f"| result | {passed} of {wanted} steps passed{beside} |", "", "| step | result | seconds |", "|---|---|---|"]
    lines += [f"| {name} | {verdict} | {seconds} |" for name, verdict, seconds in steps]
    for file in sorted(results.glob("*.json")):
        lines += ["", f"## {file.stem}", "", "| figure | value | against | ratio | goal | |", "|---|---|---|---|---|---|"]
        for row in json.loads(file.read_text(encoding="utf-8")):
            ratio = "" if row["ratio"] is None else f"{row['ratio']:.3f}"
            lines.append(f"| {row['name']} | {number(row['value'], row['unit'])} | {number(row['against'], row['unit'])} | {ratio} "
                         f"| {row['goal'] or ''} | {met(row)} |")
        table = file.with_suffix(".md")
        if table.exists():
            lines += ["", table.read_text(encoding="utf-8").rstrip()]
    return "\n".join(lines) + "\n"


def self_test():
    with tempfile.TemporaryDirectory() as scratch:
        results = pathlib.Path(scratch)
        (results / "steps.tsv").write_text(
            "a\tpassed\t3\nb\tfailed with status 1\t4\nc\tnot built: p\t\nd\tleft out: none here\t\n")
        rows = [{"name": "copy", "value": 5e10, "unit": "B/s", "against": 5.2e10, "ratio": 0.96, "goal": ">= 0.95"},
                {"name": "late", "value": 0.2, "unit": "s", "against": 0.1, "ratio": 2.5, "goal": "<= 2"},
                {"name": "alone", "value": 3.0, "unit": "saves", "against": None, "ratio": None, "goal": None}]
        (results / "bench.json").write_text(json.dumps(rows))
        (results / "bench.md").write_text("| a table |\n")
        about = {"name": "GPU", "driver_version": "1.2", "memory.total": "3 MiB", "compute_cap": "9.0"}
        text = page(results, about, "abc", "sm_90", "2000-01-01")
        for part in ("| device | GPU, compute capability 9.0, 3 MiB |", "| 1 of 3 steps passed, 1 not built, 1 left out |", "| c | not built: p |  |", "| b | failed with status 1 | 4 |",
                     "| copy | 50.00 GB/s | 52.00 GB/s | 0.960 | >= 0.95 | met |", "| late | 200.000 ms | 100.000 ms | 2.500 | <= 2 | MISSED |",
                     "| alone | 3 saves |  |  |  |  |", "| a table |", "abc", "2000-01-01"):
            assert part in text, (part, text)
    print("record.py: writes what it should")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("--results", type=pathlib.Path)
    parser.add_argument("--commit")
    parser.add_argument("--arch")
    parser.add_argument("--output", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.self_test:
        self_test()
        return 0
    about = device()
    if about is None:
        print("record.py: there is no GPU that nvidia-smi can see: no record is written", file=sys.stderr)
        return 77
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    arguments.output.write_text(page(arguments.results, about, arguments.commit, arguments.arch, date), encoding="utf-8")
    print(f"the record is in {arguments.output}")
    return 0


sys.exit(main())
