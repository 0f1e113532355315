// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/read_exchange.hpp>
#include <cairn/model/chunk_set.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/rank_set.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Boxes of one stored tensor that ranks want.
struct wanted_item {
  std::string name;
  extents global;
  chunk_set boxes;
};
/// What some ranks want of a checkpoint; sorted by name. Its size is that of the pattern of what they want.
using wanted_items = std::vector<wanted_item>;

/// What one rank wants: boxes of the stored tensors, and the ranks whose records it needs. Per-rank items are
/// nobody else's and left out, unless `all` is wanted: then each is known by its per_rank_key(). O(items of the plan).
[[nodiscard]] wanted_items requests_of(const metadata& stored, const load_plan& plan, int rank,
                                       bool all = false);

/// What both want; `a` is of lower ranks. O(a + b).
[[nodiscard]] wanted_items merge_wants(wanted_items a, wanted_items b);

[[nodiscard]] std::vector<std::byte> encode_wants(const wanted_items& wants);
/// @throws peer_error on what is none.
[[nodiscard]] wanted_items decode_wants(std::span<const std::byte> bytes, int world_size);

/// What all ranks want. Its virtual functions are inline: a class with another one is compiled in each program.
class read_requests final : public shared_wants {
 public:
  explicit read_requests(wanted_items items) : items_(std::move(items)) {}

  /// O(progressions + ranks that want them).
  void overlapping(std::string_view name, const chunk& box, std::vector<wanted_box>& out) override {
    find_overlapping(name, box, out);
  }
  [[nodiscard]] rank_sets& sets() noexcept override { return sets_; }

 private:
  void find_overlapping(std::string_view name, const chunk& box, std::vector<wanted_box>& out);

  wanted_items items_;
  rank_sets sets_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/plan/load/read_requests.ipp>
#endif
