// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/observer.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/save_journal.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace cairn {
inline namespace v1 {

/// An observer that writes a trace for Perfetto (https://ui.perfetto.dev) and chrome://tracing, in the JSON
/// array form of the Trace Event Format: the trainer, and its worker where a process_executor writes, with a
/// track for each thing that goes on at once ("saves", and "saves 2" where two saves overlap), and counters of the bytes per second and of the cores in use.
///
/// `cairn::trace_file trace{"trace-" + std::to_string(rank) + ".json", rank};`
/// `cairn::checkpointer ckpt{store, trace};   // copies share the file`
/// `trace.step(step);                         // at the end of each step`
///
/// Each rank writes its own file. Times are those of the steady clock, which all processes of a host
/// share. Each save is written to the file when it has ended. Bytes of a text that are not UTF-8 become U+FFFD. The JSON array is not closed, which the
/// format allows, so that the file of a killed process can be opened. Any thread. Errors of writing are
/// ignored.
class trace_file {
 public:
  using cairn_role = role::observer;
  /// See wants_spans of an Observer.
  static constexpr bool wants_spans = true;

  /// Replaces the file. @throws storage_error (storage_io)
  explicit trace_file(const std::string& path, std::int32_t rank = 0);

  void observe(const observation& what) noexcept;
  /// Marks the end of a training step: adds a slice from the end of the step before, and the number of
  /// cores that the trainer has used. The first call only marks the beginning. Costs microseconds.
  void step(std::int64_t number) noexcept;
  /// Marks a moment of training.
  void mark(std::string_view text) noexcept;

 private:
  enum class track : int { steps = 1, training, copying, saves, writing, hashing };

  static track track_of(span_kind kind) noexcept;
  static const char* name_of(track where) noexcept;
  /// What the format calls a thread: a track, or a further one beside it.
  static int thread_of(track where, int lane = 0) noexcept;
  static std::string text_of(const load_stages& s);
  static bool counted(span_kind kind) noexcept;

  struct close;
  struct cpu_sample;
  struct lane;
  struct shared;

  std::shared_ptr<shared> shared_;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/observe/trace_file.ipp>
#endif
