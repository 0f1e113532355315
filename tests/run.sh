#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail

usage() {
  cat <<'END'
Builds and runs cairn's tests on Debian 12 or a later Debian or Ubuntu. Installs the packages that are missing (as root or
with sudo), keeps everything else in build/, and can be run again: what is built is not built twice.

usage: bash tests/run.sh [--quick | --full | --soak [MINUTES]] [-R REGEX] [--jobs N] [--seed N] [--help]

  (nothing)   every test under AddressSanitizer and UndefinedBehaviorSanitizer (clang), each fuzz target with the same
              inputs each time, the threaded ones under ThreadSanitizer
              (clang), the examples in an optimised build (g++); benchmarks, once each; headers, compile-fail cases, consumers, format.
              Fifteen to twenty minutes on 2 cores from a fresh clone.
  --quick     one build without sanitizers, and no headers, compile-fail cases or consumers.
  --full      everything on g++ and clang, with every sanitizer, the slow tests, and ten times as many random cases. Up to an hour on 2 cores.
  --soak [MINUTES]
              the proof that nothing is lost, for 30 minutes or so many: kills, power losses, faults of a cluster (as root), fuzzing; see docs/reliability.md.
              Its figures go to build/results/soak.json. No other test runs.
  -R REGEX    only the tests whose name matches, as ctest does it; only their programs are built.
  --seed N    random cases begin with this seed (default: always the same one; with --soak, and where --full fuzzes, another one each time).
  --jobs N    programs built and tests run at a time (default: the number of cores).

The tests of clusters need root and nftables; those of NFS also what `tests/cluster/box install --instances` installs, an NFS server
among it, those of schedulers Slurm (slurmctld slurmd slurm-client munge) and torchrun, and test_mpich MPICH (mpich libmpich-dev), which are
never installed unasked. They are skipped without these.

test_torch is left out unless the environment's Torch_DIR leads to libtorch, for which nothing is installed:
  Torch_DIR=/usr/lib/x86_64-linux-gnu/cmake/Torch bash tests/run.sh --quick -R torch   (Debian's libtorch-dev)
  Torch_DIR=.../site-packages/torch/share/cmake/Torch bash tests/run.sh --quick -R torch   (pip's torch)

The tests' names, with their labels:  ctest --test-dir build/clang-asan -N --verbose
The closing line is `N passed, N failed`; the status is 0 only if nothing failed and something ran.
END
}

mode=short
regex=
jobs=$(nproc)
minutes=30
seed=
while [ $# -gt 0 ]; do
  case $1 in
    --quick) mode=quick ;;
    --full) mode=full ;;
    --soak)
      mode=soak
      if [[ ${2:-} =~ ^[0-9]+(\.[0-9]+)?$ ]]; then
        minutes=$2
        shift
      fi
      ;;
    --seed)
      [[ ${2:-} =~ ^[0-9]+$ ]] || { echo "run.sh: --seed needs a number, see --help" >&2; exit 2; }
      seed=$2
      shift
      ;;
    -R)
      [ $# -ge 2 ] || { echo "run.sh: -R needs a regular expression, see --help" >&2; exit 2; }
      regex=$2
      shift
      ;;
    --jobs)
      [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || { echo "run.sh: --jobs needs a number, see --help" >&2; exit 2; }
      jobs=$2
      shift
      ;;
    -h | --help) usage; exit 0 ;;
    *) echo "run.sh: there is no option '$1', see --help" >&2; exit 2 ;;
  esac
  shift
done

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd) || exit 1
cd "$root" || exit 1
mkdir -p build || { echo "run.sh: cannot write in $root; choose a clone that this user may write" >&2; exit 1; }

die() {
  printf 'run.sh: %s\n' "$*" >&2
  echo "0 passed, 1 failed"
  exit 1
}

# --- Phases and their seconds ------------------------------------------------------------------------------------

run_start=$(date +%s)
phase_name=
phase_start=0
phase_report=()
begin_phase() {
  phase_name=$1
  phase_start=$(date +%s)
  printf '\n=== %s (at %s s)\n' "$1" "$((phase_start - run_start))"
}
end_phase() { phase_report+=("$(printf '%6d s  %s' "$(($(date +%s) - phase_start))" "$phase_name")"); }

# Process groups that work behind the phases, and end with this script.
installing=
behind=
end_groups() {
  local group
  for group in $installing $behind; do kill -- "-$group" 2>/dev/null; done
}
trap end_groups EXIT

# --- What is installed: install.sh tells how ---------------------------------------------------------------------------------

install_log=build/apt.log
. tests/support/install.sh || exit 1

