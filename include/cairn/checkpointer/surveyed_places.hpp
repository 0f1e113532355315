// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/surveyed_save.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What the places of a tier have, of which each is seen by some ranks: the same on all ranks. No message.
class surveyed_places {
 public:
  struct place {
    std::int32_t first = 0;           // rank, by which it is known
    std::vector<std::int32_t> ranks;  // that are there, ascending
    std::vector<surveyed_save> saves;
  };

  /// What a rank tells: `first` is the first rank of its place, which alone tells what is there.
  [[nodiscard]] static std::vector<std::byte> encode(std::int32_t rank, std::int32_t first,
                                                     std::span<const surveyed_save> saves);
  /// Replaces all by what the ranks told, in their order. @throws peer_error (peer_bad_message)
  void decode(std::span<const std::byte> told, std::int32_t ranks);

  /// Ascending by first rank.
  [[nodiscard]] const std::vector<place>& places() const noexcept { return places_; }
  /// What they have together.
  [[nodiscard]] const std::vector<surveyed_save>& saves() const noexcept { return all_; }
  /// Nothing was decoded yet.
  [[nodiscard]] bool empty() const noexcept { return first_of_.empty(); }
  [[nodiscard]] const place& of_rank(std::int32_t rank) const;
  /// Whether two ranks see the same place.
  [[nodiscard]] bool are_together(std::int32_t a, std::int32_t b) const {
    return first_of_[static_cast<std::size_t>(a)] == first_of_[static_cast<std::size_t>(b)];
  }
  /// A place that has something of a save for which `has(surveyed_save)` is true; null: none.
  template <class Has>
  [[nodiscard]] const place* place_with(const surveyed_save& save, const Has& has) const {
    for (const auto& p : places_)
      for (const auto& s : p.saves)
        if (s.is_same_save(save) && has(s)) return &p;
    return nullptr;
  }

 private:
  std::vector<std::int32_t> first_of_;  // the first rank of each rank's place
  std::vector<place> places_;
  std::vector<surveyed_save> all_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/checkpointer/surveyed_places.ipp>
#endif
