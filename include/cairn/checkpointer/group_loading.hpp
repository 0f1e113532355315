// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/load_outcome.hpp>
#include <cairn/checkpointer/options.hpp>
#include <cairn/comm/collectives.hpp>
#include <cairn/plan/load/load_planning.hpp>
#include <cairn/plan/near_names.hpp>
#include <cairn/system/function_ref.hpp>
#include <cairn/system/wire.hpp>

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Names as bytes and back.
inline void put_names(wire_writer& out, const std::vector<std::string>& names) {
  out.put(static_cast<std::uint64_t>(names.size()));
  for (const auto& n : names) out.put(n);
}
[[nodiscard]] inline std::vector<std::string> get_names(wire_reader& in) {
  std::vector<std::string> names(in.get_count(sizeof(std::uint32_t)));
  for (auto& n : names) n = in.get_string(max_item_name);
  return names;
}

/// A pattern that nothing has is a slip of the pen. @throws usage_error (usage_unknown_name) if there is one.
inline void refuse_unmatched(const load_report& report, const state_dict& state) {
  if (report.unmatched.empty()) return;
  const auto& pattern = report.unmatched.front();
  near_names similar(pattern);
  for (const auto& e : state.entries()) similar.offer(e.name);
  const auto names = similar.text();
  fail(error_id::usage_unknown_name,
       "cairn::only was given a pattern that matches no item, neither of the state nor of the checkpoint" +
           (names.empty() ? std::string() : "; near it: " + names),
       {.item = pattern.substr(0, 200)});
}

/// Every rank learns how the load ended on all of them, which items of the checkpoint no rank expected, an
/// error if `strict`, and which patterns matched on none.
inline load_verdict agree_on_load(collectives& group, const std::exception_ptr& own, load_report& report,
                                  bool strict, deadline until) {
  auto& unexpected = report.unexpected;
  const auto outcome = outcome_of(own);
  if (group.size() == 1) return {outcome, own};
  wire_writer word;
  word.put(outcome);
  if (own != nullptr)
    word.put(static_cast<std::int32_t>(group.rank())).raw(encode_failure(own));
  else
    put_names(word, unexpected), put_names(word, report.unmatched);
  const auto merge = [](std::vector<std::byte> left, std::vector<std::byte> right) {
    wire_reader a(left);
    wire_reader b(right);
    const auto first = a.get_enum(load_outcome::refused);
    const auto second = b.get_enum(load_outcome::refused);
    if (first != load_outcome::loaded || second != load_outcome::loaded)
      return first >= second ? left : right;
    wire_writer both;
    both.put(load_outcome::loaded);
    put_names(both, unexpected_on_both(get_names(a), get_names(b)));
    put_names(both, unexpected_on_both(get_names(a), get_names(b)));
    return both.take();
  };
  const auto bytes = group.tree_reduce_broadcast(word.take(), merge, until);
  load_verdict verdict;
  try {
    wire_reader in(bytes);
    verdict.outcome = in.get_enum(load_outcome::refused);
    if (verdict.outcome == load_outcome::loaded) {
      unexpected = get_names(in);
      report.unmatched = get_names(in);
    } else {
      const auto rank = in.get<std::int32_t>();
      verdict.failure = decode_failure(in, rank);
    }
  } catch (const wire_error& e) {
    fail(error_id::peer_bad_message,
         std::string("the messages of the ranks about a load are damaged: ") + e.what());
  }
  if (verdict.outcome == load_outcome::loaded && strict && !unexpected.empty()) {
    try {
      fail_names(error_id::plan_unexpected_item, "the checkpoint",
                 "in no rank's state (load with cairn::partial or cairn::only to "
                 "leave them out)",
                 unexpected, group.rank());
    } catch (...) {
      verdict = {load_outcome::refused, std::current_exception()};
    }
  }
  return verdict;
}

/// What the coordinator read, on all ranks; what it threw is thrown on all.
[[nodiscard]] inline std::vector<std::byte> read_once(collectives& group,
                                                      function_ref<std::vector<std::byte>()> read,
                                                      deadline until) {
  if (group.size() == 1) return read();
  if (group.rank() == 0) return group.broadcast(0, collective_input::from(read), until);
  try {
    return group.broadcast(0, collective_input(), until);
  } catch (const timeout_error& e) {
    if (e.fields().rank != 0) throw;
    fail(e.id(),
         e.message() +
             "; what all ranks need from the store, rank 0 reads: it waits as long as the "
             "store does not answer there",
         e.fields());
  }
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
