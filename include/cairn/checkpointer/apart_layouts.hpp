// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/save_plans.hpp>
#include <cairn/concepts/any_writer.hpp>
#include <cairn/model/image_layout.hpp>
#include <cairn/model/source_table.hpp>
#include <cairn/plan/plan_cache.hpp>
#include <cairn/system/owned.hpp>

#include <memory>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What the option link_unchanged does in one save after another. The thread of training.
class apart_layouts {
 public:
  virtual ~apart_layouts() = default;
  /// The layout of a save, with the files of what stays as it is apart, as those of frozen items. `changed`: what was apart
  /// before has other values now.
  [[nodiscard]] virtual std::shared_ptr<const image_layout> choose(
      const save_plans& plans, const cached_plan& planned, const std::shared_ptr<const image_layout>& whole,
      const source_table& sources, int rank, const any_writer& writer, bool& changed) = 0;
};

/// Only a composition with options names it: others compile nothing of it.
template <class>
[[nodiscard]] owned<apart_layouts> make_apart_layouts();

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/checkpointer/apart_layouts.ipp>
#endif
