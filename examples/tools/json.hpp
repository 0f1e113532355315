// SPDX-License-Identifier: Apache-2.0
#pragma once
// What programs print with --json: an object on each line.
#include <cairn/model/json_text.hpp>

#include <charconv>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tools {

/// For --help.
inline constexpr const char* json_help = "results as JSON, an object on each line";

/// A text between quotation marks. In place of each byte that is no UTF-8, which a path may have, is U+FFFD: a reader refuses the
/// whole line otherwise.
inline std::string json_text(std::string_view text) {
  std::string out;
  cairn::detail::append_json(out, text);
  return out;
}

/// One object, member by member.
class json_object {
 public:
  json_object& text(std::string_view name, std::string_view value) { return raw(name, json_text(value)); }
  json_object& number(std::string_view name, std::uint64_t value) { return raw(name, std::to_string(value)); }
  json_object& step(std::string_view name, std::int64_t value) { return raw(name, std::to_string(value)); }
  json_object& truth(std::string_view name, bool value) { return raw(name, value ? "true" : "false"); }
  /// As many digits as say which number it is; null where it is no number or infinite, which JSON cannot say.
  json_object& real(std::string_view name, double value) {
    char digits[40];
    const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
    return raw(name, std::isfinite(value) ? std::string_view(digits, end) : "null");
  }
  json_object& texts(std::string_view name, const std::vector<std::string>& values) {
    std::string all;
    for (const auto& v : values) all += (all.empty() ? "" : ", ") + json_text(v);
    return raw(name, "[" + all + "]");
  }
  /// A value that is JSON already.
  json_object& raw(std::string_view name, std::string_view value) {
    members_ += members_.empty() ? "" : ", ";
    members_.append(json_text(name)).append(": ").append(value);
    return *this;
  }
  [[nodiscard]] std::string line() const { return "{" + members_ + "}"; }

 private:
  std::string members_;
};

}  // namespace tools
