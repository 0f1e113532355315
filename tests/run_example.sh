#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run_example.sh PROGRAM REGEX [ARGUMENT...]: runs the program in an empty directory, by which @DIR@ in its arguments is replaced;
# it must succeed, and its output must match REGEX (if that is not empty).
set -euo pipefail
program=$1 expected=$2
shift 2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/dir"
status=0
(cd "$scratch/dir" && "$program" "${@//@DIR@/$scratch/dir}") >"$scratch/output" 2>&1 || status=$?
cat "$scratch/output"
if [ "$status" -ne 0 ]; then
  echo "run_example: $program ended with status $status" >&2
  exit 1
fi
if [ -n "$expected" ] && ! grep -qE -- "$expected" "$scratch/output"; then
  echo "run_example: the output does not match: $expected" >&2
  exit 1
fi
