// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/storage/commit/step_objects.hpp>
#include <cairn/system/deadline.hpp>

#include <chrono>
#include <cstdint>
#include <functional>

namespace cairn {
inline namespace v1 {
namespace detail {

/// The mark that ended an attempt at an earlier time, for who commits the same attempt anew, such as a second copy of a
/// checkpoint, whose files have the names of the first. Who made the mark, or has seen it, may still be removing files of
/// these names: until it has done so, the mark stays. Who removes shows that by step_leases before it makes the mark or looks
/// for it once more. One thread. Throws the store's errors.
class earlier_mark {
 public:
  /// Looks for the mark. @throws storage_aborted where there is one, and a process removes the files or saves the step
  earlier_mark(const any_store& store, std::int64_t step, std::uint64_t attempt);

  /// Removes the mark, if there was one, once `timeout` has passed since it was looked for: then those that cannot
  /// show themselves have removed what they remove. Calls `stop` while it waits. A mark that is made from now on ends the attempt.
  /// @throws storage_aborted as above; the mark stays, or is there again
  void remove(std::chrono::nanoseconds timeout, const std::function<void()>& stop);

 private:
  void require_nobody() const;

  any_store store_;
  step_objects objects_;
  std::int64_t step_;
  std::uint64_t attempt_;
  deadline::clock::time_point seen_;
  bool there_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/commit/earlier_mark.ipp>
#endif
