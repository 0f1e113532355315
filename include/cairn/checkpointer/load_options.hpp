// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/planner.hpp>
#include <cairn/model/stored_items.hpp>
#include <cairn/system/callback.hpp>

#include <concepts>
#include <cstdint>
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

/// For refresh: trusts no memory. It hashes what the memory holds (about 20 GB/s a core) and loads each block that is
/// another one, and blocks of which this rank holds a part, which have no digest to compare with.
struct verify_memory_t {
  static constexpr bool concerns_state = true;
  static constexpr bool compares = true;
  void add_to(load_request& request) const noexcept { request.hash_memory = true; }
};
/// See verify_memory_t.
inline constexpr verify_memory_t verify_memory{};

/// What the hook of state_dict::migrate says of a checkpoint of an older version, for the load that is under way: which
/// options it needs, which items are new and which are gone. It lives during the call alone.
class migration {
 public:
  migration(std::int64_t from, std::int64_t to, const stored_items& items, load_request& request,
            std::vector<detail::callback<void()>>& after) noexcept
      : from_(from), to_(to), items_(items), request_(request), after_(after) {}
  migration(const migration&) = delete;
  migration& operator=(const migration&) = delete;

  /// The version of the checkpoint; 0 where it has none.
  [[nodiscard]] std::int64_t from() const noexcept { return from_; }
  /// That of the state.
  [[nodiscard]] std::int64_t to() const noexcept { return to_; }
  /// What the checkpoint holds.
  [[nodiscard]] const stored_items& items() const noexcept { return items_; }

  /// Adds options to those of the load: rename, convert, pad and cut of <cairn/load_options.hpp>, or your own.
  template <LoadOption... Options>
  void use(const Options&... options) {
    (options.add_to(request_), ...);
  }
  /// Items of the state that match the pattern are new: where the checkpoint lacks them, they keep their value. The report
  /// names them.
  void added(std::string pattern) { request_.may_miss.push_back(std::move(pattern)); }
  /// Items of the checkpoint that match the pattern have no place any more: they are not read.
  void dropped(std::string pattern) { request_.dropped.push_back(std::move(pattern)); }
  /// Is called when this rank's items are loaded, to compute what is new from them. In the order in which they were
  /// given; what one throws fails the load, on all ranks. Not for a load that keeps out what it needs (cairn::only).
  void after(detail::callback<void()> call) { after_.push_back(std::move(call)); }

 private:
  std::int64_t from_;
  std::int64_t to_;
  const stored_items& items_;
  load_request& request_;
  std::vector<detail::callback<void()>>& after_;
};

}  // namespace v1
}  // namespace cairn
