// SPDX-License-Identifier: Apache-2.0
#pragma once
// Follows a directory of checkpoints while a run saves into it.
#include <cairn/cairn.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "steps.hpp"

namespace inspecting {

struct watch_options {
  std::optional<std::int64_t> until;  ///< end when this step or a later one is committed
  double seconds = 0;                 ///< end after so long; 0: no limit
  double age_seconds = 60;            ///< say at least so often how old the newest is
  double stale_seconds = 60;          ///< a whole attempt without a manifest is stale after so long
};

/// The files of a step that is not committed.
struct attempt_files {
  std::size_t open = 0;  ///< unfinished, of writers that live or died
  std::uint64_t bytes = 0;
  double age = 0;  ///< seconds since the last change
};
inline attempt_files files_of(const std::string& directory, std::int64_t step) {
  attempt_files found;
  std::error_code gone;  // files come and go while this looks
  auto newest = std::filesystem::file_time_type::min();
  for (std::filesystem::directory_iterator at(directory + "/" + cairn::step_directory(step), gone), end;
       !gone && at != end; at.increment(gone)) {
    std::error_code skip;
    if (at->path().extension() == ".part") ++found.open;
    const auto bytes = at->file_size(skip);
    if (!skip) found.bytes += bytes;
    const auto changed = at->last_write_time(skip);
    if (!skip) newest = std::max(newest, changed);
  }
  if (newest != std::filesystem::file_time_type::min())
    found.age = std::chrono::duration<double>(std::filesystem::file_time_type::clock::now() - newest).count();
  return found;
}

/// The steps that have a directory and no manifest, ascending; also those of which a store lists nothing,
/// since their files are still being written.
inline std::set<std::int64_t> attempted_steps(const std::string& directory,
                                              const std::vector<std::int64_t>& committed) {
  std::set<std::int64_t> steps;
  std::error_code gone;
  for (std::filesystem::directory_iterator at(directory, gone), end; !gone && at != end; at.increment(gone)) {
    const auto step = cairn::parse_step(at->path().filename().string());
    if (step && !std::binary_search(committed.begin(), committed.end(), *step)) steps.insert(*step);
  }
  return steps;
}

inline std::string age_text(double seconds) {
  const char* const units[] = {"s", "min", "h", "days"};
  const double lengths[] = {1, 60, 3600, 86400};
  int unit = 0;
  while (unit < 3 && seconds >= 2 * lengths[unit + 1]) ++unit;
  char text[40];
  std::snprintf(text, sizeof text, "%.0f %s", std::max(0.0, seconds) / lengths[unit], units[unit]);
  return text;
}

/// What stands in the directory at one moment, in lines; prints those that are new.
class watcher {
 public:
  watcher(std::string directory, store_type& store, reader_type& reader, const watch_options& options)
      : directory_(std::move(directory)), store_(store), reader_(reader), options_(options) {}

  void look() {
    const auto steps = reader_.list();
    std::erase_if(told_, [&](const auto& known) {
      const bool gone =
          committed_.count(known.first) != 0 && !std::binary_search(steps.begin(), steps.end(), known.first);
      if (gone)
        say("step " + std::to_string(known.first) + "  is not a checkpoint any more: removed or set aside");
      if (gone) committed_.erase(known.first);
      return gone;
    });
    for (const auto step : steps)
      if (committed_.count(step) == 0) look_at_checkpoint(step);
    std::string saving, stale;
    for (const auto step : attempted_steps(directory_, steps)) look_at_attempt(step, saving, stale);
    if (std::exchange(changed_, false) || clock::now() >= next_age_) {
      std::string line = committed_.empty() ? "no checkpoint yet" : "newest: step " + newest();
      if (!saving.empty()) line += "; being saved: " + saving;
      if (!stale.empty()) line += "; stale: " + stale;
      std::printf("%s\n", line.c_str());
      next_age_ =
          clock::now() + std::chrono::milliseconds(static_cast<long long>(options_.age_seconds * 1000));
    }
    std::fflush(stdout);
  }
  [[nodiscard]] bool reached() const {
    return options_.until && !committed_.empty() && committed_.rbegin()->first >= *options_.until;
  }
  [[nodiscard]] bool saw_damage() const noexcept { return damage_; }

 private:
  using clock = std::chrono::steady_clock;

  void say(const std::string& line) {
    std::printf("%s\n", line.c_str());
    changed_ = true;
  }
  void tell(std::int64_t step, const std::string& what) {
    if (std::exchange(told_[step], what) != what) say("step " + std::to_string(step) + "  " + what);
  }
  [[nodiscard]] std::string newest() const {
    const auto& [step, unix_time] = *committed_.rbegin();
    return std::to_string(step) + ", " +
           age_text(std::difftime(std::time(nullptr), static_cast<std::time_t>(unix_time))) + " old";
  }
  void look_at_checkpoint(std::int64_t step) {
    try {
      const auto opened = open(reader_, step);
      committed_[step] = opened.manifest().unix_time;
      const auto line = summary(opened.manifest());
      told_[step] = line;
      say(line);
    } catch (const cairn::corrupt_error& error) {
      damage_ = true;
      tell(step, std::string("damaged: ") + error.what());
    } catch (const cairn::storage_error& error) {
      // Removed since it was listed: the next look no longer sees it.
      if (status_of(error) != nothing_there) throw;
    }
  }
  void look_at_attempt(std::int64_t step, std::string& saving, std::string& stale) {
    const auto files = files_of(directory_, step);
    const auto dead = store_.leftovers(cairn::step_directory(step) + "/").size();
    const bool alive = files.open > dead;
    const auto why = alive ? std::string() : interruption(store_, step);
    const bool whole_and_old = why.empty() && !alive && files.age >= options_.stale_seconds;
    const auto size = " (" + size_text(files.bytes) + ")";
    if (!why.empty())
      tell(step, why);
    else if (whole_and_old)
      tell(step, "is stale: written and not committed; a rank is missing, or the run ended");
    else
      tell(step, "is being saved");
    auto& list = why.empty() && !whole_and_old ? saving : stale;
    list += (list.empty() ? "step " : ", step ") + std::to_string(step) + size;
  }

  std::string directory_;
  store_type& store_;
  reader_type& reader_;
  watch_options options_;
  std::map<std::int64_t, std::string> told_;        // what was said last about a step
  std::map<std::int64_t, std::int64_t> committed_;  // and when it was, in seconds since 1970
  clock::time_point next_age_ = clock::now();
  bool changed_ = false;
  bool damage_ = false;
};

/// Looks a few times a second, until a signal, `until` or `seconds`.
inline exit_status watch(const std::string& directory, store_type& store, reader_type& reader,
                         const watch_options& options) {
  const cairn::stop_signal stop{SIGINT, SIGTERM};
  std::printf("watching %s; end with Ctrl-C\n", directory.c_str());
  watcher watching(directory, store, reader, options);
  const auto begin = std::chrono::steady_clock::now();
  for (;;) {
    watching.look();
    if (watching.reached() || stop.requested()) break;
    if (options.seconds > 0 &&
        std::chrono::steady_clock::now() - begin >= std::chrono::duration<double>(options.seconds))
      break;
    // A signal may come to any thread and does not end this sleep, so it is a short one.
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  if (options.until && !watching.reached()) {
    std::fprintf(stderr, "inspect: step %lld was not reached\n", static_cast<long long>(*options.until));
    return not_reached;
  }
  return watching.saw_damage() ? damaged : fine;
}

}  // namespace inspecting
