// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/item.hpp>
#include <cairn/model/json_text.hpp>
#include <cairn/system/finite.hpp>

#include <charconv>
#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY void append_json(std::string& out, std::string_view text) {
  out += '"';
  std::size_t plain = 0;
  for (std::size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    const auto bytes = c < 0x80 ? 1 : utf8_bytes(text.substr(i));
    if (bytes != 0 && c >= 0x20 && c != '"' && c != '\\') {
      i += bytes;
      continue;
    }
    out.append(text.substr(plain, i - plain));
    plain = ++i;
    if (bytes == 0) {
      out.append("\\ufffd");
    } else if (c == '"' || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else {
      constexpr std::string_view digits = "0123456789abcdef";
      out.append("\\u00");
      out += digits[c >> 4];
      out += digits[c & 15];
    }
  }
  out.append(text.substr(plain));
  out += '"';
}

CAIRN_BODY void append_json(std::string& out, double number, int decimals) {
  char digits[330];  // the largest double has 309 before the point
  const double written = is_finite(number) ? number : 0;
  out.append(
      digits,
      std::to_chars(std::begin(digits), std::end(digits), written, std::chars_format::fixed, decimals).ptr);
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
