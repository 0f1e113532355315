// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_writer.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/system/background_thread.hpp>
#include <cairn/system/deadline.hpp>

#include <chrono>
#include <exception>
#include <memory>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Ends saves in the store that failed before an executor had them. A thread does it, as the store may answer nothing,
/// and training is not to stand still for that. The thread of training.
class failed_saves {
 public:
  explicit failed_saves(any_writer writer) : writer_(std::move(writer)) {}
  failed_saves(const failed_saves&) = delete;
  failed_saves& operator=(const failed_saves&) = delete;
  /// Waits until all of them are ended, at most `longest_end`: where the store does not answer, the thread is left behind
  /// with what it uses.
  ~failed_saves();

  /// Has the writer abort the save. Waits for that at most `longest_wait`, and not where an earlier one has not ended: where
  /// the store answers, the other ranks are told when this returns, also if the program ends next.
  void end(const save_context& c, const std::exception_ptr& why) noexcept;

 private:
  struct inside;
  static constexpr std::chrono::seconds longest_wait{1};
  static constexpr std::chrono::seconds longest_end{5};

  /// @throws std::bad_alloc; false where the system gives no thread
  [[nodiscard]] bool start();

  any_writer writer_;
  std::shared_ptr<inside> in_;
  background_thread thread_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/checkpointer/failed_saves.ipp>
#endif
