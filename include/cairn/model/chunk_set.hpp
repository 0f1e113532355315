// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/chunk_progression.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/system/list_view.hpp>
#include <cairn/system/vector.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Progressions one behind another in 64-bit words: a single box of two dimensions takes 40 bytes.
class progression_words {
 public:
  void append(const chunk_progression& p);
  /// A single box whose offsets and sizes the caller fills in, before anything else is added.
  [[nodiscard]] list_view<std::int64_t> append_single(std::int32_t rank, int dimensions);
  /// The upper half of the first word of a single box.
  [[nodiscard]] static constexpr std::uint64_t single_head(int dimensions) noexcept {
    return static_cast<std::uint64_t>(dimensions) | static_cast<std::uint64_t>(dimensions) << 4;
  }
  void append(list_view<const std::int64_t> words);
  /// The progression that begins at `at`, which moves to the next one.
  [[nodiscard]] chunk_progression read(std::size_t& at) const noexcept;
  /// The first rank of the progression at `at`.
  [[nodiscard]] std::int32_t rank_at(std::size_t at) const noexcept {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(words_[at]));
  }
  /// True if the progression at `at` has axes.
  [[nodiscard]] bool has_axes(std::size_t at) const noexcept {
    return (static_cast<std::uint64_t>(words_[at]) >> 40 & 7) != 0;
  }
  /// Where the progression behind the one at `at` begins.
  [[nodiscard]] std::size_t next(std::size_t at) const noexcept;
  void truncate(std::size_t size) { words_.resize(size); }
  void reserve(std::size_t size) { words_.reserve(size); }
  void clear() noexcept { words_.clear(); }
  [[nodiscard]] std::size_t size() const noexcept { return words_.size(); }
  [[nodiscard]] list_view<const std::int64_t> view() const noexcept { return words_; }

 private:
  void take(extents& e, std::size_t& at, int rank) const noexcept;
  std::vector<std::int64_t> words_;
};

}  // namespace detail

/// The chunks of an item: boxes of one tensor with the ranks that wrote them, kept as progressions, so that
/// its size is that of their pattern and not of their number. Chunks are numbered from 0, progression by
/// progression; the numbers stay the same until something is added. A const chunk_set may be read by several
/// threads.
class chunk_set {
 public:
  chunk_set() = default;
  chunk_set(std::initializer_list<stored_chunk> chunks);
  /// The chunks of a list, in any order; finds the progressions in them. O(n log n).
  [[nodiscard]] static chunk_set from(detail::list_view<const stored_chunk> chunks);

  /// Adds a chunk; it lengthens the last progression where it goes on with it.
  void push_back(const stored_chunk& c) { append(single(c)); }
  /// Adds the chunks of a progression. Nothing is checked: see detail::progression_problem for those from
  /// outside.
  void append(const chunk_progression& p);
  /// Removes all chunks and gives their memory back.
  void clear() noexcept { *this = chunk_set(); }
  /// True if no progression goes on with the one before it, so that appending them one after another gives
  /// this set again. O(progressions).
  [[nodiscard]] bool is_joined() const noexcept;
  /// The same chunks with all progressions put together that go on with the one before them. O(progressions).
  [[nodiscard]] chunk_set joined() const;

  /// Chunks.
  [[nodiscard]] std::uint64_t size() const noexcept { return count_; }
  /// True if the set has no chunk.
  [[nodiscard]] bool empty() const noexcept { return count_ == 0; }
  /// Progressions that they make up.
  [[nodiscard]] std::size_t progressions() const noexcept { return progressions_; }
  /// Bytes of memory behind it.
  [[nodiscard]] std::size_t bytes() const noexcept {
    return words_.size() * sizeof(std::int64_t) + index_.size() * sizeof(mark);
  }

  /// The chunk of a number. O(log progressions). @pre index < size()
  [[nodiscard]] stored_chunk operator[](std::uint64_t index) const noexcept;

