#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail

usage() {
  cat <<'END'
Builds cairn's programs for GPUs, runs the tests on a GPU, also under compute-sanitizer, and the benchmarks, within 9 minutes, and
writes docs/gpu-record.md from what they measured. Status 0: all passed; 1: something failed; 77: there is no GPU, or no CUDA
toolkit; then no record is written.

usage: bash tests/gpu.sh [--build-only] [--deps DIR] [--arch sm_90] [--commit ID] [--output FILE] [--directory DIR] [--seconds N]
       bash tests/gpu.sh --pack DIR

  --build-only    compile and link everything, and each .cuh alone; needs nvcc and no GPU
  --pack DIR      copy the headers and libraries beside CUDA's that the programs need (xxHash, RapidJSON, CLI11, doctest, Boost) to
                  DIR, for a machine where nothing can be installed
  --deps DIR      take them from there
  --arch ARCH     what to compile for (default: the GPU's own, or sm_90)
  --commit ID     what is tested, for the record (default: asks git)
  --output FILE   the record (default: docs/gpu-record.md)
  --directory DIR where checkpoints of the benchmarks go; on a disk (default: build/gpu)
  --seconds N     end within this time (default: 540); what there is no time for is recorded as not run
END
}

start=$(date +%s)
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd) || exit 1
build_only=no pack='' deps='' arch='' commit='' output="$root/docs/gpu-record.md" directory='' seconds=540
while [ $# -gt 0 ]; do
  case $1 in
    --build-only) build_only=yes ;;
    --pack | --deps | --arch | --commit | --output | --directory | --seconds)
      [ $# -ge 2 ] || { echo "gpu.sh: $1 needs a value, see --help" >&2; exit 2; }
      declare "${1#--}=$2"
      shift
      ;;
    -h | --help) usage; exit 0 ;;
    *) echo "gpu.sh: there is no option '$1', see --help" >&2; exit 2 ;;
  esac
  shift
done
[[ $seconds =~ ^[1-9][0-9]*$ ]] || { echo "gpu.sh: --seconds needs a number" >&2; exit 2; }

absent() {
  printf 'gpu.sh: %s; nothing was tested and no record was written\n' "$*" >&2
  exit 77
}
nvcc=$(command -v nvcc || true)
[ -n "$nvcc" ] || { [ -x /usr/local/cuda/bin/nvcc ] && nvcc=/usr/local/cuda/bin/nvcc; }
gpu=''
if [ "$build_only" = no ] && [ -z "$pack" ]; then
  [ "${CUDA_VISIBLE_DEVICES-0}" = -1 ] || gpu=$(nvidia-smi --query-gpu=name,compute_cap,driver_version --format=csv,noheader 2>/dev/null | head -n 1)
  [ -n "$gpu" ] || absent "there is no GPU on this machine that nvidia-smi can see"
fi
[ -n "$nvcc" ] || absent "there is no nvcc: install the CUDA toolkit, 12.1 or later"
[ -n "$arch" ] || { arch=$(cut -d, -f2 <<<"$gpu" | tr -cd 0-9); arch=sm_${arch:-90}; }

cd "$root" || exit 1
work=$root/build/gpu
mkdir -p "$work" || exit 1
[ -n "$directory" ] || directory=$work
includes=(-I"$root/include" -I"$root/tests" -I"$root/examples" -I"$root/benchmarks")
[ -z "$deps" ] || includes+=(-isystem "$deps/include" -L"$deps/lib")
flags=(-std=c++20 -arch="$arch" -diag-suppress 836 "-Xcompiler=-Wall,-Wextra,-Wno-unknown-pragmas")

# name: sources: libraries
programs=(
  "test_gpu: tests/gpu/test_gpu.cu tests/main.cpp: "
  "train_gpt_cuda: examples/train_gpt_cuda.cu: -lcublas"
  "evaluate_cuda: examples/evaluate_cuda.cu: -lcublas"
  "bench_copy: benchmarks/bench_copy.cu: -lcublas"
  "bench_modes_cuda: benchmarks/bench_modes_cuda.cu: -lcublas"
  "train_gpt: examples/train_gpt.cpp: "
)

