// SPDX-License-Identifier: Apache-2.0
#pragma once
// Follows the checkpoints of a store while a run saves into it.
#include <cairn/cairn.hpp>
#include <cairn/storage/manifest/manifest.hpp>
#include <cairn/storage/manifest/names.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
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

#include "../tools/status.hpp"
#include "../tools/store.hpp"
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
  bool alive = false;  ///< a writer is known to live
  std::uint64_t bytes = 0;
  std::size_t uploads = 0;  ///< unfinished ones, of a bucket
  double age = 0;           ///< seconds since the last change
};

/// What a store shows of steps that are not committed; a directory shows more than a bucket.
class attempt_view {
 public:
  /// directory: nothing for a bucket
  attempt_view(store_type& store, std::optional<std::string> directory)
      : store_(store), directory_(std::move(directory)) {}
  [[nodiscard]] bool is_directory() const { return directory_.has_value(); }

  [[nodiscard]] attempt_files files_of(std::int64_t step) {
    return directory_ ? files_in_directory(step) : files_in_bucket(step);
  }
  /// The steps that have objects and no manifest, ascending; in a directory also those of which a store lists
  /// nothing, since their files are still being written.
  [[nodiscard]] std::set<std::int64_t> attempted_steps(const std::vector<std::int64_t>& committed) {
    std::set<std::int64_t> steps;
    if (!directory_) {
      for (const auto step : uncommitted_steps(store_, committed)) steps.insert(step);
      return steps;
    }
    std::error_code gone;
    for (std::filesystem::directory_iterator at(*directory_, gone), end; !gone && at != end;
         at.increment(gone)) {
      const auto step = cairn::parse_step(at->path().filename().string());
      if (step && !std::binary_search(committed.begin(), committed.end(), *step)) steps.insert(*step);
    }
    return steps;
  }

 private:
  using clock = std::chrono::steady_clock;
  [[nodiscard]] attempt_files files_in_directory(std::int64_t step) {
    attempt_files found;
    std::size_t open = 0;
    auto newest = std::filesystem::file_time_type::min();
    // Those of a large world lie in directories of so many ranks each. Files and directories come and go while this looks.
    std::vector<std::filesystem::path> directories{*directory_ + "/" + cairn::step_directory(step)};
    while (!directories.empty()) {
      const auto directory = std::move(directories.back());
      directories.pop_back();
      std::error_code gone;
      for (std::filesystem::directory_iterator at(directory, gone), end; !gone && at != end;
           at.increment(gone)) {
        std::error_code skip;
        const auto kind = at->symlink_status(skip).type();
        if (kind == std::filesystem::file_type::directory) directories.push_back(at->path());
        if (kind != std::filesystem::file_type::regular) continue;
        if (at->path().extension() == ".part") ++open;
        const auto bytes = at->file_size(skip);
        if (!skip) found.bytes += bytes;
        const auto changed = at->last_write_time(skip);
        if (!skip) newest = std::max(newest, changed);
      }
    }
    if (newest != std::filesystem::file_time_type::min())
      found.age =
          std::chrono::duration<double>(std::filesystem::file_time_type::clock::now() - newest).count();
    found.alive = open > store_.leftovers(cairn::step_directory(step) + "/").size();
    return found;
  }
  /// A bucket does not tell whose writers live, nor, here, when an object changed: what changes is alive, and uploads may
  /// be.
  [[nodiscard]] attempt_files files_in_bucket(std::int64_t step) {
    attempt_files found;
    const auto prefix = cairn::step_directory(step) + "/";
    found.uploads = store_.leftovers(prefix).size();
    auto objects = found.uploads;
    for (const auto& object : store_.list(prefix)) found.bytes += object.bytes, ++objects;
    auto& before = seen_[step];
    if (before.objects != objects || before.bytes != found.bytes)
      before = {objects, found.bytes, clock::now()};
    found.age = std::chrono::duration<double>(clock::now() - before.changed).count();
    found.alive = true;
    return found;
  }

