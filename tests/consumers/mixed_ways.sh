#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Files of one program that take cairn in different ways, or in different versions, do not link, and the linker says why;
# files of one way link, also with link-time optimisation.
# usage: mixed_ways.sh INCLUDE SCRATCH COMPILER...
set -uo pipefail
include=$1
scratch=$2
shift 2
rm -rf "$scratch"
mkdir -p "$scratch/newer"
cd "$scratch" || exit 1
cp -r "$include/cairn" newer/ && sed -i 's/^#define CAIRN_VERSION_PATCH .*/#define CAIRN_VERSION_PATCH 4711/' newer/cairn/version.hpp
printf '#include <cairn/version.hpp>\nint other();\nint main() { return other(); }\n' >main.cpp
printf '#include <cairn/version.hpp>\nint other();\nint other() { return 0; }\n' >other.cpp
# The bodies alone, without what cairn links: nothing here uses it.
printf '#define CAIRN_IMPLEMENTATION\n#include <cairn/impl/system/compiler.ipp>\n' >bodies.cpp
problems=0
problem() {
  printf 'mixed_ways: %s\n' "$@"
  problems=$((problems + 1))
}
# make OBJECT SOURCE FLAG...: with $compiler and $flags
make() {
  local object=$1 source=$2
  shift 2
  "$compiler" -std=c++20 $flags "$@" -c "$source" -o "$object" >out 2>&1 || problem "$compiler $flags $*: $source does not compile:" "$(head -n 5 out)"
}
links() {
  "$compiler" $flags "$@" -o program >out 2>&1 || problem "$compiler $flags: $* does not link:" "$(head -n 5 out)"
}
says() {  # says REGEX OBJECT...
  local regex=$1
  shift
  if "$compiler" $flags "$@" -o program >out 2>&1; then
    problem "$compiler $flags: $* links"
  elif ! grep -qE "$regex" out; then
    problem "$compiler $flags: $* does not say /$regex/:" "$(head -n 5 out)"
  fi
}
export LC_ALL=C
for compiler in "$@"; do
  for flags in "-O0" "-O2 -flto" "-O0 -fuse-ld=lld" "-O2 -flto=thin"; do
    # Not every linker reads what every compiler writes for it.
    printf 'int main() {}\n' | "$compiler" $flags -x c++ - -o program >out 2>&1 || continue
    for source in main other bodies; do
      make one_$source.o $source.cpp -I "$include"
      make contract_$source.o $source.cpp -I "$include" -DCAIRN_COMPILED
    done
    make newer_other.o other.cpp -I newer
    make newer_contract_other.o other.cpp -I newer -DCAIRN_COMPILED
    links one_main.o one_other.o
    links contract_main.o contract_other.o contract_bodies.o
    says 'cairn_is_taken_in_two_ways_or_versions_by_files_of_one_program' one_main.o contract_other.o contract_bodies.o
    says 'cairn_is_taken_in_two_ways_or_versions_by_files_of_one_program' one_main.o newer_other.o
    says 'cairn_is_taken_in_two_ways_or_versions_by_files_of_one_program' contract_main.o newer_contract_other.o contract_bodies.o
    says 'link_cairn_compiled_or_include_implementation_hpp_in_one_file_of_cairn_[0-9]+_[0-9]+_[0-9]+' contract_main.o contract_other.o
  done
  printf '#include <cairn/implementation.hpp>\n' | "$compiler" -std=c++20 -I "$include" -fsyntax-only -x c++ - >out 2>&1 &&
    problem "$compiler: implementation.hpp compiles without CAIRN_COMPILED"
  grep -q 'link the CMake target cairn::contracts' out || problem "$compiler: implementation.hpp does not say what to do" "$(head -n 5 out)"
done
[ "$problems" -eq 0 ] && echo "files that take cairn in two ways do not link, and the linker says why"
