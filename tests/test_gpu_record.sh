#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tests/gpu.sh without a GPU: a sentence, status 77, and no record; and how its record is written.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
status=0
CUDA_VISIBLE_DEVICES=-1 bash "$root/tests/gpu.sh" --output "$work/record.md" >"$work/out" 2>&1 || status=$?
[ "$status" = 77 ] || { echo "status $status instead of 77"; cat "$work/out"; exit 1; }
grep -q 'there is no GPU on this machine' "$work/out" || { cat "$work/out"; exit 1; }
grep -q 'no record was written' "$work/out"
[ ! -e "$work/record.md" ] || { echo "a record without a GPU"; exit 1; }
# Not by the writer of records alone, either, where nvidia-smi does not answer.
mkdir "$work/bin"
printf '#!/bin/sh\nexit 9\n' >"$work/bin/nvidia-smi"
chmod +x "$work/bin/nvidia-smi"
status=0
PATH="$work/bin:$PATH" python3 "$root/tests/gpu/record.py" --results "$work" --commit a --arch sm_90 --output "$work/record.md" \
  2>"$work/out" || status=$?
if [ "$status" != 77 ] || [ -e "$work/record.md" ]; then
  cat "$work/out"
  exit 1
fi
status=0
bash "$root/tests/gpu.sh" --nonsense 2>"$work/out" || status=$?
[ "$status" = 2 ]
python3 "$root/tests/gpu/record.py" --self-test
