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

# How it runs its parts, with programs and a device that are none.
mkdir -p "$work/tree/tests" "$work/tree/build/gpu"
cp -r "$root/tests/gpu.sh" "$root/tests/gpu" "$work/tree/tests/"
echo sm_90 >"$work/tree/build/gpu/arch"
for name in test_gpu test_nccl train_gpt_cuda evaluate_cuda train_gpt bench_copy bench_modes_cuda bench_load_cuda; do
  printf '#!/bin/sh\nexit 0\n' >"$work/tree/build/gpu/$name"
done
printf '#!/bin/sh\necho what went wrong\nexit 3\n' >"$work/tree/build/gpu/bench_load_cuda"
printf '#!/bin/sh\ncase $* in\n*name,compute*) echo "NONE, 9.0, 1" ;;\n*-L*) echo "GPU 0: NONE" ;;\n*) echo "NONE, 1, 2 MiB, 9.0" ;;\nesac\n' \
  >"$work/bin/nvidia-smi"
printf '#!/bin/sh\nexit 0\n' >"$work/bin/compute-sanitizer"
chmod +x "$work/tree/build/gpu/"* "$work/bin/"*
parts() {  # parts ARGUMENTS...: the record of a run with these
  status=0
  env -u CUDA_VISIBLE_DEVICES PATH="$work/bin:$PATH" bash "$work/tree/tests/gpu.sh" --no-build --commit abc --output "$work/record.md" "$@" \
    >"$work/out" 2>&1 || status=$?
  [ "$status" = 1 ] || { echo "status $status instead of 1"; cat "$work/out"; exit 1; }
}
parts
grep -q '^| bench_load | failed with status 3 |' "$work/record.md" || { cat "$work/record.md" "$work/out"; exit 1; }
grep -q 'what went wrong' "$work/out"
for part in test_gpu test_gpu_sticky memcheck_tests bench_copy bench_modes_published bench_modes_disk; do
  grep -q "^| $part | passed |" "$work/record.md" || { echo "$part did not run"; cat "$work/record.md" "$work/out"; exit 1; }
done
parts --seconds 1
grep -q '^| result | 0 of [0-9]* steps passed |' "$work/record.md"
for part in test_gpu training_resume bench_copy bench_load; do
  grep -q "^| $part | not run |" "$work/record.md" || { echo "$part is not told"; cat "$work/record.md"; exit 1; }
done

# Programs that were built with the emulation of CUDA make no record.
rm "$work/record.md"
printf '#!/bin/sh\n# emulated CUDA device\n' >"$work/tree/build/gpu/train_gpt_cuda"
parts
grep -q 'train_gpt_cuda was built with tests/emulated_cuda' "$work/out"
[ ! -e "$work/record.md" ] || { echo "a record of an emulated device"; exit 1; }
printf '#!/bin/sh\nexit 0\n' >"$work/tree/build/gpu/train_gpt_cuda"

printf 'sm_80\n' >"$work/tree/build/gpu/arch"
parts
grep -q 'was not built for sm_90' "$work/out"

# What is beside Python is left out with a sentence where Python has no torch.
printf 'raise ImportError("none here")\n' >"$work/torch.py"
status=0
PYTHONPATH="$work" python3 "$root/benchmarks/load_python.py" --scratch "$work" none >"$work/out" 2>&1 || status=$?
if [ "$status" != 77 ] || ! grep -q '^# left out: ' "$work/out"; then
  cat "$work/out"
  exit 1
fi