# --- Python with numpy, safetensors, boto3 and moto -----------------------------------------------------------------------------

# Tests need them, builds do not: pip works behind the packages and the first build.
begin_phase "python"
venv_python=$root/build/venv/bin/python3
python_packages=(numpy safetensors boto3 'moto[s3]' flask flask-cors)  # moto[server] is all of AWS
python_is_ready() { "$1" -c 'import numpy, safetensors.numpy, boto3, moto.server' >/dev/null 2>&1; }
if [ -x "$venv_python" ] && python_is_ready "$venv_python"; then
  python=$venv_python
elif python_is_ready python3; then
  python=$(command -v python3)
else
  maker=
  for candidate in python3 /usr/bin/python3; do
    if "$candidate" -c 'import ensurepip, venv' >/dev/null 2>&1; then
      maker=$candidate
      break
    fi
  done
  if [ -z "$maker" ]; then
    install_packages python3 python3-venv
    maker=/usr/bin/python3
  fi
  python=$venv_python
  "$maker" -m venv --clear --without-pip build/venv || die "python3 could not make build/venv (above)."
  echo "installing ${python_packages[*]} in build/venv, behind what comes next"
  set -m
  { "$python" -m ensurepip && "$python" -m pip install -q "${python_packages[@]}"; } >build/pip.log 2>&1 </dev/null &
  installing=$!
  set +m
fi
echo "$python"
end_phase

finish_python() {
  [ -n "$installing" ] || return 0
  begin_phase "python: the rest of its installation"
  if ! wait "$installing"; then
    tail -n 20 build/pip.log >&2
    die "pip could not install ${python_packages[*]} in build/venv. See build/pip.log; check the network, or install them for python3, then run this again."
  fi
  installing=
  python_is_ready "$python" || die "numpy, safetensors, boto3 and moto do not import in build/venv; remove build/venv, then run this again."
  end_phase
}

# --- Packages ------------------------------------------------------------------------------------------------------

begin_phase "packages"
packages=(g++ cmake ninja-build ccache pkg-config python3 libxxhash-dev rapidjson-dev doctest-dev libcli11-dev libboost-dev)
[ "$mode" = quick ] || packages+=(clang-16 libclang-rt-16-dev clang-format-16 llvm-16 libopenmpi-dev openmpi-bin libzstd-dev libisal-dev
  libcurl4-openssl-dev libssl-dev libexpat1-dev doxygen)
[ "$mode" != full ] || packages+=(clang-tidy-16 nftables)
# Only faster: not worth an installation where all that is needed is there.
[ "$mode" = quick ] || has_command clang++-16 || packages+=(lld-16)
install_missing "${packages[@]}"
end_phase

# --- Builds and their tests --------------------------------------------------------------------------------------------

[ -n "${HOME:-}" ] || export CCACHE_DIR=$root/build/ccache
[ -z "$seed" ] || export CAIRN_TEST_SEED=$seed

passed=0
failed=0
skipped=0
failures=()
results=$root/build/results
rm -rf "$results"
mkdir -p "$results"

if [ "$mode" = soak ]; then
  build_programs() {  # build_programs PRESET TEST_OR_TARGET...
    begin_phase "$1: build"
    cmake --preset "$1" -DCAIRN_PYTHON="$python" >"$results/$1.configure.log" 2>&1 \
      || { cat "$results/$1.configure.log"; die "$1: CMake could not configure"; }
    local targets
    targets=$(awk 'NR == FNR { program[$1] = $2; next } { print $1 in program ? program[$1] : $1 }' \
      "build/$1/tests/test_targets.txt" <(printf '%s\n' "${@:2}"))
    # shellcheck disable=SC2086  # one word for each target
    cmake --build --preset "$1" -j "$jobs" --target $targets || die "$1: a program of the soak does not build (above)"
    end_phase
  }
  build_programs release test_kill_ranks test_killed_hosts test_power_loss test_zombies test_group_checkpoints train_gpt verify helper_s3_server
  [ ! -f tests/fuzz/run.sh ] || build_programs clang-asan cairn_fuzz
  finish_python
  begin_phase "soak"
  exec python3 tests/soak.py --minutes "$minutes" ${seed:+--seed "$seed"}
fi

# count_results FILE BUILD: adds what ctest wrote; a test that could not be started has failed.
count_results() {
  local line
  while IFS= read -r line; do
    case $line in
      passed*) passed=$((passed + 1)) ;;
      skipped*) skipped=$((skipped + 1)) ;;
      failed*)
        failed=$((failed + 1))
        failures+=("$2: ${line#failed }")
        ;;
    esac
  done < <(python3 - "$1" <<'END'
import sys
import xml.etree.ElementTree

for case in xml.etree.ElementTree.parse(sys.argv[1]).getroot().iter("testcase"):
    skip = case.find("skipped")
    if case.get("status") == "run":
        word = "passed"
    elif case.get("status") == "disabled" or (skip is not None and "SKIP_RETURN_CODE" in skip.get("message", "")):
        word = "skipped"
    else:
        word = "failed"
    print(word, case.get("name"))
END
  )
}

