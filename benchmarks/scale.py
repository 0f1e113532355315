#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What jobs of 2 to 131,072 ranks take to save, commit, list, remove, resume and recover, from counted requests and messages.

bench_scale counts what each rank asks of a store and of the others; this program multiplies it by what storage is said to give
(SERVICES, each number with its source) and writes docs/scale.json, docs/scale.svg and the tables between the marks of docs/scale.md.

usage: scale.py [FIGURES]    FIGURES: what `bench_scale --json` wrote; without it, docs/scale.json as it is
"""
import json
import math
import pathlib
import statistics
import sys

DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs"
WORLDS = [1024, 8192, 65536, 131072]
GIB = 2**30
BYTES_PER_RANK = GIB
RANKS_PER_HOST = 8
STEPS = 5  # checkpoints that stay in the store
MESSAGE = 10e-6  # seconds from rank to rank, as bench_planning takes it
NETWORK = 10e9  # bytes per second of a rank, as bench_planning takes it
LOOKS_AT_ONCE = 8  # for records in a bucket
AT_ONCE = 16  # requests of rank 0 that the library makes at once: reads, removals, listings of directories of a bucket

# Seconds and rates: of a file or object that is published (made, made durable, named), a look at one, a fetch of a small one, a removal;
# names listed per second, and per request; bytes per second of all and of one host; p99 over the median of one request.
SERVICES = {
    # Dell, "HPC Lustre Storage solution with Mellanox Infiniband EDR" and "... Intel Omni-Path" (white papers, 2017), MDtest, one pair of
    # metadata servers: 29,000 creates, 544,000 stats, 160,000 removals a second with 240 threads; 1,100, 2,000, 1,900 with one. A file that is
    # published is created, synced and renamed. Bytes: ten of such systems, taken as 100 GB/s; a host by 100 Gbit/s. p99: assumed.
    "Lustre": dict(publish=(3 / 1100, 29000 / 2), look=(1 / 2000, 544000), fetch=(1 / 2000, 544000), remove=(1 / 1900, 160000),
                   names=1e5, page=math.inf, write=1e11, read=1e11, host=12.5e9, tail=4),
    # AWS, "Performance design patterns for Amazon S3": 3,500 PUT and DELETE, 5,500 GET and HEAD a second for one prefix, before it is split
    # among servers; 100 to 200 ms for small objects. A listing has 1,000 names. Bytes: a host by 100 Gbit/s; no limit of the service is told.
    "S3": dict(publish=(0.15, 3500), look=(0.15, 5500), fetch=(0.15, 5500), remove=(0.15, 3500),
               names=math.inf, page=1000, write=math.inf, read=math.inf, host=12.5e9, tail=4),
    # AWS, "Amazon EFS performance", regional, elastic: 0.25 ms and 90,000 reads, 2.7 ms and 50,000 writes a second; 20 and 5 GiB/s; 1,500 MiB/s
    # of a client. A file that is published is created, written and renamed. Names and p99: assumed.
    "NFS": dict(publish=(3 * 2.7e-3, 50000 / 3), look=(0.25e-3, 90000), fetch=(0.5e-3, 45000), remove=(2.7e-3, 50000),
                names=1e5, page=math.inf, write=5 * GIB, read=20 * GIB, host=1500 * 2**20, tail=4),
}
# Samsung PM9A3 (data sheet as heise and ServeTheHome cite it, 2020): 3.5 and 6.5 GB/s, one in each host, as a tier on a disk. 1 ms to make a
# file durable: assumed.
NVME = dict(write=3.5e9, read=6.5e9, publish=1e-3)
PEER = 1e-3  # seconds of a vote from rank to rank over TLS links: assumed; they answer within a poll of 50 ms at the latest


class Figures:
    def __init__(self, rows):
        self.rows = rows

    def of(self, store, operation, who, kind, ranks):
        """A count for so many ranks. To 512 ranks as it was counted, or between two that were; beyond that what grows goes on as it did from
        256 to 512, names by rank, and all else as it is there. What one of the others does is the same in any world: the median."""
        known = {}
        for name, value in self.rows.items():
            parts = name.split("/")
            if parts[:2] == [store, operation] and parts[3:] == [who, kind]:
                known[int(parts[2].removeprefix("ranks="))] = value
        if not known:
            return 0.0
        if who == "others":
            return statistics.median(known.values())
        at = sorted(known)
        if ranks <= at[0]:
            return known[at[0]]
        if ranks > at[-1]:
            growth = (known[at[-1]] - known[at[-2]]) / (at[-1] - at[-2])
            if kind in ("look", "read"):  # of a commit: one for each block of 128 ranks, whatever polls there were between
                growth = 1 / 128 if operation in ("save", "first_save") else 0
            elif kind not in ("names", "remove", "messages", "message_bytes"):
                growth = 0
            elif kind == "messages" and who == "rank_0":
                return known[at[-1]] * math.log2(ranks) / math.log2(at[-1])
            elif kind == "message_bytes":
                return known[at[-1]] * ranks / at[-1] * math.log2(ranks) / math.log2(at[-1])
            return known[at[-1]] + max(growth, 0) * (ranks - at[-1])
        low, high = next((a, b) for a, b in zip(at, at[1:]) if ranks <= b)
        return known[low] + (known[high] - known[low]) * (ranks - low) / (high - low)

    def curve(self, prefix, suffix):
        found = {}
        for name, value in self.rows.items():
            if name.startswith(prefix + "/ranks=") and name.endswith("/" + suffix) and name.count("/") == 1 + 1 + suffix.count("/"):
                found[int(name.split("ranks=")[1].split("/")[0])] = value
        return found


def slowest(service, ranks, requests):
    """The most that one of so many requests takes, of a log-normal distribution whose p99 is service["tail"] medians."""
    sigma = math.log(service["tail"]) / 2.326
    return math.exp(sigma * math.sqrt(2 * math.log(max(ranks * requests, 2))))


def listing(service, figures, store, operation, ranks):
    """Seconds of rank 0 for listings."""
    lists = figures.of(store, operation, "rank_0", "list", 2)  # without polls
    # Retention's listing has manifests alone; the store that counts knows no such listing.
    names = figures.of(store, "first_save" if operation == "save" and store == "object" else operation, "rank_0", "names", ranks)
    if service["page"] == math.inf:
        return lists * service["look"][0] + names / service["names"]
    pages = names / service["page"]
    at_once = AT_ONCE if ranks > 256 else 1
    return (lists + pages / at_once) * service["look"][0]


def parts_of(service, figures, operation, ranks):
    """What of an operation takes how long, in seconds, for its longest chain; bytes left out."""
    store = "object" if service["page"] < math.inf else "file"

    def chain(who, kind, price, at_once=1.0):
        return figures.of(store, operation, who, kind, ranks) / at_once * service[price][0]

    def crowd(kind, price):
        return ranks * figures.of(store, operation, "others", kind, ranks) / service[price][1]

    published = figures.of(store, operation, "others", "make", ranks)
    parts = {
        "requests of all ranks": crowd("make", "publish") + crowd("look", "look") + crowd("read", "fetch") + crowd("remove", "remove"),
        "the slowest of them": published * service["publish"][0] * slowest(service, ranks, max(published, 1)) if published
        else service["fetch"][0] * slowest(service, ranks, 1) if operation == "resume" else 0,
        "records at rank 0": chain("rank_0", "look", "look", LOOKS_AT_ONCE if store == "object" else 1)
        + chain("rank_0", "read", "fetch", AT_ONCE),
        "publishing by rank 0": max(chain("rank_0", "make", "publish") - published * service["publish"][0], 0),
        "listings by rank 0": listing(service, figures, store, operation, ranks),
        "removals by rank 0": max(chain("rank_0", "remove", "remove", AT_ONCE if ranks > 32 else 1),
                                  figures.of(store, operation, "rank_0", "remove", ranks) / service["remove"][1]),
        "messages": figures.of(store, operation, "most", "messages", ranks) * MESSAGE
        + figures.of(store, operation, "rank_0", "message_bytes", ranks) / NETWORK,
    }
    return parts


def bytes_seconds(service, ranks, way):
    hosts = max(ranks / RANKS_PER_HOST, 1)
    return ranks * BYTES_PER_RANK / min(service[way], hosts * service["host"])


def told_to_all(ranks):
    """Until a rank that polls sees the commit, at the latest; see poll_backoff."""
    return 1.25 * max(50e-3, 100e-6 * ranks)


def line(points, ranks):
    """On the line through the last two of what was measured."""
    at = sorted(points)
    a, b = at[-2], at[-1]
    return points[b] + (points[b] - points[a]) * (ranks - b) / (b - a)


def agreement(figures, ranks):
    """Processor seconds of the chain, and those of its messages."""
    work = line(figures.curve("agreement", "critical_path"), ranks)
    sent = line({n: v / math.log2(n) for n, v in figures.curve("agreement", "bytes_of_rank_0").items()}, ranks)
    levels = math.ceil(math.log2(ranks))
    return work, 2 * levels * MESSAGE + (levels + 1) * sent / NETWORK


def text(seconds):
    if seconds >= 100:
        return f"{seconds:,.0f} s"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def tables(figures):
    lines = ["| storage | ranks | bytes of a save | a save beside its bytes, until committed | known to all | list | remove a step | resume beside its bytes | publishes asked for, and given, a second | what takes longest of save, and of resume |",
             "|---|---|---|---|---|---|---|---|---|---|"]
    curves = {}
    for name, service in SERVICES.items():
        for ranks in WORLDS:
            save = parts_of(service, figures, "save", ranks)
            resume = parts_of(service, figures, "resume", ranks)
            # bench_scale had two checkpoints when it resumed and listed.
            for parts in (resume,):
                parts["listings by rank 0"] *= STEPS / 2
            listed = sum(parts_of(service, figures, "list", ranks).values())
            if service["page"] < math.inf and ranks > 256:  # manifests alone: two pages for each step
                listed = (1 + STEPS / AT_ONCE * 2) * service["look"][0]
            removed = sum(parts_of(service, figures, "remove", ranks).values())
            bytes_of_save = bytes_seconds(service, ranks, "write")
            store = "object" if service["page"] < math.inf else "file"
            asked = ranks * figures.of(store, "save", "others", "make", ranks) / max(bytes_of_save, 1)
            lines.append(f"| {name} | {ranks:,} | {text(bytes_of_save)} | {text(sum(save.values()))} | + {text(told_to_all(ranks))} | {text(listed)} | {text(removed)} | "
                         f"{text(sum(resume.values()))} | {asked:,.0f}, {service['publish'][1]:,.0f} | {max(save, key=save.get)}; {max(resume, key=resume.get)} |")
        curves[name + ": save"] = [(n, sum(parts_of(service, figures, "save", n).values())) for n in sizes()]
        curves[name + ": resume"] = [(n, sum(parts_of(service, figures, "resume", n).values())) for n in sizes()]
    lines += ["", "| tiers: ranks | save, held on NVMe | held by all is known | agreement: processor, messages | read back from NVMe |", "|---|---|---|---|---|"]
    for ranks in WORLDS:
        votes = 2 * math.ceil(math.log(ranks, 8)) * PEER
        work, sent = agreement(figures, ranks)
        on_host = RANKS_PER_HOST * BYTES_PER_RANK
        lines.append(f"| {ranks:,} | {text(on_host / NVME['write'] + 2 * NVME['publish'])} | + {text(votes)} | {text(work)}, {text(sent)} | {text(on_host / NVME['read'])} |")
    curves["tiers: agreement"] = [(n, sum(agreement(figures, n))) for n in sizes()]
    return lines, curves


def sizes():
    return [2**k for k in range(6, 18)]


def check(figures):
    """The same sums with the prices of this machine, beside processes that did it."""
    def price(what, threads):
        return figures.rows[f"price/threads={threads}/{what}"]

    def here(ranks):
        at_once = max(n for n in (64, 16, 4, 1) if n <= ranks and f"price/threads={n}/look" in figures.rows)
        # With so many at once; alone.
        return dict(publish=(price("publish", 1), 1 / price("publish", at_once)), look=(price("look", 1), 1 / price("look", at_once)),
                    fetch=(price("fetch", 1), 1 / price("fetch", at_once)), remove=(price("remove", 1), 1 / price("remove", 16)),
                    names=2e6, page=math.inf, tail=1.0001)

    lines = ["| processes | save: measured, modelled | list | resume |", "|---|---|---|---|"]
    errors = {"save": [], "list": [], "resume": []}
    one_way = figures.curve("processes", "messages_one_way")
    for ranks in sorted(figures.curve("processes", "save")):
        row = []
        for operation, found in errors.items():
            parts = parts_of(here(ranks), figures, operation, ranks)
            parts.pop("the slowest of them")
            # Of each collective call messages go up the tree and down again.
            parts["messages"] = 2 * figures.of("file", operation, "rank_0", "messages", ranks) / math.log2(ranks) * one_way.get(ranks, 0)
            model, measured = sum(parts.values()), figures.rows[f"processes/ranks={ranks}/{operation}"]
            found.append(model / measured)
            row.append(f"{text(measured)}, {text(model)} ({model / measured:.2f})")
        lines.append(f"| {ranks} | " + " | ".join(row) + " |")
    worst = {o: max(max(r, 1 / r) for r in found) for o, found in errors.items()}
    typical = {o: math.exp(sum(abs(math.log(r)) for r in found) / len(found)) for o, found in errors.items()}
    lines += ["", "Modelled over measured, off by a factor of " + ", ".join(f"{typical[o]:.2f} in the mean and {worst[o]:.2f} at most ({o})" for o in errors) + "."]
    counted = s3_check(figures)
    return lines + ([""] + counted if counted else [])


def s3_check(figures):
    """What the journal of the S3 server has, beside what was counted at the store: what does not depend on time."""
    operations = ["begin", "first_save", "save", "list", "remove", "resume"]
    found = []
    for name in sorted({n.split("/")[1] for n in figures.rows if n.startswith("s3/")}, key=lambda n: int(n[6:])):
        ranks = int(name.removeprefix("ranks="))

        def counted(kind, store="object"):
            return sum(figures.of(store, o, "rank_0", kind, ranks) + (ranks - 1) * figures.of(store, o, "others", kind, ranks) for o in operations)

        puts = figures.rows.get(f"s3/{name}/PutObject", 0)
        found.append(f"{ranks} ranks: {puts:.0f} and {counted('make'):.0f} PUT, {figures.rows.get(f's3/{name}/DeleteObject', 0):.0f} and {counted('remove'):.0f} DELETE")
    return ["Requests of a whole life over the S3 server, by its journal and by the counts above (the journal has the store's own probes, too): "
            + "; ".join(found) + "."] if found else []


def chart(curves):
    """Log-log, as benchmarks/support/log_chart.hpp draws it."""
    left, top, width, height = 80, 40, 470, 350
    xs = [n for points in curves.values() for n, _ in points]
    ys = [max(s, 1e-6) for points in curves.values() for _, s in points]
    x0, x1 = math.log2(min(xs)), math.log2(max(xs))
    y0, y1 = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))
    x = lambda n: left + width * (math.log2(n) - x0) / (x1 - x0)
    y = lambda s: top + height * (y1 - math.log10(max(s, 1e-6))) / (y1 - y0)
    out = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 440" font-family="sans-serif" font-size="12">',
           '<rect width="760" height="440" fill="#ffffff"/>',
           '<text x="80" y="24" font-size="15">A save and a resume beside their bytes, by the number of ranks</text>']
    for power in range(y0, y1 + 1):
        out.append(f'<line x1="{left}" y1="{y(10.0**power):.1f}" x2="{left + width}" y2="{y(10.0**power):.1f}" stroke="#dddddd"/>')
        out.append(f'<text x="{left - 6}" y="{y(10.0**power) + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
    for n in sorted(set(xs))[::2]:
        out.append(f'<text x="{x(n):.1f}" y="{top + height + 18}" text-anchor="middle">{n}</text>')
    out.append(f'<text x="{left + width / 2}" y="430" text-anchor="middle">ranks</text>')
    out.append(f'<text x="18" y="215" transform="rotate(-90 18 215)" text-anchor="middle">seconds</text>')
    colours = {"Lustre": "#1f77b4", "S3": "#d62728", "NFS": "#2ca02c", "tiers": "#9467bd"}
    for i, (name, points) in enumerate(curves.items()):
        style = f'stroke="{colours[name.split(":")[0]]}" stroke-width="2"' + (' stroke-dasharray="6 4"' if name.endswith("resume") else "")
        out.append(f'<polyline fill="none" {style} points="' + " ".join(f"{x(n):.1f},{y(s):.1f}" for n, s in points) + '"/>')
        out.append(f'<line x1="562" y1="{46 + 20 * i}" x2="586" y2="{46 + 20 * i}" {style}/>')
        out.append(f'<text x="592" y="{50 + 20 * i}">{name}</text>')
    return "\n".join(out) + "\n</svg>\n"


def put(page, mark, lines):
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    head, rest = page.split(begin)
    return head + begin + "\n\n" + "\n".join(lines) + "\n\n" + end + rest.split(end)[1]


def is_used(name):
    last = name.split("/")[-1]
    return last not in ("wall", "processor", "poll", "lock", "open", "sync", "name", "mkdir", "written", "fetched") and ("/most/" not in name or last == "messages")


def main():
    kept = DOCS / "scale.json"
    if len(sys.argv) > 1:
        rows = {r["name"]: float(f"{r['value']:.4g}") for r in json.loads(pathlib.Path(sys.argv[1]).read_text()) if is_used(r["name"])}
        kept.write_text("{\n" + ",\n".join(f"  {json.dumps(k)}: {v:g}" for k, v in rows.items()) + "\n}\n")
    figures = Figures(json.loads(kept.read_text()))
    lines, curves = tables(figures)
    page = (DOCS / "scale.md").read_text()
    page = put(page, "scale", lines + ["", "![Seconds beside the bytes, by the number of ranks](scale.svg)"])
    page = put(page, "check", check(figures))
    (DOCS / "scale.md").write_text(page)
    (DOCS / "scale.svg").write_text(chart(curves))


if __name__ == "__main__":
    main()
