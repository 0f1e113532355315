// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/chunk_progression.hpp>
#include <cairn/model/chunk_set.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/model/progression_joiner.hpp>
#include <cairn/system/algorithm.hpp>
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

CAIRN_BODY void progression_words::append(const chunk_progression& p) {
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

CAIRN_BODY list_view<std::int64_t> progression_words::append_single(std::int32_t rank, int dimensions) {
  const auto numbers = static_cast<std::uint64_t>(dimensions);
  const auto begin = words_.size();
  words_.resize(begin + 1 + 2 * numbers);
  words_[begin] = static_cast<std::int64_t>(single_head(dimensions) << 32 | static_cast<std::uint32_t>(rank));
  return list_view<std::int64_t>(words_).subspan(begin + 1);
}

CAIRN_BODY void progression_words::append(list_view<const std::int64_t> words) {
  words_.insert(words_.end(), words.begin(), words.end());
}

CAIRN_BODY chunk_progression progression_words::read(std::size_t& at) const noexcept {
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

CAIRN_BODY std::size_t progression_words::next(std::size_t at) const noexcept {
  const auto head = static_cast<std::uint64_t>(words_[at]);
  return at + 1 + static_cast<std::size_t>((head >> 32 & 15) + (head >> 36 & 15) + 2 * (head >> 40 & 7));
}

CAIRN_BODY void progression_words::take(extents& e, std::size_t& at, int rank) const noexcept {
  e = extents::zeros(rank);
  for (int d = 0; d < rank; ++d) e.set(d, words_[at++]);
}

}  // namespace detail

CAIRN_BODY chunk_set::chunk_set(std::initializer_list<stored_chunk> chunks) {
  for (const auto& c : chunks) push_back(c);
}

CAIRN_BODY chunk_set chunk_set::from(detail::list_view<const stored_chunk> chunks) {
  std::vector<std::uint32_t> order(chunks.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::uint32_t>(i);
  detail::sort(order, [&](auto a, auto b) {
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

CAIRN_BODY void chunk_set::append(const chunk_progression& p) {
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

CAIRN_BODY bool chunk_set::is_joined() const noexcept {
  chunk_progression last;
  for (std::size_t at = 0; at < words_.size();) {
    const bool first = at == 0;
    const auto p = words_.read(at);
    if (!first && last.rank < p.rank && detail::join(last, p)) return false;
    last = p;
  }
  return true;
}

CAIRN_BODY chunk_set chunk_set::joined() const {
  detail::vector<chunk_progression> open;
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

CAIRN_BODY stored_chunk chunk_set::operator[](std::uint64_t index) const noexcept {
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

CAIRN_BODY chunk_set::iterator::iterator(const chunk_set& set, bool at_end)
    : set_(&set), index_(at_end ? set.size() : 0) {
  if (index_ < set.size()) p_ = set.words_.read(next_), current_ = p_.at(0);
}

CAIRN_BODY chunk_set::iterator& chunk_set::iterator::operator++() {
  ++index_;
  if (index_ == set_->size()) return *this;
  if (++within_ == p_.count()) p_ = set_->words_.read(next_), within_ = 0;
  current_ = p_.at(within_);
  return *this;
}

CAIRN_BODY chunk_set::iterator chunk_set::iterator::operator++(int) {
  auto before = *this;
  ++*this;
  return before;
}

CAIRN_BODY std::vector<stored_chunk> chunk_set::expand() const {
  std::vector<stored_chunk> out;
  out.reserve(static_cast<std::size_t>(count_));
  for_each_progression([&](const chunk_progression& p) {
    for (std::int64_t i = 0; i < p.count(); ++i) out.push_back(p.at(i));
  });
  return out;
}

CAIRN_BODY std::vector<stored_chunk> chunk_set::sorted() const {
  auto out = expand();
  detail::sort(out, [](const stored_chunk& a, const stored_chunk& b) {
    return a.box == b.box ? a.rank < b.rank : a.box < b.box;
  });
  return out;
}

CAIRN_BODY bool chunk_set::same_as(const chunk_set& other) const {
  if (count_ != other.count_) return false;
  const auto mine = words_.view();
  const auto theirs = other.words_.view();
  return std::equal(mine.begin(), mine.end(), theirs.begin(), theirs.end()) || sorted() == other.sorted();
}

CAIRN_BODY chunk_progression chunk_set::single(const stored_chunk& c) {
  chunk_progression p;
  p.first = c.box;
  p.rank = c.rank;
  return p;
}

CAIRN_BODY void chunk_set::add(const chunk_progression& p) {
  if (progressions_ % every == 0) index_.push_back({count_, words_.size()});
  ++progressions_;
  last_ = words_.size();
  words_.append(p);
  last_count_ = p.count();
  count_ += static_cast<std::uint64_t>(last_count_);
}

}  // namespace v1
}  // namespace cairn
