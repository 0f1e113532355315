# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by tests/run.sh and examples/quickstart.sh: installs with apt what is not there yet. The script that sources it
# defines die SENTENCE, which ends the script, and sets install_log, a file that apt's output goes to.

has_command() { command -v "$1" >/dev/null 2>&1; }
# The preprocessor tells, wherever the header is installed.
has_header() { has_command g++ && echo "#include <$1>" | g++ -x c++ -E - >/dev/null 2>&1; }
has_library() { has_command g++ && echo 'int main() {}' | g++ -x c++ - -o /dev/null "-l$1" >/dev/null 2>&1; }

# is_usable PACKAGE: whether what the Debian package brings is there, from that package or from elsewhere.
is_usable() {
  case $1 in
    cmake)
      has_command cmake && printf '3.25\n%s\n' "$(cmake --version | sed -nE '1s/^cmake version ([0-9.]+).*/\1/p')" | sort -C -V
      ;;
    ninja-build) has_command ninja ;;
    clang-16) has_command clang++-16 ;;
    llvm-16) has_command llvm-profdata-16 && has_command llvm-cov-16 ;;
    libclang-rt-16-dev)
      has_command clang++-16 &&
        echo 'int main() {}' | clang++-16 -fsanitize=address,undefined -x c++ - -o /dev/null >/dev/null 2>&1
      ;;
    libxxhash-dev) has_header xxhash.h && has_library xxhash ;;
    rapidjson-dev) has_header rapidjson/reader.h ;;
    doctest-dev) has_header doctest/doctest.h ;;
    libcli11-dev) has_header CLI/CLI.hpp ;;
    libboost-dev) has_header boost/interprocess/mapped_region.hpp ;;
    libopenmpi-dev) has_command mpicxx ;;
    openmpi-bin) has_command mpirun ;;
    libzstd-dev) has_header zstd.h && has_library zstd ;;
    libisal-dev) has_header isa-l.h && has_library isal ;;
    libcurl4-openssl-dev) has_header curl/curl.h && has_library curl ;;
    libssl-dev) has_header openssl/evp.h && has_library crypto ;;
    libexpat1-dev) has_header expat.h && has_library expat ;;
    nftables) has_command nft || [ -x /usr/sbin/nft ] ;;
    *) has_command "$1" ;;
  esac
}

list_missing() {  # list_missing PACKAGE...: those that are not usable, in the array missing
  local package
  missing=()
  for package in "$@"; do
    is_usable "$package" || missing+=("$package")
  done
}

install_packages() {  # install_packages PACKAGE...
  has_command apt-get || die "these packages are missing, and there is no apt-get to install them: $*. Install them, then run this again."
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    has_command sudo || die "these packages are missing: $*. Install them as root (apt-get install $*), then run this again."
    as_root=(sudo)
    [ -t 0 ] || as_root=(sudo -n)
  fi
  echo "installing: $*"
  if ! { "${as_root[@]}" apt-get update -q &&
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@"; } >"$install_log" 2>&1; then
    tail -n 20 "$install_log" >&2
    die "apt-get could not install: $*. See $install_log; check the network and the package sources, or install them yourself, then run this again."
  fi
}

install_missing() {  # install_missing PACKAGE...: afterwards all of them are usable
  list_missing "$@"
  if [ ${#missing[@]} -eq 0 ]; then
    echo "all are there"
    return
  fi
  # The first look at headers needs a compiler: look again once there is one.
  if [[ " ${missing[*]} " == *" g++ "* ]]; then
    install_packages g++
    list_missing "$@"
  fi
  [ ${#missing[@]} -eq 0 ] || install_packages "${missing[@]}"
  list_missing "$@"
  [ ${#missing[@]} -eq 0 ] || die "still not usable after their installation: ${missing[*]}. cairn needs CMake 3.25 and g++ 12 or newer (Debian 12 has them)."
}
