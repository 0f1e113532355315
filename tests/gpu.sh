#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail

usage() {
  cat <<'END'
Builds cairn's programs for GPUs, runs the tests on a GPU, also under compute-sanitizer, and the benchmarks, within 9 minutes, and
writes docs/gpu-record.md from what they measured. What does not build is recorded as not built, and the rest is run. Status 0: all
passed; 1: something failed or was not built; 77: there is no GPU, or no CUDA toolkit that fits; then no record is written.

usage: bash tests/gpu.sh [--build-only | --no-build] [--deps DIR] [--arch sm_90] [--jobs N] [--commit ID] [--output FILE]
                         [--directory DIR] [--seconds N]
       bash tests/gpu.sh --pack DIR

  --build-only    compile and link everything, and each .cuh alone; needs nvcc and no GPU
  --no-build      run what an earlier --build-only left in build/gpu, also on another machine with the same tree; needs no nvcc
  --pack DIR      copy the headers and libraries beside CUDA's that the programs need (xxHash, RapidJSON, CLI11, doctest, Boost) to
                  DIR, for a machine where nothing can be installed
  --deps DIR      take them from there
  --arch ARCH     what to compile for (default: the GPU's own, or sm_90)
  --jobs N        programs that are built at a time (default: one for each core)
  --commit ID     what is tested, for the record (default: asks git)
  --output FILE   the record (default: docs/gpu-record.md)
  --directory DIR where checkpoints of the benchmarks go; on a disk (default: build/gpu)
  --seconds N     end within this time (default: 540); what there is no time for is recorded as not run
END
}

start=$(date +%s)
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd) || exit 1
build_only=no no_build=no pack='' deps='' arch='' commit='' output="$root/docs/gpu-record.md" directory='' seconds=540
jobs=$(nproc)
while [ $# -gt 0 ]; do
  case $1 in
    --build-only) build_only=yes ;;
    --no-build) no_build=yes ;;
    --pack | --deps | --arch | --jobs | --commit | --output | --directory | --seconds)
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
[[ $jobs =~ ^[1-9][0-9]*$ ]] || { echo "gpu.sh: --jobs needs a number" >&2; exit 2; }

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
[ -n "$nvcc" ] || [ "$no_build" = yes ] || absent "there is no nvcc: install the CUDA toolkit, 12.1 or later"

# Which nvcc it is, and which g++ that takes: both would be found out late, in the middle of a header.
host_compiler=()
if [ "$no_build" = no ]; then
  nvcc_version=$("$nvcc" --version 2>/dev/null | sed -n 's/.*release \([0-9]*\.[0-9]*\).*/\1/p')
  [[ $nvcc_version =~ ^([0-9]+)\.([0-9]+)$ ]] || absent "$nvcc --version does not tell its version"
  nvcc_number=$((BASH_REMATCH[1] * 100 + BASH_REMATCH[2]))
  [ "$nvcc_number" -ge 1201 ] ||
    absent "nvcc $nvcc_version ($nvcc) is too old: install the CUDA toolkit, 12.1 or later (Ubuntu's own package has 12.0; NVIDIA's have newer ones)"
  newest_gcc=15
  [ "$nvcc_number" -ge 1300 ] || newest_gcc=14
  [ "$nvcc_number" -ge 1208 ] || newest_gcc=13
  [ "$nvcc_number" -ge 1204 ] || newest_gcc=12
  if [ -z "${NVCC_CCBIN-}" ]; then
    for each in g++ g++-15 g++-14 g++-13 g++-12; do
      version=$("$each" -dumpversion 2>/dev/null | cut -d. -f1)
      [ "${version:-0}" -ge 12 ] && [ "$version" -le "$newest_gcc" ] || continue
      host_compiler=(-ccbin "$each")
      break
    done
    [ "${#host_compiler[@]}" -gt 0 ] ||
      absent "nvcc $nvcc_version takes g++ 12 to $newest_gcc, and none is here: apt-get install g++-12"
  fi
fi
[ -n "$arch" ] || { arch=$(cut -d, -f2 <<<"$gpu" | tr -cd 0-9); arch=sm_${arch:-90}; }

