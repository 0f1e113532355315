// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/comm/collectives.hpp>
#include <cairn/concepts/any_planner.hpp>
#include <cairn/concepts/storage.hpp>
#include <cairn/plan/plan_cache.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/function_ref.hpp>
#include <cairn/system/shared.hpp>
#include <cairn/system/wire.hpp>

#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// A summary that came from another rank; damage in transit becomes a typed error.
inline any_summary decode_summary(any_save_planner& planner, std::span<const std::byte> bytes) {
  try {
    return planner.decode(bytes);
  } catch (const wire_error& e) {
    fail(error_id::plan_bad_message,
         std::string("a plan summary is damaged or was made by another version: ") + e.what(),
         {.offset = static_cast<std::int64_t>(e.offset)});
  }
}

/// Merges encoded summaries. What it made last, the left one of the next merge, need not be decoded again.
class summary_fold {
 public:
  explicit summary_fold(any_save_planner& planner) : planner_(planner) {}

  [[nodiscard]] std::vector<std::byte> keep(any_summary summary) {
    auto bytes = planner_.encode(summary);
    kept_ = std::move(summary);
    digest_ = digest(std::span<const std::byte>(bytes));
    return bytes;
  }
  [[nodiscard]] std::vector<std::byte> operator()(const std::vector<std::byte>& left,
                                                  const std::vector<std::byte>& right) {
    const bool known = kept_.has_value() && digest_ == digest(std::span<const std::byte>(left));
    auto lower = known ? std::move(kept_) : decode_summary(planner_, left);
    kept_.reset();
    return keep(planner_.merge(std::move(lower), decode_summary(planner_, right)));
  }

 private:
  any_save_planner& planner_;
  any_summary kept_;
  std::uint64_t digest_ = 0;
};

/// What is stored of a state: what its planner says, and its version.
inline std::shared_ptr<const metadata> stored_of(metadata planned, const state_dict& state) {
  planned.state_version = state.version();
  return detail::make_shared<const metadata>(std::move(planned));
}
/// A plan of another version of the state is another plan, if nothing but its meaning has changed.
inline std::uint64_t digest_for(const state_dict& state, std::uint64_t plan) {
  return state.version() == 0 ? plan : digest_stream().put(plan).put(state.version()).value();
}

/// Makes this rank's final plan together with the other ranks: one reduction of summaries, and one barrier
/// after which the plan is known to stand on all ranks. Everything that any rank throws on the way is thrown
/// on all ranks. `look` is asked now and then whether the others plan at all, and throws where not.
inline cached_plan plan_together(any_save_planner& planner, collectives& group, const state_dict& state,
                                 deadline until, function_ref<void()> look) {
  const int rank = group.rank();
  const int world = group.size();
  cached_plan planned;
  planned.sources = detail::make_shared<source_cache>();
  if (world == 1) {
    auto local = planner.local_plan(state, rank);
    const auto summary = planner.summarise(local, rank);
    planned.plan =
        detail::make_shared<const save_plan>(planner.finish(std::move(local), summary, rank, world));
    planned.stored = stored_of(planner.metadata(summary, world), state);
    planned.digest = digest_for(state, digest_of(*planned.plan));
    for (const auto& i : planned.plan->items) planned.bytes += sizeof i + i.name.size();
    return planned;
  }
  save_plan local;
  summary_fold fold(planner);
  auto own = collective_input::from([&] {
    local = planner.local_plan(state, rank);
    return fold.keep(planner.summarise(local, rank));
  });
  const auto merge = [&](const std::vector<std::byte>& left, const std::vector<std::byte>& right) {
    return fold(left, right);
  };
  // Only here does nobody go on who has seen to it that all plan.
  const auto bytes = group.on_demand_reduce(std::move(own), merge, until, look);
  std::exception_ptr failure;
  try {
    const auto summary = decode_summary(planner, bytes);
    planned.plan =
        detail::make_shared<const save_plan>(planner.finish(std::move(local), summary, rank, world));
    if (rank == 0) planned.stored = stored_of(planner.metadata(summary, world), state);
    planned.digest = digest_for(state, digest(std::span<const std::byte>(bytes)));
    planned.bytes = bytes.size();
  } catch (...) {
    failure = std::current_exception();
  }
  group.on_demand_barrier(until, failure);
  return planned;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
