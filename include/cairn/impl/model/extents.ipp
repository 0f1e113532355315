// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/dtype.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace cairn {
inline namespace v1 {

CAIRN_BODY extents::extents(std::span<const std::int64_t> sizes) : rank_(static_cast<int>(sizes.size())) {
  check_rank(sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i) values_[i] = checked(sizes[i]);
}

CAIRN_BODY void extents::fail_rank(std::size_t rank) {
  fail(error_id::usage_bad_shape, "a shape has more than eight dimensions; merge some of them",
       {.got = std::to_string(rank)});
}

CAIRN_BODY void extents::fail_size(bool negative, std::uint64_t size) {
  fail(error_id::usage_bad_shape, "a size or offset is negative or above 2^63 - 1",
       {.got = negative ? std::to_string(static_cast<std::int64_t>(size)) : std::to_string(size)});
}

CAIRN_BODY std::string to_string(const extents& e) {
  std::string text = "[";
  for (int i = 0; i < e.rank(); ++i) text.append(i ? ", " : "").append(std::to_string(e[i]));
  return text + "]";
}

CAIRN_BODY std::string to_string(const chunk& c) {
  return "offsets " + to_string(c.offsets) + " sizes " + to_string(c.sizes);
}

CAIRN_BODY extents extents::filled(int rank, std::int64_t value) {
  check_rank(static_cast<std::size_t>(rank));
  extents e = zeros(rank);
  std::fill_n(e.values_.begin(), rank, checked(value));
  return e;
}

CAIRN_BODY std::optional<std::int64_t> extents::checked_volume() const noexcept {
  std::int64_t product = 1;
  bool overflow = false;
  for (auto v : *this) {
    if (v == 0) return 0;
    overflow |= __builtin_mul_overflow(product, v, &product);
  }
  if (overflow) return std::nullopt;
  return product;
}

CAIRN_BODY void extents::check_rank(std::size_t rank) {
  if (rank > max_rank) fail_rank(rank);
}

CAIRN_BODY std::optional<std::uint64_t> checked_bytes(dtype t, const extents& shape) noexcept {
  const auto volume = shape.checked_volume();
  if (!volume || *volume % granule_of(t) != 0) return std::nullopt;
  std::int64_t bits = 0;
  if (__builtin_mul_overflow(*volume, static_cast<std::int64_t>(bits_of(t)), &bits)) return std::nullopt;
  return static_cast<std::uint64_t>(bits) / 8;
}

CAIRN_BODY bool inside(const chunk& c, const extents& shape) noexcept {
  if (c.offsets.rank() != shape.rank() || c.sizes.rank() != shape.rank()) return false;
  for (int d = 0; d < shape.rank(); ++d)
    if (c.offsets[d] < 0 || c.sizes[d] < 0 || c.offsets[d] > shape[d] || c.sizes[d] > shape[d] - c.offsets[d])
      return false;
  return true;
}

CAIRN_BODY std::optional<chunk> intersect(const chunk& a, const chunk& b) noexcept {
  if (a.offsets.rank() != b.offsets.rank()) return std::nullopt;
  chunk c = a;
  for (int d = 0; d < a.offsets.rank(); ++d) {
    const auto begin = std::max(a.offsets[d], b.offsets[d]);
    const auto end = std::min(a.offsets[d] + a.sizes[d], b.offsets[d] + b.sizes[d]);
    if (begin >= end) return std::nullopt;
    c.offsets.set(d, begin);
    c.sizes.set(d, end - begin);
  }
  return c;
}

}  // namespace v1
}  // namespace cairn
