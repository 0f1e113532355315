// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/observer.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/model/json_text.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/save_journal.hpp>
#include <cairn/model/save_report.hpp>
#include <cairn/observe/trace_file.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/clocks.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/shared.hpp>
#include <cairn/system/sorted_map.hpp>
#include <cairn/system/vector.hpp>

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

struct trace_file::close {
  void operator()(std::FILE* file) const noexcept { std::fclose(file); }
};

struct trace_file::cpu_sample {
  std::int64_t at = 0;
  std::int64_t used = 0;
};

/// A track on which slices lie beside each other or within one another, as viewers want them.
struct trace_file::lane {
  std::int64_t process = 0;
  track where{};
  std::int64_t begin = 0;  // of the last slice
  detail::vector<std::int64_t>
      ends;  // of the slices around the end of the last one, and its own; the outermost first

  /// Whether a slice has its place here, which it then takes.
  bool take(std::int64_t from, std::int64_t to);
};

struct trace_file::shared {
  std::mutex mutex;
  std::unique_ptr<std::FILE, close> file;
  std::int32_t rank = 0;
  std::int64_t trainer = ::getpid();
  std::int64_t step_begin = 0;
  std::vector<std::int64_t> introduced;
  detail::sorted_map<std::int64_t, cpu_sample> cpu;  // of each process, the last
  detail::vector<lane> lanes;

  void introduce(std::string& out, std::int64_t process, const char* role);
  /// Writes all spans of one save, and one slice from save() to its end.
  void put_save(std::string& out, const observation& what, const std::string& name);
  /// Notes how much CPU time a process has used until then; skips samples that are too close to the last one.
  void put_cpu(std::string& out, std::int64_t process, std::int64_t at, std::int64_t used);
  void put_span(std::string& out, std::int64_t process, track where, std::string_view name,
                std::int64_t begin, std::int64_t end, std::uint64_t bytes = 0, std::string_view more = {});
  void put_instant(std::string& out, track where, std::string_view text);
  /// The lane of a track on which a slice has its place: the first one, unless it would overlap another slice.
  int lane_for(std::string& out, std::int64_t process, track where, std::int64_t begin, std::int64_t end);
  static void put_counter(std::string& out, std::int64_t process, std::string_view name, std::int64_t at,
                          double value);
  static void put_name(std::string& out, const char* what, std::int64_t process, int where,
                       std::string_view name);
  /// What all events begin with.
  static void put_begin(std::string& out, std::string_view name, const char* phase, std::int64_t process,
                        int where, std::int64_t at);
  /// In microseconds, as the format wants it.
  static void put_time(std::string& out, std::int64_t nanoseconds);
  void write(const std::string& text);
};

CAIRN_BODY trace_file::trace_file(const std::string& path, std::int32_t rank)
    : shared_(detail::make_shared<shared>()) {
  shared_->file.reset(std::fopen(path.c_str(), "we"));
  if (shared_->file == nullptr)
    fail(error_id::storage_io, "the trace file cannot be written",
         {.file = path, .got = std::generic_category().message(errno)});
  shared_->rank = rank;
  shared_->cpu[shared_->trainer] = {steady_now(), process_cpu_now()};
  std::string text = "[\n";
  shared_->introduce(text, shared_->trainer, "trainer");
  shared_->write(text);
}

CAIRN_BODY void trace_file::observe(const observation& what) noexcept {
  try {
    const std::string name = "step " + std::to_string(what.step);
    const std::lock_guard lock(shared_->mutex);
    std::string text;
    switch (what.kind) {
      case observation::event::committed:
      case observation::event::held:
        shared_->put_save(text, what, name);
        break;
      case observation::event::failed:
        shared_->put_save(text, what, name);
        shared_->put_instant(text, track::saves, what.text);
        break;
      case observation::event::loaded: {
        const auto end = steady_now();
        shared_->put_span(text, shared_->trainer, track::training, "load " + name,
                          end - static_cast<std::int64_t>(what.seconds * 1e9), end, what.bytes,
                          what.load == nullptr ? std::string() : text_of(what.load->stages));
        break;
      }
      case observation::event::fell_back:
      case observation::event::warning:
      case observation::event::wait_began:
      case observation::event::wait_ended:
      case observation::event::fenced:
        shared_->put_instant(text, track::saves, what.text);
        break;
      case observation::event::redundant:
        shared_->put_instant(text, track::saves, name + " is redundant");
        break;
      case observation::event::began:
      case observation::event::read_back:
        break;
    }
    shared_->write(text);
  } catch (...) {
    // Out of memory for a line of the trace: training is worth more.
  }
}

