#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks the rules that the source tree keeps, and names each breach by file:
#   1. every source file names its licence in its first lines;
#   2. core headers include none of the headers that cost every user compile time;
#   3. headers are included as <cairn/...>, and only downwards between the folders of include/cairn;
#   4. every error id has a heading in docs/errors.md (where that page exists);
#   5. every header comes to <cairn/system/compiler.hpp> before anything that an old compiler does not take;
#   6. bodies lie in include/cairn/impl, a mirror of the other folders: impl/F/x.ipp holds those of F/x.hpp, which
#      includes it, and may include what F may; <cairn/implementation.hpp> includes all of them (--fix writes that list).
# usage: check_tree.sh [ROOT]; check_tree.sh --fix; check_tree.sh --self-test
set -euo pipefail
export LC_ALL=C

# Which folders (and single pages) of include/cairn a room may include besides itself. A room within a room has a row of its
# own; what that leaves out lies above it or beside it.
declare -A may_include=(
  [system]="version.hpp"
  [model]="system version.hpp"
  [concepts]="system model"
  [plan]="system model concepts"
  [plan/summary]="system model concepts"
  [plan/assign]="system model concepts plan/summary"
  [plan/load]="system model concepts plan/summary plan/glob.hpp plan/near_names.hpp"
  [stage]="system model concepts"
  [execute]="system model concepts"
  [storage]="system model concepts"
  [storage/manifest]="system model concepts"
  [storage/safetensors]="system model concepts storage/manifest"
  [storage/commit]="system model concepts storage/manifest storage/safetensors"
  [storage/load]="system model concepts storage/manifest storage/safetensors storage/commit"
  # Files of others: their boxes are checked as those of plans are.
  [storage/foreign]="system model concepts storage/safetensors storage/load plan/summary"
  [storage/compressed]="system model concepts storage"
  [stores]="system model concepts"
  [stores/file]="system model concepts"
  [stores/s3]="system model concepts"
  [comm]="system model concepts"
  [comm/shared_memory]="system model concepts"
  # Connections of ranks are what those of links are: sockets, TLS and its key.
  [comm/socket]="system model concepts links/link_frame.hpp links/link_key.hpp links/link_sockets.hpp links/secure_socket.hpp"
  [comm/mpi]="system model concepts"
  [comm/nccl]="system model concepts stage cuda"
  [links]="system model concepts comm/collectives.hpp"
  [cuda]="system model concepts stage"
  [tiers]="system model concepts stage storage"
  # Pieces lie in the directory of a tier, beside its images.
  [redundancy]="system model concepts storage tiers comm/collectives.hpp"
  # A face for another language holds a checkpointer of any composition.
  [interop]="system model concepts any_checkpointer.hpp"
  # What is done with whole checkpoints: verifying, copying, exporting.
  [manage]="system model concepts plan storage checkpointer/checkpointer_base.hpp"
  [observe]="system model concepts"
  [checkpointer]="system model concepts plan stage comm observe"
)

breaches=0
breach() {
  printf '%s\n' "$*"
  breaches=$((breaches + 1))
}

# headers NAME...: the headers of cairn whose names are like one of these, each on a line.
headers() {
  local names=()
  for name in "$@"; do names+=(-o -name "$name"); done
  find include/cairn \( "${names[@]:1}" \) | sort
}
# search OPTION... REGEX: grep in the files whose names come in, one on each line; that it finds nothing is no failure.
search() { xargs -r -d '\n' grep "$@" /dev/null || true; }

include_begins='^[[:space:]]*#[[:space:]]*include[[:space:]]*'

