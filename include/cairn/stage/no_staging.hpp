// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/roles.hpp>
#include <cairn/concepts/stager.hpp>
#include <cairn/model/image_layout.hpp>
#include <cairn/model/source_table.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/system/deadline.hpp>

#include <limits>
#include <memory>

namespace cairn {
inline namespace v1 {

/// A Stager that copies only early items. Writers read the rest directly from training memory, which is
/// released when they have read all of it or have given up the image. Needs memory only for the early
/// items. The writer computes the digests. With an executor other than the calling thread, training must
/// not change its memory until the save is `released`.
class no_staging {
 public:
  using cairn_role = role::stager;

  /// See Stager. @throws usage_error where the size of a source is wrong or the host cannot read it,
  /// storage_error (storage_out_of_memory).
  [[nodiscard]] staged_image stage(std::shared_ptr<const image_layout> layout, const source_table& sources,
                                   stage_options, deadline);
  void prepare(const image_layout&, deadline) noexcept {}
  [[nodiscard]] int depth() const noexcept { return std::numeric_limits<int>::max(); }
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/stage/no_staging.ipp>
#endif
