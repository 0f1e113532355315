// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/chunk_set.hpp>
#include <cairn/system/list_view.hpp>
#include <cairn/system/wire.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

/// Writes numbers in as few bytes as they need: seven bits in each, the lowest first, the high bit set on all
/// but the last.
class compact_writer {
 public:
  compact_writer& number(std::uint64_t value) {
    auto* to = room(10);
    auto* at = to;
    while (value >= 128) {
      *at++ = static_cast<std::byte>(value | 128);
      value >>= 7;
    }
    *at++ = static_cast<std::byte>(value);
    size_ += static_cast<std::size_t>(at - to);
    return *this;
  }
  /// @pre value is not negative.
  compact_writer& number(std::int64_t value) { return number(static_cast<std::uint64_t>(value)); }
  /// Appends one byte as it is.
  compact_writer& byte(std::uint8_t value) {
    *room(1) = static_cast<std::byte>(value);
    ++size_;
    return *this;
  }
  /// Appends bytes as they are, without a length.
  compact_writer& raw(std::span<const std::byte> bytes) {
    std::copy(bytes.begin(), bytes.end(), room(bytes.size()));
    size_ += bytes.size();
    return *this;
  }
  compact_writer& raw(std::string_view text) {
    return raw(std::as_bytes(std::span{text.data(), text.size()}));
  }
  /// Makes room for so many bytes in all, so that writing them does not allocate.
  void reserve(std::size_t bytes) { bytes_.reserve(bytes); }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  /// What was written so far; valid until the next call that writes.
  [[nodiscard]] std::span<const std::byte> view() const noexcept { return {bytes_.data(), size_}; }
  /// Moves out what was written; the writer is empty then.
  [[nodiscard]] std::vector<std::byte> take() {
    bytes_.resize(size_);
    size_ = 0;
    return std::move(bytes_);
  }

 private:
  /// Where the next bytes go.
  std::byte* room(std::size_t bytes) {
    if (bytes_.size() - size_ < bytes)
      bytes_.resize(std::max({size_ + bytes, bytes_.size() * 2, bytes_.capacity()}));
    return bytes_.data() + size_;
  }
  std::vector<std::byte> bytes_;
  std::size_t size_ = 0;
};

/// Reads what compact_writer wrote from hostile bytes. A number that is written longer than it needs to be is
/// refused, so that equal things have equal bytes. @throws wire_error from every function.
class compact_reader {
 public:
  explicit compact_reader(std::span<const std::byte> bytes) noexcept
      : begin_(bytes.data()), at_(begin_), end_(begin_ + bytes.size()) {}

  /// The next number; the second form refuses one above `max_number`.
  [[nodiscard]] std::uint64_t number() {
    if (at_ != end_ && (*at_ & std::byte{128}) == std::byte{0}) return static_cast<std::uint64_t>(*at_++);
    if (left() >= 8) {
      // Eight bytes at once: the groups of seven bits up to the first byte without the high bit.
      std::uint64_t word = 0;
      std::memcpy(&word, at_, sizeof word);
      if (const std::uint64_t ends = ~word & 0x8080808080808080u; ends != 0) {
        const int bytes = (std::countr_zero(ends) + 1) / 8;
        word &= (ends ^ (ends - 1)) & 0x7f7f7f7f7f7f7f7fu;
        if (word >> (8 * (bytes - 1)) == 0) fail_here("a number is longer than it needs to be");
        at_ += bytes;
        word = (word & 0x007f007f007f007fu) | (word & 0x7f007f007f007f00u) >> 1;
        word = (word & 0x00003fff00003fffu) | (word & 0x3fff00003fff0000u) >> 2;
        return (word & 0x000000000fffffffu) | (word & 0x0fffffff00000000u) >> 4;
      }
    }
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      if (at_ == end_) fail_here("the input ends early");
      const auto b = static_cast<std::uint64_t>(*at_++);
      if (shift == 63 && b > 1) fail_here("a number is above 2^64 - 1");
      value |= (b & 127) << shift;
      if (b < 128) {
        if (b == 0) fail_here("a number is longer than it needs to be");
        return value;
      }
    }
  }
  [[nodiscard]] std::uint64_t number(std::uint64_t max_number) {
    const auto value = number();
    if (value > max_number) fail_here("a number is higher than allowed");
    return value;
  }
  /// The next number, which must fit a positive int64.
  [[nodiscard]] std::int64_t signed_number() {
    return static_cast<std::int64_t>(number(std::numeric_limits<std::int64_t>::max()));
  }
  /// The next byte as it is.
  [[nodiscard]] std::uint8_t byte() { return static_cast<std::uint8_t>(take(1)[0]); }
  /// A count of things that each take at least `least_bytes_each` of what is left: safe to reserve.
  [[nodiscard]] std::size_t count(std::size_t least_bytes_each) {
    return static_cast<std::size_t>(number(left() / least_bytes_each));
  }
  /// The next `size` bytes, as a view of the input.
  [[nodiscard]] std::span<const std::byte> take(std::size_t size) {
    if (size > left()) fail_here("the input ends early");
    const auto* from = at_;
    at_ += size;
    return {from, size};
  }
  /// The next `size` bytes as text; nothing is checked about them.
  [[nodiscard]] std::string_view text(std::size_t size) {
    const auto from = take(size);
    return {reinterpret_cast<const char*>(from.data()), from.size()};
  }
  /// How many bytes of the input were not read.
  [[nodiscard]] std::size_t left() const noexcept { return static_cast<std::size_t>(end_ - at_); }
  void finish() const {
    if (left() != 0) fail_here("bytes follow the end");
  }
  /// Throws wire_error with this reason and the offset that reading has come to.
  [[noreturn, gnu::cold]] void fail_here(const char* why) const {
    throw wire_error(why, static_cast<std::size_t>(at_ - begin_));
  }

 private:
  const std::byte* begin_;
  const std::byte* at_;
  const std::byte* end_;
};

