// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/record.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/storage/commit/commit_parts.hpp>
#include <cairn/storage/manifest/corrupt.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/storage/manifest/record_format.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/backoff.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/list_view.hpp>
#include <cairn/system/vector.hpp>
#include <cairn/system/wire.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY poll_backoff::poll_backoff(std::uint64_t attempt, std::int32_t rank,
                                      std::int32_t world_size) noexcept
    : noise_(attempt ^ (static_cast<std::uint64_t>(rank) * 0x9e3779b97f4a7c15U)) {
  const auto share = std::chrono::nanoseconds(std::chrono::microseconds(100)) * world_size;
  if (share <= max_) return;
  max_ = share;
  last_ = std::max<std::chrono::nanoseconds>(share, std::chrono::seconds(1));
  pause_ = share;
  spread_ = true;
}

CAIRN_BODY std::chrono::nanoseconds poll_backoff::next() noexcept {
  noise_ = noise_ * 6364136223846793005U + 1442695040888963407U;
  const auto noise = static_cast<std::int64_t>(noise_ >> 54);  // 0 to 1023
  if (std::exchange(spread_, false)) return pause_ / 1024 * noise;
  const auto pause = pause_ + pause_ / 4096 * noise;  // up to a quarter more
  waited_ += pause;
  pause_ = std::min(std::max(pause_ * 2, waited_ / 16), std::min(last_, std::max(max_, waited_ / 16)));
  return pause;
}

CAIRN_BODY bool poll_backoff::wait(deadline until) {
  if (current_simulated_waits != nullptr) return current_simulated_waits->wait(next(), until);
  return sleep_for(next(), until);
}

CAIRN_BODY bool step_object::is_file() const noexcept {
  return own && name.kind != object_kind::manifest && name.kind != object_kind::aborted;
}

CAIRN_BODY bool is_among(const std::vector<std::uint64_t>& attempts, std::uint64_t attempt) noexcept {
  return detail::contains(attempts, attempt);
}

inline constexpr std::string_view quarantine_prefix = "manifest.damaged.";

inline constexpr std::string_view claim_prefix = "claim.";

CAIRN_BODY std::string quarantined_key(std::int64_t step, int n) {
  return step_directory(step) + "/" + std::string(quarantine_prefix) + std::to_string(n);
}

CAIRN_BODY std::string claim_key(std::int64_t step, int n) {
  return step_directory(step) + "/" + std::string(claim_prefix) + std::to_string(n);
}

CAIRN_BODY std::optional<step_object> parse_object(std::string_view key, std::size_t directory_bytes) {
  const auto name = key.substr(directory_bytes);
  if (const auto parsed = parse_placed_object(name))
    return step_object{std::string(key), *parsed, true, false};
  for (const auto prefix : {quarantine_prefix, claim_prefix})
    if (name.starts_with(prefix) && parse_padded(name.substr(prefix.size()), 1, INT32_MAX))
      return step_object{std::string(key), {}, false, prefix == claim_prefix};
  return std::nullopt;
}

CAIRN_BODY std::optional<parsed_key> unfinished_object(std::string_view key) noexcept {
  for (auto dot = key.rfind('.'); dot != std::string_view::npos && dot > 0; dot = key.rfind('.', dot - 1))
    if (const auto parsed = parse_key(key.substr(0, dot))) return parsed;
  return std::nullopt;
}

CAIRN_BODY vector<found_attempt> attempts_in(const vector<step_object>& objects,
                                             std::optional<std::uint64_t> but) {
  vector<found_attempt> found;
  for (const auto& o : objects) {
    if ((!o.is_file() && !o.is_mark()) || o.name.attempt == but) continue;
    auto at = detail::find_if(found, [&](const auto& a) { return a.attempt == o.name.attempt; });
    if (at == found.end()) {
      found.push_back({o.name.attempt, false, 0});
      at = &found.back();
    }
    at->marked |= o.is_mark();
    at->files += o.is_file();
  }
  return found;
}

CAIRN_BODY void identify(record_identity& r, const save_context& c) noexcept {
  r.run = c.run;
  r.attempt = c.attempt;
  r.step = c.step;
  r.rank = c.rank;
  r.world_size = c.world_size;
  r.plan_digest = c.plan_digest;
}

CAIRN_BODY std::exception_ptr already_committed(std::int64_t step) {
  return make_failure(
      error_id::storage_already_committed,
      "step " + std::to_string(step) +
          " was committed already, by another run or an earlier save: remove that checkpoint first, or save "
          "another step",
      {.file = manifest_key(step)});
}
CAIRN_BODY void fail_already_committed(std::int64_t step) {
  std::rethrow_exception(already_committed(step));
}

CAIRN_BODY std::exception_ptr superseded(std::int64_t step, const run_id& by) {
  return make_failure(error_id::storage_aborted,
                      "another save of step " + std::to_string(step) + " took the place of this one",
                      {.file = manifest_key(step), .got = to_string(by)});
}

