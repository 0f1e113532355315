#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Trains on a GPU with the programs in WORK, as tests/gpu.sh does: what resumes must give the same losses, bit for bit.
# usage: training.sh WORK resume|evaluate|interchange [SHAPE...]   (SHAPE: options of train_gpt, for another model than the usual one)
set -euo pipefail
work=$1
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
text=(--text "$root/README.md" "$root/docs/format.md")
shape=("${@:3}")
[ $# -gt 2 ] || shape=(--layers 2 --width 64 --heads 4 --context 64)
small=("${shape[@]}" --every 4 "${text[@]}")
at=$work/checkpoints

train() { "$work/train_gpt_cuda" "${small[@]}" "$@"; }
same_last_four() {  # of the losses in two files
  [ "$(tail -n 4 "$1" | wc -l)" = 4 ] || { echo "$1 has too few losses"; exit 1; }
  cmp <(tail -n 4 "$1") <(tail -n 4 "$2") || { echo "losses differ"; diff "$1" "$2"; exit 1; }
}
nearly_the_same() {  # the losses in two files, but for rounding
  [ "$(grep -c . "$1")" -gt 0 ] || { echo "$1 has no losses"; exit 1; }
  # As decimals: not every awk reads what %a wrote.
  paste <(cut -d ' ' -f 2 "$1" | xargs printf '%.9f\n') <(cut -d ' ' -f 2 "$2" | xargs printf '%.9f\n') |
    awk '{ d = $1 - $2; if (NF != 2 || d > 1e-3 || d < -1e-3) { print "losses differ: " $0; bad = 1 } } END { exit bad }'
}

case $2 in
  resume)
    train --ranks 1 --steps 12 --checkpoints "$at-whole" --losses "$work/whole.losses"
    # Killed inside the save of step 8, which its worker process commits.
    if train --ranks 1 --steps 12 --kill-after-release 8 --checkpoints "$at-killed"; then
      echo "it was not killed"
      exit 1
    fi
    train --ranks 1 --steps 12 --checkpoints "$at-killed" --losses "$work/killed.losses" | tee "$work/killed"
    grep -q 'resumed from the checkpoint of step 8' "$work/killed"
    same_last_four "$work/whole.losses" "$work/killed.losses"
    train --ranks 1 --steps 8 --mode sync --checkpoints "$at-sync"
    train --ranks 1 --steps 12 --mode thread --checkpoints "$at-sync" --losses "$work/sync.losses"
    same_last_four "$work/whole.losses" "$work/sync.losses"
    # Two ranks on one GPU, and back to one.
    train --ranks 2 --steps 8 --checkpoints "$at-ranks"
    train --ranks 1 --steps 12 --checkpoints "$at-ranks" --losses "$work/ranks.losses"
    same_last_four "$work/whole.losses" "$work/ranks.losses"
    ;;
  evaluate)  # what two ranks wrote, on one GPU: the loss that they told at their end
    train --ranks 2 --steps 8 --checkpoints "$at-evaluated" | tee "$work/trained"
    "$work/evaluate_cuda" "$at-evaluated" "${text[@]}" | tee "$work/evaluated"
    cmp <(grep 'held-out loss' "$work/trained") <(grep 'held-out loss' "$work/evaluated")
    ;;
  interchange)  # the CPU's program goes on from the GPU's checkpoint, and the other way round
    train --ranks 1 --steps 4 --checkpoints "$at-both" --losses "$work/gpu.losses"
    "$work/train_gpt" "${small[@]}" --ranks 1 --steps 4 --checkpoints "$at-cpu" --losses "$work/cpu.losses"
    nearly_the_same "$work/cpu.losses" "$work/gpu.losses"
    "$work/train_gpt" "${small[@]}" --ranks 1 --steps 8 --checkpoints "$at-both" | tee "$work/cpu"
    grep -q 'resumed from the checkpoint of step 4' "$work/cpu"
    train --ranks 1 --steps 12 --checkpoints "$at-both" | tee "$work/gpu"
    grep -q 'resumed from the checkpoint of step 8' "$work/gpu"
    ;;
  *)
    echo "training.sh: there is no test '$2'" >&2
    exit 2
    ;;
esac