fail() {  # fail SENTENCE: a failure that is no test's
  failed=$((failed + 1))
  failures+=("$*")
  echo "run.sh: $*" >&2
}

declare -A configuring=() tests_of=() selected=() targets=() first_targets=()

# configure PRESET...: begins to; prepare waits for it.
configure() {
  local preset torch=(-DCAIRN_WITH_TORCH=OFF)
  [ -z "${Torch_DIR:-}" ] || torch=(-DCAIRN_WITH_TORCH=ON "-DTorch_DIR=$Torch_DIR")
  for preset in "$@"; do
    # Another generator or a moved clone leaves a cache that cannot be used.
    if [ -f "build/$preset/CMakeCache.txt" ] && ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "build/$preset/CMakeCache.txt"; then
      rm -rf "build/$preset"
    fi
    cmake --preset "$preset" -DCAIRN_PYTHON="$python" -DCAIRN_FUZZ_SECONDS="$fuzz_seconds" "${torch[@]}" \
      >"$results/$preset.configure.log" 2>&1 </dev/null &
    configuring[$preset]=$!
  done
}

# prepare PRESET "EXTRA TARGETS" [TEST_PRESET]: notes the tests of the test preset (PRESET's own where none is named), and as
# targets their programs and the extra ones.
prepare() {
  local preset=$1 extra=$2
  [ -z "$regex" ] || extra=

  begin_phase "$preset: configure"
  [ -n "${configuring[$preset]:-}" ] || configure "$preset"
  if ! wait "${configuring[$preset]}"; then
    cat "$results/$preset.configure.log"
    fail "$preset: CMake could not configure"
    end_phase
    return
  fi
  sed -n 's/^-- \(.* is left out: .*\)/\1/p' "$results/$preset.configure.log"
  end_phase

  select_tests "$preset" "${3:-$1}"
  targets[$preset]+=${extra:+ $extra}
  [ -n "${selected[$preset]}${targets[$preset]}" ] || echo "$preset: no test is selected here"
}

# select_tests PRESET TEST_PRESET: notes the tests of a test preset, and as targets their programs.
select_tests() {
  tests_of[$1]=$2
  selected[$1]=$(ctest --preset "$2" ${regex:+-R "$regex"} -N | sed -nE 's/^ *Test +#[0-9]+: //p')
  targets[$1]=$(awk 'NR == FNR { wanted[$1] = 1; next } ($1 in wanted) { print $2 }' \
    <(echo "${selected[$1]}") "$root/build/$1/tests/test_targets.txt" | sort -u)
}

# build PRESET: builds the targets that prepare noted.
build() {
  [ -n "${targets[$1]:-}" ] || return 0
  begin_phase "$1: build"
  # shellcheck disable=SC2086  # one word for each target
  if ! cmake --build --preset "$1" -j "$jobs" --target ${targets[$1]} -- -k 0; then
    fail "$1: something does not build (above)"
  fi
  end_phase
}

# build_behind PRESET...: builds one after another, with what the tests leave of the cores: many of them wait most of the time.
# Of each, what first_targets names comes before the rest.
# finish_build PRESET waits for the end of each, in this order.
build_behind() {
  local queue=$results/behind.fifo behind_jobs
  # A compiler takes a gigabyte or more.
  behind_jobs=$(awk -v jobs="$jobs" '/^MemAvailable:/ { most = int($2 / 3000000); print most < 1 ? 1 : most < jobs ? most : jobs }' /proc/meminfo)
  mkfifo "$queue" || die "cannot make a FIFO in $results"
  set -m  # a process group, so that it ends with this script
  for preset in "$@"; do
    status=0
    for part in "${first_targets[$preset]:-}" "${targets[$preset]:-}"; do
      # shellcheck disable=SC2086  # one word for each target
      [ -z "$part" ] || nice -n 19 cmake --build --preset "$preset" -j "${behind_jobs:-1}" --target $part \
        -- -k 0 >>"$results/$preset.build.log" 2>&1 || status=$?
    done
    echo "$status"
  done >"$queue" </dev/null &
  behind=$!
  set +m
  exec 9<"$queue"
}
finish_build() {
  local status=none
  begin_phase "$1: the rest of its build"
  read -r -u 9 status
  if [ "$status" != 0 ]; then
    cat "$results/$1.build.log"
    fail "$1: something does not build (above)"
  fi
  end_phase
}
end_behind() {
  exec 9<&-
  wait "$behind"
  behind=
}

