#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail

usage() {
  cat <<'END'
Trains a small GPT on 4 ranks of 2 hosts, which this machine plays, and holds every step in the memory of each host. Kills a
host with its memory in the middle of a save, resumes on 2 ranks, kills these, too, resumes on 1, evaluates the result, and
shows that not one bit was lost, and of the steps that were done at most one. Each rank has a process beside it that writes its part
of every tenth checkpoint while training goes on; a kill of the ranks does not stop it. Installs the packages that are missing (as root or with sudo), builds three programs in
build/quickstart, and writes to a directory of its own. Runs on Debian 12 or a later Debian or Ubuntu; about a minute or two
on 2 cores once the packages are there. Can be run again.

usage: bash examples/quickstart.sh [--store files|s3] [--dir DIR] [--help]

  --store s3  the same, shorter, on object storage: starts an S3 server on this machine, the one of cairn's tests, keeps the
              checkpoints in a bucket of it, and ends it
  --dir DIR   write checkpoints, losses and logs here; must be empty, not there, or from an earlier quickstart, which is then
              replaced (default: a new directory below ${TMPDIR:-/tmp}, which stays for you to look at; with --store s3
              only if something fails)

The status is 0 only if every check holds.
END
}

die() {
  printf '\nquickstart.sh: %s\n' "$*" >&2
  exit 1
}

directory=
store=files
while [ $# -gt 0 ]; do
  case $1 in
    --dir)
      [ -n "${2:-}" ] || { echo "quickstart.sh: --dir needs a directory, see --help" >&2; exit 2; }
      directory=$2
      shift
      ;;
    --store)
      case ${2:-} in
        files | s3) store=$2 ;;
        *) echo "quickstart.sh: --store is files or s3, see --help" >&2; exit 2 ;;
      esac
      shift
      ;;
    -h | --help) usage; exit 0 ;;
    *) echo "quickstart.sh: there is no option '$1', see --help" >&2; exit 2 ;;
  esac
  shift
done

start=$(date +%s)
[ -z "$directory" ] || directory=$(realpath -m -- "$directory")
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
say() { printf '\n=== %s\n' "$*"; }

# --- Packages and programs -----------------------------------------------------------------------------------------------

build=$root/build/quickstart
mkdir -p "$build" || die "cannot write in $root; choose a clone that this user may write, then run this again."

say "packages"
install_log=$build/apt.log
. "$root/tests/support/install.sh"
packages=(g++ cmake ninja-build ccache pkg-config libxxhash-dev rapidjson-dev libcli11-dev libboost-dev libssl-dev)
[ "$store" = files ] || packages+=(libcurl4-openssl-dev libexpat1-dev)
install_missing "${packages[@]}"

say "build train_gpt, evaluate, inspect and verify in build/quickstart (the first time: a minute or two)"
export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1 CCACHE_DEPEND=1
[ -n "${HOME:-}" ] || export CCACHE_DIR=$root/build/ccache
# A moved clone leaves a cache that cannot be used.
if [ -f "$build/CMakeCache.txt" ] && ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$build/CMakeCache.txt"; then
  rm -rf "$build/CMakeCache.txt" "$build/CMakeFiles"
fi
cmake --preset release -B "$build" -DCAIRN_BUILD_TESTS=OFF -DCAIRN_BUILD_BENCHMARKS=OFF >"$build/configure.log" 2>&1 || {
  cat "$build/configure.log" >&2
  die "CMake could not configure (above); remove $build, then run this again."
}
cmake --build "$build" -j "$(nproc)" --target train_gpt evaluate inspect verify ||
  die "a program does not build (above); g++ 12 or newer is needed: see g++ --version."
programs=$build/examples
if [ "$store" = s3 ]; then
  # The tests' server; its objects are in its memory.
  # shellcheck disable=SC2046  # options are words
  { ccache g++ -std=c++20 -O1 -Iinclude -Itests $(pkg-config --cflags libcrypto libcurl expat libxxhash) \
      -c tests/helper_s3_server.cpp -o "$build/s3_server.o" &&
    g++ "$build/s3_server.o" -o "$build/s3_server" $(pkg-config --libs libcrypto libcurl expat libxxhash) -pthread; } ||
    die "the S3 server does not build (above); g++ 12 or newer and libssl-dev are needed."