  /// They as they lie in memory: see detail::progression_words.
  [[nodiscard]] detail::list_view<const std::int64_t> words() const noexcept { return words_.view(); }
  /// visit(const chunk_progression&), in order.
  template <class Visit>
  void for_each_progression(Visit&& visit) const {
    for (std::size_t at = 0; at < words_.size();) visit(words_.read(at));
  }
  /// visit(index, const stored_chunk&, const chunk& common) for each chunk that has elements in common with
  /// `wanted`; in no particular order. O(progressions + visits).
  template <class Visit>
  void overlaps(const chunk& wanted, Visit&& visit) const {
    std::uint64_t before = 0;
    for_each_progression([&](const chunk_progression& p) {
      detail::visit_overlaps(p, wanted, [&](std::int64_t index, const stored_chunk& c, const chunk& common) {
        visit(before + static_cast<std::uint64_t>(index), c, common);
      });
      before += static_cast<std::uint64_t>(p.count());
    });
  }
  /// visit(index, const stored_chunk&) for each chunk of a rank. O(progressions).
  template <class Visit>
  void of_rank(std::int32_t rank, Visit&& visit) const {
    std::uint64_t before = 0;
    for_each_progression([&](const chunk_progression& p) {
      if (const auto index = p.index_of(rank))
        visit(before + static_cast<std::uint64_t>(*index), p.at(*index));
      before += static_cast<std::uint64_t>(p.count());
    });
  }
  /// visit(index, const stored_chunk&) for each chunk of the ranks from `first` on and below `last`; in no particular order. Of a
  /// progression it looks at as many chunks as it has, or as there are ranks, whichever are fewer.
  template <class Visit>
  void of_ranks(std::int32_t first, std::int32_t last, Visit&& visit) const {
    std::uint64_t before = 0;
    for_each_progression([&](const chunk_progression& p) {
      const auto count = p.count();
      const auto from = std::max(first, p.rank);
      const auto to = static_cast<std::int32_t>(std::min<std::int64_t>(last, p.last_rank() + 1));
      if (count <= to - from) {
        for (std::int64_t i = 0; i < count; ++i)
          if (const auto c = p.at(i); c.rank >= from && c.rank < to)
            visit(before + static_cast<std::uint64_t>(i), c);
      } else {
        for (auto rank = from; rank < to; ++rank)
          if (const auto i = p.index_of(rank)) visit(before + static_cast<std::uint64_t>(*i), p.at(*i));
      }
      before += static_cast<std::uint64_t>(count);
    });
  }

  /// Visits chunk by chunk. A position stays valid as long as the set is not changed.
  class iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = stored_chunk;
    using difference_type = std::ptrdiff_t;
    using pointer = const stored_chunk*;
    using reference = const stored_chunk&;

    iterator() = default;
    iterator(const chunk_set& set, bool at_end);
    reference operator*() const noexcept { return current_; }
    pointer operator->() const noexcept { return &current_; }
    iterator& operator++();
    iterator operator++(int);
    friend bool operator==(const iterator& a, const iterator& b) noexcept { return a.index_ == b.index_; }

   private:
    const chunk_set* set_ = nullptr;
    std::uint64_t index_ = 0;
    std::size_t next_ = 0;
    std::int64_t within_ = 0;
    chunk_progression p_;
    stored_chunk current_;
  };
  /// The first chunk. Each step makes the next chunk from its progression; O(axes).
  [[nodiscard]] iterator begin() const { return {*this, false}; }
  /// One past the last chunk; a change of the set invalidates iterators.
  [[nodiscard]] iterator end() const { return {*this, true}; }

  /// All of them in a list, in the order of their numbers. O(chunks): not for large worlds.
  [[nodiscard]] std::vector<stored_chunk> expand() const;
  /// The same, sorted by box and then by rank.
  [[nodiscard]] std::vector<stored_chunk> sorted() const;

  /// The same chunks, however they are put together. O(progressions) where they are put together alike, else
  /// O(chunks x log).
  friend bool operator==(const chunk_set& a, const chunk_set& b) { return a.same_as(b); }

 private:
  static constexpr std::size_t every = 16;  ///< progressions for each mark
  struct mark {
    std::uint64_t before;  ///< chunks before
    std::size_t word;
  };

  [[nodiscard]] bool same_as(const chunk_set& other) const;
  static chunk_progression single(const stored_chunk& c);
  void add(const chunk_progression& p);

  detail::progression_words words_;
  detail::vector<mark> index_;
  std::uint64_t count_ = 0;
  std::size_t progressions_ = 0;
  std::size_t last_ = 0;  ///< where the last progression begins
  std::int64_t last_count_ = 0;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/model/chunk_set.ipp>
#endif
