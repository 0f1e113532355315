// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/chunk_set.hpp>
#include <cairn/model/item.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/system/list_view.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

/// What ranks say of one name under one definition. Another definition of the same name is another item
/// beside it: a conflict that validation reports. Belongs to a plan_summary, which knows its name and boxes.
struct summary_item {
  item_kind kind = item_kind::tensor;
  dtype type = dtype::u8;
  bool per_rank = false;
  extents global;
  std::uint32_t boxes = 0;  ///< progressions of what ranks hold
  std::uint32_t without =
      0;  ///< progressions of ranks that know the item and hold nothing of it (empty shards)
  std::uint32_t name_size = 0;
  std::size_t name_begin = 0;
  std::size_t words = 0;  ///< where its progressions begin: those of boxes, then those of `without`

  /// Dimensions of the boxes in its progressions: those of a bytes item are [0, size), the size rounded (see
  /// rounded_bytes).
  [[nodiscard]] int dimensions() const noexcept { return kind == item_kind::bytes ? 1 : global.rank(); }
};

/// What a set of ranks would write: the summary_type of default_planner. Each item has its boxes and the
/// ranks that hold them as progressions, so that its size is that of the pattern in which tensors are sharded
/// and replicated, not that of the number of ranks. Boxes that follow no pattern are progressions of one
/// chunk. Items are sorted by name, then definition. All names lie in one string and all numbers in one
/// vector, so that a summary costs four allocations and not one for each item.
class plan_summary {
 public:
  [[nodiscard]] std::size_t size() const noexcept { return items_.size(); }
  [[nodiscard]] bool empty() const noexcept { return items_.empty(); }
  [[nodiscard]] const summary_item& operator[](std::size_t i) const noexcept { return items_[i]; }
  [[nodiscard]] std::string_view name(std::size_t i) const noexcept {
    return std::string_view(names_).substr(items_[i].name_begin, items_[i].name_size);
  }
  /// visit(const chunk_progression&) for the boxes of an item and who holds them, replicas included.
  template <class Visit>
  void for_each_box(std::size_t i, Visit&& visit) const {
    auto at = items_[i].words;
    for (std::uint32_t k = 0; k < items_[i].boxes; ++k) visit(words_.read(at));
  }
  /// The same, but for boxes that stand alone (no axes) single(rank, offsets, sizes) is called, the last two
  /// as spans: far cheaper for items whose many boxes follow no pattern. Either may return false to end it.
  template <class Single, class Visit>
  void for_each_box(std::size_t i, Single&& single, Visit&& visit) const {
    const auto words = words_.view();
    const auto dimensions = static_cast<std::size_t>(items_[i].dimensions());
    const auto alone = words_.single_head(items_[i].dimensions());
    auto at = items_[i].words;
    for (std::uint32_t k = 0; k < items_[i].boxes; ++k) {
      const auto head = static_cast<std::uint64_t>(words[at]);
      if (head >> 32 != alone) {
        if (!visit(words_.read(at))) return;
        continue;
      }
      if (!single(static_cast<std::int32_t>(static_cast<std::uint32_t>(head)),
                  words.subspan(at + 1, dimensions), words.subspan(at + 1 + dimensions, dimensions)))
        return;
      at += 1 + 2 * dimensions;
    }
  }
  /// visit(const chunk_progression&) for the ranks that hold nothing of it.
  template <class Visit>
  void for_each_without(std::size_t i, Visit&& visit) const {
    auto at = items_[i].words;
    for (std::uint32_t k = 0; k < items_[i].boxes; ++k) at = words_.next(at);
    for (std::uint32_t k = 0; k < items_[i].without; ++k) visit(words_.read(at));
  }
  /// True if a rank holds a box of an item. O(progressions), those with axes above all.
  [[nodiscard]] bool holds(std::size_t i, std::int32_t rank, const chunk& box) const noexcept {
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
  /// The first item of a name, or size(). O(log n).
  [[nodiscard]] std::size_t find(std::string_view wanted) const noexcept {
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
  /// Bytes of memory behind it.
  [[nodiscard]] std::size_t bytes() const noexcept {
    return names_.size() + items_.size() * sizeof(summary_item) + words_.size() * sizeof(std::int64_t);
  }

  // For those who make one: items in order, each followed by its progressions.
  void reserve(std::size_t items, std::size_t names, std::size_t words) {
    items_.reserve(items);
    names_.reserve(names);
    words_.reserve(words);
  }
  /// An item without progressions; `name` must not lie in this summary.
  summary_item& add(std::string_view name, const summary_item& definition) {
    auto& item = items_.emplace_back(definition);
    item.name_begin = names_.size();
    item.name_size = static_cast<std::uint32_t>(name.size());
    item.words = words_.size();
    item.boxes = item.without = 0;
    names_.append(name);
    return item;
  }
  void append(const chunk_progression& p) { words_.append(p); }
  /// A box without axes, whose offsets and sizes the caller fills in before anything else is added.
  [[nodiscard]] detail::list_view<std::int64_t> append_single(std::int32_t rank, int dimensions) {
    return words_.append_single(rank, dimensions);
  }
  /// `count` progressions of another summary, from `at` on, which moves behind them.
  void append(const plan_summary& from, std::size_t& at, std::size_t count) {
    const auto begin = at;
    for (; count > 0; --count) at = from.words_.next(at);
    words_.append(from.words_.view().subspan(begin, at - begin));
  }
  void append_item(const plan_summary& from, std::size_t i) {
    const auto& source = from.items_[i];
    auto& item = add(from.name(i), source);
    item.boxes = source.boxes;
    item.without = source.without;
    const auto end = i + 1 < from.size() ? from.items_[i + 1].words : from.words_.size();
    words_.append(from.words_.view().subspan(source.words, end - source.words));
  }
  /// The numbers of all progressions; those of an item begin at summary_item::words.
  [[nodiscard]] detail::list_view<const std::int64_t> numbers() const noexcept { return words_.view(); }
  [[nodiscard]] chunk_progression read(std::size_t& at) const noexcept { return words_.read(at); }
  [[nodiscard]] std::size_t words() const noexcept { return words_.size(); }
  [[nodiscard]] std::size_t names() const noexcept { return names_.size(); }

  /// The same items, boxes and ranks, however they are put together: merging ranks in another order may
  /// divide them otherwise. O(progressions) where they are put together alike, else O(chunks x log).
  friend bool operator==(const plan_summary& a, const plan_summary& b) {
    if (a.size() != b.size()) return false;
    for (std::size_t i = 0; i < a.size(); ++i) {
      const auto& p = a.items_[i];
      const auto& q = b.items_[i];
      if (a.name(i) != b.name(i) || p.kind != q.kind || p.type != q.type || p.per_rank != q.per_rank ||
          !(p.global == q.global) || !(a.chunks(i, true) == b.chunks(i, true)) ||
          !(a.chunks(i, false) == b.chunks(i, false)))
        return false;
    }
    return true;
  }

 private:
  [[nodiscard]] chunk_set chunks(std::size_t i, bool boxes) const {
    chunk_set out;
    const auto add = [&](const chunk_progression& p) { out.append(p); };
    if (boxes)
      for_each_box(i, add);
    else
      for_each_without(i, add);
    return out;
  }

  std::string names_;
  std::vector<summary_item> items_;
  detail::progression_words words_;
};

namespace detail {
/// True for an item that carries a definition and no data: what local_plan gives for an empty shard.
[[nodiscard]] inline bool definition_only(const write_item& i) noexcept {
  return i.kind != item_kind::bytes && i.bytes == 0;
}

/// The size of a bytes item as summaries know it, which use it to balance writes only: the highest five bits,
/// and up to 64 KiB the highest bit, rounded up; so that sizes that differ a little from rank to rank make
/// one progression.
[[nodiscard]] inline std::int64_t rounded_bytes(std::uint64_t bytes) noexcept {
  const auto kept = bytes <= 65536 ? 1 : 5;
  const int drop = std::max(0, static_cast<int>(std::bit_width(bytes)) - kept);
  const auto unit = std::uint64_t{1} << std::min(drop, 58);
  return static_cast<std::int64_t>(std::min((bytes + unit - 1) / unit * unit, std::uint64_t{1} << 62));
}

/// Negative, zero or positive, as the first definition sorts before, with, or behind the second.
[[nodiscard]] inline int compare(std::string_view name_a, const summary_item& a, std::string_view name_b,
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

/// One rank's plan as a summary. O(n log n) in the items of the plan, O(n) where they are sorted by name.
[[nodiscard]] inline plan_summary summarise_plan(const save_plan& plan, int rank) {
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
  if (!std::is_sorted(order.begin(), order.end(), before))
    std::stable_sort(order.begin(), order.end(), before);
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