fi

# --- A place for the files -------------------------------------------------------------------------------------------------

temporary=
if [ -z "$directory" ]; then
  temporary=yes
  directory=$(mktemp -d "${TMPDIR:-/tmp}/cairn-quickstart.XXXXXX") ||
    die "cannot make a temporary directory; name one with --dir DIR, then run this again."
else
  mkdir -p "$directory" || die "cannot make $directory; name another with --dir DIR."
  if [ -n "$(ls -A "$directory")" ]; then
    [ -f "$directory/.cairn-quickstart" ] ||
      die "$directory holds files that are not of an earlier quickstart; name an empty one with --dir DIR."
    rm -rf "${directory:?}"/{reference,checkpoints} "$directory"/*.{losses,log}
  fi
fi
: >"$directory/.cairn-quickstart" || die "cannot write in $directory; name another with --dir DIR."

# The memory of the hosts: a tmpfs, or a directory of a disk where there is no room.
if [ -w /dev/shm ] && [ "$(df --output=avail /dev/shm | tail -n 1)" -gt 400000 ]; then
  memory=$(mktemp -d /dev/shm/cairn-quickstart.XXXXXX) || die "cannot make a directory in /dev/shm."
else
  memory=$directory/memory
  rm -rf "$memory" && mkdir -m 700 "$memory"
fi
server=
finish() {
  rm -rf "$memory"
  [ -z "$server" ] || { kill "$server" && wait "$server"; } 2>/dev/null || true
}
trap finish EXIT

# --- Training --------------------------------------------------------------------------------------------------------------

# Each tenth save of a run goes to the store: of the second one, which goes on at step 25, that of step 55, too.
steps=60 every=10 kill4=26 kill2=55 width=160
reference=$directory/reference checkpoints=$directory/checkpoints
if [ "$store" = s3 ]; then
  say "start an S3 server on this machine"
  steps=24 every=4 kill4=7 kill2=18 width=64
  export AWS_ACCESS_KEY_ID=quickstart AWS_SECRET_ACCESS_KEY=quickstart-of-this-machine-alone
  export no_proxy=127.0.0.1 NO_PROXY=127.0.0.1
  unset AWS_SESSION_TOKEN AWS_PROFILE AWS_ENDPOINT_URL AWS_ENDPOINT_URL_S3
  "$build/s3_server" --bucket=quickstart --region=us-east-1 --access-key="$AWS_ACCESS_KEY_ID" \
    --secret-key="$AWS_SECRET_ACCESS_KEY" --port-file="$directory/port.log" >"$directory/server.log" 2>&1 &
  server=$!
  for ((tries = 0; tries < 300; tries++)); do
    [ ! -s "$directory/port.log" ] || break
    kill -0 "$server" 2>/dev/null || die "the S3 server does not start; see $directory/server.log."
    sleep 0.1
  done
  where="?endpoint=http://127.0.0.1:$(cat "$directory/port.log")&region=us-east-1"
  reference="s3://quickstart/reference$where" checkpoints="s3://quickstart/gpt/checkpoints$where"
  echo "  $checkpoints"
fi
settings=(--steps "$steps" --width "$width" --mode overlapped-process --keep 0)
# Every step is held in memory of its host, and copied to that of another one; each tenth goes on to the store.
hosts=(--every 1 --tier "$memory" --hosts 2 --partner-copies 1 --persist "$every")
if [ ! -d /usr/share/common-licenses ]; then
  settings+=(--text "$root/LICENSE" "$root/docs")
fi

# train NAME OPTION...: runs train_gpt, shows every tenth step and all else that it says; its exit status is in $status, all
# its output in NAME.log, its losses in NAME.losses.
train() {
  local name=$1
  shift
  status=0
  { "$programs/train_gpt" "${settings[@]}" --losses "$directory/$name.losses" "$@" 2>&1 || status=$?
    echo "$status" >"$directory/$name.status.log"
  } 2>/dev/null | tee "$directory/$name.log" | grep --line-buffered -vE '^(step|save) +[0-9]*[1-9]  (loss|stalled)' | sed -u 's/^/  /' || true
  status=$(cat "$directory/$name.status.log")
  rm -f "$directory/$name.status.log"
}
trained() {  # trained NAME: the last train must have succeeded
  [ "$status" -eq 0 ] || die "train_gpt ended with status $status; all that it said is in $directory/$1.log."
}
# held_out LOG: the held-out loss in it, as a hexadecimal float
held_out() { sed -nE 's/^step +[0-9]+ held-out loss .*\((.*)\)$/\1/p' "$1"; }

# killed_in_save NAME RANKS STEP LAST: the last train must have been killed in the save of this step, when LAST steps were done
killed_in_save() {
  local name=$1 ranks=$2 step=$3 last=$4
  [ "$status" -eq 137 ] || die "train_gpt was to be killed (status 137) and ended with $status; see $directory/$name.log."
  [ "$(tail -n 1 "$directory/$name.losses" | cut -d ' ' -f 1)" = "$last" ] ||
    die "training did not end after step $last; see $directory/$name.log."
  echo "  $ranks ranks ended with SIGKILL, when $last steps were done."
}
# exists STEP: whether there is a checkpoint of this step; shows those that exist
exists() {
  "$programs/inspect" "$checkpoints" | sed 's/^/    /' || true
  "$programs/inspect" "$checkpoints" --step "$1" >/dev/null 2>&1
}
# committed STEP: waits until there is one
committed() {
  local tries
  for ((tries = 0; tries < 1200; tries++)); do
    ! "$programs/inspect" "$checkpoints" --step "$1" >/dev/null 2>&1 || return 0
    sleep 0.2
  done
  die "there is no checkpoint of step $1 after four minutes; see $directory/*.log."
}
resumed_from() {  # resumed_from NAME STEP: the last train must have resumed from this step
  grep -q "^resumed from the checkpoint of step $2\$" "$directory/$1.log" ||
    die "the run did not resume from step $2; see $directory/$1.log."
}

say "1. the reference: $steps steps on 4 ranks without interruption, with a checkpoint every $every steps"
train reference --ranks 4 --store "$reference" --every "$every"
trained reference

say "2. the same on 4 ranks of 2 hosts, with every step held in memory; host 1 is killed while the save of step $kill4 is still being copied"
train killed4 --ranks 4 --store "$checkpoints" "${hosts[@]}" --kill-before-release "$kill4" --kill-host 1
killed_in_save killed4 2 "$kill4" "$kill4"
rm -r "$memory/host-1"
echo "  The memory of host 1 is gone with it. The checkpoints in the store, and what host 0 holds:"
! exists "$kill4" || die "there is a checkpoint of step $kill4, which was killed before its release."
"$programs/inspect" "$memory/host-0" | sed 's/^/    /' || true

say "3. resume on 2 ranks, of host 0 and of a new one, and kill these when the save of step $kill2 is released and training has gone on, before it is committed"
train killed2 --ranks 2 --store "$checkpoints" "${hosts[@]}" --kill-after-release "$kill2"
resumed_from killed2 $((kill4 - 1))
grep -q "of ranks 2, 3, which were lost, were rebuilt" "$directory/killed2.log" ||
  die "the images of the lost host were not rebuilt from memory of the other; see $directory/killed2.log."
echo "  Lost with host 1: step $kill4, in whose save it died, and nothing before it."
grep -q "^save *$kill2  stalled" "$directory/killed2.log" ||
  die "the save of step $kill2 was not released before the kill; see $directory/killed2.log."
killed_in_save killed2 2 "$kill2" $((kill2 + 1))
if [ "$store" = files ]; then
  echo "  The processes that write it live on. Step 4 starts at once: if they are not done, it waits for them."
else
  echo "  The processes that write it live on; this script waits until they are done."
  committed "$kill2"
fi

say "4. resume on 1 rank elsewhere, which has the store alone, to the end"
train resumed --ranks 1 --store "$checkpoints" --every "$every"
trained resumed
resumed_from resumed "$kill2"
echo "  The checkpoints:"
exists "$kill2" || die "there is no checkpoint of step $kill2."

say "5. evaluate the checkpoint in another program"
text=()
[ -d /usr/share/common-licenses ] || text=(--text "$root/LICENSE" "$root/docs")
"$programs/evaluate" "$checkpoints" "${text[@]}" >"$directory/evaluate.log" 2>&1 || {
  cat "$directory/evaluate.log" >&2
  die "evaluate could not read the checkpoint (above)."
}
sed 's/^/  /' "$directory/evaluate.log"

# --- Checks ------------------------------------------------------------------------------------------------------------------

say "6. compare with the reference, bit by bit"
same() {  # same WHAT FILE FIRST LAST: the losses of these steps in FILE are those of the reference
  local expected
  expected=$(sed -n "$3,$4p" "$directory/reference.losses")
  if [ "$(wc -l <<<"$expected")" -ne $(($4 - $3 + 1)) ] || ! diff <(echo "$expected") "$directory/$2.losses"; then
    die "the losses of the $1 differ from those of the reference (above); see $directory/*.losses."
  fi
  echo "  losses of steps $3 to $4, the $1: equal"
}
same "run on 4 ranks that was killed" killed4 1 "$kill4"
same "run on 2 ranks that was killed" killed2 "$kill4" $((kill2 + 1))
same "run on 1 rank that ended it" resumed $((kill2 + 1)) "$steps"
expected=$(held_out "$directory/reference.log")
for name in resumed evaluate; do
  found=$(held_out "$directory/$name.log")
  if [ -z "$expected" ] || [ "$found" != "$expected" ]; then
    die "the held-out loss in $directory/$name.log is '$found', in the reference '$expected'."
  fi
done
echo "  held-out loss $expected of the reference on 4 ranks, the resumed run on 1, and evaluate: equal"
"$programs/verify" "$checkpoints" >"$directory/verify.log" 2>&1 || {
  cat "$directory/verify.log" >&2
  die "a checkpoint does not verify (above)."
}
sed 's/^/  /' "$directory/verify.log"

say "summary"
printf '  the stalls of saves (overlapped, written by processes of their own), in milliseconds:\n'
for name in reference killed4 killed2 resumed; do
  sed -nE 's/^save +[0-9]+  stalled training for ([0-9.]+) ms.*/\1/p' "$directory/$name.log" | sort -g |
    awk -v name="$name" '{ all[NR] = $1 } END { printf "    %-10s %2d saves, median %.2f, largest %.2f\n", name, NR, all[int((NR + 1) / 2)], all[NR] }'
done
largest=$(sed -nE 's/^save +[0-9]+  stalled training for ([0-9.]+) ms.*/\1/p' "$directory"/*.log | sort -g | tail -n 1)
each=$(sed -nE 's/^step +[0-9]+  loss +[0-9.]+ +([0-9.]+) ms/\1/p' "$directory/reference.log" | sort -g |
  awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }')
echo "  largest stall    $largest ms, while a step of training takes $each ms (median)"
echo "  a checkpoint     $("$programs/inspect" "$checkpoints" | sed -nE "s/^step $steps  .*UTC  //p")"
if [ "$store" = files ]; then
  echo "  all files        $directory ($(du -sh "$directory" | cut -f 1)); look around with"
  echo "                   $programs/inspect $checkpoints --step $steps"
else
  echo "  the server       ends, and the objects with it"
  [ -z "$temporary" ] || rm -rf "$directory"
fi
echo "  time             $(($(date +%s) - start)) s"
echo
echo "A host killed with its memory in the middle of a save, which cost 1 step, 2 ranks killed again, which cost no checkpoint, ended on 1: every loss is that of the uninterrupted run, bit for bit."
