// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <charconv>
#include <concepts>
#include <iterator>
#include <string>
#include <string_view>

namespace cairn {
inline namespace v1 {
namespace detail {

// Texts and numbers as JSON has them, whatever the locale of the program is: printf follows it.

/// Appends a JSON string with its quotes. What is not UTF-8 becomes U+FFFD, byte by byte.
void append_json(std::string& out, std::string_view text);
template <std::integral Number>
void append_json(std::string& out, Number number) {
  char digits[24];
  out.append(digits, std::to_chars(std::begin(digits), std::end(digits), number).ptr);
}
/// With so many decimals, at most 9. What is not finite becomes 0, for which JSON has no word.
void append_json(std::string& out, double number, int decimals);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/model/json_text.ipp>
#endif