CAIRN_BODY std::exception_ptr removed_meanwhile(std::int64_t step) {
  return make_failure(error_id::storage_aborted,
                      "step " + std::to_string(step) + " was removed while it was saved",
                      {.file = manifest_key(step), .got = "a removal"});
}

CAIRN_BODY std::exception_ptr failure_of_rank(const std::exception_ptr& failure, std::int32_t rank) {
  const auto bytes = encode_failure(failure);
  try {
    wire_reader in(bytes);
    return decode_failure(in, rank);
  } catch (const wire_error&) {  // longer than a reader accepts
    return failure;
  }
}

CAIRN_BODY std::exception_ptr why_marked(std::span<const std::byte> bytes, std::int64_t step,
                                         const std::string& key) {
  try {
    wire_reader in(bytes);
    auto why = decode_failure(in);
    in.finish();
    return why;
  } catch (const wire_error&) {
    return make_failure(error_id::storage_aborted,
                        "the save of step " + std::to_string(step) + " was aborted for an unknown reason",
                        {.file = key});
  }
}

CAIRN_BODY std::string ranks_text(list_view<const std::int32_t> ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < std::min<std::size_t>(ranks.size(), 16); ++i)
    text.append(i == 0 ? "" : ", ").append(std::to_string(ranks[i]));
  if (ranks.size() > 16) text.append(" and ").append(std::to_string(ranks.size() - 16)).append(" more");
  return text;
}

CAIRN_BODY void fail_absent(const save_context& c, std::int32_t rank, std::string_view what,
                            const std::string& file) {
  fail(error_id::peer_lost,
       "step " + std::to_string(c.step) + " was not committed: rank " + std::to_string(rank) + " " +
           std::string(what) +
           " by the deadline; ranks that share files must be on one host; look for its errors",
       {.rank = rank, .file = file});
}

CAIRN_BODY void fail_missing(const save_context& c, list_view<const std::int32_t> missing) {
  const std::string whose = missing.size() == 1 ? "its" : "their";
  fail(error_id::peer_lost,
       "step " + std::to_string(c.step) + " was not committed: " + ranks_text(missing) +
           " did not report that " + whose + " part is written by the deadline; look for " + whose +
           " errors",
       {.rank = missing.front()});
}

CAIRN_BODY void fail_counts_differ(const save_context& c, std::int32_t rank, std::uint64_t count) {
  const auto mine = "save " + std::to_string(save_count_of(c.run, c.step, c.attempt)) + " of this run";
  const auto theirs = "save " + std::to_string(count);
  fail(error_id::peer_lost,
       "step " + std::to_string(c.step) + " was not committed: rank " + std::to_string(rank) +
           " has written it as " + theirs + ", and for rank " + std::to_string(c.rank) + " it is " + mine +
           "; a save() was not called on all ranks, and no later save is committed until all of them begin "
           "anew with another checkpointer",
       {.rank = rank, .expected = mine, .got = theirs});
}

CAIRN_BODY void fail_lost(const save_context& c, list_view<const std::int32_t> lost) {
  fail(error_id::peer_lost,
       "step " + std::to_string(c.step) + " was not committed: " + ranks_text(lost) +
           (lost.size() == 1 ? " is gone, and its part" : " are gone, and their part") + " was not written",
       {.rank = lost.front()});
}

CAIRN_BODY void check_agreement(const save_context& c, list_view<const std::int32_t> ranks,
                                list_view<const record_header> headers) {
  std::vector<std::int32_t> foreign;
  std::vector<std::int32_t> other_plans;
  for (const auto rank : ranks) {
    const auto& h = headers[static_cast<std::size_t>(rank)];
    if (!(h.run == c.run) || h.attempt != c.attempt || h.step != c.step || h.rank != rank ||
        h.world_size != c.world_size)
      foreign.push_back(rank);
    else if (h.plan_digest != c.plan_digest)
      other_plans.push_back(rank);
  }
  if (!foreign.empty())
    fail(error_id::plan_disagreement,
         "the records of " + ranks_text(foreign) +
             " belong to another run, step or number of ranks than the coordinator's",
         {.rank = foreign.front(), .file = record_key(c.step, foreign.front(), c.attempt)});
  if (!other_plans.empty()) {
    const auto& h = headers[static_cast<std::size_t>(other_plans.front())];
    fail(error_id::plan_disagreement,
         ranks_text(other_plans) +
             " wrote by another plan than the coordinator: the state must change on all ranks at the same "
             "save",
         {.rank = other_plans.front(),
          .file = record_key(c.step, other_plans.front(), c.attempt),
          .expected = digest_text(c.plan_digest),
          .got = digest_text(h.plan_digest)});
  }
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
