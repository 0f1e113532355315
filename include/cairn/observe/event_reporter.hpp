// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_observer.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/save_journal.hpp>

#include <cstdio>
#include <exception>
#include <mutex>
#include <span>
#include <string>
#include <utility>

namespace cairn {
inline namespace v1 {

/// The text of an exception of any type.
[[nodiscard]] inline std::string failure_text(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception of an unknown type";
  }
}

namespace detail {

/// "1.25 GB", "640 B", with powers of ten.
[[nodiscard]] inline std::string human_bytes(std::uint64_t bytes) {
  const char* units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  auto value = static_cast<double>(bytes);
  int unit = 0;
  for (; value >= 1000 && unit < 5; ++unit) value /= 1000;
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
  return text;
}

/// Reports events to an observer, and in one line each on stderr. The checkpointer and the threads of its
/// executor share it; events are reported one at a time.
class event_reporter {
 public:
  event_reporter(any_observer observer, int rank, bool quiet)
      : observer_(std::move(observer)), rank_(rank), quiet_(quiet) {}

  /// Whether the observer asks for the spans of saves, and for the event that a save began.
  [[nodiscard]] bool wants_spans() const noexcept { return observer_.asks_for_spans(); }
  [[nodiscard]] bool wants_began() const noexcept { return observer_.asks_for_began(); }

  void began(const save_handle& save) noexcept {
    guarded([&] {
      const auto report = save.report();
      observation what{observation::event::began, rank_, report.step, report.bytes};
      what.save = &save;
      emit(what, false, [] { return std::string(); });
    });
  }
  void saved(const save_report& r, std::span<const save_span> spans = {}) noexcept {
    observation what{observation::event::committed, rank_, r.step, r.bytes, r.committed_seconds, {}, &r};
    what.spans = spans;
    emit(what, rank_ == 0, [&] {
      char text[200];
      std::snprintf(text, sizeof text,
                    "cairn: step %lld committed: %s by rank 0 in %.3f s, training waited %.1f ms%s",
                    static_cast<long long>(r.step), human_bytes(r.bytes).c_str(), r.committed_seconds,
                    r.blocked_seconds * 1e3, r.plan_cached ? "" : " (planned)");
      std::string line = text;
      if (r.linked_bytes > 0) line += "; " + human_bytes(r.linked_bytes) + " linked";
      if (r.held_seconds > 0) {
        std::snprintf(text, sizeof text, "; held here after %.1f ms", r.held_seconds * 1e3);
        line += text;
      }
      if (r.redundant_seconds > 0) {
        std::snprintf(text, sizeof text, "; redundant after %.1f ms", r.redundant_seconds * 1e3);
        line += text;
      }
      if (r.worker_start_seconds > 0) {
        std::snprintf(text, sizeof text, "; a worker was ready in %.1f ms", r.worker_start_seconds * 1e3);
        line += text;
      }
      if (r.suggested_interval_seconds > 0) {
        std::snprintf(text, sizeof text, "; save about every %.0f s", r.suggested_interval_seconds);
        line += text;
      }
      return line;
    });
  }
  /// Told in a line where it is the first since a commit: such saves may come with every step.
  void held(const save_report& r, bool first, std::span<const save_span> spans = {}) noexcept {
    observation what{observation::event::held, rank_, r.step, r.bytes, r.held_seconds, {}, &r};
    what.spans = spans;
    emit(what, first && rank_ == 0, [&] {
      char text[200];
      std::snprintf(
          text, sizeof text,
          "cairn: step %lld held by the local tier alone: %s by rank 0 in %.1f ms, training waited %.1f ms",
          static_cast<long long>(r.step), human_bytes(r.bytes).c_str(), r.held_seconds * 1e3,
          r.blocked_seconds * 1e3);
      return std::string(text);
    });
  }
  /// Told in a line where it is the first, also after others that were not.
  void redundant(const save_report& r, bool first) noexcept {
    observation what{observation::event::redundant, rank_, r.step, r.piece_bytes,
                     r.redundant_seconds,           {},    &r};
    emit(what, first && rank_ == 0, [&] {
      char text[200];
      std::snprintf(text, sizeof text,
                    "cairn: step %lld is redundant: pieces of it are on other ranks (%s here) after %.1f ms",
                    static_cast<long long>(r.step), human_bytes(r.piece_bytes).c_str(),
                    r.redundant_seconds * 1e3);
      return std::string(text);
    });
  }
  void failed(const save_report& r, const std::exception_ptr& why,
              std::span<const save_span> spans = {}) noexcept {
    guarded([&] {
      const auto text = failure_text(why);
      observation what{observation::event::failed, rank_, r.step, r.bytes, 0, text, &r};
      what.spans = spans;
      emit(what, true, [&] {
        return "cairn: rank " + std::to_string(rank_) + ": the save of step " + std::to_string(r.step) +
               " failed: " + text;
      });
    });
  }
  void loaded(std::int64_t step, const load_report& report) noexcept {
    observation what{observation::event::loaded, rank_, step, report.bytes, report.seconds, {}, nullptr};
    what.load = &report;
    read(what,
         report.from_tier     ? "loaded from the local tier"
         : report.blocks != 0 ? "refreshed"
                              : "loaded",
         "by rank 0");
  }
  void verified(std::int64_t step, std::uint64_t bytes, double seconds) noexcept {
    read({observation::event::read_back, rank_, step, bytes, seconds, {}, nullptr}, "verified", "read back");
  }
  void fell_back(std::int64_t step, const std::string& why) noexcept {
    observation what{observation::event::fell_back, rank_, step, 0, 0, why, nullptr};
    emit(what, rank_ == 0, [&] { return "cairn: step " + std::to_string(step) + " is passed over: " + why; });
  }
  /// Reports an event of a save of an earlier run: observation::event::wait_began, wait_ended or fenced.
  void earlier(observation::event kind, std::int64_t step, double seconds, const std::string& text) noexcept {
    observation what{kind, rank_, step, 0, seconds, text, nullptr};
    emit(what, rank_ == 0, [&] { return "cairn: step " + std::to_string(step) + " " + text; });
  }
  /// Reports the sentence and, unless it is null, the text of the exception. Never throws, even out of
  /// memory.
  void warned(const char* sentence, const std::exception_ptr& why) noexcept {
    guarded([&] { warned(sentence + (why == nullptr ? std::string() : ": " + failure_text(why))); });
  }
  /// As warned(make()), whose text may find no memory.
  template <class Make>
    requires std::is_invocable_r_v<std::string, Make&>
  void warned(Make make) noexcept {
    guarded([&] { warned(std::string(make())); });
  }
  void warned(const std::string& text) noexcept {
    observation what{observation::event::warning, rank_, 0, 0, 0, text, nullptr};
    emit(what, true, [&] { return "cairn: rank " + std::to_string(rank_) + ": " + text; });
  }

