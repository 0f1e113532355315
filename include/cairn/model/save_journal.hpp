// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/deadline.hpp>
#include <cairn/system/wire.hpp>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <mutex>
#include <vector>

namespace cairn {
inline namespace v1 {

/// Now, in nanoseconds of the steady clock, which all processes of a host share.
[[nodiscard]] inline std::int64_t steady_now() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(deadline::clock::now().time_since_epoch())
      .count();
}
/// Nanoseconds of CPU time of the calling thread, and of all threads of this process. Cost: half a
/// microsecond.
[[nodiscard]] inline std::int64_t thread_cpu_now() noexcept {
  timespec t{};
  static_cast<void>(::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t));
  return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}
/// CPU nanoseconds of all threads of this process.
[[nodiscard]] inline std::int64_t process_cpu_now() noexcept {
  timespec t{};
  static_cast<void>(::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t));
  return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

/// What a part of a save does.
enum class span_kind : std::uint8_t {
  // The thread of training, in save() and before_update().
  plan,           ///< planning, with its messages
  wait,           ///< for preparation, an earlier save or a free buffer
  stage,          ///< copying what must be copied before save() returns
  before_update,  ///< waiting for the rest of the copy
  // The threads that copy.
  copy,
  copy_and_hash,
  // Whoever writes.
  save,    ///< the whole job
  await,   ///< for bytes to be copied (and hashed), for training to confirm, or for ranks that share files
  write,   ///< handing bytes to the store
  sync,    ///< making them durable under their names
  record,  ///< publishing what was written
  commit,  ///< collecting the records of all ranks and publishing the manifest, or waiting for that
  // A thread that helps it.
  hash,
  gather,  ///< copying from training memory, and hashing
  // After the commit, on the coordinator.
  remove,  ///< removing checkpoints that are not kept any more
};
/// The kind with the largest number.
inline constexpr auto last_span_kind = span_kind::remove;

[[nodiscard]] inline const char* name_of(span_kind kind) noexcept {
  static constexpr std::array<const char*, 15> names{
      "plan",  "wait", "stage",  "before_update", "copy", "copy and hash", "save",      "wait for bytes",
      "write", "sync", "record", "commit",        "hash", "gather",        "remove old"};
  const auto number = static_cast<std::size_t>(kind);
  return number < names.size() ? names[number] : "unknown";
}

/// One part of a save, in one process.
struct save_span {
  span_kind kind = span_kind::save;
  std::int64_t process = 0;  ///< its id
  std::int64_t begin = 0;    ///< as steady_now()
  std::int64_t end = 0;
  std::uint64_t bytes = 0;  ///< that it handled; 0 where that means nothing
  std::int64_t cpu = 0;     ///< process_cpu_now() of that process at the end
};

/// The parts of one save, for observers that ask for them (see Observer). Any thread. Short parts of a kind
/// that follow each other at once are put together, all of them once there are many: memory is bounded.
class save_journal {
 public:
  void add(span_kind kind, std::int64_t begin, std::int64_t end, std::uint64_t bytes = 0) noexcept {
    put({kind, process_, begin, end, bytes, process_cpu_now()});
  }
  /// What another process did.
  void append(const std::vector<save_span>& spans) noexcept {
    for (const auto& span : spans) put(span);
  }
  [[nodiscard]] std::vector<save_span> spans() const {
    const std::lock_guard lock(mutex_);
    return spans_;
  }
  /// What came since the last call of take().
  [[nodiscard]] std::vector<save_span> take() {
    const std::lock_guard lock(mutex_);
    last_.fill(none);
    std::vector<save_span> taken;
    taken.swap(spans_);
    return taken;
  }

 private:
  static constexpr std::size_t none = SIZE_MAX;
  static constexpr std::size_t many = 4096;
  static constexpr std::int64_t at_once = 50'000;
  static constexpr std::int64_t briefly = 10'000'000;

  void put(const save_span& span) noexcept {
    const std::lock_guard lock(mutex_);
    auto& last = last_[static_cast<std::size_t>(span.kind)];
    if (last != none && span.process == spans_[last].process) {
      auto& before = spans_[last];
      if (spans_.size() >= many || (span.begin - before.end < at_once && span.end - before.begin < briefly)) {
        before.end = std::max(before.end, span.end);
        before.bytes += span.bytes;
        before.cpu = span.cpu;
        return;
      }
    }
    try {
      spans_.push_back(span);
      last = spans_.size() - 1;
    } catch (...) {
      // Out of memory for a part of a trace: the save is worth more.
    }
  }

  mutable std::mutex mutex_;
  std::vector<save_span> spans_;
  std::array<std::size_t, static_cast<std::size_t>(last_span_kind) + 1> last_ = all_none();
  std::int64_t process_ = ::getpid();

  static constexpr std::array<std::size_t, static_cast<std::size_t>(last_span_kind) + 1> all_none() {
    std::array<std::size_t, static_cast<std::size_t>(last_span_kind) + 1> all{};
    all.fill(none);
    return all;
  }
};

/// Notes in a journal how long it lives. Costs nothing where there is no journal.
class span_note {
 public:
  span_note(save_journal* journal, span_kind kind, std::uint64_t bytes = 0) noexcept
      : journal_(journal), kind_(kind), bytes_(bytes), begin_(journal != nullptr ? steady_now() : 0) {}
  span_note(const span_note&) = delete;
  span_note& operator=(const span_note&) = delete;
  ~span_note() {
    if (journal_ != nullptr) journal_->add(kind_, begin_, steady_now(), bytes_);
  }

 private:
  save_journal* journal_;
  span_kind kind_;
  std::uint64_t bytes_;
  std::int64_t begin_;
};

inline void encode(wire_writer& out, const std::vector<save_span>& spans) {
  out.put(static_cast<std::uint64_t>(spans.size()));
  for (const auto& s : spans) out.put(s.kind).put(s.begin).put(s.end).put(s.bytes).put(s.cpu);
}
/// Spans of the process `process`. @throws wire_error
[[nodiscard]] inline std::vector<save_span> decode_spans(wire_reader& in, std::int64_t process) {
  std::vector<save_span> spans(in.get_count(33));
  for (auto& s : spans) {
    s.process = process;
    s.kind = in.get_enum(last_span_kind);
    s.begin = in.get<std::int64_t>(), s.end = in.get<std::int64_t>();
    s.bytes = in.get<std::uint64_t>(), s.cpu = in.get<std::int64_t>();
    if (s.begin < 0 || s.end < s.begin || s.cpu < 0) in.fail_here("a part of a save has impossible times");
  }
  return spans;
}

}  // namespace v1
}  // namespace cairn
