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
printf 'exit 0\n' >"$work/tree/tests/gpu/training.sh"
echo sm_90 >"$work/tree/build/gpu/arch"
for name in test_gpu test_nccl train_gpt_cuda evaluate_cuda train_gpt bench_copy bench_modes_cuda bench_load_cuda; do
  printf '#!/bin/sh\nexit 0\n' >"$work/tree/build/gpu/$name"
done
printf '#!/bin/sh\necho what went wrong\nexit 3\n' >"$work/tree/build/gpu/bench_load_cuda"
printf '#!/bin/sh\ncase $* in\n*name,compute*) echo "NONE, 9.0, 1" ;;\n*-L*) echo "GPU 0: NONE" ;;\n*) echo "NONE, 1, 2 MiB, 9.0" ;;\nesac\n' \
  >"$work/bin/nvidia-smi"
printf '#!/bin/sh\n[ "$1" != --help ] || { cat "%s/sanitizer_help"; exit 0; }\necho "$*" >>"%s/sanitized"\n' "$work" "$work" \
  >"$work/bin/compute-sanitizer"
echo 'Usage: compute-sanitizer ... --kernel-regex  --kernel-name' >"$work/sanitizer_help"
printf '#!/bin/sh\ncat "%s/kernel_log"\n' "$work" >"$work/bin/dmesg"
: >"$work/kernel_log"
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
for part in test_gpu test_gpu_sticky training_interchange memcheck_tests initcheck_gathering bench_copy bench_modes_published bench_modes_disk \
  bench_modes_one_connection; do
  grep -q "^| $part | passed |" "$work/record.md" || { echo "$part did not run"; cat "$work/record.md" "$work/out"; exit 1; }
done
# The kernels that the sanitizers look at, as this version of them is told; what the project claims is measured first.
[ "$(grep -c 'kernel-name kns=gpt' "$work/sanitized")" = 2 ] || { cat "$work/sanitized"; exit 1; }
grep -q 'racecheck.*train_gpt_cuda' "$work/sanitized"
! grep -q 'racecheck.*test_gpu' "$work/sanitized" || { echo "racecheck of a kernel without shared memory"; exit 1; }
before() { [ "$(grep -n "=== $1 " "$work/out" | cut -d: -f1)" -lt "$(grep -n "=== $2 " "$work/out" | cut -d: -f1)" ]; }
before bench_modes_published bench_load
before bench_modes_published bench_modes_disk
before bench_modes_disk bench_modes_one_connection
echo 'Usage: compute-sanitizer ... --kernel-regex' >"$work/sanitizer_help"
rm "$work/sanitized"
parts
[ "$(grep -c 'kernel-regex kns=gpt' "$work/sanitized")" = 2 ] || { cat "$work/sanitized"; exit 1; }

# Where the sanitizers cannot work they are left out, which is no failure; what was not built is told as such, which is one.
echo '[    0.000000] Starting gVisor...' >"$work/kernel_log"
chmod -x "$work/tree/build/gpu/bench_copy" "$work/tree/build/gpu/evaluate_cuda"
parts
for line in '| compute-sanitizer | left out: it does not work under gVisor |' '| bench_copy | not built: bench_copy |' \
  '| training_evaluate | not built: evaluate_cuda |' '| training_resume | passed |'; do
  grep -qF "$line" "$work/record.md" || { echo "no line $line"; cat "$work/record.md" "$work/out"; exit 1; }
done
grep -q '^| result | .*, 2 not built, ' "$work/record.md"
! grep -q memcheck "$work/record.md" || { echo "a sanitizer under gVisor"; exit 1; }
printf '#!/bin/sh\nexit 0\n' >"$work/tree/build/gpu/bench_load_cuda"
parts
grep -q ' 0 not, 2 not built, ' "$work/out" || { cat "$work/out"; exit 1; }
chmod +x "$work/tree/build/gpu/"*
: >"$work/kernel_log"
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

# Before it builds: which nvcc, which g++, which headers; one that is missing ends nothing but what needs it.
compiles() {  # compiles STATUS SENTENCE: gpu.sh with the fake nvcc ends so, and says so
  status=0
  env -u CUDA_VISIBLE_DEVICES -u NVCC_CCBIN NCCL_HOME= PATH="$work/bin:$PATH" bash "$work/tree/tests/gpu.sh" --commit abc \
    --output "$work/built.md" >"$work/out" 2>&1 || status=$?
  if [ "$status" != "$1" ] || ! grep -qF -- "$2" "$work/out"; then
    echo "status $status instead of $1, or not: $2"
    cat "$work/out"
    exit 1
  fi
}
cat >"$work/bin/nvcc" <<END
#!/bin/bash
case "\$*" in
*--version*) echo "Cuda compilation tools, release \$(cat "$work/nvcc_version"), V0" ;;
*" -E "*) cat "$work/nvcc_misses" ;;
*" -c "*bench_copy*) echo "fatal error: CLI/CLI.hpp: No such file"; exit 1 ;;
*) while [ "\$1" != -o ]; do shift; done
  printf '#!/bin/sh\nexit 0\n' >"\$2" && chmod +x "\$2" ;;
esac
END
printf '#!/bin/sh\necho 13\n' >"$work/bin/g++"
for version in 12 13 14 15; do printf '#!/bin/sh\nexit 9\n' >"$work/bin/g++-$version"; done
chmod +x "$work/bin/"*
: >"$work/nvcc_misses"
echo 12.0 >"$work/nvcc_version"
compiles 77 'is too old: install the CUDA toolkit, 12.1 or later'
echo 12.3 >"$work/nvcc_version"
compiles 77 'nvcc 12.3 takes g++ 12 to 12, and none is here: apt-get install g++-12'
echo 12.4 >"$work/nvcc_version"
printf 'cairn_misses CLI/CLI.hpp\ncairn_misses xxhash.h\n' >"$work/nvcc_misses"
[ ! -e "$work/built.md" ]
compiles 1 'apt-get install libcli11-dev libxxhash-dev; '
grep -q '^| bench_copy | not built: bench_copy |' "$work/built.md" || { cat "$work/built.md" "$work/out"; exit 1; }
grep -q '^| test_gpu | passed |' "$work/built.md"
grep -q '^| bench_load | passed |' "$work/built.md"

# What is beside Python is left out with a sentence where Python has no torch.
printf 'raise ImportError("none here")\n' >"$work/torch.py"
status=0
PYTHONPATH="$work" python3 "$root/benchmarks/load_python.py" --scratch "$work" none >"$work/out" 2>&1 || status=$?
if [ "$status" != 77 ] || ! grep -q '^# left out: ' "$work/out"; then
  cat "$work/out"
  exit 1
fi