# run_tests PRESET [WHAT]: runs the tests that prepare or select_tests noted.
run_tests() {
  [ -n "${selected[$1]:-}" ] || return 0
  local preset=$1 tree=$root/build/$1 junit=$results/${tests_of[$1]}.xml
  finish_python
  begin_phase "$preset: tests${2:+ of $2}"
  rm -rf "$tree/coverage"
  local runner=()
  # ThreadSanitizer's shadow memory does not fit every address layout that the kernel may choose.
  if [[ $preset == *tsan* ]] && setarch -R true 2>/dev/null; then
    runner=(setarch -R)
  fi
  local status=0
  # Many tests wait most of the time: for a disk, for processes that end, for leases.
  "${runner[@]}" ctest --preset "${tests_of[$preset]}" ${regex:+-R "$regex"} -j "$((2 * jobs))" --output-junit "$junit" </dev/null 9<&- || status=$?
  local before=$failed
  if [ -s "$junit" ]; then
    count_results "$junit" "$preset"
  fi
  if [ "$status" -ne 0 ] && [ "$failed" -eq "$before" ]; then
    fail "$preset: ctest ended with status $status"
  fi
  cat "$tree"/tests/headers.*.txt >"$results/$preset.headers.txt" 2>/dev/null
  if grep -q '^headers.alone' <<<"${selected[$preset]}"; then
    cat "$results/$preset.headers.txt"
  fi
  end_phase
}

run_build() {  # run_build PRESET "EXTRA TARGETS" [TEST_PRESET]: all of it
  prepare "$@"
  build "$1"
  run_tests "$1"
}

# print_coverage PRESET: which part of include/cairn the tests of a build ran; a part of the tests proves nothing about that.
print_coverage() {
  [ -z "$regex" ] && [ -d "build/$1/coverage" ] || return 0
  begin_phase "$1: coverage"
  python3 tests/support/coverage.py --tree "build/$1" --source . --least 90 --lines "$results/$1.lines_not_run.txt" \
    || fail "$1: the tests run too few lines of include/cairn (above; $results/$1.lines_not_run.txt)"
  end_phase
}

fuzz_seconds=0  # the same inputs each time
[ "$mode" != full ] || fuzz_seconds=30
case $mode in
  quick)
    if [ -n "$regex" ]; then run_build debug ""; else run_build debug "" quick; fi
    ;;
  short)
    configure clang-asan release clang-tsan
    prepare clang-asan ""
    build clang-asan  # the others are configured beside it
    prepare release "cairn_examples"
    prepare clang-tsan ""
    targets[clang-asan]=
    [ -n "$regex" ] || targets[clang-asan]=cairn_benchmarks  # for the end
    # The quickstart, the last of clang-asan's tests, builds programs of release, which the compiler cache has by then.
    [ -z "${targets[release]:-}" ] || [ -n "$regex" ] || first_targets[release]="train_gpt evaluate inspect verify"
    build_behind release clang-tsan clang-asan
    run_tests clang-asan
    print_coverage clang-asan
    finish_build release
    run_tests release
    finish_build clang-tsan
    run_tests clang-tsan
    finish_build clang-asan
    end_behind
    select_tests clang-asan benchmarks
    build clang-asan
    run_tests clang-asan benchmarks
    ;;
  full)
    run_build asan "" full-asan
    run_build tsan "" full-tsan
    CAIRN_TEST_LONG=1 run_build release "cairn_examples cairn_benchmarks" full-release
    run_build debug "cairn_examples" quick
    run_build clang "cairn_examples cairn_benchmarks" full-clang
    run_build clang-asan "" full-clang-asan
    print_coverage clang-asan
    run_build clang-tsan ""
    ;;
esac

# --- The end -----------------------------------------------------------------------------------------------------------

printf '\n=== seconds of each phase\n'
printf '%s\n' "${phase_report[@]}"
printf '%6d s  all\n' "$(($(date +%s) - run_start))"
if [ "$failed" -gt 0 ]; then
  printf '\n=== failed\n'
  printf '%s\n' "${failures[@]}"
fi
if [ "$((passed + failed))" -eq 0 ]; then
  echo "run.sh: no test ran; is there one whose name matches '$regex'?" >&2
fi
printf '\n'
if [ "$skipped" -gt 0 ]; then
  echo "$passed passed, $failed failed, $skipped skipped"
else
  echo "$passed passed, $failed failed"
fi
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
