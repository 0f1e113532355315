// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_writer.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/system/background_thread.hpp>

#include <chrono>
#include <memory>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Looks in the store for another rank that writes a save, which this rank has not planned yet. A thread does it, as the
/// store may answer nothing, and who plans has a deadline. The thread of training; what is given outlives it.
class other_writers {
 public:
  other_writers(const any_writer& writer, const save_context& context) noexcept
      : writer_(writer), context_(context) {}
  other_writers(const other_writers&) = delete;
  other_writers& operator=(const other_writers&) = delete;
  /// Where the store does not answer, the thread is left behind with what it uses.
  ~other_writers() { thread_.detach(); }

  /// A rank that was seen; -1: none was so far. Waits at most `longest_wait` for an answer, and not where an earlier look
  /// has none yet.
  [[nodiscard]] int look() noexcept;

 private:
  struct inside;
  static constexpr std::chrono::seconds longest_wait{1};

  const any_writer& writer_;
  const save_context& context_;
  std::shared_ptr<inside> in_;
  background_thread thread_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/checkpointer/other_writers.ipp>
#endif
