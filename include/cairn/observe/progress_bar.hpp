// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/observer.hpp>
#include <cairn/concepts/roles.hpp>

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace cairn {
inline namespace v1 {

/// Options of progress_bar.
struct progress_bar_options {
  /// The output file, which must stay open as long as the checkpointer lives.
  int file = STDERR_FILENO;
  /// On a terminal, the time between two drawings of the bar while a save is under way; above zero.
  std::chrono::milliseconds every{100};
};

/// An observer that shows a progress bar while a save is written, also by a worker process.
///
/// `cairn::checkpointer ckpt{store, cairn::progress_bar{}, cairn::checkpointer_options{.quiet = true}};`
///
///   step 300  [##############                ]  47 %  588.10 MB of 1.25 GB  1.43 GB/s
///   step 300  committed: 1.25 GB in 0.812 s, training waited 3.1 ms
///
/// On a terminal the bar is one line, which a thread draws again and again; the thread sleeps while
/// nothing is saved. Events stay as lines above it. Where the output is not a terminal, only these lines
/// are written. Failures, warnings, loads and fall-backs are lines, too, so that
/// checkpointer_options::quiet loses nothing. Use it on one rank only. Copies share the terminal. Errors
/// of writing are ignored. Costs microseconds in save().
class progress_bar {
 public:
  using cairn_role = role::observer;
  /// See wants_began of an Observer.
  static constexpr bool wants_began = true;

  progress_bar() : progress_bar(progress_bar_options{}) {}
  /// @throws usage_error (usage_bad_option), storage_error (storage_limit) where no thread can be started.
  explicit progress_bar(progress_bar_options options);

  void observe(const observation& what) noexcept;

 private:
  struct save_under_way;
  struct shared;
  class drawing_thread;

  [[nodiscard]] static std::string human_bytes(double bytes);
  [[nodiscard]] static std::string human_bytes(std::uint64_t bytes) {
    return human_bytes(static_cast<double>(bytes));
  }
  [[nodiscard]] static std::string line_of(const observation& what);

  std::shared_ptr<shared> shared_;
  std::shared_ptr<drawing_thread> thread_;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/observe/progress_bar.ipp>
#endif
