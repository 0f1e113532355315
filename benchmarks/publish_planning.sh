#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures what planning costs from 1 to 65,536 ranks and puts the figures where the documents show them: docs/planning.json,
# the chart docs/planning.svg, and the table between the two marks in docs/planning.md and README.md.
# usage: publish_planning.sh BENCH_PLANNING [OPTION of bench_planning]...
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
bench=${1:?usage: publish_planning.sh BENCH_PLANNING [OPTION]...}
shift
(($#)) || set -- --sweep 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$bench" --json "$root/docs/planning.json" --chart "$root/docs/planning.svg" --table "$work/table.md" "$@"

# fill PAGE FOLDER ROWS: puts the rows of the table that match, and the sentence behind it, between the marks of a page, from which FOLDER leads to docs/.
fill() {
  grep '^|' "$work/table.md" | grep -E "^\| layout|^\|---|$3" >"$work/rows.md"
  grep -v '^|' "$work/table.md" | sed '1i\\' >>"$work/rows.md" || true
  awk -v table="$work/rows.md" -v folder="$2" '
    /<!-- planning: end -->/ { inside = 0 }
    !inside { print }
    /<!-- planning: begin -->/ {
      inside = 1
      print ""
      while ((getline line < table) > 0) print line
      print "\n![Seconds on the critical path by the number of ranks](" folder "planning.svg)\n"
    }' "$1" >"$work/page.md"
  cp "$work/page.md" "$1"
}
fill "$root/docs/planning.md" "" .
fill "$root/README.md" docs/ '\| (16384|2048) \|'