cd "$root" || exit 1
work=$root/build/gpu
mkdir -p "$work" || exit 1
[ -n "$directory" ] || directory=$work
includes=(-I"$root/include" -I"$root/tests" -I"$root/examples" -I"$root/benchmarks")
[ -z "$deps" ] || includes+=(-isystem "$deps/include" -L"$deps/lib")
includes+=("${host_compiler[@]}")
flags=(-std=c++20 -arch="$arch" -diag-suppress 836 "-Xcompiler=-Wall,-Wextra,-Wno-unknown-pragmas")

# What the programs need beside CUDA: header, Debian's package. What is missing is told at once; the rest is built without it.
needed=(
  "CLI/CLI.hpp libcli11-dev" "doctest/doctest.h doctest-dev" "rapidjson/document.h rapidjson-dev"
  "boost/interprocess/mapped_region.hpp libboost-dev" "xxhash.h libxxhash-dev"
)
if [ "$no_build" = no ]; then
  for each in "${needed[@]}" "cublas_v2.h "; do
    printf '#if !__has_include(<%s>)\ncairn_misses %s\n#endif\n' "${each%% *}" "${each%% *}"
  done >"$work/needed.cu"
  if ! "$nvcc" "${includes[@]}" -std=c++20 -E "$work/needed.cu" >"$work/needed.log" 2>&1; then
    tail -n 20 "$work/needed.log" >&2
    absent "nvcc $nvcc_version cannot compile a file without a line of code (above)"
  fi
  packages=''
  missing=$(sed -n 's/^cairn_misses //p' "$work/needed.log" | tr '\n' ' ')
  for each in "${needed[@]}"; do
    case " $missing" in *" ${each%% *} "*) packages+=" ${each#* }" ;; esac
  done
  [ -z "$missing" ] || echo "gpu.sh: these headers are missing: $missing" >&2
  [ -z "$packages" ] ||
    echo "gpu.sh: to install them: apt-get install$packages; where nothing can be installed, take a folder that --pack made: --deps DIR" >&2
  case " $missing" in *" cublas_v2.h "*) echo "gpu.sh: cublas_v2.h is of the CUDA toolkit: apt-get install libcublas-dev-${nvcc_version/./-} (NVIDIA's packages)" >&2 ;; esac
fi

