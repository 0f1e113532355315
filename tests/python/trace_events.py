# SPDX-License-Identifier: Apache-2.0
"""Reads what trace_file wrote, for tests."""

import json


def check_tracks(events):
    """Slices of a track lie beside each other or within one another: viewers drop others. Each track has a name."""
    names = {(each["pid"], each["tid"]) for each in events if each["name"] == "thread_name"}
    tracks = {}
    for each in events:
        if each["ph"] == "X":
            begin = round(1000 * each["ts"])
            tracks.setdefault((each["pid"], each["tid"]), []).append((begin, -begin - round(1000 * each["dur"]), each))
    for track, slices in tracks.items():
        assert track in names, track
        around = []
        for begin, minus_end, each in sorted(slices, key=lambda one: one[:2]):
            while around and around[-1][0] <= begin:
                around.pop()
            assert not around or -minus_end <= around[-1][0], (each, around[-1][1])
            around.append((-minus_end, each))


def read(path):
    """The events of a trace. The list is not closed: a comma follows the last event."""
    with open(path, encoding="utf-8") as file:
        events = json.loads(file.read() + "{}]")[:-1]
    check_tracks(events)
    return events