CAIRN_BODY void trace_file::step(std::int64_t number) noexcept {
  try {
    const auto now = steady_now();
    const std::lock_guard lock(shared_->mutex);
    std::string text;
    if (shared_->step_begin != 0)
      shared_->put_span(text, shared_->trainer, track::steps, "step " + std::to_string(number),
                        shared_->step_begin, now);
    shared_->step_begin = now;
    shared_->put_cpu(text, shared_->trainer, now, process_cpu_now());
    shared_->write(text);
  } catch (...) {
    // As above.
  }
}

CAIRN_BODY void trace_file::mark(std::string_view text) noexcept {
  try {
    const std::lock_guard lock(shared_->mutex);
    std::string line;
    shared_->put_instant(line, track::training, text);
    shared_->write(line);
  } catch (...) {
    // As above.
  }
}

CAIRN_BODY std::string trace_file::text_of(const load_stages& s) {
  std::string out;
  const auto key = [&](std::string_view name) {
    out += ',';
    detail::append_json(out, name);
    out += ':';
  };
  const auto put = [&](std::string_view name, std::uint64_t number) {
    key(name);
    detail::append_json(out, number);
  };
  const auto put_seconds = [&](std::string_view name, double seconds) {
    key(name);
    detail::append_json(out, seconds, 6);
  };
  put("bytes from the page cache", s.bytes_cached);
  put("bytes past it", s.bytes_direct);
  put_seconds("read s", s.read_seconds);
  put_seconds("verify s", s.verify_seconds);
  put_seconds("deliver s", s.deliver_seconds);
  put_seconds("read cpu s", s.read_cpu_seconds);
  put_seconds("verify cpu s", s.verify_cpu_seconds);
  put_seconds("deliver cpu s", s.deliver_cpu_seconds);
  put_seconds("populate cpu s", s.populate_cpu_seconds);
  put_seconds("latency s", s.latency_seconds);
  put("reads in flight", s.reads_in_flight);
  put("requests", s.requests);
  put("hedges", s.hedges);
  return out;
}

CAIRN_BODY trace_file::track trace_file::track_of(span_kind kind) noexcept {
  switch (kind) {
    case span_kind::plan:
    case span_kind::wait:
    case span_kind::stage:
    case span_kind::before_update:
      return track::training;
    case span_kind::copy:
    case span_kind::copy_and_hash:
      return track::copying;
    case span_kind::hash:
    case span_kind::gather:
      return track::hashing;
    default:
      return track::writing;
  }
}

CAIRN_BODY const char* trace_file::name_of(track where) noexcept {
  switch (where) {
    case track::steps:
      return "steps";
    case track::training:
      return "training waits for";
    case track::copying:
      return "copying";
    case track::saves:
      return "saves";
    case track::writing:
      return "writing";
    case track::hashing:
      break;
  }
  return "hashing";
}

CAIRN_BODY int trace_file::thread_of(track where, int lane) noexcept {
  return 100 * static_cast<int>(where) + lane;  // so that lanes of a track stand together
}

CAIRN_BODY bool trace_file::lane::take(std::int64_t from, std::int64_t to) {
  if (from < begin) return false;  // what was around it then is not known any more
  std::size_t around = 0;
  while (around < ends.size() && ends[around] > from) ++around;
  if (around != 0 && ends[around - 1] < to) return false;
  while (ends.size() > around) ends.pop_back();
  ends.push_back(to);
  begin = from;
  return true;
}

CAIRN_BODY bool trace_file::counted(span_kind kind) noexcept {
  return kind == span_kind::copy || kind == span_kind::copy_and_hash || kind == span_kind::write;
}

CAIRN_BODY void trace_file::shared::introduce(std::string& out, std::int64_t process, const char* role) {
  if (detail::contains(introduced, process)) return;
  introduced.push_back(process);
  put_name(out, "process_name", process, 0,
           "rank " + std::to_string(rank) + " " + role + " (" + std::to_string(process) + ")");
  for (const auto where :
       {track::steps, track::training, track::copying, track::saves, track::writing, track::hashing})
    put_name(out, "thread_name", process, thread_of(where), name_of(where));
}

CAIRN_BODY void trace_file::shared::put_save(std::string& out, const observation& what,
                                             const std::string& name) {
  const auto& r = *what.report;
  const auto now = steady_now();
  auto begin = now;
  detail::vector<save_span> spans;
  for (const auto& each : what.spans) spans.push_back(each);
  detail::sort(spans, [](const auto& a, const auto& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
  });
  for (const auto& s : spans) begin = std::min(begin, s.begin);
  put_span(out, trainer, track::saves, "save " + name, begin, now, r.bytes);
  for (const auto& s : spans) {
    introduce(out, s.process, "worker");
    if (s.end - s.begin < 1000 && (s.kind == span_kind::wait || s.kind == span_kind::await)) continue;
    put_span(out, s.process, track_of(s.kind),
             s.kind == span_kind::save ? "save " + name : std::string(cairn::name_of(s.kind)), s.begin, s.end,
             s.bytes);
    if (!counted(s.kind) || s.end <= s.begin) continue;
    const char* counter = s.kind == span_kind::write ? "written MB/s" : "copied MB/s";
    put_counter(out, s.process, counter, s.begin,
                1e3 * static_cast<double>(s.bytes) / static_cast<double>(s.end - s.begin));
    put_counter(out, s.process, counter, s.end, 0);
  }
  detail::sort(spans, [](const auto& a, const auto& b) { return a.end < b.end; });
  for (const auto& s : spans)
    if (s.process != trainer) put_cpu(out, s.process, s.end, s.cpu);
  if (r.writing.process != 0 && r.writing.process != trainer) {
    put_counter(out, r.writing.process, "cores in use", now, 0);
    cpu[r.writing.process].at = now;
  }
}

