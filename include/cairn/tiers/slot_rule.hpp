// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

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
[[nodiscard]] inline std::optional<std::size_t> choose_slot(std::span<const slot_state> slots,
                                                            std::uint64_t newest_complete,
                                                            bool early = false) noexcept {
  std::optional<std::size_t> chosen;
  const auto better = [&](std::size_t i) {
    if (!chosen) return true;
    const auto& now = slots[*chosen];
    const auto& other = slots[i];
    if ((now.generation == 0) != (other.generation == 0)) return other.generation == 0;
    if (now.generation == 0) return other.allocated && !now.allocated;
    const bool now_old = now.generation < newest_complete;
    const bool other_old = other.generation < newest_complete;
    if (now_old != other_old) return other_old;
    return now_old ? other.generation < now.generation : other.generation > now.generation;
  };
  const auto may_go = [&](const slot_state& s) {
    if (s.in_use) return false;
    if (s.generation == 0) return true;
    return early ? s.generation < newest_complete : s.generation != newest_complete;
  };
  for (std::size_t i = 0; i < slots.size(); ++i)
    if (!slots[i].has_pieces && may_go(slots[i]) && better(i)) chosen = i;
  const bool found = chosen.has_value();
  for (std::size_t i = 0; i < slots.size() && !found && !early; ++i)
    if (slots[i].has_pieces && may_go(slots[i]) && better(i)) chosen = i;
  return chosen;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
