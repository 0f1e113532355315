// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/dtype.hpp>
#include <cairn/model/known_blocks.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/model/tensor_view.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/vector.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

[[nodiscard]] inline bool part_before(const item_key& a, const item_key& b) noexcept {
  return std::tie(a.name, a.box) < std::tie(b.name, b.box);
}

}  // namespace detail

CAIRN_BODY memory_range range_of(const tensor_view& view) noexcept {
  const auto at = reinterpret_cast<std::uintptr_t>(view.data);
  if (view.shape.volume() == 0) return {at, at};
  if (view.contiguous()) return {at, at + static_cast<std::uintptr_t>(view.bytes())};
  std::int64_t first = 0;  // elements; a view with strides is of no packed type
  std::int64_t last = 0;
  for (int d = 0; d < view.shape.rank(); ++d) {
    const auto reach = view.strides[static_cast<std::size_t>(d)] * (view.shape[d] - 1);
    (reach < 0 ? first : last) += reach;
  }
  const auto width = static_cast<std::int64_t>(bytes_of(view.type, 1));
  return {at + static_cast<std::uintptr_t>(first * width),
          at + static_cast<std::uintptr_t>((last + 1) * width)};
}

CAIRN_BODY const filled_memory* known_blocks::find(const std::shared_ptr<const void>& state,
                                                   const item_key& part) const noexcept {
  for (const auto& known : states_) {
    if (known.state != state) continue;
    const auto found =
        std::partition_point(known.parts.begin(), known.parts.end(),
                             [&](const filled_memory& p) { return detail::part_before(p.part, part); });
    return found != known.parts.end() && found->part == part ? &*found : nullptr;
  }
  return nullptr;
}

CAIRN_BODY void known_blocks::forget(detail::vector<memory_range> ranges) {
  detail::sort(ranges, [](const memory_range& a, const memory_range& b) { return a.begin < b.begin; });
  detail::vector<memory_range> joined;  // apart from each other, so that their ends ascend, too
  for (const auto& r : ranges) {
    if (r.begin == r.end) continue;
    if (!joined.empty() && r.begin <= joined.back().end)
      joined.back().end = std::max(joined.back().end, r.end);
    else
      joined.push_back(r);
  }
  for (auto& known : states_)
    detail::erase_if(known.parts, [&](const filled_memory& p) {
      const auto next = std::partition_point(joined.begin(), joined.end(),
                                             [&](const memory_range& r) { return r.end <= p.memory.begin; });
      return next != joined.end() && next->begin < p.memory.end;
    });
  detail::erase_if(states_, [](const known_state& known) {
    return known.parts.empty() || known.state.use_count() == 1;  // this one's alone
  });
}

CAIRN_BODY void known_blocks::put(const std::shared_ptr<const void>& state,
                                  detail::vector<filled_memory> parts) {
  detail::vector<memory_range> ranges;
  ranges.reserve(parts.size());
  for (const auto& p : parts) ranges.push_back(p.memory);
  forget(std::move(ranges));
  if (parts.empty()) return;
  known_state* known = nullptr;
  for (auto& k : states_)
    if (k.state == state) known = &k;
  if (known == nullptr) {
    states_.push_back({state, {}});
    known = &states_.back();
  }
  if (known->parts.empty())
    known->parts = std::move(parts);
  else
    for (auto& p : parts) known->parts.push_back(std::move(p));
  detail::sort(known->parts, [](const filled_memory& a, const filled_memory& b) {
    return detail::part_before(a.part, b.part);
  });
}

CAIRN_BODY std::uint64_t known_blocks::bytes() const noexcept {
  std::uint64_t sum = 0;
  for (const auto& known : states_)
    for (const auto& p : known.parts) sum += sizeof p + p.digests.capacity() * sizeof(std::uint64_t);
  return sum;
}

}  // namespace v1
}  // namespace cairn
