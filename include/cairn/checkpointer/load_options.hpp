// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/planner.hpp>

#include <concepts>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

/// An option of load().
///
/// - `add_to(request)`: adds what it says to what the other options say. @throws usage_error where they do not fit
///   together.
template <class O>
concept LoadOption = std::copyable<O> && requires(const O& option, load_request& request) {
  { option.add_to(request) } -> std::same_as<void>;
};

/// A LoadOption that says something about a state: which of its items are loaded, whether all must be there, or how
/// long they are. read() of one item, which has no state, refuses it.
///
/// - `concerns_state`: a constant, true.
template <class O>
concept StateLoadOption = LoadOption<O> && requires { requires O::concerns_state; };

/// For load: loads only items whose name matches one of the patterns (`*` any text, `?` one character):
/// `cairn::only{"model.*"}`. A pattern that matches no item of the state or the checkpoint is an error
/// (usage_unknown_name).
struct only {
  static constexpr bool concerns_state = true;
  only(std::initializer_list<std::string> list) : patterns(list) {}
  explicit only(std::vector<std::string> list) : patterns(std::move(list)) {}
  /// What the names must match, one of them; empty: every name.
  std::vector<std::string> patterns;
  void add_to(load_request& request) const {
    for (const auto& p : patterns) request.only.push_back(p);
  }
};
/// For load: missing, unexpected and mismatched items are no error, but are in the report and in a line
/// on stderr.
struct partial_t {
  static constexpr bool concerns_state = true;
  void add_to(load_request& request) const noexcept { request.strict = false; }
};
/// See partial_t.
inline constexpr partial_t partial{};

/// A LoadOption of refresh() alone; load(), which reads everything, refuses it.
///
/// - `compares`: a constant, true.
template <class O>
concept RefreshOption = LoadOption<O> && requires { requires O::compares; };

/// For refresh: trusts no memory. It hashes what the memory holds (about 10 GB/s a core) and loads each block that is
/// another one, and blocks of which this rank holds a part, which have no digest to compare with.
struct verify_memory_t {
  static constexpr bool concerns_state = true;
  static constexpr bool compares = true;
  void add_to(load_request& request) const noexcept { request.hash_memory = true; }
};
/// See verify_memory_t.
inline constexpr verify_memory_t verify_memory{};

}  // namespace v1
}  // namespace cairn