  struct sight {
    std::size_t objects = 0;
    std::uint64_t bytes = 0;
    clock::time_point changed{};
  };
  store_type& store_;
  std::optional<std::string> directory_;
  std::map<std::int64_t, sight> seen_;
};

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
  watcher(attempt_view& attempts, store_type& store, reader_type& reader, const watch_options& options)
      : attempts_(attempts), store_(store), reader_(reader), options_(options) {}

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
    std::erase_if(faults_, [&](const auto& fault) {
      return !std::binary_search(steps.begin(), steps.end(), fault.first);
    });
    for (const auto step : steps)
      if (committed_.count(step) == 0) look_at_checkpoint(step);
    std::string saving, stale;
    for (const auto step : attempts_.attempted_steps(steps)) look_at_attempt(step, saving, stale);
    looked_ = true;
    const bool again = std::exchange(blind_, false);
    if (std::exchange(changed_, false) || again || clock::now() >= next_age_) {
      std::string line = committed_.empty() ? "no checkpoint yet" : "newest: step " + newest();
      if (!saving.empty()) line += "; being saved: " + saving;
      if (!stale.empty()) line += "; stale: " + stale;
      std::printf("%s\n", line.c_str());
      constexpr double never = 1e9;  // seconds; more has no room in times
      next_age_ = clock::now() + std::chrono::milliseconds(
                                     static_cast<long long>(std::min(options_.age_seconds, never) * 1000));
    }
    std::fflush(stdout);
  }
  [[nodiscard]] bool reached() const {
    return options_.until && !committed_.empty() && committed_.rbegin()->first >= *options_.until;
  }
  /// Tells, once, that a look failed, and that the next one may not: a share or a bucket is away for a while. False where it is
  /// another matter: the first look, or a bucket that is gone.
  [[nodiscard]] bool bears(const cairn::storage_error& error) {
    if (!looked_ || status_of(error) != tools::unreadable) return false;
    if (!std::exchange(blind_, true)) std::printf("cannot look, and goes on trying: %s\n", error.what());
    std::fflush(stdout);
    return true;
  }
  /// Damage that was seen counts whatever became of it, what could not be read as long as it cannot.
  [[nodiscard]] exit_status status() const {
    auto status = damage_ ? tools::damaged : blind_ ? tools::unreadable : tools::fine;
    for (const auto& fault : faults_) status = tools::worse(status, fault.second);
    return status;
  }

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
      committed_[step] = opened.checkpoint.manifest().unix_time;
      const auto line = summary(opened.checkpoint.manifest());
      told_[step] = line;
      say(line);
      faults_.erase(step);
    } catch (const cairn::error& error) {
      const auto status = status_of(error);
      // Removed since it was listed: the next look no longer sees it.
      if (status == tools::nothing_there) return;
      // Told once, though each request to a bucket has a number of its own in the text.
      const auto [known, first] = faults_.try_emplace(step, status);
      if (first || std::exchange(known->second, status) != status)
        tell(step, std::string(tools::fault_of(error).text) + ": " + error.what());
      if (status == tools::damaged) damage_ = true;
    }
  }
  void look_at_attempt(std::int64_t step, std::string& saving, std::string& stale) {
    const auto files = attempts_.files_of(step);
    const bool old = files.age >= options_.stale_seconds;
    const bool alive = files.alive && (attempts_.is_directory() || !old);
    const auto why = alive ? std::string() : interruption(store_, step, attempts_.is_directory());
    const bool unknown = why.empty() && !alive && files.uploads != 0;
    const bool whole_and_old = why.empty() && !alive && old && !unknown;
    const auto size = " (" + size_text(files.bytes) + ")";
    if (!why.empty())
      tell(step, why);
    else if (whole_and_old)
      tell(step, "is stale: written and not committed; a rank is missing, or the run ended");
    else if (unknown)
      tell(step,
           "is being saved, or was interrupted: it has unfinished uploads, of which a bucket tells no more");
    else
      tell(step, "is being saved");
    auto& list = why.empty() && !whole_and_old ? saving : stale;
    list += (list.empty() ? "step " : ", step ") + std::to_string(step) + size;
  }

  attempt_view& attempts_;
  store_type& store_;
  reader_type& reader_;
  watch_options options_;
  std::map<std::int64_t, std::string> told_;        // what was said last about a step
  std::map<std::int64_t, std::int64_t> committed_;  // and when it was, in seconds since 1970
  std::map<std::int64_t, exit_status> faults_;      // what is the matter with those that could not be shown
  clock::time_point next_age_ = clock::now();
  bool changed_ = false;
  bool damage_ = false;
  bool looked_ = false;  // at least once
  bool blind_ = false;   // the last look failed
};

/// Looks a few times a second, at a bucket every second or so, until a signal, `until` or `seconds`.
inline exit_status watch(const std::string& url, store_type& store, reader_type& reader,
                         const watch_options& options) {
  const cairn::stop_signal stop{SIGINT, SIGTERM};
  std::printf("watching %s; end with Ctrl-C\n", url.c_str());
  attempt_view attempts(store, tools::directory_of(url));
  watcher watching(attempts, store, reader, options);
  const auto begin = std::chrono::steady_clock::now();
  const auto over = [&] {
    return stop.requested() || (options.seconds > 0 && std::chrono::steady_clock::now() - begin >=
                                                           std::chrono::duration<double>(options.seconds));
  };
  for (;;) {
    try {
      watching.look();
    } catch (const cairn::storage_error& error) {
      if (!watching.bears(error)) throw;
    }
    if (watching.reached() || over()) break;
    // A signal may come to any thread and does not end a sleep, so these are short.
    for (int i = 0; i < (attempts.is_directory() ? 1 : 5) && !over(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  if (options.until && !watching.reached()) {
    std::fprintf(stderr, "%s: step %lld was not reached\n", tools::program_name(),
                 static_cast<long long>(*options.until));
    return tools::worse(watching.status(), tools::not_reached);
  }
  return watching.status();
}

}  // namespace inspecting