check_licences() {
  local path
  while IFS= read -r path; do
    breach "$path: no line 'SPDX-License-Identifier: Apache-2.0' at its beginning"
  done < <(find . \( -name build -o -name 'build-*' -o -name .git -o -name .cache -o -name __pycache__ \) -prune -o -type f \
    \( -name '*.h' -o -name '*.c' -o -name '*.hpp' -o -name '*.ipp' -o -name '*.cpp' -o -name '*.cuh' -o -name '*.cu' -o -name '*.inc' -o -name '*.sh' -o -name '*.py' \
    -o -name '*.cmake' -o -name '*.cmake.in' -o -name CMakeLists.txt -o -path './.ci/run' \) -print | sort |
    xargs -r -d '\n' awk '
      BEGIN { for (i = 1; i < ARGC; ++i) lacking[ARGV[i]] = 1 }
      FNR <= 3 && /SPDX-License-Identifier: Apache-2\.0/ { delete lacking[FILENAME] }
      END { for (path in lacking) print path }' | sort)
}

check_heavy_headers() {
  local path header
  while IFS=: read -r path header; do
    if head -n 12 "$path" | grep -q '^// opt-in:'; then continue; fi
    breach "$path: includes <$header>, which core headers must not"
  done < <(headers '*.h' '*.hpp' '*.ipp' | search -oE "$include_begins<(iostream|ranges|regex|filesystem|format)>" | sed -E 's/:.*<(.*)>/:\1/')
}

# room_of PATH: sets folder to the room of a header, or to nothing where it lies beside the umbrella.
room_of() {
  folder=${1#include/cairn/}
  folder=${folder#impl/}
  # The umbrella and the other headers beside it may include all of core.
  case $folder in */*) folder=${folder%/*} ;; *) folder= ;; esac
  while [ -n "$folder" ] && [ -z "${may_include[$folder]+set}" ] && [[ $folder == */* ]]; do folder=${folder%/*}; done
}

check_arrows() {
  local path folder target allowed candidate all
  all=$(headers '*.h' '*.hpp' '*.ipp' '*.cuh')
  while IFS= read -r path; do
    breach "$path: includes with quotes; use <cairn/...>"
  done < <(search -lE "$include_begins\"" <<<"$all")
  while IFS= read -r path; do
    room_of "$path"
    [ -z "$folder" ] || [ -n "${may_include[$folder]+set}" ] ||
      breach "$path: include/cairn/$folder is not in the table of rooms in tests/check_tree.sh"
  done <<<"$all"
  while IFS=: read -r path target; do
    room_of "$path"
    [ -n "$folder" ] && [ -n "${may_include[$folder]+set}" ] || continue
    target=${target#cairn/}
    target=${target#impl/}
    allowed=no
    for candidate in "$folder" ${may_include[$folder]}; do
      case $target in "$candidate" | "$candidate"/*) allowed=yes ;; esac
    done
    [ "$allowed" = yes ] ||
      breach "$path: includes <cairn/$target>, but $folder may include only itself${may_include[$folder]:+, ${may_include[$folder]// /, }}"
  done < <(search -oE "$include_begins<cairn/[^>]*>" <<<"$all" | sed -E 's/:.*<(.*)>/:\1/')
}

check_compiler() {
  local path
  [ -f include/cairn/system/compiler.hpp ] || return 0
  while IFS= read -r path; do
    case $path in include/cairn/system/compiler.hpp | /dev/null) continue ;; esac
    breach "$path: includes no other header of cairn, so it must include <cairn/system/compiler.hpp>"
  done < <(headers '*.hpp' '*.cuh' | search -LE "$include_begins<cairn/")
}

# list_bodies: what <cairn/implementation.hpp> has between its marks. Bodies of a page with a line `// opt-in: cairn::...` are of
# the component that it names.
list_bodies() {
  local path page component each
  local -A lists=()
  while IFS= read -r path; do
    page=include/cairn/${path#include/cairn/impl/}
    component=$(head -n 4 "${page%.ipp}.hpp" | sed -nE 's/^\/\/ opt-in: cairn::(.*)$/\1/p')
    lists[${component:-core}]+="#include <${path#include/}>"$'\n'
  done < <(find include/cairn/impl -name '*.ipp' | sort)
  printf '%s' "${lists[core]:-}"
  for each in s3 zstd parity interprocess mpi links; do
    [ -z "${lists[$each]:-}" ] || printf '#if defined(CAIRN_COMPILED_%s)\n%s#endif\n' "${each^^}" "${lists[$each]}"
  done
}

fix() {
  local page=include/cairn/implementation.hpp
  { sed '/^\/\/ bodies: begin/q' "$page" && list_bodies && sed -n '/^\/\/ bodies: end/,$p' "$page"; } >"$page.new"
  mv "$page.new" "$page"
}

check_bodies() {
  local path page target
  [ -d include/cairn/impl ] || return 0
  while IFS= read -r path; do
    page=include/cairn/${path#include/cairn/impl/}
    page=${page%.ipp}.hpp
    case $path in
      include/cairn/impl/*.ipp)
        grep -qF "#include <${path#include/}>" "$page" 2>/dev/null || breach "$path: $page does not include it" ;;
      *) breach "$path: bodies (*.ipp) lie in include/cairn/impl, and nothing else does" ;;
    esac
  done < <(find include/cairn \( -name '*.ipp' -o -path 'include/cairn/impl/*' -type f \) | sort)
  # A second page that brought bodies would bring them to those who asked for contracts alone. Beside the umbrella
  # lies what gathers all of them.
  while IFS=: read -r path target; do
    page=${path#include/cairn/}
    case $page in */*) ;; *) continue ;; esac
    [ "$target" = "cairn/impl/${page%.hpp}.ipp" ] || breach "$path: includes <$target>, the bodies of another page"
  done < <(grep -rHoE --include='*.hpp' --include='*.ipp' '^[[:space:]]*#[[:space:]]*include[[:space:]]*<cairn/impl/[^>]*>' include/cairn |
    sed -E 's/:.*<(.*)>/:\1/' | sort)
  page=include/cairn/implementation.hpp
  [ -f "$page" ] && [ "$(sed -n '/^\/\/ bodies: begin/,/^\/\/ bodies: end/p' "$page" | sed '1d;$d')" = "$(list_bodies)" ] ||
    breach "$page: does not list the bodies in include/cairn/impl; run 'bash tests/check_tree.sh --fix'"
}

