// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/storage/manifest/corrupt.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/wire.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY void corrupt(error_id id, std::string_view what, std::string_view file, std::uint64_t offset,
                        std::string expected, std::string got) {
  fail(id, what,
       {.file = std::string(file),
        .offset = static_cast<std::int64_t>(offset),
        .expected = std::move(expected),
        .got = std::move(got)});
}

CAIRN_BODY std::string digest_text(std::uint64_t value) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text(16, '0');
  for (std::size_t i = 16; i-- > 0; value >>= 4) text[i] = digits[value & 15];
  return text;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
