// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/checkpointer_base.hpp>

#include <utility>

namespace cairn {
inline namespace v1 {

/// Any checkpointer behind one type, so that a single .cpp of a trainer includes <cairn/checkpointer.hpp> and
/// pays for its templates:
///
/// `cairn::any_checkpointer make_checkpointer();  // in a header; defined where cairn::checkpointer{...} is
/// made`
///
/// Its calls are those of checkpointer_base. Movable, not copyable. One that was made of nothing holds none, as one
/// that was moved from.
class any_checkpointer : public checkpointer_base {
 public:
  any_checkpointer() noexcept = default;
  /// Takes over the checkpointer, of any composition.
  any_checkpointer(checkpointer_base&& held) noexcept : checkpointer_base(std::move(held)) {}

  /// False where it was made of nothing, or moved from.
  [[nodiscard]] bool has_value() const noexcept { return engine_.has_value(); }
};

}  // namespace v1
}  // namespace cairn
