// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/observer.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/model/save_handle.hpp>
#include <cairn/model/save_report.hpp>
#include <cairn/observe/progress_bar.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/background_thread.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/process_limits.hpp>
#include <cairn/system/shared.hpp>

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

struct progress_bar::save_under_way {
  save_handle handle;
  deadline::clock::time_point begun;
};

struct progress_bar::shared {
  std::mutex mutex;
  std::condition_variable changed;
  progress_bar_options options;
  bool terminal = false;
  bool ending = false;
  bool drawn = false;  // a bar is on the terminal's line
  std::vector<save_under_way> saves;

  /// Writes what happened as a line that stays. `step`: of the save that ended, or -1.
  void say(const std::string& line, std::int64_t step);
  /// Draws the bar of the oldest save that is under way.
  void draw();
  void put(std::string_view text) const noexcept;
};

/// Draws while a save is under way. Ends with the last copy of the bar.
class progress_bar::drawing_thread {
 public:
  explicit drawing_thread(std::shared_ptr<shared> shared);
  drawing_thread(const drawing_thread&) = delete;
  drawing_thread& operator=(const drawing_thread&) = delete;
  ~drawing_thread();

 private:
  static void run(shared& s) noexcept;
  std::shared_ptr<shared> shared_;
  detail::background_thread thread_;
};

CAIRN_BODY progress_bar::progress_bar(progress_bar_options options) {
  if (options.file < 0 || options.every.count() <= 0)
    fail(error_id::usage_bad_option,
         "progress_bar needs an open file and a positive time between two drawings");
  shared_ = detail::make_shared<shared>();
  shared_->options = options;
  // What is longer is never, and has room in sums with times.
  shared_->options.every = std::min<std::chrono::milliseconds>(options.every, std::chrono::hours(24 * 365));
  shared_->terminal = ::isatty(options.file) == 1;
  if (shared_->terminal) thread_ = detail::make_shared<drawing_thread>(shared_);
}

CAIRN_BODY void progress_bar::observe(const observation& what) noexcept {
  try {
    const std::lock_guard lock(shared_->mutex);
    if (what.kind == observation::event::began) {
      if (!shared_->terminal) return;
      shared_->saves.push_back({*what.save, deadline::clock::now()});
      shared_->changed.notify_all();
    } else {
      const bool over = what.kind == observation::event::committed || what.kind == observation::event::held ||
                        what.kind == observation::event::failed;
      shared_->say(line_of(what), over ? what.step : -1);
    }
  } catch (...) {
    // Out of memory for a line: training is worth more.
  }
}

CAIRN_BODY void progress_bar::shared::say(const std::string& line, std::int64_t step) {
  const auto over = [&](const save_under_way& s) { return s.handle.step() == step; };
  if (const auto at = detail::find_if(saves, over); step >= 0 && at != saves.end()) saves.erase(at);
  put((drawn ? "\r\x1b[K" : "") + line + "\n");
  drawn = false;
}

CAIRN_BODY void progress_bar::shared::draw() {
  // Lines that stay wait for a terminal that was stopped; bars do not.
  pollfd ready{options.file, POLLOUT, 0};
  if (saves.empty() || ::poll(&ready, 1, 0) != 1) return;
  const auto& [save, begun] = saves.front();
  const auto report = save.report();
  const auto written = save.bytes_written();
  const double part =
      report.bytes == 0 ? 1 : static_cast<double>(written) / static_cast<double>(report.bytes);
  const double seconds = seconds_since(begun);
  char numbers[120];
  std::snprintf(numbers, sizeof numbers, "  %3.0f %%  %s of %s  %s/s", 100 * part,
                human_bytes(written).c_str(), human_bytes(report.bytes).c_str(),
                human_bytes(seconds > 0 ? static_cast<double>(written) / seconds : 0).c_str());
  const std::string head = "step " + std::to_string(report.step) + "  ";
  winsize size{};
  const std::size_t columns =
      ::ioctl(options.file, TIOCGWINSZ, &size) == 0 && size.ws_col != 0 ? size.ws_col : 80;
  std::string line = head + numbers;
  // One column stays free: a full line would wrap.
  if (const auto taken = line.size() + 2; taken + 8 < columns) {
    const auto room = std::min<std::size_t>(columns - taken - 1, 40);
    const auto full = std::min(room, static_cast<std::size_t>(part * static_cast<double>(room)));
    line = head + "[" + std::string(full, '#') + std::string(room - full, ' ') + "]" + numbers;
  }
  line.resize(std::min(line.size(), columns - 1));
  put("\r" + line + "\x1b[K");
  drawn = true;
}

CAIRN_BODY void progress_bar::shared::put(std::string_view text) const noexcept {
  while (!text.empty()) {
    const auto n = ::write(options.file, text.data(), text.size());
    if (n > 0)
      text.remove_prefix(static_cast<std::size_t>(n));
    else if (n == 0 || errno != EINTR)
      return;
  }
}

CAIRN_BODY progress_bar::drawing_thread::drawing_thread(std::shared_ptr<shared> shared)
    : shared_(std::move(shared)) {
  if (!thread_.start("cairn progress", [state = shared_] { run(*state); }))
    detail::fail_for_threads("to draw a bar");
}

CAIRN_BODY progress_bar::drawing_thread::~drawing_thread() {
  if (thread_.in_child()) return;
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->ending = true;
  }
  shared_->changed.notify_all();
  thread_.join();
}

CAIRN_BODY void progress_bar::drawing_thread::run(shared& s) noexcept {
  std::unique_lock lock(s.mutex);
  while (!s.ending) {
    if (s.saves.empty()) {
      s.changed.wait(lock);  // idle until there is a save, or the bar ends
      continue;
    }
    try {
      s.draw();
    } catch (...) {
      // As in observe().
    }
    s.changed.wait_for(lock, s.options.every);
  }
}

CAIRN_BODY std::string progress_bar::human_bytes(double bytes) {
  const char* units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  int unit = 0;
  for (; bytes >= 1000 && unit < 5; ++unit) bytes /= 1000;
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.2f %s", bytes, units[unit]);
  return text;
}

CAIRN_BODY std::string progress_bar::line_of(const observation& what) {
  const std::string head = "step " + std::to_string(what.step) + "  ";
  char text[160];
  switch (what.kind) {
    case observation::event::committed:
      std::snprintf(text, sizeof text, "committed: %s in %.3f s, training waited %.1f ms",
                    human_bytes(what.bytes).c_str(), what.seconds, what.report->blocked_seconds * 1e3);
      return head + text;
    case observation::event::held:
      std::snprintf(text, sizeof text, "held by the local tier: %s in %.3f s, training waited %.1f ms",
                    human_bytes(what.bytes).c_str(), what.seconds, what.report->blocked_seconds * 1e3);
      return head + text;
    case observation::event::redundant:
      std::snprintf(text, sizeof text, "redundant: pieces on other ranks after %.3f s", what.seconds);
      return head + text;
    case observation::event::loaded:
      std::snprintf(text, sizeof text, "loaded: %s in %.3f s", human_bytes(what.bytes).c_str(), what.seconds);
      return head + text;
    case observation::event::read_back:
      std::snprintf(text, sizeof text, "verified: %s read back in %.3f s", human_bytes(what.bytes).c_str(),
                    what.seconds);
      return head + text;
    case observation::event::failed:
      return head + "failed: " + std::string(what.text);
    case observation::event::fell_back:
      return head + "passed over: " + std::string(what.text);
    default:
      return std::string(what.text);
  }
}

static_assert(Observer<progress_bar>, "progress_bar must model Observer");

}  // namespace v1
}  // namespace cairn
