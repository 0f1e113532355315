#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks that a header-only program of one rank, which names no tier, no retention, no overlap and no check, has no code of them: each
# of these would cost every user's compiler.
# usage: check_unused.sh PROGRAM
set -euo pipefail
program=$1
if ! command -v nm >/dev/null; then
  echo "check_unused: nm is not installed (Debian and Ubuntu: apt-get install binutils)" >&2
  exit 1
fi
names=$(nm -C --defined-only "$program" | grep -oE 'cairn::v[0-9]+::detail::[a-z_]+::' | sort -u)
grep -q '::engine::$' <<<"$names" || { echo "check_unused: $program has no names, or is not header-only" >&2; exit 1; }
unused='held_saves|saves_with_pieces|tier_recovery|spread_recovery|collective_tree|windowed_exchange|shared_files_writing|balancer'
unused+='|policy_retaining|retention|scrubber|composed_copy_checks|copy_check|probing_check|unchanged_items'
if found=$(grep -E "::($unused)::\$" <<<"$names"); then
  printf 'check_unused: %s has code of what it does not name: only the composition that names it may reach it\n%s\n' "$program" "$found" >&2
  exit 1
fi
