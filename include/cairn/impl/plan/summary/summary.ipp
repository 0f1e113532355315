// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/chunk_set.hpp>
#include <cairn/model/item.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/plan/summary/summary.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/list_view.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string_view>
#include <vector>

namespace cairn {
inline namespace v1 {

CAIRN_BODY bool plan_summary::holds(std::size_t i, std::int32_t rank, const chunk& box) const noexcept {
  auto at = items_[i].words;
  for (std::uint32_t k = 0; k < items_[i].boxes; ++k, at = words_.next(at)) {
    const auto first = words_.rank_at(at);
    if (first > rank || (first != rank && !words_.has_axes(at))) continue;
    auto from = at;
    const auto p = words_.read(from);
    const auto index = p.index_of(rank);
    if (index && (items_[i].kind == item_kind::bytes || p.at(*index).box == box)) return true;
  }
  return false;
}

CAIRN_BODY std::size_t plan_summary::find(std::string_view wanted) const noexcept {
  std::size_t low = 0;
  std::size_t high = size();
  while (low < high) {
    const auto middle = (low + high) / 2;
    if (name(middle) < wanted)
      low = middle + 1;
    else
      high = middle;
  }
  return low < size() && name(low) == wanted ? low : size();
}

CAIRN_BODY std::size_t plan_summary::bytes() const noexcept {
  return names_.size() + items_.size() * sizeof(summary_item) + words_.size() * sizeof(std::int64_t);
}

CAIRN_BODY void plan_summary::reserve(std::size_t items, std::size_t names, std::size_t words) {
  items_.reserve(items);
  names_.reserve(names);
  words_.reserve(words);
}

CAIRN_BODY summary_item& plan_summary::add(std::string_view name, const summary_item& definition) {
  items_.push_back(definition);
  auto& item = items_.back();
  item.name_begin = names_.size();
  item.name_size = static_cast<std::uint32_t>(name.size());
  item.words = words_.size();
  item.boxes = item.without = 0;
  names_.append(name);
  return item;
}

CAIRN_BODY void plan_summary::append(const plan_summary& from, std::size_t& at, std::size_t count) {
  const auto begin = at;
  for (; count > 0; --count) at = from.words_.next(at);
  words_.append(from.words_.view().subspan(begin, at - begin));
}

CAIRN_BODY void plan_summary::append_item(const plan_summary& from, std::size_t i) {
  const auto& source = from.items_[i];
  auto& item = add(from.name(i), source);
  item.boxes = source.boxes;
  item.without = source.without;
  const auto end = i + 1 < from.size() ? from.items_[i + 1].words : from.words_.size();
  words_.append(from.words_.view().subspan(source.words, end - source.words));
}

CAIRN_BODY chunk_set plan_summary::chunks(std::size_t i, bool boxes) const {
  chunk_set out;
  const auto add = [&](const chunk_progression& p) { out.append(p); };
  if (boxes)
    for_each_box(i, add);
  else
    for_each_without(i, add);
  return out;
}

namespace detail {

CAIRN_BODY std::int64_t rounded_bytes(std::uint64_t bytes) noexcept {
  const auto kept = bytes <= 65536 ? 1 : 5;
  const int drop = std::max(0, static_cast<int>(std::bit_width(bytes)) - kept);
  const auto unit = std::uint64_t{1} << std::min(drop, 58);
  return static_cast<std::int64_t>(std::min((bytes + unit - 1) / unit * unit, std::uint64_t{1} << 62));
}

CAIRN_BODY int compare(std::string_view name_a, const summary_item& a, std::string_view name_b,
                       const summary_item& b) noexcept {
  if (const int c = name_a.compare(name_b); c != 0) return c;
  if (a.kind != b.kind) return a.kind < b.kind ? -1 : 1;
  if (a.type != b.type) return a.type < b.type ? -1 : 1;
  if (a.per_rank != b.per_rank) return b.per_rank ? -1 : 1;
  return a.global == b.global ? 0 : a.global < b.global ? -1 : 1;
}

[[nodiscard]] inline summary_item definition_of(const write_item& i) {
  summary_item d;
  d.kind = i.kind, d.type = i.type, d.per_rank = i.flags.per_rank, d.global = i.global;
  return d;
}

}  // namespace detail

CAIRN_BODY plan_summary summarise_plan(const save_plan& plan, int rank) {
  std::vector<std::uint32_t> order(plan.items.size());
  std::iota(order.begin(), order.end(), 0u);
  const auto before = [&](std::uint32_t x, std::uint32_t y) {
    const auto& a = plan.items[x];
    const auto& b = plan.items[y];
    if (const int c = a.name.compare(b.name); c != 0) return c < 0;
    if (const int c = detail::compare({}, detail::definition_of(a), {}, detail::definition_of(b)); c != 0)
      return c < 0;
    if (detail::definition_only(a) != detail::definition_only(b)) return detail::definition_only(b);
    return a.box < b.box;
  };
  detail::sort(order, before);
  plan_summary out;
  std::size_t names = 0;
  for (const auto& i : plan.items) names += i.name.size();
  out.reserve(plan.items.size(), names, plan.items.size() * 5);
  summary_item* item = nullptr;
  std::uint32_t last = 0;
  for (const auto index : order) {
    const auto& i = plan.items[index];
    const auto definition = detail::definition_of(i);
    if (item == nullptr || detail::compare(plan.items[last].name, *item, i.name, definition) != 0)
      item = &out.add(i.name, definition);
    last = index;
    chunk_progression p;
    p.rank = rank;
    if (detail::definition_only(i)) {
      ++item->without;
    } else {
      ++item->boxes;
      p.first = i.kind == item_kind::bytes ? whole({detail::rounded_bytes(i.bytes)}) : i.box;
    }
    out.append(p);
  }
  return out;
}

}  // namespace v1
}  // namespace cairn
