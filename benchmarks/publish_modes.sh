#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures the ways of saving and puts the figures where the documents show them: docs/modes.json, the chart
# docs/modes.svg, the timeline docs/timeline.svg, and the table between the two marks in docs/modes.md.
# usage: publish_modes.sh BENCH_MODES [OPTION of bench_modes]...
# Without options those of the published figures. TMPDIR must be on a disk.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
bench=${1:?usage: publish_modes.sh BENCH_MODES [OPTION]...}
shift
(($#)) || set -- --bytes 1GiB --rounds 7 --steps 11 --every 5 --step-seconds 0.5
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$bench" --directory "$work" \
  --json "$root/docs/modes.json" --chart "$root/docs/modes.svg" --picture "$root/docs/timeline.svg" \
  --table "$work/table.md" "$@"

# The tables go between the marks of the page.
page=$root/docs/modes.md
awk -v table="$work/table.md" '
  /<!-- figures: end -->/ { inside = 0 }
  !inside { print }
  /<!-- figures: begin -->/ {
    inside = 1
    print ""
    while ((getline line < table) > 0) print line
    print "\n![Seconds of each step](modes.svg)"
    print "\n![What trainer and worker do during a save](timeline.svg)\n"
  }' "$page" >"$work/page.md"
cp "$work/page.md" "$page"
