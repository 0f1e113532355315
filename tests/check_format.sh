#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks the format of every C and C++ file with clang-format 16; with --fix, formats them in place.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tool=$(command -v clang-format-16 || true)
if [ -z "$tool" ]; then
  echo "check_format: skipped, there is no clang-format-16 (Debian: apt-get install clang-format-16)"
  exit 77
fi
mode=(--dry-run -Werror)
[ "${1:-}" != --fix ] || mode=(-i)
mapfile -t files < <(
  if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git ls-files --cached --others --exclude-standard -- '*.h' '*.c' '*.hpp' '*.ipp' '*.cpp' '*.cuh' '*.cu' '*.inc'
  else
    find include tests examples benchmarks -type f -regextype posix-extended -regex '.*\.(h|c|hpp|ipp|cpp|cuh|cu|inc)'
  fi | while IFS= read -r path; do [ ! -f "$path" ] || printf '%s\n' "$path"; done)
[ "${#files[@]}" -gt 0 ] || { echo "check_format: found no file" >&2; exit 1; }
if ! "$tool" "${mode[@]}" "${files[@]}"; then
  echo "check_format: run 'bash tests/check_format.sh --fix'" >&2
  exit 1
fi
echo "check_format: ${#files[@]} files"
