// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/item.hpp>
#include <cairn/system/error.hpp>

#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>

namespace cairn {
inline namespace v1 {

CAIRN_BODY std::string per_rank_key(std::string_view name, int rank) {
  char suffix[24];
  std::snprintf(suffix, sizeof suffix, "@rank%05d", rank);
  return std::string(name) + suffix;
}

namespace detail {

CAIRN_BODY std::size_t utf8_bytes(std::string_view text) noexcept {
  const auto c = static_cast<unsigned char>(text[0]);
  const std::size_t more = c < 0x80                ? 0
                           : c >= 0xc2 && c < 0xe0 ? 1
                           : c >= 0xe0 && c < 0xf0 ? 2
                           : c >= 0xf0 && c < 0xf5 ? 3
                                                   : 9;
  if (more >= text.size()) return 0;
  for (std::size_t k = 1; k <= more; ++k) {
    const auto next = static_cast<unsigned char>(text[k]);
    const unsigned char low = k > 1 ? 0x80 : c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;
    const unsigned char high = k > 1 ? 0xbf : c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
    if (next < low || next > high) return 0;
  }
  return more + 1;
}

CAIRN_BODY bool is_utf8(std::string_view text) noexcept {
  while (!text.empty()) {
    const auto bytes = utf8_bytes(text);
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

}  // namespace detail

CAIRN_BODY std::string_view name_problem(std::string_view name) noexcept {
  if (name.empty()) return "is empty";
  if (name.size() > max_item_name) return "is longer than 4096 bytes";
  if (name == "__metadata__") return "is reserved by the safetensors format";
  for (std::size_t i = 0; i < name.size();) {
    const auto c = static_cast<unsigned char>(name[i]);
    if (c < 0x20 || c == 0x7f) return "has a control character";
    const auto bytes = detail::utf8_bytes(name.substr(i));
    if (bytes == 0) return "is not UTF-8";
    i += bytes;
  }
  const auto digits = name.find_last_not_of("0123456789");
  if (digits != std::string_view::npos && digits + 1 < name.size() &&
      name.substr(0, digits + 1).ends_with("@rank"))
    return "ends like the key of a per-rank item";
  return {};
}

}  // namespace v1
}  // namespace cairn
