// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/device_access.hpp>
#include <cairn/model/image_layout.hpp>
#include <cairn/model/save_progress.hpp>
#include <cairn/model/source_table.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/plan/plan_cache.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/owned.hpp>

#include <exception>
#include <memory>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What checked{} does in one save after another. The thread of training.
class copy_checks {
 public:
  virtual ~copy_checks() = default;
  /// False where the frozen items of this layout were not looked at in the save before.
  [[nodiscard]] virtual bool comparable(const image_layout& whole) const = 0;
  /// Looks at them. Why they are not what they were, if that is `asked`; else null. @throws as begin()
  [[nodiscard]] virtual std::exception_ptr look_at_frozen(const std::shared_ptr<const cached_plan>& planned,
                                                          const std::shared_ptr<const image_layout>& whole,
                                                          const source_table& sources, int rank,
                                                          device_access* devices, bool asked,
                                                          deadline until) = 0;
  /// Reads the memory that a save is about to copy. @throws as copy_check
  virtual void begin(const std::shared_ptr<const cached_plan>& planned,
                     const std::shared_ptr<const image_layout>& layout, const source_table& sources, int rank,
                     device_access* devices, deadline until) = 0;
  /// Sees to it that what was copied is compared with what was there at begin(), before it can be committed.
  /// @throws what the comparison finds where all is copied already.
  virtual void compare_with(staged_image& image, const std::shared_ptr<save_progress>& progress,
                            bool overlapped) = 0;
};

/// Only a composition with checked{} names it: others compile nothing of it.
template <class>
[[nodiscard]] owned<copy_checks> make_copy_checks();

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/checkpointer/copy_checks.ipp>
#endif
