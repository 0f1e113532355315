// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/chunk_set.hpp>
#include <cairn/model/wire.hpp>

#include <cstddef>
#include <cstdint>
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
    while (value >= 128) {
      bytes_.push_back(static_cast<std::byte>(value | 128));
      value >>= 7;
    }
    bytes_.push_back(static_cast<std::byte>(value));
    return *this;
  }
  /// @pre value is not negative.
  compact_writer& number(std::int64_t value) { return number(static_cast<std::uint64_t>(value)); }
  compact_writer& byte(std::uint8_t value) {
    bytes_.push_back(static_cast<std::byte>(value));
    return *this;
  }
  compact_writer& raw(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  compact_writer& raw(std::string_view text) {
    return raw(std::as_bytes(std::span{text.data(), text.size()}));
  }
  void reserve(std::size_t bytes) { bytes_.reserve(bytes); }
  [[nodiscard]] std::size_t size() const noexcept { return bytes_.size(); }
  [[nodiscard]] std::span<const std::byte> view() const noexcept { return bytes_; }
  [[nodiscard]] std::vector<std::byte> take() noexcept { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

/// Reads what compact_writer wrote from hostile bytes. A number that is written longer than it needs to be is
/// refused, so that equal things have equal bytes. @throws wire_error from every function.
class compact_reader {
 public:
  explicit compact_reader(std::span<const std::byte> bytes) noexcept
      : begin_(bytes.data()), at_(begin_), end_(begin_ + bytes.size()) {}

  [[nodiscard]] std::uint64_t number() {
    if (at_ != end_ && (*at_ & std::byte{128}) == std::byte{0}) return static_cast<std::uint64_t>(*at_++);
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
  [[nodiscard]] std::uint64_t number(std::uint64_t most) {
    const auto value = number();
    if (value > most) fail_here("a number is higher than allowed");
    return value;
  }
  [[nodiscard]] std::int64_t signed_number() {
    return static_cast<std::int64_t>(number(std::numeric_limits<std::int64_t>::max()));
  }
  [[nodiscard]] std::uint8_t byte() { return static_cast<std::uint8_t>(take(1)[0]); }
  /// A count of things that each take at least `least_bytes_each` of what is left: safe to reserve.
  [[nodiscard]] std::size_t count(std::size_t least_bytes_each) {
    return static_cast<std::size_t>(number(left() / least_bytes_each));
  }
  [[nodiscard]] std::span<const std::byte> take(std::size_t size) {
    if (size > left()) fail_here("the input ends early");
    const auto* from = at_;
    at_ += size;
    return {from, size};
  }
  [[nodiscard]] std::string_view text(std::size_t size) {
    const auto from = take(size);
    return {reinterpret_cast<const char*>(from.data()), from.size()};
  }
  [[nodiscard]] std::size_t left() const noexcept { return static_cast<std::size_t>(end_ - at_); }
  void finish() const {
    if (left() != 0) fail_here("bytes follow the end");
  }
  [[noreturn]] void fail_here(const char* why) const {
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
/// @throws wire_error on what is no progression. Its boxes may lie outside of their tensor.
[[nodiscard]] inline chunk_progression decode_progression(compact_reader& in, int dimensions) {
  constexpr auto most = static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max());
  chunk_progression p;
  const auto head = in.number(most << 3 | 7);
  p.rank = static_cast<std::int32_t>(head >> 3);
  p.axis_count = static_cast<std::int32_t>(head & 7);
  if (p.axis_count > chunk_progression::max_axes) in.fail_here("a progression has too many axes");
  p.first = whole(extents::zeros(dimensions));
  for (int d = 0; d < dimensions; ++d) p.first.offsets.set(d, in.signed_number());
  for (int d = 0; d < dimensions; ++d) p.first.sizes.set(d, in.signed_number());
  for (int k = 0; k < p.axis_count; ++k) {
    auto& a = p.axes[static_cast<std::size_t>(k)];
    const auto count = in.number(most << 4 | 15);
    a.count = static_cast<std::int32_t>(count >> 4);
    a.dimension = static_cast<std::int32_t>(count & 15) - 1;
    a.rank_step = static_cast<std::int32_t>(in.number(most));
    if (a.dimension >= 0) a.offset_step = in.signed_number();
  }
  if (const auto* what = detail::progression_problem(p)) in.fail_here(what);
  return p;
}

/// A chunk_set of a tensor of known dimensions.
inline void encode(compact_writer& out, const chunk_set& chunks) {
  out.number(static_cast<std::uint64_t>(chunks.progressions()));
  chunks.for_each_progression([&](const chunk_progression& p) { encode(out, p); });
}
/// @throws wire_error on what is none, with boxes outside of the tensor, or ranks outside of the world.
[[nodiscard]] inline chunk_set decode_chunk_set(compact_reader& in, const extents& global,
                                                std::int32_t world_size) {
  chunk_set chunks;
  const auto count = in.count(1 + 2 * static_cast<std::size_t>(global.rank()));
  for (std::size_t i = 0; i < count; ++i) {
    const auto p = decode_progression(in, global.rank());
    if (p.last_rank() >= world_size) in.fail_here("a chunk is of no rank");
    if (!inside(p.first, global) || !inside(p.last_box(), global))
      in.fail_here("a chunk is outside of its tensor");
    chunks.append(p);
  }
  return chunks;
}

}  // namespace v1
}  // namespace cairn
