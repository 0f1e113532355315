// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/chunk_progression.hpp>
#include <cairn/model/chunk_set.hpp>
#include <cairn/model/dtype.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/model/item.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/system/list_view.hpp>
#include <cairn/system/vector.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cairn {
inline namespace v1 {

/// What ranks hold of one name with one definition. Another definition of the same name is another item,
/// a conflict that validation reports. Belongs to a plan_summary, which has its name and boxes.
struct summary_item {
  item_kind kind = item_kind::tensor;
  dtype type = dtype::u8;   ///< of the elements
  bool per_rank = false;    ///< each rank has an item of its own under this name
  extents global;           ///< the shape of the whole tensor; of a bytes item empty
  std::uint32_t boxes = 0;  ///< progressions of what ranks hold
  /// Progressions of ranks that know the item and hold nothing of it (empty shards).
  std::uint32_t without = 0;
  std::uint32_t name_size = 0;  ///< bytes of the name
  std::size_t name_begin = 0;   ///< where it begins in the summary's string of names
  std::size_t words = 0;        ///< where its progressions begin: those of boxes, then those of `without`

  /// Dimensions of the boxes in its progressions: those of a bytes item are [0, size), the size rounded (see
  /// rounded_bytes).
  [[nodiscard]] int dimensions() const noexcept { return kind == item_kind::bytes ? 1 : global.rank(); }
};

/// What a set of ranks would write: the summary_type of default_planner. Each item has its boxes and the
/// ranks that hold them as progressions, so that its size depends on the pattern in which tensors are sharded
/// and replicated, not on the number of ranks. A box that is in no pattern is a progression of one
/// chunk. Items are sorted by name, then definition. All names are in one string and all numbers in one
/// vector, so that a summary costs four allocations and not one for each item.
class plan_summary {
 public:
  [[nodiscard]] std::size_t size() const noexcept { return items_.size(); }
  /// True if no rank holds or knows any item.
  [[nodiscard]] bool empty() const noexcept { return items_.empty(); }
  [[nodiscard]] const summary_item& operator[](std::size_t i) const noexcept { return items_[i]; }
  /// The name of an item; valid until the summary is changed. @pre i < size()
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
  [[nodiscard]] bool holds(std::size_t i, std::int32_t rank, const chunk& box) const noexcept;
  /// The first item of a name, or size(). O(log n).
  [[nodiscard]] std::size_t find(std::string_view wanted) const noexcept;
  /// Bytes of memory behind it.
  [[nodiscard]] std::size_t bytes() const noexcept;

  // For those who make one: items in order, each followed by its progressions.
  /// Makes room for so many items, bytes of names and numbers of progressions in all.
  void reserve(std::size_t items, std::size_t names, std::size_t words);
  /// An item without progressions; `name` must not lie in this summary.
  summary_item& add(std::string_view name, const summary_item& definition);
  void append(const chunk_progression& p) { words_.append(p); }
  /// A box without axes, whose offsets and sizes the caller fills in before anything else is added.
  [[nodiscard]] detail::list_view<std::int64_t> append_single(std::int32_t rank, int dimensions) {
    return words_.append_single(rank, dimensions);
  }
  /// `count` progressions of another summary, from `at` on, which moves behind them.
  void append(const plan_summary& from, std::size_t& at, std::size_t count);
  /// Adds item i of another summary, with its name and all its progressions.
  void append_item(const plan_summary& from, std::size_t i);
  /// The numbers of all progressions; those of an item begin at summary_item::words.
  [[nodiscard]] detail::list_view<const std::int64_t> numbers() const noexcept { return words_.view(); }
  [[nodiscard]] chunk_progression read(std::size_t& at) const noexcept { return words_.read(at); }
  /// Numbers that the progressions of all items take.
  [[nodiscard]] std::size_t words() const noexcept { return words_.size(); }
  /// Bytes that all names take.
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
  [[nodiscard]] chunk_set chunks(std::size_t i, bool boxes) const;

  std::string names_;
  detail::vector<summary_item> items_;
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
[[nodiscard]] std::int64_t rounded_bytes(std::uint64_t bytes) noexcept;

/// Negative, zero or positive, as the first definition sorts before, with, or behind the second.
[[nodiscard]] int compare(std::string_view name_a, const summary_item& a, std::string_view name_b,
                          const summary_item& b) noexcept;

}  // namespace detail

/// One rank's plan as a summary. O(n log n) in the items of the plan, O(n) where they are sorted by name.
[[nodiscard]] plan_summary summarise_plan(const save_plan& plan, int rank);

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/plan/summary/summary.ipp>
#endif
