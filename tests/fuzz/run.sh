#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail

usage() {
  cat <<'END'
Fuzzes what cairn reads from outside: manifests, records, safetensors headers and files, plan messages, frames of collectives and of
shared memory, what users configure, compressed items, answers of object stores, messages between trainer and worker, and what peers say over links. Inputs that reach new code are kept
beside the program and used again; the checked-in ones are in tests/fuzz/corpus, and one that the fuzzer fails on is added
to them, so that it is tried in every run from then on.

usage: bash tests/fuzz/run.sh [--program PATH] [--seconds N | --runs N] [--jobs N] [--seed N] [TARGET...]

  --program PATH  the fuzzer (default: build/clang-asan/tests/cairn_fuzz, see below)
  --seconds N     for each target (default 30)
  --runs N        for each target this many inputs, the same ones each time on every machine: the checked-in ones, then
                  those that the seed alone makes of them. No fuzzer: nobody looks which code they reach
  --jobs N        targets at a time (default: the number of cores)
  --seed N        of libFuzzer's random numbers (default: CAIRN_TEST_SEED, or 1 with --runs, or another one in each
                  run; it is printed)
  TARGET          manifest record safetensors files plan frame config codec s3 job link (default: all)

The default program is built by: cmake --preset clang-asan && cmake --build --preset clang-asan --target cairn_fuzz

The status is 0 only if no target crashed and none held more than 64 MiB for an input. A crash prints the command that
repeats it.
END
}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd) || exit 1
program=$root/build/clang-asan/tests/cairn_fuzz
seconds=30
jobs=$(nproc)
runs=
seed=
targets=()
while [ $# -gt 0 ]; do
  case $1 in
    --program | --seconds | --runs | --jobs | --seed)
      [ $# -ge 2 ] || { echo "fuzz: $1 needs a value, see --help" >&2; exit 2; }
      printf -v "${1#--}" '%s' "$2"
      shift
      ;;
    -h | --help) usage; exit 0 ;;
    manifest | record | safetensors | files | plan | frame | config | codec | s3 | job | link) targets+=("$1") ;;
    *) echo "fuzz: there is no option or target '$1', see --help" >&2; exit 2 ;;
  esac
  shift
done
fresh_seed=$((RANDOM * 32768 + RANDOM + 1))
[ -z "$runs" ] || fresh_seed=1
[ -n "$seed" ] || seed=${CAIRN_TEST_SEED:-$fresh_seed}
for number in "$seconds" "${runs:-1}" "$jobs" "$seed"; do
  [[ $number =~ ^[1-9][0-9]*$ ]] || { echo "fuzz: '$number' is no number above 0, see --help" >&2; exit 2; }
done
[ ${#targets[@]} -gt 0 ] || targets=(manifest record safetensors files plan frame config codec s3 job link)
[ -x "$program" ] || { echo "fuzz: there is no program $program; 'cmake --preset clang-asan && cmake --build --preset clang-asan --target cairn_fuzz' builds it" >&2; exit 2; }
program=$(realpath "$program")
kept=$(dirname "$program")/fuzz

# As for the tests: to keep a mebibyte of the stack frames of each size that functions left took two thirds of the time.
export ASAN_OPTIONS=max_uar_stack_size_log=16:${ASAN_OPTIONS:-}

fuzz_one() {
  local target=$1 found=$kept/$1 log=$kept/$1.log status=0 begun=$SECONDS again
  mkdir -p "$found" || return 1
  # The program itself counts what all allocations hold together; these find one that is too long before it is made.
  if [ -n "$runs" ]; then
    local settings=("CAIRN_FUZZ_FIXED=$runs" "CAIRN_FUZZ_SEED=$seed" "CAIRN_FUZZ_CORPUS=$root/tests/fuzz/corpus/$target"
      "CAIRN_FUZZ_FAILED=$kept/$target-fixed")
    again="${settings[*]} $program"
    env "${settings[@]}" "ASAN_OPTIONS=${ASAN_OPTIONS:-}:max_allocation_size_mb=65:hard_rss_limit_mb=2048" LLVM_PROFILE_FILE=/dev/null \
      "CAIRN_FUZZ_TARGET=$target" "$program" >"$log" 2>&1 || status=$?
  else
    again="$program -seed=$seed $found $root/tests/fuzz/corpus/$target"
    LLVM_PROFILE_FILE=/dev/null CAIRN_FUZZ_TARGET=$target "$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=65 \
      -max_len=65536 -len_control=20 -seed="$seed" -print_final_stats=1 -artifact_prefix="$kept/$target-" \
      "$found" "$root/tests/fuzz/corpus/$target" >"$log" 2>&1 || status=$?
  fi
  if [ "$status" -ne 0 ]; then
    grep -vE '^#[0-9]+[[:space:]]|NEW_FUNC' "$log" | tail -n 60
    local input
    input=$(sed -nE 's/.*Test unit written to (.*)$/\1/p' "$log" | tail -n 1)
    echo "fuzz: $target failed with status $status and seed $seed. Repeat it with:"
    if [ -n "$input" ]; then again="$program $input"; fi
    if [ -n "$input" ] && [ -z "$runs" ]; then
      local found_as=$root/tests/fuzz/corpus/$target/found-$(sha256sum "$input" | cut -c 1-12)
      cp "$input" "$found_as" && again="$program $found_as"
    fi
    echo "  CAIRN_FUZZ_TARGET=$target $again"
    return 1
  fi
  local executions coverage
  executions=$(sed -nE 's/^stat::number_of_executed_units: *([0-9]+)$/\1/p' "$log")
  coverage=$(sed -nE 's/.* cov: ([0-9]+) .*/\1/p' "$log" | tail -n 1)
  echo "fuzz: $target: $executions executions in $((SECONDS - begun)) s, ${coverage:+$coverage edges, }seed $seed: no crash"
}

failed=0
running=0
for target in "${targets[@]}"; do
  if [ "$running" -ge "$jobs" ]; then
    wait -n || failed=1
    running=$((running - 1))
  fi
  fuzz_one "$target" &
  running=$((running + 1))
done
while [ "$running" -gt 0 ]; do
  wait -n || failed=1
  running=$((running - 1))
done
exit "$failed"
