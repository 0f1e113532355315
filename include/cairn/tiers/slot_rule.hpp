// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace cairn {
inline namespace v1 {
namespace detail {

/// One of the images of a rank.
struct slot_state {
  std::uint64_t generation = 0;  ///< that it holds: a later save has a larger number; 0: it holds none
  bool in_use = false;    ///< being filled, being written to the store, or a worker of an earlier run has it
  bool allocated = true;  ///< its memory is there and has the right size
  bool has_pieces = false;  ///< other hosts keep pieces of what it holds
};

/// The image that the next save of a rank fills; nothing where all are in use or must stay. What it holds is given
/// up first. `newest_complete`: the newest generation that all ranks hold, at the moment of the choice; 0: none.
///
/// A generation is given up where a newer one is complete, the oldest first. Where that frees no image, the ranks
/// are apart, and the newest generation that is not complete goes: never the newest complete one, so that the ranks
/// always have one in common. The choice, and giving up what the image held, is one step that no other rank's
/// choice comes between; else two ranks could give up what each takes for safe with the other.
///
/// Images with pieces on other hosts go last, as a host that is lost is rebuilt from such saves; not `early`.
///
/// `early`: no save waits for the image yet, so that only one that holds nothing, or an older save than the newest
/// complete one, is given: the others may still become complete.
///
/// `untold`: the newest complete generation is what this rank was told, over links that may be slow or broken: later ones may be
/// complete as well. Ranks that train together are at most one save apart, so the oldest of these goes, and the newest one only
/// where nothing else may, but for a complete one with pieces.
[[nodiscard]] inline std::optional<std::size_t> choose_slot(std::span<const slot_state> slots,
                                                            std::uint64_t newest_complete, bool early = false,
                                                            bool untold = false) noexcept {
  std::uint64_t newest = 0;
  for (const auto& s : slots) newest = std::max(newest, s.generation);
  /// Those of a lower class go first.
  const auto class_of = [&](const slot_state& s) {
    if (s.generation == 0) return 0;
    if (s.generation < newest_complete) return s.has_pieces ? 5 : 1;
    if (!untold) return s.has_pieces ? 6 : 2;
    if (s.generation == newest) return 4;
    return s.has_pieces ? 3 : 2;
  };
  const auto goes_before = [&](const slot_state& a, const slot_state& b) {
    const auto of_a = class_of(a), of_b = class_of(b);
    if (of_a != of_b) return of_a < of_b;
    if (of_a == 0) return a.allocated && !b.allocated;
    const bool oldest = untold || a.generation < newest_complete;
    return oldest ? a.generation < b.generation : a.generation > b.generation;
  };
  std::optional<std::size_t> chosen;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const auto& s = slots[i];
    if (s.in_use || (early && class_of(s) > 1)) continue;
    if (s.generation != 0 && s.generation == newest_complete) continue;
    if (!chosen || goes_before(s, slots[*chosen])) chosen = i;
  }
  return chosen;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
