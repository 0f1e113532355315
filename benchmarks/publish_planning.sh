#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures what planning costs from 1 to 65,536 ranks and puts the figures where the documents show them: docs/planning.json,
# the chart docs/planning.svg, and the table between the two marks in docs/planning.md.
# usage: publish_planning.sh BENCH_PLANNING [OPTION of bench_planning]...
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
bench=${1:?usage: publish_planning.sh BENCH_PLANNING [OPTION]...}
shift
(($#)) || set -- --sweep 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$bench" --json "$root/docs/planning.json" --chart "$root/docs/planning.svg" --table "$work/table.md" "$@"

# The rows of the table, and the sentence behind it, go between the marks of the page.
page=$root/docs/planning.md
awk -v table="$work/table.md" '
  /<!-- planning: end -->/ { inside = 0 }
  !inside { print }
  /<!-- planning: begin -->/ {
    inside = 1
    print ""
    while ((getline line < table) > 0) {
      if (line !~ /^\|/ && rows) { print ""; rows = 0 }
      if (line ~ /^\|/) rows = 1
      if (line != "") print line
    }
    print "\n![Seconds on the critical path by the number of ranks](planning.svg)\n"
  }' "$page" >"$work/page.md"
cp "$work/page.md" "$page"
