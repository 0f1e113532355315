// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/chunk_codec.hpp>
#include <cairn/plan/summary/summary.hpp>
#include <cairn/plan/summary/summary_codec.hpp>
#include <cairn/system/algorithm.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Names of a summary are shortened by what they share with the one before, as long as all of them together
/// are not longer than this: what a message unfolds to is limited.
inline constexpr std::size_t max_shared_names = std::size_t{16} << 20;

[[nodiscard]] inline std::size_t shared_prefix(std::string_view before, std::string_view name,
                                               std::size_t names_so_far) noexcept {
  if (names_so_far > max_shared_names) return 0;
  const auto shorter = std::min(before.size(), name.size());
  return static_cast<std::size_t>(
      std::mismatch(before.begin(), before.begin() + static_cast<std::ptrdiff_t>(shorter), name.begin())
          .first -
      before.begin());
}

}  // namespace detail

CAIRN_BODY void encode(compact_writer& out, const plan_summary& summary) {
  out.reserve(summary.size() * 24 + summary.words() * 3);
  out.number(std::uint64_t{summary.size()});
  std::string_view before;
  std::size_t names = 0;
  for (std::size_t n = 0; n < summary.size(); ++n) {
    const auto& i = summary[n];
    const auto name = summary.name(n);
    const auto shared = detail::shared_prefix(before, name, names);
    out.number(std::uint64_t{shared}).number(std::uint64_t{name.size() - shared}).raw(name.substr(shared));
    out.byte(static_cast<std::uint8_t>(static_cast<unsigned>(i.kind) | (i.per_rank ? 4u : 0u) |
                                       static_cast<unsigned>(i.global.rank()) << 3));
    out.byte(static_cast<std::uint8_t>(i.type));
    for (const auto size : i.global) out.number(size);
    out.number(std::uint64_t{i.boxes}).number(std::uint64_t{i.without});
    auto at = i.words;
    encode(out, summary.numbers(), at, std::size_t{i.boxes} + i.without);
    before = name;
    names += name.size();
  }
}

CAIRN_BODY plan_summary decode_plan_summary(compact_reader& in) {
  plan_summary summary;
  const auto count = in.count(6);
  summary.reserve(count, count * 32, in.left());
  std::string name;
  chunk_progression p;
  for (std::size_t n = 0; n < count; ++n) {
    const auto shared = static_cast<std::size_t>(in.number(name.size()));
    const auto rest = static_cast<std::size_t>(in.number(max_item_name));
    if (shared + rest > max_item_name) in.fail_here("a name is longer than allowed");
    const auto text = in.text(rest);
    // Names ascend; the check below refuses one that shares less with the last than it could.
    if (shared > 0 && summary.names() > detail::max_shared_names)
      in.fail_here("the common prefixes of names are longer than allowed");
    if (summary.names() <= detail::max_shared_names && shared < name.size() && rest > 0 &&
        name[shared] == text[0])
      in.fail_here("a name has a longer common prefix with the one before than it claims");
    name.resize(shared);
    name.append(text);
    summary_item i;
    const auto flags = in.byte();
    if ((flags & 3) > static_cast<unsigned>(item_kind::bytes)) in.fail_here("unknown kind");
    i.kind = static_cast<item_kind>(flags & 3);
    i.per_rank = (flags & 4) != 0;
    if (flags >> 3 > extents::max_rank) in.fail_here("a shape has more than eight dimensions");
    i.global = extents::zeros(flags >> 3);
    const auto type = in.byte();
    if (type > static_cast<std::uint8_t>(last_dtype)) in.fail_here("unknown dtype");
    i.type = static_cast<dtype>(type);
    for (int d = 0; d < i.global.rank(); ++d) i.global.set(d, in.signed_number());
    const auto at = summary.size();
    const auto dimensions = i.dimensions();
    auto& made = summary.add(name, i);
    if (at > 0 && detail::compare(summary.name(at - 1), summary[at - 1], summary.name(at), made) >= 0)
      in.fail_here("items are out of order");
    made.boxes = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(in.count(1), std::numeric_limits<std::uint32_t>::max()));
    made.without = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(in.count(1), std::numeric_limits<std::uint32_t>::max()));
    if (made.boxes == 0 && made.without == 0) in.fail_here("an item of no rank");
    if (i.kind == item_kind::bytes && made.without > 0)
      in.fail_here("a rank lists bytes that it does not hold");
    for (std::uint32_t k = 0; k < made.boxes; ++k) {
      const auto head = detail::decode_progression_head(in);
      if (i.kind != item_kind::bytes && (head & 7) == 0) {  // without a pattern they are many
        const auto numbers = summary.append_single(static_cast<std::int32_t>(head >> 3), dimensions);
        detail::decode_single_box(in, numbers);
        for (const auto v : numbers.subspan(numbers.size() / 2))
          if (v == 0) in.fail_here("a box that no rank could hold");
        continue;
      }
      detail::decode_progression_body(in, head, dimensions, p);
      const bool empty = detail::contains(p.first.sizes, 0);
      if (i.kind == item_kind::bytes ? p.first.offsets[0] != 0 || !(p.last_box() == p.first) : empty)
        in.fail_here("a box that no rank could hold");
      summary.append(p);
    }
    for (std::uint32_t k = 0; k < made.without; ++k) {
      decode_progression(in, 0, p);
      summary.append(p);
    }
  }
  return summary;
}

}  // namespace v1
}  // namespace cairn