# NCCL: where NCCL_HOME says, beside CUDA, or as Python's package.
nccl=''
nccl_of() {  # nccl_of DIRECTORY: takes it from there, if it is recent enough
  local version library
  [ -z "$nccl" ] && [ -n "$1" ] && [ -f "$1/include/nccl.h" ] || return
  version=$(sed -n 's/^#define NCCL_VERSION_CODE  *\([0-9]*\).*/\1/p' "$1/include/nccl.h")
  [ "${version:-0}" -ge 21900 ] || return
  for library in "$1"/lib/libnccl.so* "$1"/lib64/libnccl.so* "$1"/lib/*/libnccl.so*; do
    [ ! -f "$library" ] || nccl=$1 nccl_library=$library
  done
}
for each in "${NCCL_HOME-}" "$(dirname "$(dirname "${nvcc:-/usr/local/cuda/bin/nvcc}")")" /usr/local/cuda /usr/local /usr \
  "$(python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0])' 2>/dev/null)"; do
  nccl_of "$each"
done
xxhash=-lxxhash  # with the program where it can be, so that --no-build needs none
for library in ${deps:+"$deps/lib/libxxhash.a"} /usr/lib/*/libxxhash.a /usr/local/lib/libxxhash.a; do
  [ ! -f "$library" ] || { xxhash=$library; break; }
done

# name: sources: libraries
programs=(
  "test_gpu: tests/gpu/test_gpu.cu tests/main.cpp: "
  "bench_load_cuda: benchmarks/bench_load_cuda.cu: "
  "train_gpt_cuda: examples/train_gpt_cuda.cu: -lcublas"
  "evaluate_cuda: examples/evaluate_cuda.cu: -lcublas"
  "bench_copy: benchmarks/bench_copy.cu: -lcublas"
  "bench_modes_cuda: benchmarks/bench_modes_cuda.cu: -lcublas"
  "train_gpt: examples/train_gpt.cpp: "
)
if [ -n "$nccl" ]; then
  programs+=("test_nccl: tests/gpu/test_nccl.cu tests/main.cpp: -I$nccl/include -L${nccl_library%/*} -l:${nccl_library##*/}")
else
  echo "test_nccl is left out: it needs NCCL 2.19 or later (NCCL_HOME says where)"
fi

if [ -n "$pack" ]; then
  mkdir -p "$pack/include" "$pack/lib" || exit 1
  for program in "${programs[@]}"; do
    IFS=: read -r name sources _ <<<"$program"
    [ "$name" != test_nccl ] || continue  # takes no others
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

compile() {  # compile OBJECT SOURCE FLAGS...
  "$nvcc" "${includes[@]}" "${flags[@]}" -Xcompiler=-ffp-contract=off -DCAIRN_TEST_SOURCE_DIR="\"$root\"" \
    -DCAIRN_TEST_PYTHON='"python3"' "${@:3}" -c "$2" -o "$1"
}
build() {  # build NAME SOURCES LIBRARIES
  local objects=() options=(-O2) source object library
  case $1 in test_*) options=(-O0) ;; esac  # of the host's code alone; kernels are optimised
  for library in $3; do [ "${library#-I}" = "$library" ] || options+=("$library"); done
  for source in $2; do
    object="$work/$1.$(basename "$source").o"
    objects+=("$object")
    compile "$object" "$source" "${options[@]}" || return 1
  done
  # shellcheck disable=SC2086
  "$nvcc" "${includes[@]}" -arch="$arch" "${objects[@]}" -o "$work/$1" $3 "$xxhash" -lpthread || return 1
  rm -f "${objects[@]}"
}
alone() {  # alone HEADER NAME: also without what a program includes before it
  echo "#include \"$root/$1\"" >"$work/alone/$2.cu"
  "$nvcc" "${includes[@]}" "${flags[@]}" -O0 -c "$work/alone/$2.cu" -o "$work/alone/$2.o" || return 1
  rm -f "$work/alone/$2.o"
}
# job LOG WHAT COMMAND...: runs it, and says what it did and took.
job() {
  local TIMEFORMAT='%0R s, of a processor %0U s' took
  if took=$({ time "${@:3}" >"$1" 2>&1; } 2>&1); then
    echo "$2 ($took)"
  else
    printf 'gpu.sh: %s: failed:\n%s\n' "$2" "$(tail -n 30 "$1")" >&2
    touch "$work/failed"
  fi
}
wait_for_a_job() { while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done; }
if [ "$no_build" = yes ]; then
  for program in "${programs[@]}"; do
    name=${program%%:*}
    [ -x "$work/$name" ] || echo "gpu.sh: there is no $work/$name: it was not built" >&2
  done
  [ "$(cat "$work/arch" 2>/dev/null)" = "$arch" ] ||
    { echo "gpu.sh: --no-build, and what is in $work was not built for $arch" >&2; exit 1; }