CAIRN_BODY void trace_file::shared::put_cpu(std::string& out, std::int64_t process, std::int64_t at,
                                            std::int64_t used) {
  auto& before = cpu[process];
  if (before.at == 0 || used < before.used) {
    before = {at, used};
    return;
  }
  if (at - before.at < 100'000) return;
  put_counter(out, process, "cores in use", before.at,
              static_cast<double>(used - before.used) / static_cast<double>(at - before.at));
  before = {at, used};
}

CAIRN_BODY void trace_file::shared::put_span(std::string& out, std::int64_t process, track where,
                                             std::string_view name, std::int64_t begin, std::int64_t end,
                                             std::uint64_t bytes, std::string_view more) {
  const int lane = lane_for(out, process, where, begin, end);
  put_begin(out, name, "X", process, thread_of(where, lane), begin);
  out += R"(,"dur":)";
  put_time(out, end - begin);
  if (bytes != 0) {
    out += R"(,"args":{"bytes":)";
    detail::append_json(out, bytes);
    out += R"(,"bytes per second":)";
    const double rate =
        end > begin ? 1e9 * static_cast<double>(bytes) / static_cast<double>(end - begin) : 0.0;
    detail::append_json(out, rate, 0);
    out.append(more) += '}';
  }
  out += "},\n";
}

CAIRN_BODY int trace_file::shared::lane_for(std::string& out, std::int64_t process, track where,
                                            std::int64_t begin, std::int64_t end) {
  int number = 0;
  for (auto& each : lanes) {
    if (each.process != process || each.where != where) continue;
    if (each.take(begin, end)) return number;
    ++number;
  }
  lane made{process, where, begin, {end}};
  lanes.push_back(std::move(made));
  if (number != 0)
    put_name(out, "thread_name", process, thread_of(where, number),
             std::string(name_of(where)) + " " + std::to_string(number + 1));
  return number;
}

CAIRN_BODY void trace_file::shared::put_instant(std::string& out, track where, std::string_view text) {
  put_begin(out, text, "i", trainer, thread_of(where), steady_now());
  out += R"(,"s":"t"},)"
         "\n";
}

CAIRN_BODY void trace_file::shared::put_counter(std::string& out, std::int64_t process, std::string_view name,
                                                std::int64_t at, double value) {
  put_begin(out, name, "C", process, 0, at);
  out += R"(,"args":{"value":)";
  detail::append_json(out, value, 3);
  out += "}},\n";
}

CAIRN_BODY void trace_file::shared::put_name(std::string& out, const char* what, std::int64_t process,
                                             int where, std::string_view name) {
  put_begin(out, what, "M", process, where, 0);
  out += R"(,"args":{"name":)";
  detail::append_json(out, name);
  out += "}},\n";
}

CAIRN_BODY void trace_file::shared::put_begin(std::string& out, std::string_view name, const char* phase,
                                              std::int64_t process, int where, std::int64_t at) {
  out += R"({"name":)";
  detail::append_json(out, name);
  out.append(R"(,"ph":")").append(phase).append(R"(","pid":)");
  detail::append_json(out, process);
  out += R"(,"tid":)";
  detail::append_json(out, where);
  out += R"(,"ts":)";
  put_time(out, at);
}

CAIRN_BODY void trace_file::shared::put_time(std::string& out, std::int64_t nanoseconds) {
  const auto part = std::max<std::int64_t>(nanoseconds, 0) % 1000;
  detail::append_json(out, std::max<std::int64_t>(nanoseconds, 0) / 1000);
  out += {'.', static_cast<char>('0' + part / 100), static_cast<char>('0' + part / 10 % 10),
          static_cast<char>('0' + part % 10)};
}

CAIRN_BODY void trace_file::shared::write(const std::string& text) {
  std::fputs(text.c_str(), file.get());
  std::fflush(file.get());
}

static_assert(Observer<trace_file>, "trace_file must model Observer");

}  // namespace v1
}  // namespace cairn