if [ -n "$pack" ]; then
  mkdir -p "$pack/include" "$pack/lib" || exit 1
  for program in "${programs[@]}"; do
    IFS=: read -r _ sources _ <<<"$program"
    for source in $sources; do
      "$nvcc" "${includes[@]}" -std=c++20 -arch="$arch" -DCAIRN_TEST_SOURCE_DIR='""' -DCAIRN_TEST_PYTHON='""' -M "$source" || exit 1
    done
  done | grep -oE '/[^ ]+' | grep -E '^/usr/(local/)?include/(boost|rapidjson|CLI|doctest|xxh)' | sort -u |
    while IFS= read -r header; do
      name=${header#/usr/}
      name=${name#local/}
      install -D -m 644 "$header" "$pack/$name" || exit 1
    done
  for library in /usr/lib/*/libxxhash.a /usr/local/lib/libxxhash.a; do
    [ ! -f "$library" ] || cp "$library" "$pack/lib/"
  done
  [ -f "$pack/lib/libxxhash.a" ] || { echo "gpu.sh: found no libxxhash.a" >&2; exit 1; }
  du -sh "$pack"
  exit 0
fi

# --- Build: all at a time as far as there are cores -------------------------------------------------------------------

build() {  # build NAME SOURCES LIBRARIES
  local objects=() source object
  for source in $2; do
    object="$work/$1.$(basename "$source").o"
    objects+=("$object")
    "$nvcc" "${includes[@]}" "${flags[@]}" -O2 -Xcompiler=-ffp-contract=off -DCAIRN_TEST_SOURCE_DIR="\"$root\"" \
      -DCAIRN_TEST_PYTHON='"python3"' -c "$source" -o "$object" || return 1
  done
  # shellcheck disable=SC2086
  "$nvcc" "${includes[@]}" -arch="$arch" "${objects[@]}" -o "$work/$1" $3 -lxxhash -lpthread
}
echo "building for $arch with $nvcc"
status=0
names=()
for program in "${programs[@]}"; do
  IFS=: read -r name sources libraries <<<"$program"
  names+=("$name")
  while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n; done
  rm -f "$work/$name"
  build "$name" "$sources" "$libraries" >"$work/$name.log" 2>&1 &
done
wait
for name in "${names[@]}"; do
  if [ -x "$work/$name" ]; then
    echo "built $name"
  else
    echo "gpu.sh: $name does not build:" >&2
    tail -n 30 "$work/$name.log" >&2
    status=1
  fi
done
if [ "$build_only" = yes ]; then
  mkdir -p "$work/alone"
  for header in include/cairn/cuda/*.cuh examples/gpt/device/*.cuh benchmarks/support/*.cuh; do
    echo "#include \"$root/$header\"" >"$work/alone/header.cu"
    if "$nvcc" "${includes[@]}" "${flags[@]}" -O0 -c "$work/alone/header.cu" -o "$work/alone/header.o" >"$work/alone/log" 2>&1; then
      echo "compiled $header alone"
    else
      echo "gpu.sh: $header does not compile alone:" >&2
      tail -n 30 "$work/alone/log" >&2
      status=1
    fi
  done
fi
[ "$status" = 0 ] || exit 1
[ "$build_only" = no ] || { echo "everything builds for $arch ($(($(date +%s) - start)) s)"; exit 0; }

# --- Run --------------------------------------------------------------------------------------------------------------

results=$work/results
rm -rf "$results" "$work/checkpoints"*
mkdir -p "$results"
left() { echo $((start + seconds - $(date +%s))); }
# step NAME LIMIT COMMAND...: runs it, at most LIMIT seconds, and notes how it ended.
step() {
  local name=$1 limit=$2 begin code verdict
  shift 2
  begin=$(date +%s)
  [ "$(left)" -ge "$limit" ] || limit=$(($(left) - 2))
  if [ "$limit" -lt 5 ]; then
    verdict='not run'
  else
    echo "=== $name (at $((begin - start)) s)"
    timeout --kill-after=5 "$limit" "$@" >"$results/$name.log" 2>&1
    code=$?
    case $code in
      0) verdict=passed ;;
      124 | 137) verdict="failed: not done in $limit s" ;;
      *) verdict="failed with status $code" ;;
    esac
    [ "$code" = 0 ] || { tail -n 40 "$results/$name.log"; status=1; }
  fi
  [ "$verdict" != 'not run' ] || status=1
  printf '%s\t%s\t%s\n' "$name" "$verdict" "$(($(date +%s) - begin))" >>"$results/steps.tsv"
  echo "$name: $verdict"
}

step test_gpu 90 "$work/test_gpu"
step test_gpu_sticky 30 "$work/test_gpu" --no-skip --test-case='sticky*'
for each in resume evaluate interchange; do
  step "training_$each" 60 bash tests/gpu/training.sh "$work" "$each"
done
step bench_copy 100 "$work/bench_copy" --pairs 5 --json "$results/bench_copy.json"
step bench_modes_published 140 "$work/bench_modes_cuda" --rounds 1 --json "$results/bench_modes_published.json" \
  --table "$results/bench_modes_published.md"
step bench_modes_disk 130 "$work/bench_modes_cuda" --setting disk --rounds 1 --directory "$directory" \
  --json "$results/bench_modes_disk.json" --table "$results/bench_modes_disk.md"
sanitizer=$(command -v compute-sanitizer || true)
[ -n "$sanitizer" ] || { [ -x /usr/local/cuda/bin/compute-sanitizer ] && sanitizer=/usr/local/cuda/bin/compute-sanitizer; }
if [ -n "$sanitizer" ]; then
  tiny=(--layers 1 --width 32 --heads 2 --context 16 --micro-batches 1 --every 1 --ranks 1 --mode thread
    --text "$root/README.md" --checkpoints "$work/checkpoints-tiny")
  # Calls that are refused on purpose are no errors of memory.
  step memcheck_tests 120 "$sanitizer" --tool memcheck --report-api-errors no --error-exitcode 9 "$work/test_gpu" \
    --test-case='*kernel*,*capture*,*runtime*'
  step memcheck_training 60 "$sanitizer" --tool memcheck --report-api-errors no --error-exitcode 9 "$work/train_gpt_cuda" "${tiny[@]}" --steps 1
  step racecheck_training 60 "$sanitizer" --tool racecheck --error-exitcode 9 "$work/train_gpt_cuda" "${tiny[@]}" --steps 2
  step racecheck_gathering 60 "$sanitizer" --tool racecheck --error-exitcode 9 "$work/test_gpu" --test-case='*little memory*'
else
  printf 'compute-sanitizer\tnot run: it is not installed\t0\n' >>"$results/steps.tsv"
fi

# --- The record ---------------------------------------------------------------------------------------------------------

[ -n "$commit" ] || commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
python3 "$root/tests/gpu/record.py" --results "$results" --commit "$commit" --arch "$arch" --output "$output" || status=1
echo "gpu.sh: $(grep -c $'\tpassed\t' "$results/steps.tsv") passed, $(grep -vc $'\tpassed\t' "$results/steps.tsv") not, in $(($(date +%s) - start)) s"
exit "$status"
