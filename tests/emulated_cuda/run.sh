#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds tests/gpu/test_gpu.cu and examples/train_gpt_cuda.cu as programs of the CPU, with the headers of this folder in the
# place of CUDA's, the tests under AddressSanitizer, and runs them as tests/gpu.sh does.
# usage: run.sh WORK TRAIN_GPT [COMPILER...]   (WORK: a folder for what is built; TRAIN_GPT: the program for the CPU)
#        run.sh --syntax WORK [COMPILER...]    only whether they compile: half a minute instead of some
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
syntax=no
[ "$1" != --syntax ] || { syntax=yes; shift; set -- "$1" '' "${@:2}"; }
work=$1 train_gpt=$2
compiler=("${@:3}")
[ ${#compiler[@]} -gt 0 ] || compiler=(c++)
[ "$(uname -m)" = x86_64 ] || { echo "left out: the emulation runs on x86-64 alone"; exit 77; }
mkdir -p "$work"
flags=(-std=c++20 -O0 -g1 -Wall -Wextra -Wno-unknown-pragmas -ffp-contract=off)
sanitized=(-fsanitize=address,alignment -fno-sanitize-recover=all)  # training would take minutes with them

# compile NAME SOURCE FLAGS...: preprocesses it, makes calls of the launches, and compiles what comes of it.
compile() {
  "${compiler[@]}" "${flags[@]}" "${@:3}" -I"$here" -I"$root/include" -I"$root/tests" -I"$root/examples" -include cuda_runtime.h -x c++ -E "$2" |
    python3 "$here/launches.py" >"$work/$1.ii"
  local what=(-c -o "$work/$1.o")
  [ "$syntax" = no ] || what=(-fsyntax-only)
  "${compiler[@]}" "${flags[@]}" "${@:3}" "${what[@]}" "$work/$1.ii"
}
link() { "${compiler[@]}" "${flags[@]}" "${@:2}" -lxxhash -lpthread -o "$work/$1"; }

# One as with a toolkit that has the batch call of the driver alone, the other as with one that has the runtime's.
compile test_gpu "$root/tests/gpu/test_gpu.cu" -DCUDART_VERSION=12080 "${sanitized[@]}"
compile train_gpt_cuda "$root/examples/train_gpt_cuda.cu"
[ "$syntax" = no ] || exit 0
"${compiler[@]}" "${flags[@]}" "${sanitized[@]}" -I"$root/tests" -DCAIRN_TEST_SOURCE_DIR='""' -DCAIRN_TEST_PYTHON='""' -c "$root/tests/main.cpp" -o "$work/main.o"
link test_gpu "${sanitized[@]}" "$work/test_gpu.o" "$work/main.o"
link train_gpt_cuda "$work/train_gpt_cuda.o"
for name in test_gpu train_gpt_cuda; do
  grep -qaF 'emulated CUDA device' "$work/$name" || { echo "$name does not say what it is: tests/gpu.sh would take it"; exit 1; }
done

"$work/test_gpu"
"$work/test_gpu" --no-skip --test-case='sticky*'
"$work/test_gpu" --no-skip --test-case='alone*'
EMULATED_CUDA_DEVICES=1 "$work/test_gpu" --test-case="CUDA's runtime*,what belongs*"
for what in 'load of 16' 'load of 8' 'load of 4' 'load of 2' 'store of 16'; do
  "$work/test_gpu" --no-skip --test-case='misaligned*' --subcase="$what" >"$work/misaligned.log" 2>&1 || true
  grep -qF 'misaligned address' "$work/misaligned.log" || { echo "misaligned: a $what passes"; cat "$work/misaligned.log"; exit 1; }
done
echo "misaligned: none passes"
rm -rf "$work/checkpoints"*
ln -sf "$train_gpt" "$work/train_gpt"
tiny=(--layers 1 --width 32 --heads 2 --context 16 --micro-batches 2)
for each in resume interchange; do
  bash "$root/tests/gpu/training.sh" "$work" "$each" "${tiny[@]}" >"$work/$each.log" 2>&1 || { cat "$work/$each.log"; exit 1; }
  echo "training: $each"
done
