// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/clocks.hpp>
#include <cairn/system/vector.hpp>

#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace cairn {
inline namespace v1 {

class wire_reader;
class wire_writer;

/// What happens in a span of a save.
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
  save,   ///< the whole job
  await,  ///< for bytes to be copied (and hashed), for training to confirm, for ranks that share files, or for a turn to write
  write,  ///< handing bytes to the store
  sync,   ///< making them durable under their names
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

[[nodiscard]] const char* name_of(span_kind kind) noexcept;

/// A span of time of a save, in one process.
struct save_span {
  span_kind kind = span_kind::save;
  std::int64_t process = 0;  ///< its id
  std::int64_t begin = 0;    ///< as steady_now()
  std::int64_t end = 0;      ///< as steady_now()
  std::uint64_t bytes = 0;   ///< that it handled; 0 where that means nothing
  std::int64_t cpu = 0;      ///< process_cpu_now() of that process at the end
};

/// The spans of one save, for observers with wants_spans (see Observer). Any thread. Short spans of one
/// kind that follow each other directly are merged, and all of them once there are many, so that memory
/// is bounded.
class save_journal {
 public:
  /// Adds a span of this process, times as steady_now(). Drops it where there is no memory for it.
  void add(span_kind kind, std::int64_t begin, std::int64_t end, std::uint64_t bytes = 0) noexcept {
    put({kind, process_, begin, end, bytes, process_cpu_now()});
  }
  /// Adds spans of another process.
  void append(const detail::vector<save_span>& spans) noexcept;
  /// A copy of all spans so far, of all processes, in no order.
  [[nodiscard]] detail::vector<save_span> spans() const;
  /// Returns the spans since the last call of take().
  [[nodiscard]] detail::vector<save_span> take();

 private:
  static constexpr std::size_t none = SIZE_MAX;
  static constexpr std::size_t many = 4096;
  static constexpr std::int64_t at_once = 50'000;
  static constexpr std::int64_t briefly = 10'000'000;

  void put(const save_span& span) noexcept;

  mutable std::mutex mutex_;
  detail::vector<save_span> spans_;
  std::array<std::size_t, static_cast<std::size_t>(last_span_kind) + 1> last_ = all_none();
  std::int64_t process_ = ::getpid();

  static constexpr std::array<std::size_t, static_cast<std::size_t>(last_span_kind) + 1> all_none() {
    std::array<std::size_t, static_cast<std::size_t>(last_span_kind) + 1> all{};
    all.fill(none);
    return all;
  }
};

/// Adds its lifetime to a journal as a span. Costs nothing where there is no journal.
class span_note {
 public:
  span_note(save_journal* journal, span_kind kind, std::uint64_t bytes = 0) noexcept;
  span_note(const span_note&) = delete;
  span_note& operator=(const span_note&) = delete;
  ~span_note();

 private:
  save_journal* journal_;
  span_kind kind_;
  std::uint64_t bytes_;
  std::int64_t begin_;
};

void encode(wire_writer& out, const detail::vector<save_span>& spans);
/// Spans of the process `process`. @throws wire_error
[[nodiscard]] detail::vector<save_span> decode_spans(wire_reader& in, std::int64_t process);

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/model/save_journal.ipp>
#endif
