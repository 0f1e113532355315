// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/observer.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/model/deadline.hpp>
#include <cairn/model/error.hpp>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace cairn {
inline namespace v1 {

/// An observer that writes a trace for Perfetto (https://ui.perfetto.dev) and chrome://tracing, in the JSON
/// array form of the Trace Event Format: one process for each rank, with a track for what training waits for
/// and one for what goes on beside it.
///
/// `cairn::trace_file trace{"trace-" + std::to_string(rank) + ".json"};`
/// `cairn::checkpointer ckpt{store, trace};   // copies share the file`
/// `trace.mark("step " + std::to_string(step));`
///
/// Each rank writes a file of its own. Times are those of the steady clock, which all processes of a host
/// share. Each event is in the file when it was observed, and the list has no end, as the format allows: a
/// killed process leaves a file that opens. Any thread. Errors of writing are ignored.
class trace_file {
 public:
  using cairn_role = role::observer;

  /// Replaces the file. @throws storage_error (storage_io)
  explicit trace_file(const std::string& path, std::int32_t rank = 0) : shared_(std::make_shared<shared>()) {
    shared_->file.reset(std::fopen(path.c_str(), "we"));
    if (shared_->file == nullptr)
      fail(error_id::storage_io, "the trace file cannot be written",
           {.file = path, .got = std::generic_category().message(errno)});
    shared_->rank = rank;
    std::fputs("[\n", shared_->file.get());
    put_name("process_name", -1, "rank " + std::to_string(rank));
    put_name("thread_name", training, "training");
    put_name("thread_name", beside, "saving");
  }

  void observe(const observation& what) noexcept {
    try {
      const double now = microseconds();
      const std::string name = "step " + std::to_string(what.step);
      switch (what.kind) {
        case observation::what::committed:
          put_save(*what.report, now - what.report->committed_seconds * 1e6, name);
          break;
        case observation::what::loaded:
          span(training, "load " + name, now - what.seconds * 1e6, what.seconds, what.bytes);
          break;
        case observation::what::failed:
        case observation::what::fell_back:
        case observation::what::warning:
          instant(beside, what.text, now);
          break;
      }
    } catch (...) {
      // Out of memory for a line of the trace: training is worth more.
    }
  }
  /// A moment of training, such as the end of a step.
  void mark(std::string_view text) noexcept {
    try {
      instant(training, text, microseconds());
    } catch (...) {
      // As above.
    }
  }

 private:
  static constexpr int training = 0;
  static constexpr int beside = 1;
  struct close {
    void operator()(std::FILE* file) const noexcept { std::fclose(file); }
  };
  struct shared {
    std::mutex mutex;
    std::unique_ptr<std::FILE, close> file;
    std::int32_t rank = 0;
  };

  static double microseconds() noexcept {
    return std::chrono::duration<double, std::micro>(deadline::clock::now().time_since_epoch()).count();
  }
  void put_save(const save_report& r, double begin, const std::string& name) {
    const double in_save = r.blocked_seconds - r.before_update_seconds;
    span(training, "save " + name, begin, in_save, r.bytes);
    double at = begin;
    for (const auto& [part, seconds] : {std::pair{"plan", r.plan_seconds}, std::pair{"wait", r.wait_seconds},
                                        std::pair{"stage", r.stage_seconds}}) {
      if (seconds > 0) span(training, part, at, seconds);
      at += seconds * 1e6;
    }
    if (r.before_update_seconds > 0)
      span(training, "before_update", begin + (r.released_seconds - r.before_update_seconds) * 1e6,
           r.before_update_seconds);
    span(beside, "save " + name, begin, r.committed_seconds, r.bytes);
    span(beside, "write", begin + (r.plan_seconds + r.wait_seconds) * 1e6,
         r.written_seconds - r.plan_seconds - r.wait_seconds, r.bytes);
    span(beside, "commit", begin + r.written_seconds * 1e6, r.committed_seconds - r.written_seconds);
  }
  void span(int track, std::string_view name, double begin, double seconds, std::uint64_t bytes = 0) {
    char tail[160];
    std::snprintf(tail, sizeof tail, R"(,"ph":"X","pid":%d,"tid":%d,"ts":%.3f,"dur":%.3f)",
                  static_cast<int>(shared_->rank), track, begin, seconds > 0 ? seconds * 1e6 : 0.0);
    std::string line = R"({"name":)" + quoted(name) + tail;
    if (bytes != 0) {
      std::snprintf(tail, sizeof tail, R"(,"args":{"bytes":%llu,"bytes per second":%.0f})",
                    static_cast<unsigned long long>(bytes),
                    seconds > 0 ? static_cast<double>(bytes) / seconds : 0.0);
      line += tail;
    }
    write(line + "},\n");
  }
  void instant(int track, std::string_view text, double at) {
    char tail[120];
    std::snprintf(tail, sizeof tail, R"(,"ph":"i","s":"t","pid":%d,"tid":%d,"ts":%.3f},)",
                  static_cast<int>(shared_->rank), track, at);
    write(R"({"name":)" + quoted(text) + tail + "\n");
  }
  void put_name(const char* what, int track, std::string_view name) {
    char middle[80];
    std::snprintf(middle, sizeof middle, R"(","ph":"M","pid":%d,"tid":%d,"args":{"name":)",
                  static_cast<int>(shared_->rank), track < 0 ? 0 : track);
    write(std::string(R"({"name":")") + what + middle + quoted(name) + "}},\n");
  }
  /// A JSON string.
  static std::string quoted(std::string_view text) {
    std::string out = "\"";
    for (const char c : text) {
      if (c == '"' || c == '\\') out += '\\';
      out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
    return out + '"';
  }
  void write(const std::string& line) {
    const std::lock_guard lock(shared_->mutex);
    std::fputs(line.c_str(), shared_->file.get());
    std::fflush(shared_->file.get());
  }

  std::shared_ptr<shared> shared_;
};
static_assert(Observer<trace_file>, "trace_file must model Observer");

}  // namespace v1
}  // namespace cairn
