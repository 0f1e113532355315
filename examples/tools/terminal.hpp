// SPDX-License-Identifier: Apache-2.0
#pragma once
// How long-running programs talk: lines on standard output and error, and, on a terminal, one line that
// grows.
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <string>

#include "status.hpp"

namespace tools {

/// Lines, and below them, where standard error is a terminal, how far the program is. Any thread.
class terminal {
 public:
  explicit terminal(std::string program) : program_(std::move(program)) {}

  /// What the program was asked for.
  void say(const std::string& line) {
    const std::lock_guard lock(mutex_);
    wipe();
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  }
  /// What is wrong, with the program's name before it.
  void complain(const std::string& line) {
    const std::lock_guard lock(mutex_);
    wipe();
    std::fflush(stdout);
    std::fprintf(stderr, "%s: %s\n", program_.c_str(), line.c_str());
  }
  /// Redraws the last line a few times a second. `what`: "step 100  reading"; done and all are bytes.
  void progress(const std::string& what, std::uint64_t done, std::uint64_t all) {
    draw([&] { return what + percent_text(done, all) + size_text(done) + " of " + size_text(all); });
  }
  /// The same for what is counted. `what`: "reading manifests"
  void progress_counted(const std::string& what, std::uint64_t done, std::uint64_t all) {
    draw(
        [&] { return what + percent_text(done, all) + std::to_string(done) + " of " + std::to_string(all); });
  }
  /// The same for what is one call. `what`: "trying /data/run-7"
  void progress_begun(const std::string& what) {
    draw([&] { return what; });
  }
  void end_progress() {
    const std::lock_guard lock(mutex_);
    wipe();
  }

 private:
  static std::string percent_text(std::uint64_t done, std::uint64_t all) {
    char text[16];
    const auto percent =
        all == 0 ? 100U : static_cast<unsigned>(100.0 * static_cast<double>(done) / static_cast<double>(all));
    std::snprintf(text, sizeof text, "  %3u %%  ", percent);
    return text;
  }
  template <class Text>
  void draw(Text&& text) {
    if (!shows_) return;
    const std::unique_lock lock(mutex_, std::try_to_lock);
    const auto now = std::chrono::steady_clock::now();
    if (!lock || now < next_) return;
    next_ = now + std::chrono::milliseconds(100);
    std::fprintf(stderr, "\r\x1b[K%s", text().c_str());
    std::fflush(stderr);
    drawn_ = true;
  }
  void wipe() {
    if (drawn_) std::fprintf(stderr, "\r\x1b[K");
    drawn_ = false;
  }
  const std::string program_;
  const bool shows_ = ::isatty(STDERR_FILENO) == 1;
  std::mutex mutex_;
  std::chrono::steady_clock::time_point next_{};
  bool drawn_ = false;
};

}  // namespace tools