check_error_pages() {
  local ids=include/cairn/system/error_ids.hpp page=docs/errors.md id
  if [ ! -f "$ids" ] || [ ! -f "$page" ]; then
    return 0
  fi
  local found=0
  while IFS= read -r id; do
    found=$((found + 1))
    grep -qE "^#+ .*\b$id\b" "$page" || breach "$page: no heading for the error id $id"
  done < <(sed -n '/^enum class error_id/,/^};/p' "$ids" | sed -nE 's/^[[:space:]]*([a-z][a-z0-9_]*) *=.*/\1/p')
  [ "$found" -gt 0 ] || breach "$ids: found no id in enum class error_id"
}

check() {
  cd "$1"
  breaches=0
  check_licences
  check_heavy_headers
  check_arrows
  check_compiler
  check_bodies
  check_error_pages
  if [ "$breaches" -gt 0 ]; then
    echo "check_tree: $breaches breaches of the tree's rules"
    return 1
  fi
  echo "check_tree: the tree keeps its rules"
}

# Every rule must notice its breach, and a tree without one must pass.
self_test() {
  local root failures=0
  root=$(mktemp -d)
  trap "rm -rf '$root'" EXIT
  local licence='// SPDX-License-Identifier: Apache-2.0'
  fresh() {
    rm -rf "$root/tree"
    mkdir -p "$root/tree/include/cairn/system" "$root/tree/include/cairn/model" "$root/tree/include/cairn/plan/load" "$root/tree/docs"
    printf '%s\n' "$licence" 'enum class error_id {' '  usage_one = 101,' '};' >"$root/tree/include/cairn/system/error_ids.hpp"
    printf '%s\n' "$licence" '#include <cairn/system/error_ids.hpp>' >"$root/tree/include/cairn/plan/a.hpp"
    printf '## 101 `usage_one`\n' >"$root/tree/docs/errors.md"
  }
  expect() {  # expect TITLE REGEX: REGEX empty means that the tree must pass
    local output status=0
    output=$( (check "$root/tree") 2>&1) || status=$?
    if { [ -z "$2" ] && [ "$status" -ne 0 ]; } || { [ -n "$2" ] && { [ "$status" -eq 0 ] || ! grep -qE "$2" <<<"$output"; }; }; then
      echo "check_tree self-test: '$1' was not told as it should be: $output"
      failures=$((failures + 1))
    fi
  }
  fresh
  expect "a good tree" ""
  fresh && echo 'int a;' >"$root/tree/include/cairn/model/b.hpp"
  expect "no licence" "b.hpp: no line 'SPDX"
  fresh && echo '#include <iostream>' >>"$root/tree/include/cairn/plan/a.hpp"
  expect "heavy header" 'a.hpp: includes <iostream>'
  fresh && echo '#include <cairn/plan/a.hpp>' >>"$root/tree/include/cairn/system/error_ids.hpp"
  expect "arrow upwards" 'error_ids.hpp: includes <cairn/plan/a.hpp>'
  fresh && echo "$licence" >"$root/tree/include/cairn/plan/load/e.hpp" && echo '#include <cairn/plan/a.hpp>' >>"$root/tree/include/cairn/plan/load/e.hpp"
  expect "arrow upwards within a room" 'e.hpp: includes <cairn/plan/a.hpp>'
  fresh && echo '#include "b.hpp"' >>"$root/tree/include/cairn/plan/a.hpp"
  expect "quotes" 'includes with quotes'
  fresh && mkdir "$root/tree/include/cairn/other" && echo "$licence" >"$root/tree/include/cairn/other/c.hpp"
  expect "unknown folder" 'not in the table'
  fresh && echo "$licence" | tee "$root/tree/include/cairn/system/compiler.hpp" >"$root/tree/include/cairn/plan/d.hpp"
  expect "a header that no compiler is asked for" 'd.hpp: includes no other header of cairn'
  fresh && mkdir -p "$root/tree/include/cairn/impl/plan" &&
    printf '%s\n' "$licence" '#include <cairn/plan/a.hpp>' >"$root/tree/include/cairn/impl/plan/a.ipp"
  expect "bodies that no page has" 'impl/plan/a.ipp: include/cairn/plan/a.hpp does not include it'
  echo '#include <cairn/impl/plan/a.ipp>' >>"$root/tree/include/cairn/plan/a.hpp"
  printf '%s\n' "$licence" '#include <cairn/version.hpp>' '// bodies: begin' '// bodies: end' >"$root/tree/include/cairn/implementation.hpp"
  expect "bodies that are not listed" 'implementation.hpp: does not list the bodies'
  (cd "$root/tree" && fix)
  expect "a page with its bodies" ""
  printf '%s\n' "$licence" '#include <cairn/impl/plan/a.ipp>' >"$root/tree/include/cairn/plan/d.hpp"
  expect "a page with the bodies of another" 'd.hpp: includes <cairn/impl/plan/a.ipp>, the bodies of another page'
  rm "$root/tree/include/cairn/plan/d.hpp" && mkdir "$root/tree/include/cairn/stage" "$root/tree/include/cairn/impl/stage" &&
    printf '%s\n' "$licence" '#include <cairn/impl/stage/b.ipp>' | tee "$root/tree/include/cairn/stage/b.hpp" >/dev/null &&
    printf '%s\n' "$licence" '#include <cairn/plan/a.hpp>' >"$root/tree/include/cairn/impl/stage/b.ipp"
  expect "bodies that climb" 'impl/stage/b.ipp: includes <cairn/plan/a.hpp>, but stage may include'
  fresh && echo '# Errors' >"$root/tree/docs/errors.md"
  expect "error without a page" 'no heading for the error id usage_one'
  if [ "$failures" -gt 0 ]; then
    return 1
  fi
  echo "check_tree self-test: every rule notices its breach"
}

if [ "${1:-}" = --self-test ]; then
  self_test
elif [ "${1:-}" = --fix ]; then
  cd "$(dirname "${BASH_SOURCE[0]}")/.."
  fix
else
  check "${1:-$(dirname "${BASH_SOURCE[0]}")/..}"
fi
