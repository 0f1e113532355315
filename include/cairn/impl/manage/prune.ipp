// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_reader.hpp>
#include <cairn/concepts/any_storage.hpp>
#include <cairn/concepts/any_writer.hpp>
#include <cairn/manage/prune.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/model/record.hpp>
#include <cairn/model/retention_policy.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/plan/near_names.hpp>
#include <cairn/storage/manifest/manifest.hpp>
#include <cairn/storage/manifest/manifest_format.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <exception>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What prune() reads of the manifests.
struct prune_listing {
  std::vector<retained_checkpoint> line;
  std::vector<pruned_checkpoint> verdicts;
  /// The run that committed it, and which of its saves it was.
  std::vector<std::pair<run_id, std::uint64_t>> saved;
  std::vector<std::uint64_t> attempts;
};

/// Whether no other checkpoint is a later save of the same run.
[[nodiscard]] inline bool last_of_run(const prune_listing& all, std::size_t i) {
  for (std::size_t k = 0; k < all.saved.size(); ++k)
    if (all.line[k].readable && all.saved[k].first == all.saved[i].first &&
        all.saved[k].second > all.saved[i].second)
      return false;
  return true;
}

inline prune_listing list_for_prune(any_reader reader, const prune_options& options) {
  prune_listing all;
  std::uint64_t looked_at = 0;
  const auto steps = reader.list();
  for (const auto step : steps) {
    if (options.progress) options.progress(looked_at++, steps.size());
    retained_checkpoint about{.step = step};
    pruned_checkpoint verdict{.step = step};
    std::pair<run_id, std::uint64_t> saved;
    std::uint64_t attempt = 0;
    try {
      const auto m = open_manifest(reader.fetch(step), manifest_key(step));
      about.committed_at = m.unix_time, about.annotations = m.content.annotations;
      for (const auto& r : m.records)
        if (r.rank == m.placement.first_of(r.rank)) verdict.bytes += r.data_bytes;
      saved = {m.run, save_count_of(m.run, m.step, m.attempt)};
      attempt = m.attempt;
    } catch (const error& e) {
      if (e.id() == error_id::storage_not_committed) continue;  // gone since it was listed
      about.readable = about.counts = false;
      verdict.kept = std::string("its manifest cannot be read: ") + e.what();
      verdict.fault = std::current_exception();
    }
    all.line.push_back(std::move(about));
    all.verdicts.push_back(std::move(verdict));
    all.saved.push_back(saved);
    all.attempts.push_back(attempt);
  }
  return all;
}

/// @throws usage_error (usage_unknown_name) where a keep_best names an annotation that is a number in none of the checkpoints
/// whose manifests can be read: a slip of the pen, by which all but the newest would go
inline void require_annotations(const retention_policy& policy, const prune_listing& all) {
  const auto missing = policy.missing_annotations(all.line);
  if (missing.empty()) return;
  near_names similar(missing.front());
  std::vector<std::string> names;
  for (const auto& about : all.line)
    for (const auto& said : about.annotations) names.push_back(said.name);
  detail::sort(names);
  detail::erase_repeated(names);
  for (const auto& name : names) similar.offer(name);
  const auto like_it = similar.text();
  fail(error_id::usage_unknown_name,
       "no checkpoint has a number in the annotation that is to say which are the best; nothing was removed" +
           (like_it.empty() ? std::string() : "; near it: " + like_it),
       {.item = missing.front()});
}

}  // namespace detail

CAIRN_BODY prune_report prune(const any_storage& storage, const retention_policy& policy,
                              const prune_options& options) {
  policy.check();
  if (policy.empty())
    fail(error_id::usage_bad_option,
         "a prune without a policy would remove all checkpoints but the newest; say what stays, such as "
         "keep_last(3)");
  auto reader = storage.reader();
  auto writer = storage.writer();
  // First: what is noted later is of runs that see what is listed.
  auto all = detail::list_for_prune(reader, options);
  detail::require_annotations(policy, all);
  const auto now = static_cast<std::int64_t>(std::time(nullptr));
  const auto reasons = policy.reasons(all.line, now);
  const auto pinned = writer.pinned();
  const auto restarts = writer.restarts();
  constexpr auto resumed_from = "a run resumed from it and has committed nothing since";
  bool newest = true;
  for (auto i = all.verdicts.size(); i-- > 0;) {
    auto& kept = all.verdicts[i].kept;
    const auto keep = [&](bool stays, const std::string& why) {
      if (stays && kept.empty()) kept = why;
    };
    const bool readable = all.line[i].readable;
    keep(!reasons[i].empty(), reasons[i]);
    keep(detail::contains(pinned, all.line[i].step), "it is pinned");
    keep(newest, "it is the newest");
    keep(detail::contains(restarts, all.line[i].step), resumed_from);
    keep(readable && static_cast<double>(now - all.line[i].committed_at) <= options.live_seconds &&
             detail::last_of_run(all, i),
         "a run committed it last that may be going on");
    if (readable) newest = false;
  }
  prune_report report;
  for (std::size_t i = 0; i < all.verdicts.size(); ++i) {
    auto& verdict = all.verdicts[i];
    if (verdict.kept.empty()) {
      std::string who;
      for (const auto& name : writer.readers(verdict.step)) who += (who.empty() ? "" : ", ") + name;
      if (!who.empty()) verdict.kept = "it is read by " + who;
    }
    if (verdict.kept.empty() && options.remove) {
      if (options.stop && options.stop()) {
        report.complete = false;
        break;
      }
      try {  // a job that trains meanwhile may have gone back to it, or have made another of this number
        if (detail::contains(writer.restarts(), verdict.step))
          verdict.kept = resumed_from;
        else if (writer.remove_attempt({verdict.step, all.attempts[i]}))
          verdict.removed = true;
        else
          verdict.kept = "it was removed or committed anew since it was looked at";
      } catch (const storage_error& e) {  // since it was looked at
        if (e.id() == error_id::storage_leased)
          verdict.kept = "it is read by " + e.fields().got;
        else if (e.id() == error_id::storage_pinned)
          verdict.kept = "it is pinned";
        else
          throw;
      }
    }
    if (options.told) options.told(verdict);
    report.checkpoints.push_back(std::move(verdict));
  }
  return report;
}

}  // namespace v1
}  // namespace cairn