else
  echo "building for $arch with $nvcc, $jobs at a time"
  rm -rf "$work/alone" "$work/failed" "$work/arch"
  mkdir -p "$work/alone"
  for program in "${programs[@]}"; do
    IFS=: read -r name sources libraries <<<"$program"
    wait_for_a_job
    rm -f "$work/$name"
    job "$work/$name.log" "built $name" build "$name" "$sources" "$libraries" &
  done
  headers=()
  [ "$build_only" = no ] || headers=(include/cairn/cuda/*.cuh examples/gpt/device/*.cuh benchmarks/support/*.cuh)
  for header in "${headers[@]}"; do
    wait_for_a_job
    name=${header//\//-}
    job "$work/alone/$name.log" "compiled $header alone" alone "$header" "$name" &
  done
  wait
  echo "$arch" >"$work/arch"
fi
built=0
for program in "${programs[@]}"; do [ ! -x "$work/${program%%:*}" ] || built=$((built + 1)); done
if [ "$built" = 0 ]; then
  echo "gpu.sh: no program is built (above); nothing was tested and no record was written" >&2
  exit 1
fi
for program in "${programs[@]}"; do
  name=${program%%:*}
  ! grep -qaF 'emulated CUDA device' "$work/$name" 2>/dev/null ||
    { echo "gpu.sh: $work/$name was built with tests/emulated_cuda, whose figures say nothing about a GPU" >&2; exit 1; }
done
[ "$build_only" = no ] || [ ! -e "$work/failed" ] || { echo "gpu.sh: $built of ${#programs[@]} programs are built" >&2; exit 1; }
[ "$build_only" = no ] || { echo "everything builds for $arch ($(($(date +%s) - start)) s)"; exit 0; }

# --- Run: tests beside each other, then benchmarks alone -----------------------------------------------------------------
# Each has a limit of its own, and the limits together fit into the time, so that one that hangs takes nothing from the others.
# The record is written again after each benchmark: whatever ends this early leaves what was measured until then.

results=$work/results
rm -rf "$results" "$work/checkpoints"*
mkdir -p "$results/ended"
[ -n "$commit" ] || commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
devices=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')
[ -z "${CUDA_VISIBLE_DEVICES-}" ] || devices=$(tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -c .)
[ "$devices" -le 4 ] || devices=4
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}${nccl:+${nccl_library%/*}:}/usr/local/cuda/lib64"
left() { echo $((start + seconds - $(date +%s))); }
names=() limits=() commands=() left_out='' not_built=0
# part NAME LIMIT PROGRAMS COMMAND...: what is to be run, for at most LIMIT seconds, where these programs (with commas between them)
# are built.
part() {
  local program
  for program in ${3//,/ }; do
    [ -x "$work/$program" ] && continue
    left_out+="$1\tnot built: $program\t\n" not_built=$((not_built + 1))
    return
  done
  names+=("$1") limits+=("$2")
  commands+=("$(printf '%q ' "${@:4}")")
}
# run INDEX: runs a part, and notes how it ended and what it took.
run() {
  local name=${names[$1]} limit=${limits[$1]} begin code verdict
  begin=$(date +%s)
  [ "$(left)" -ge "$limit" ] || limit=$(($(left) - 5))
  [ "$limit" -ge 5 ] || return
  echo "=== $name (at $((begin - start)) s)"
  timeout --kill-after=5 "$limit" bash -c "${commands[$1]}" >"$results/$name.log" 2>&1
  code=$?
  case $code in
    0) verdict=passed ;;
    124 | 137) verdict="failed: not done in $limit s" ;;
    *) verdict="failed with status $code" ;;
  esac
  [ "$code" = 0 ] || tail -n 40 "$results/$name.log"
  printf '%s\t%s\t%s\n' "$name" "$verdict" "$(($(date +%s) - begin))" >"$results/ended/$1"
  echo "$name: $verdict"
}
# record: writes it from what has ended so far; the other parts are in it, too.
record() {
  local i
  for i in "${!names[@]}"; do
    cat "$results/ended/$i" 2>/dev/null || printf '%s\tnot run\t\n' "${names[$i]}"
  done >"$results/steps.tsv"
  [ -z "${left_out-}" ] || printf '%b' "$left_out" >>"$results/steps.tsv"
  python3 "$root/tests/gpu/record.py" --results "$results" --commit "$commit" --arch "$arch" --output "$output"
}

part test_gpu 90 test_gpu "$work/test_gpu"
part test_gpu_sticky 60 test_gpu "$work/test_gpu" --no-skip --test-case='sticky*'
[ "$devices" -lt 2 ] || part test_gpu_alone 60 test_gpu "$work/test_gpu" --no-skip --test-case='alone*'
if [ -n "$nccl" ]; then
  # NCCL takes no two ranks on one device.
  nccl_part=test_nccl_of_${devices}_rank$([ "$devices" = 1 ] || echo s)
  part "$nccl_part" 90 test_nccl "$work/test_nccl"
  # As Megatron sets it: the streams of a process share one queue of the device.
  part "${nccl_part}_one_connection" 90 test_nccl env CUDA_DEVICE_MAX_CONNECTIONS=1 "$work/test_nccl"
else
  left_out+='test_nccl\tleft out: NCCL 2.19 or later was not found\t\n'
fi
part training_resume 110 train_gpt_cuda bash tests/gpu/training.sh "$work" resume
part training_evaluate 110 train_gpt_cuda,evaluate_cuda bash tests/gpu/training.sh "$work" evaluate
part training_interchange 110 train_gpt_cuda,train_gpt bash tests/gpu/training.sh "$work" interchange

sanitizer=$(command -v compute-sanitizer || true)
[ -n "$sanitizer" ] || { [ -x /usr/local/cuda/bin/compute-sanitizer ] && sanitizer=/usr/local/cuda/bin/compute-sanitizer; }
# gVisor says so in its messages; the version that it gives itself is the same everywhere.
in_gvisor() { dmesg 2>/dev/null | grep -qi gvisor || grep -q '4\.4\.0 #1 SMP Sun Jan 10 15:06:54 PST 2016' /proc/version; }
if [ -z "$sanitizer" ]; then
  left_out+='compute-sanitizer\tleft out: it is not installed\t\n'
elif in_gvisor; then
  left_out+='compute-sanitizer\tleft out: it does not work under gVisor\t\n'
else
  # The kernels of cuBLAS are not ours, and take most of the time.
  filter=()
  sanitizer_help=$("$sanitizer" --help 2>&1)
  case $sanitizer_help in
    *--kernel-name*) filter=(--kernel-name kns=gpt) ;;
    *--kernel-regex*) filter=(--kernel-regex kns=gpt) ;;
  esac
  tiny=(--layers 1 --width 32 --heads 2 --context 16 --micro-batches 1 --every 1 --ranks 1 --mode thread
    --text "$root/README.md")
  # Calls that are refused on purpose are no errors of memory.
  part memcheck_tests 120 test_gpu "$sanitizer" --tool memcheck --report-api-errors no --error-exitcode 9 "$work/test_gpu" \
    --test-case='*kernel*,*capture*,*runtime*'
  part memcheck_training 110 train_gpt_cuda "$sanitizer" --tool memcheck "${filter[@]}" --report-api-errors no --error-exitcode 9 \
    "$work/train_gpt_cuda" "${tiny[@]}" --checkpoints "$work/checkpoints-memcheck" --steps 1
  # Racecheck looks at shared memory, which the trainer's kernels use; the kernel that gathers uses none, and writes each byte that
  # is copied behind it.
  part racecheck_training 110 train_gpt_cuda "$sanitizer" --tool racecheck "${filter[@]}" --error-exitcode 9 "$work/train_gpt_cuda" \
    "${tiny[@]}" --checkpoints "$work/checkpoints-racecheck" --steps 2
  part initcheck_gathering 110 test_gpu "$sanitizer" --tool initcheck --error-exitcode 9 "$work/test_gpu" --test-case='*little memory*'
fi
tests=${#names[@]}
# What the project claims comes first: the last ones have the time that is left.
part bench_copy 90 bench_copy "$work/bench_copy" --pairs 5 --json "$results/bench_copy.json"
part bench_modes_published 170 bench_modes_cuda "$work/bench_modes_cuda" --rounds 1 --json "$results/bench_modes_published.json" \
  --table "$results/bench_modes_published.md"
part bench_load 80 bench_load_cuda "$work/bench_load_cuda" --bytes 2GiB --pairs 3 --directory "$directory" \
  --script "$root/benchmarks/load_python.py" --json "$results/bench_load.json"
part bench_modes_disk 105 bench_modes_cuda "$work/bench_modes_cuda" --setting disk --rounds 1 --directory "$directory" \
  --json "$results/bench_modes_disk.json" --table "$results/bench_modes_disk.md"
part bench_modes_one_connection 60 bench_modes_cuda env CUDA_DEVICE_MAX_CONNECTIONS=1 "$work/bench_modes_cuda" --rounds 1 --steps 10 \
  --only overlapped-thread --json "$results/bench_modes_one_connection.json" \
  --table "$results/bench_modes_one_connection.md"

record || exit 1  # where there is no GPU to be recorded, nothing is run
for ((i = 0; i < tests; ++i)); do run "$i" & done
wait
record
for ((i = tests; i < ${#names[@]}; ++i)); do
  run "$i"
  record
done

passed=$(grep -c $'\tpassed\t' "$results/steps.tsv")
left_out_count=$(grep -c $'\tleft out: ' "$results/steps.tsv")
echo "gpu.sh: $passed passed, $((${#names[@]} - passed)) not, $not_built not built, $left_out_count left out, in $(($(date +%s) - start)) s"
[ "$passed" = "${#names[@]}" ] && [ "$not_built" = 0 ]
