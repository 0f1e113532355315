#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Starts ranks in C++ by torchrun, on every host once: `bash train.sh`. When a rank is lost all are started again, from the last
# checkpoint; so they are when a host is lost and comes back.
# Change: the numbers, the address, the two paths, and what train_gpt is told.

hosts=${HOSTS:-2}
ranks=${RANKS_PER_HOST:-8}
first_host=${FIRST_HOST:-node1:29400}
programs=${PROGRAMS:-/opt/train/bin}
run=${RUN:-/shared/runs/1}

# The secret by which the ranks know each other, the same on all hosts: openssl rand -hex 32 >FILE, readable for you alone.
export CAIRN_JOB_KEY_FILE=${CAIRN_JOB_KEY_FILE:-$HOME/.train_key}

# exec: what stops this script (a container, a unit, a batch system) stops torchrun, which tells the ranks. They catch TERM, save, and
# end with status 75 within 30 s, after which torchrun kills them. Workers (--mode process) are not its children: they go on.
# shellcheck disable=SC2086  # one word for each option
exec torchrun --nnodes="$hosts" --nproc-per-node="$ranks" --max-restarts=10 --rdzv-backend=c10d --rdzv-endpoint="$first_host" \
  --rdzv-id="${run##*/}" --no-python "$programs/train_gpt" --sockets --checkpoints "$run/checkpoints" \
  ${TRAIN_OPTIONS:---steps 100000 --every 500}