/// A progression whose boxes have the dimensions that the reader will know. A box in a mesh takes about ten
/// bytes. @pre its numbers are not negative.
inline void encode(compact_writer& out, const chunk_progression& p) {
  out.number(static_cast<std::uint64_t>(p.rank) << 3 | static_cast<std::uint64_t>(p.axis_count));
  for (const auto v : p.first.offsets) out.number(v);
  for (const auto v : p.first.sizes) out.number(v);
  for (const auto& a : p) {
    out.number(static_cast<std::uint64_t>(a.count) << 4 | static_cast<std::uint64_t>(a.dimension + 1));
    out.number(static_cast<std::uint64_t>(a.rank_step));
    if (a.dimension >= 0) out.number(a.offset_step);
  }
}
/// The same for `count` of them, as they lie in memory.
inline void encode(compact_writer& out, detail::list_view<const std::int64_t> words, std::size_t& at,
                   std::size_t count) {
  for (; count > 0; --count) {
    const auto head = static_cast<std::uint64_t>(words[at++]);
    const auto axes = head >> 40 & 7;
    out.number((head & 0xffffffffu) << 3 | axes);
    for (auto numbers = (head >> 32 & 15) + (head >> 36 & 15); numbers > 0; --numbers)
      out.number(words[at++]);
    for (std::uint64_t k = 0; k < axes; ++k, at += 2) {
      const auto counts = static_cast<std::uint64_t>(words[at]);
      const auto dimension = head >> (43 + 4 * k) & 15;
      out.number(counts >> 32 << 4 | dimension).number(counts & 0xffffffffu);
      if (dimension > 0) out.number(words[at + 1]);
    }
  }
}
namespace detail {
/// The first number of an encoded progression: its rank, and how many axes it has in the lowest three bits.
[[nodiscard]] inline std::uint64_t decode_progression_head(compact_reader& in) {
  return in.number(static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max()) << 3 | 7);
}
/// The offsets and sizes of a box without axes, as they lie in progression_words.
inline void decode_single_box(compact_reader& in, list_view<std::int64_t> numbers) {
  for (auto& v : numbers) v = in.signed_number();
  const auto dimensions = numbers.size() / 2;
  for (std::size_t d = 0; d < dimensions; ++d)
    if (numbers[d] > std::numeric_limits<std::int64_t>::max() - numbers[d + dimensions])
      in.fail_here("a box is outside of all tensors");
}
/// What follows the head.
inline void decode_progression_body(compact_reader& in, std::uint64_t head, int dimensions,
                                    chunk_progression& p) {
  constexpr auto max_number = static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max());
  p.rank = static_cast<std::int32_t>(head >> 3);
  p.axis_count = static_cast<std::int32_t>(head & 7);
  if (p.axis_count > chunk_progression::max_axes) in.fail_here("a progression has too many axes");
  p.first = whole(extents::zeros(dimensions));
  for (int d = 0; d < dimensions; ++d) p.first.offsets.set(d, in.signed_number());
  for (int d = 0; d < dimensions; ++d) p.first.sizes.set(d, in.signed_number());
  for (int k = 0; k < p.axis_count; ++k) {
    auto& a = p.axes[static_cast<std::size_t>(k)];
    const auto count = in.number(max_number << 4 | 15);
    a.count = static_cast<std::int32_t>(count >> 4);
    a.dimension = static_cast<std::int32_t>(count & 15) - 1;
    a.rank_step = static_cast<std::int32_t>(in.number(max_number));
    a.offset_step = a.dimension >= 0 ? in.signed_number() : 0;
  }
  if (const auto* what = detail::progression_problem(p)) in.fail_here(what);
}
}  // namespace detail

/// @throws wire_error on what is no progression. Its boxes may lie outside of their tensor.
inline void decode_progression(compact_reader& in, int dimensions, chunk_progression& p) {
  const auto head = detail::decode_progression_head(in);
  detail::decode_progression_body(in, head, dimensions, p);
}

/// A chunk_set of a tensor of known dimensions.
inline void encode(compact_writer& out, const chunk_set& chunks) {
  out.number(static_cast<std::uint64_t>(chunks.progressions()));
  std::size_t at = 0;
  encode(out, chunks.words(), at, chunks.progressions());
}
/// @throws wire_error on what is none, with boxes outside of the tensor, or ranks outside of the world.
[[nodiscard]] inline chunk_set decode_chunk_set(compact_reader& in, const extents& global,
                                                std::int32_t world_size) {
  chunk_set chunks;
  const auto count = in.count(1 + 2 * static_cast<std::size_t>(global.rank()));
  chunk_progression p;
  for (std::size_t i = 0; i < count; ++i) {
    decode_progression(in, global.rank(), p);
    if (p.last_rank() >= world_size) in.fail_here("a chunk is of no rank");
    if (!inside(p.first, global) || !inside(p.last_box(), global))
      in.fail_here("a chunk is outside of its tensor");
    chunks.append(p);
  }
  return chunks;
}

}  // namespace v1
}  // namespace cairn
