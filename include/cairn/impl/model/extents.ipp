// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/dtype.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>

#include <cstddef>
#include <cstdint>
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

}  // namespace v1
}  // namespace cairn
