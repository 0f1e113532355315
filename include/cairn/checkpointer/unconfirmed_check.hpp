// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/device_access.hpp>
#include <cairn/model/source_table.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/plan/plan_cache.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/function_ref.hpp>
#include <cairn/system/owned.hpp>

#include <cstddef>
#include <exception>
#include <memory>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Whether an overlapped save that nobody confirmed holds what its memory held: for the calls that end a use
/// of the memory without a word on it. One thread at a time.
class unconfirmed_check {
 public:
  virtual ~unconfirmed_check() = default;
  /// When a save begins. O(1) where layout and sources are those of before; keep() follows.
  virtual void begin(std::shared_ptr<const cached_plan> planned,
                     const std::shared_ptr<const image_layout>& layout, const source_table& sources) = 0;
  /// Before save() returns, after begin(). Keeps a few bytes of what is copied late: memory that is changed as a
  /// whole before the first of it is copied would be copied as a whole.
  virtual void keep() noexcept = 0;
  /// Why the save must not become a checkpoint, or null. `waited_for(entry)`: this entry of the state may
  /// have changed since. Costs one pass over the memory, in the calling thread. @pre all is copied. @throws
  /// what keeps the memory from being read, such as a device.
  [[nodiscard]] virtual std::exception_ptr look(const staged_image& image,
                                                function_ref<bool(std::size_t)> waited_for, int rank,
                                                device_access* devices, deadline until) const = 0;
};

/// Only a composition with overlapped{} names it: others compile nothing of it.
template <class>
[[nodiscard]] owned<unconfirmed_check> make_unconfirmed_check();

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/checkpointer/unconfirmed_check.ipp>
#endif
