// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

/// For load: loads only items whose name matches one of the patterns (`*` any text, `?` one character):
/// `cairn::only{"model.*"}`. A pattern that matches no item of the state or the checkpoint is an error
/// (usage_unknown_name).
struct only {
  only(std::initializer_list<std::string> list) : patterns(list) {}
  explicit only(std::vector<std::string> list) : patterns(std::move(list)) {}
  /// What the names must match, one of them; empty: every name.
  std::vector<std::string> patterns;
};
/// For load: missing, unexpected and mismatched items are no error, but are in the report and in a line
/// on stderr.
struct partial_t {};
/// See partial_t.
inline constexpr partial_t partial{};

}  // namespace v1
}  // namespace cairn
