#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What compilers say that do not compile cairn: its sentence first, and no cascade behind it; and CMake before them.
# usage: old_compilers.sh ROOT SCRATCH COMPILER...
set -uo pipefail
root=$1
scratch=$2
shift 2
problems=0
problem() {
  printf 'old_compilers: %s\n' "$@"
  problems=$((problems + 1))
}
# expect_sentence TITLE REGEX COMMAND...: COMMAND fails, the first error is REGEX, and one other line ends the compilation.
expect_sentence() {
  local title=$1 regex=$2 output
  shift 2
  if output=$("$@" 2>&1); then
    problem "$title: it compiles"
  elif ! grep -m 1 'error:' <<<"$output" | grep -qE "$regex" || [ "$(grep -c 'error:' <<<"$output")" -gt 2 ]; then
    problem "$title: the first error is not /$regex/, or there are more than two:" "$(head -n 8 <<<"$output")"
  fi
}
export LC_ALL=C
for compiler in "$@"; do
  for page in cairn checkpointer any_checkpointer version model/state_dict stores/file_store cuda/pinned_stager; do
    expect_sentence "$compiler -std=c++17, $page" 'cairn needs C\+\+20' \
      "$compiler" -std=c++17 -fsyntax-only "-I$root/include" -x c++ - <<<"#include <cairn/$page.hpp>"
  done
done
old=
for compiler in clang++ clang++-14 clang++-15; do
  if version=$("$compiler" -dumpversion 2>/dev/null) && [ "${version%%.*}" -lt 16 ]; then old=$compiler; fi
done
if [ -n "$old" ]; then
  expect_sentence "$old" 'cairn needs clang 16 or later' "$old" -std=c++20 -fsyntax-only "-I$root/include" -x c++ - <<<"#include <cairn/cairn.hpp>"
  rm -rf "$scratch"
  output=$(cmake -S "$root" -B "$scratch" -DCMAKE_CXX_COMPILER="$old" 2>&1) && problem "CMake configures with $old"
  tr -s '\n ' ' ' <<<"$output" | grep -q 'cairn needs g++ 12 or later, or clang 16 or later; .* is Clang 1[0-5]' ||
    problem "CMake with $old says:" "$output"
else
  echo "old_compilers: no clang before 16 is here"
fi
[ "$problems" -eq 0 ] && echo "old compilers are refused with one sentence"
