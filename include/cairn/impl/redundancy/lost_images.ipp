// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/surveyed_save.hpp>
#include <cairn/redundancy/image_rebuilds.hpp>
#include <cairn/redundancy/lost_images.hpp>
#include <cairn/redundancy/surviving_set.hpp>
#include <cairn/system/error.hpp>
#include <cairn/tiers/held_record.hpp>
#include <cairn/tiers/held_store.hpp>
#include <cairn/tiers/spread_images.hpp>
#include <cairn/tiers/tier_directory.hpp>
#include <cairn/tiers/tier_files.hpp>

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

/// All that the tiers in some directories have.
[[nodiscard]] inline std::vector<surveyed_save> survey_all(std::span<const std::string> directories,
                                                           image_rebuilder& by,
                                                           std::vector<std::string>& damaged) {
  std::vector<surveyed_save> all;
  for (const auto& directory : directories) {
    auto own = survey_images(directory, damaged);
    by.survey(directory, own, damaged);
    add_survey(all, own);
  }
  return all;
}

/// Gives a tier both files of a plan, where it has not got them.
inline void rebuild_plan(std::span<const std::string> directories, std::uint64_t digest,
                         const std::string& into, tier_files& files) {
  std::exception_ptr none;
  for (const auto& directory : directories) try {
      const auto plan = plan_in_tier(directory, digest);
      for (const auto& name : {plan_name(digest), second_plan_name(digest)}) {
        if (::access((into + "/" + name).c_str(), F_OK) == 0) continue;
        put_durably(files, into, "new-plan-rebuilt", name, plan.bytes, !lies_in_memory(into));
      }
      return;
    } catch (const corrupt_error&) {
      none = std::current_exception();
    }
  if (none) std::rethrow_exception(none);
}

}  // namespace detail

CAIRN_BODY std::vector<surviving_step> find_surviving_steps(std::span<const std::string> directories,
                                                            const any_redundancy& by,
                                                            std::vector<std::string>& damaged) {
  std::vector<surviving_step> steps;
  detail::redundancy_rebuilder rebuilder(by);
  for (const auto& save : detail::survey_all(directories, rebuilder, damaged)) {
    surviving_step step{
        .which = {.step = save.step, .run = save.run, .attempt = save.attempt, .world_size = save.world_size},
        .plan_digest = save.plan_digest,
        .lost = {},
        .missing = {}};
    if (save.has_runs) step.which.runs = save.runs;
    auto image = save.images.begin();
    for (std::int32_t rank = 0; rank < save.world_size; ++rank)
      if (image != save.images.end() && image->rank == rank)
        ++image;
      else
        step.lost.push_back(rank);
    for (const auto rank : step.lost)
      if (step.missing.empty()) step.missing = rebuilder.obstacle(save, rank);
    if (step.missing.empty() && !save.has_plan) step.missing = "none of the tiers has its plan";
    steps.push_back(std::move(step));
  }
  const auto held = [](const surviving_step& s) -> const held_step& { return s.which; };
  detail::order_by_runs(steps, held);
  // A save that cannot be made whole is none that the job could have told to be held.
  std::vector<surviving_step> whole;
  for (const auto& s : steps)
    if (s.missing.empty()) whole.push_back(s);
  std::erase_if(steps, [&](const surviving_step& s) { return detail::is_left_behind(s.which, whole, held); });
  return steps;
}

CAIRN_BODY void rebuild_lost_images(std::span<const std::string> directories, const any_redundancy& by,
                                    const surviving_step& step, const std::string& into,
                                    std::vector<std::string>& notes) {
  detail::redundancy_rebuilder rebuilder(by);
  const auto saves = detail::survey_all(directories, rebuilder, notes);
  const auto save = std::find_if(saves.begin(), saves.end(), [&](const surveyed_save& s) {
    return s.run == step.which.run && s.attempt == step.which.attempt && s.step == step.which.step &&
           s.world_size == step.which.world_size && s.plan_digest == step.plan_digest;
  });
  if (save == saves.end())
    fail(error_id::storage_not_found, "none of the tiers has anything of the save that is to be rebuilt",
         {.expected = "step " + std::to_string(step.which.step)});
  tier_files files;
  detail::rebuild_plan(directories, step.plan_digest, into, files);
  std::vector<std::unique_ptr<rebuild_sources>> sources;
  for (const auto& directory : directories) sources.push_back(rebuilder.sources(directory, *save));
  for (const auto rank : step.lost) {
    const auto rebuild = rebuilder.begin(into, *save, rank);
    while (!rebuild->is_whole()) {
      const auto wanted = rebuild->next(std::uint64_t{32} << 20);
      std::vector<std::vector<std::byte>> memory(wanted.size());
      std::vector<std::span<const std::byte>> parts(wanted.size());
      for (std::size_t i = 0; i < wanted.size(); ++i)
        for (const auto& source : sources) {
          memory[i].resize(static_cast<std::size_t>(source->bytes(wanted[i])));
          if (!source->read(wanted[i], memory[i])) continue;
          parts[i] = memory[i];
          break;
        }
      rebuild->take(parts);
    }
    for (auto& note : rebuild->finish()) notes.push_back(std::move(note));
  }
}

namespace detail {

[[nodiscard]] inline surveyed_save named_save(const surviving_step& step) {
  surveyed_save save;
  save.run = step.which.run, save.attempt = step.which.attempt, save.step = step.which.step;
  save.world_size = step.which.world_size, save.plan_digest = step.plan_digest;
  return save;
}

}  // namespace detail

CAIRN_BODY std::vector<std::string> give_up_damaged_images(std::span<const std::string> directories,
                                                           const surviving_step& step) {
  std::vector<std::string> given_up;
  tier_files files;
  for (const auto& directory : directories)
    for (auto& why : detail::give_up_damaged_images(directory, detail::named_save(step), files))
      given_up.push_back(std::move(why));
  return given_up;
}

CAIRN_BODY any_store surviving_store(std::span<const std::string> directories, const surviving_step& step) {
  const auto which = detail::named_save(step);
  std::vector<surveyed_save> all;
  std::vector<std::vector<detail::held_name>> names(directories.size());
  const std::string* with_plan = nullptr;
  std::vector<std::string> damaged;
  std::int64_t saved_at = 0;  // when the first of its images was held
  for (std::size_t i = 0; i < directories.size(); ++i) {
    auto own = detail::survey_images(directories[i], damaged);
    std::erase_if(own, [&](const surveyed_save& s) { return !s.is_same_save(which); });
    if (with_plan == nullptr && !own.empty() && own.front().has_plan) with_plan = &directories[i];
    add_survey(all, own);
    for (const auto& each : detail::names_in_tier(directories[i]))
      if (const auto name = detail::parse_held_name(each); name && detail::names_save(*name, which)) {
        names[i].push_back(*name);
        struct stat s {};
        if (::stat((directories[i] + "/" + each).c_str(), &s) == 0 &&
            (saved_at == 0 || s.st_mtime < saved_at))
          saved_at = s.st_mtime;
      }
  }
  if (all.empty() || with_plan == nullptr ||
      all.front().images.size() != static_cast<std::size_t>(which.world_size))
    fail(error_id::corrupt_missing_file, "the local tiers do not have all of this save",
         {.expected = "step " + std::to_string(which.step)});
  return any_store(detail::held_store(directories, names, which.step,
                                      detail::spread_manifest(*with_plan, all.front(), saved_at)));
}

}  // namespace v1
}  // namespace cairn
