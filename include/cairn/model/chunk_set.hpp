// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/chunk_progression.hpp>
#include <cairn/system/list_view.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Progressions one behind another in 64-bit words: a single box of two dimensions takes 40 bytes.
class progression_words {
 public:
  void append(const chunk_progression& p) {
    const auto offsets = static_cast<std::uint64_t>(p.first.offsets.rank());
    const auto sizes = static_cast<std::uint64_t>(p.first.sizes.rank());
    auto head = std::uint64_t{static_cast<std::uint32_t>(p.rank)} | offsets << 32 | sizes << 36 |
                static_cast<std::uint64_t>(p.axis_count) << 40;
    int shift = 43;
    for (const auto& a : p) {
      head |= static_cast<std::uint64_t>(a.dimension + 1) << shift;
      shift += 4;
    }
    const auto begin = words_.size();
    words_.resize(begin + 1 + offsets + sizes + 2 * static_cast<std::size_t>(p.axis_count));
    auto* to = words_.data() + begin;
    *to++ = static_cast<std::int64_t>(head);
    for (const auto v : p.first.offsets) *to++ = v;
    for (const auto v : p.first.sizes) *to++ = v;
    for (const auto& a : p) {
      *to++ = static_cast<std::int64_t>(std::uint64_t{static_cast<std::uint32_t>(a.count)} << 32 |
                                        static_cast<std::uint32_t>(a.rank_step));
      *to++ = a.offset_step;
    }
  }
  /// A single box whose offsets and sizes the caller fills in, before anything else is added.
  [[nodiscard]] list_view<std::int64_t> append_single(std::int32_t rank, int dimensions) {
    const auto numbers = static_cast<std::uint64_t>(dimensions);
    const auto begin = words_.size();
    words_.resize(begin + 1 + 2 * numbers);
    words_[begin] =
        static_cast<std::int64_t>(single_head(dimensions) << 32 | static_cast<std::uint32_t>(rank));
    return list_view<std::int64_t>(words_).subspan(begin + 1);
  }
  /// The upper half of the first word of a single box.
  [[nodiscard]] static constexpr std::uint64_t single_head(int dimensions) noexcept {
    return static_cast<std::uint64_t>(dimensions) | static_cast<std::uint64_t>(dimensions) << 4;
  }
  void append(list_view<const std::int64_t> words) {
    words_.insert(words_.end(), words.begin(), words.end());
  }
  /// The progression that begins at `at`, which moves to the next one.
  [[nodiscard]] chunk_progression read(std::size_t& at) const noexcept {
    chunk_progression p;
    const auto head = static_cast<std::uint64_t>(words_[at++]);
    p.rank = static_cast<std::int32_t>(static_cast<std::uint32_t>(head));
    take(p.first.offsets, at, static_cast<int>(head >> 32 & 15));
    take(p.first.sizes, at, static_cast<int>(head >> 36 & 15));
    p.axis_count = static_cast<std::int32_t>(head >> 40 & 7);
    for (int k = 0; k < p.axis_count; ++k) {
      auto& a = p.axes[static_cast<std::size_t>(k)];
      const auto counts = static_cast<std::uint64_t>(words_[at++]);
      a.count = static_cast<std::int32_t>(counts >> 32);
      a.rank_step = static_cast<std::int32_t>(static_cast<std::uint32_t>(counts));
      a.dimension = static_cast<std::int32_t>(head >> (43 + 4 * k) & 15) - 1;
      a.offset_step = words_[at++];
    }
    return p;
  }
  /// The first rank of the progression at `at`.
  [[nodiscard]] std::int32_t rank_at(std::size_t at) const noexcept {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(words_[at]));
  }
  /// True if the progression at `at` has axes.
  [[nodiscard]] bool has_axes(std::size_t at) const noexcept {
    return (static_cast<std::uint64_t>(words_[at]) >> 40 & 7) != 0;
  }
  /// Where the progression behind the one at `at` begins.
  [[nodiscard]] std::size_t next(std::size_t at) const noexcept {
    const auto head = static_cast<std::uint64_t>(words_[at]);
    return at + 1 + static_cast<std::size_t>((head >> 32 & 15) + (head >> 36 & 15) + 2 * (head >> 40 & 7));
  }
  /// Makes all ranks so much higher.
  void move_ranks(std::int32_t by) noexcept {
    for (std::size_t at = 0; at < words_.size(); at = next(at)) {
      const auto head = static_cast<std::uint64_t>(words_[at]);
      words_[at] = static_cast<std::int64_t>((head & ~std::uint64_t{0xffffffff}) |
                                             static_cast<std::uint32_t>(rank_at(at) + by));
    }
  }
  void truncate(std::size_t size) { words_.resize(size); }
  void reserve(std::size_t size) { words_.reserve(size); }
  void clear() noexcept { words_.clear(); }
  [[nodiscard]] std::size_t size() const noexcept { return words_.size(); }
  [[nodiscard]] list_view<const std::int64_t> view() const noexcept { return words_; }

 private:
  void take(extents& e, std::size_t& at, int rank) const noexcept {
    e = extents::zeros(rank);
    for (int d = 0; d < rank; ++d) e.set(d, words_[at++]);
  }
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
  chunk_set(std::initializer_list<stored_chunk> chunks) {
    for (const auto& c : chunks) push_back(c);
  }
  /// The chunks of a list, in any order; finds the progressions in them. O(n log n).
  [[nodiscard]] static chunk_set from(detail::list_view<const stored_chunk> chunks) {
    std::vector<std::uint32_t> order(chunks.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::uint32_t>(i);
    std::sort(order.begin(), order.end(), [&](auto a, auto b) {
      if (chunks[a].rank != chunks[b].rank) return chunks[a].rank < chunks[b].rank;
      return chunks[a].box == chunks[b].box ? a < b : chunks[a].box < chunks[b].box;
    });
    chunk_set out;
    const auto sink = [&](const chunk_progression& p) { out.add(p); };
    detail::progression_joiner<decltype(sink)> joiner(sink);
    for (const auto i : order) joiner.push(single(chunks[i]));
    joiner.flush();
    return out;
  }

  /// Adds a chunk; it lengthens the last progression where it goes on with it.
  void push_back(const stored_chunk& c) { append(single(c)); }
  /// Adds the chunks of a progression. Nothing is checked: see detail::progression_problem for those from
  /// outside.
  void append(const chunk_progression& p) {
    if (progressions_ > 0) {
      auto at = last_;
      auto last = words_.read(at);
      if (last.rank < p.rank && detail::join(last, p)) {
        words_.truncate(last_);
        count_ -= static_cast<std::uint64_t>(last_count_);
        if (--progressions_ % every == 0) index_.pop_back();
        add(last);
        return;
      }
    }
    add(p);
  }
  void clear() noexcept { *this = chunk_set(); }
  /// The same boxes of ranks that are so much higher; no rank may become negative or exceed an int32.
  [[nodiscard]] chunk_set of_higher_ranks(std::int32_t by) const {
    auto out = *this;
    out.words_.move_ranks(by);
    return out;
  }
  /// True if no progression goes on with the one before it, so that appending them one after another gives
  /// this set again. O(progressions).
  [[nodiscard]] bool is_joined() const noexcept {
    chunk_progression last;
    for (std::size_t at = 0; at < words_.size();) {
      const bool first = at == 0;
      const auto p = words_.read(at);
      if (!first && last.rank < p.rank && detail::join(last, p)) return false;
      last = p;
    }
    return true;
  }
  /// The same chunks with all progressions put together that go on with the one before them. O(progressions).
  [[nodiscard]] chunk_set joined() const {
    std::vector<chunk_progression> open;
    for (std::size_t at = 0; at < words_.size();) {
      auto p = words_.read(at);
      for (; !open.empty() && open.back().rank < p.rank && detail::join(open.back(), p); open.pop_back())
        p = open.back();
      open.push_back(p);
    }
    chunk_set out;
    for (const auto& p : open) out.add(p);
    return out;
  }

  /// Chunks.
  [[nodiscard]] std::uint64_t size() const noexcept { return count_; }
  [[nodiscard]] bool empty() const noexcept { return count_ == 0; }
  /// Progressions that they make up.
  [[nodiscard]] std::size_t progressions() const noexcept { return progressions_; }
  /// Bytes of memory behind it.
  [[nodiscard]] std::size_t bytes() const noexcept {
    return words_.size() * sizeof(std::int64_t) + index_.size() * sizeof(mark);
  }

  /// The chunk of a number. O(log progressions). @pre index < size()
  [[nodiscard]] stored_chunk operator[](std::uint64_t index) const noexcept {
    const auto after = std::upper_bound(index_.begin(), index_.end(), index,
                                        [](std::uint64_t i, const mark& m) { return i < m.before; });
    auto at = std::prev(after)->word;
    auto before = std::prev(after)->before;
    for (;;) {
      const auto p = words_.read(at);
      const auto n = static_cast<std::uint64_t>(p.count());
      if (index - before < n) return p.at(static_cast<std::int64_t>(index - before));
      before += n;
    }
  }

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
      const auto shifted = [&](std::int64_t index, const stored_chunk& c, const chunk& common) {
        visit(before + static_cast<std::uint64_t>(index), c, common);
      };
      detail::overlap_walk<decltype(shifted)>(p, wanted, shifted).run();
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

  /// Visits chunk by chunk. A position stays valid as long as the set is not changed.
  class iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = stored_chunk;
    using difference_type = std::ptrdiff_t;
    using pointer = const stored_chunk*;
    using reference = const stored_chunk&;

    iterator() = default;
    iterator(const chunk_set& set, bool at_end) : set_(&set), index_(at_end ? set.size() : 0) {
      if (index_ < set.size()) p_ = set.words_.read(next_), current_ = p_.at(0);
    }
    reference operator*() const noexcept { return current_; }
    pointer operator->() const noexcept { return &current_; }
    iterator& operator++() {
      ++index_;
      if (index_ == set_->size()) return *this;
      if (++within_ == p_.count()) p_ = set_->words_.read(next_), within_ = 0;
      current_ = p_.at(within_);
      return *this;
    }
    iterator operator++(int) {
      auto before = *this;
      ++*this;
      return before;
    }
    friend bool operator==(const iterator& a, const iterator& b) noexcept { return a.index_ == b.index_; }

   private:
    const chunk_set* set_ = nullptr;
    std::uint64_t index_ = 0;
    std::size_t next_ = 0;
    std::int64_t within_ = 0;
    chunk_progression p_;
    stored_chunk current_;
  };
  [[nodiscard]] iterator begin() const { return {*this, false}; }
  [[nodiscard]] iterator end() const { return {*this, true}; }

  /// All of them in a list, in the order of their numbers. O(chunks): not for large worlds.
  [[nodiscard]] std::vector<stored_chunk> expand() const {
    std::vector<stored_chunk> out;
    out.reserve(static_cast<std::size_t>(count_));
    for_each_progression([&](const chunk_progression& p) {
      for (std::int64_t i = 0; i < p.count(); ++i) out.push_back(p.at(i));
    });
    return out;
  }
  /// The same, sorted by box and then by rank.
  [[nodiscard]] std::vector<stored_chunk> sorted() const {
    auto out = expand();
    std::sort(out.begin(), out.end(), [](const stored_chunk& a, const stored_chunk& b) {
      return a.box == b.box ? a.rank < b.rank : a.box < b.box;
    });
    return out;
  }

  /// The same chunks, however they are put together. O(progressions) where they are put together alike, else
  /// O(chunks x log).
  friend bool operator==(const chunk_set& a, const chunk_set& b) {
    if (a.count_ != b.count_) return false;
    const auto x = a.words_.view();
    const auto y = b.words_.view();
    return std::equal(x.begin(), x.end(), y.begin(), y.end()) || a.sorted() == b.sorted();
  }

 private:
  static constexpr std::size_t every = 16;  ///< progressions for each mark
  struct mark {
    std::uint64_t before;  ///< chunks before
    std::size_t word;
  };

  static chunk_progression single(const stored_chunk& c) {
    chunk_progression p;
    p.first = c.box;
    p.rank = c.rank;
    return p;
  }
  void add(const chunk_progression& p) {
    if (progressions_ % every == 0) index_.push_back({count_, words_.size()});
    ++progressions_;
    last_ = words_.size();
    words_.append(p);
    last_count_ = p.count();
    count_ += static_cast<std::uint64_t>(last_count_);
  }

  detail::progression_words words_;
  std::vector<mark> index_;
  std::uint64_t count_ = 0;
  std::size_t progressions_ = 0;
  std::size_t last_ = 0;  ///< where the last progression begins
  std::int64_t last_count_ = 0;
};

}  // namespace v1
}  // namespace cairn
