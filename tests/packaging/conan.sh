#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# conan.sh ROOT WORK CXX [LAUNCHER]: makes cairn's Conan package offline, with the libraries of the system in place of Conan's,
# and runs the program of its consumer. The status is 77 where there is no Conan 2 and none can be had.
set -euo pipefail
root=$1 work=$2 cxx=$3 launcher=${4-}
rm -rf "$work/home" "$work/consumer"
mkdir -p "$work/home/profiles"
conan=
for candidate in "$(command -v conan || true)" "$root/build/venv/bin/conan" "$work/venv/bin/conan"; do
  if [ -x "$candidate" ] && "$candidate" --version 2>/dev/null | grep -q 'version 2'; then
    conan=$candidate
    break
  fi
done
if [ -z "$conan" ]; then
  python3 -m venv "$work/venv" >/dev/null 2>&1 && "$work/venv/bin/python3" -m pip install -q 'conan>=2.3,<3' >/dev/null 2>&1 ||
    { echo "there is no Conan 2, and pip cannot install it"; exit 77; }
  conan=$work/venv/bin/conan
fi
export CONAN_HOME=$work/home
case $cxx in *clang*) compiler=clang ;; *) compiler=gcc ;; esac
version=$("$cxx" -dumpversion)
version=${version%%.*}
cat >"$CONAN_HOME/profiles/default" <<END
[settings]
os=Linux
arch=$(uname -m | sed 's/aarch64/armv8/')
build_type=Debug
compiler=$compiler
compiler.version=$version
compiler.libcxx=libstdc++11
compiler.cppstd=gnu17
[platform_requires]
xxhash/0.8.2
rapidjson/cci.20230929
[conf]
tools.build:compiler_executables={"cpp": "$cxx"}
tools.cmake.cmaketoolchain:generator=Ninja
# Nothing is written into the tree.
tools.cmake.cmaketoolchain:user_presets=
tools.cmake.cmake_layout:test_folder=$work/consumer
END
"$conan" remote disable '*' >/dev/null
[ -z "$launcher" ] || export CMAKE_CXX_COMPILER_LAUNCHER=$launcher
# The profile has the standard that Conan itself would write: the command that the page gives asks for the right one.
"$conan" create "$root/packaging/conan" -s compiler.cppstd=20
