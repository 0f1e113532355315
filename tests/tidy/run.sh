#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh ROOT [FLAG...]: the checks of .clang-tidy over the core's headers. The status is 77 where there is no clang-tidy 16.
set -euo pipefail
root=$1
shift
tidy=$(command -v clang-tidy-16 || command -v clang-tidy || true)
if [ -z "$tidy" ] || ! "$tidy" --version | grep -q 'version 16'; then
  echo "clang-tidy 16 is not installed"
  exit 77
fi
"$tidy" --quiet --config-file="$root/.clang-tidy" "$root/tests/tidy/core.cpp" -- -std=c++20 "$@" &&
  echo "clang-tidy finds nothing"