 private:
  /// A checkpoint that was read: what was done with it, and how.
  void read(const observation& what, const char* done, const char* how) noexcept {
    emit(what, rank_ == 0, [&] {
      char text[160];
      std::snprintf(text, sizeof text, "cairn: step %lld %s: %s %s in %.3f s",
                    static_cast<long long>(what.step), done, human_bytes(what.bytes).c_str(), how,
                    what.seconds);
      std::string line = text;
      const auto tell = [&](std::size_t count, const char* did) {
        if (count != 0) line += "; " + std::to_string(count) + (count == 1 ? " item " : " items ") + did;
      };
      if (const auto* report = what.load; report != nullptr) {
        if (!report->sources.empty()) line += "; " + report->sources;
        if (report->migrated_from >= 0)
          line += "; migrated from version " + std::to_string(report->migrated_from);
        tell(report->renamed.size(), "renamed");
        tell(report->converted.size(), "converted");
        tell(report->resized.size(), "padded or cut");
        if (report->blocks != 0)
          line += "; " + human_bytes(report->bytes_read) + " read, " + std::to_string(report->blocks_equal) +
                  " of " + std::to_string(report->blocks) + " blocks were there";
      }
      return line;
    });
  }
  template <class Body>
  static void guarded(Body&& body) noexcept {
    try {
      body();
    } catch (...) {
      // A report that fails must not end what it reports.
    }
  }
  template <class Line>
  void emit(const observation& what, bool to_stderr, Line&& line) noexcept {
    guarded([&] {
      const std::lock_guard lock(mutex_);
      observer_.observe(what);
      if (to_stderr && !quiet_) {
        const auto text = line() + "\n";
        std::fputs(text.c_str(), stderr);
      }
    });
  }

  std::mutex mutex_;
  any_observer observer_;
  int rank_;
  bool quiet_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
