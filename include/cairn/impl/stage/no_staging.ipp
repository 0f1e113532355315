// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/roles.hpp>
#include <cairn/concepts/stager.hpp>
#include <cairn/model/dtype.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/model/image_backing.hpp>
#include <cairn/model/image_control.hpp>
#include <cairn/model/image_layout.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/source_table.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/model/tensor_view.hpp>
#include <cairn/stage/image_sources.hpp>
#include <cairn/stage/no_staging.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/list_view.hpp>
#include <cairn/system/shared.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// An image that stays in training memory, except for its early items.
class unstaged_image final : public image_backing {
 public:
  unstaged_image(std::shared_ptr<const image_layout> layout, const source_table& sources)
      : layout_(std::move(layout)), sources_(sources) {
    std::uint64_t early_bytes = 0;
    for (const auto& place : layout_->items) early_bytes += place.early ? place.bytes : 0;
    try {
      early_ = std::make_unique_for_overwrite<std::byte[]>(early_bytes);
      digests_.resize(layout_->blocks);
    } catch (const std::bad_alloc&) {
      fail(error_id::storage_out_of_memory, "there is no memory for the items that are copied at once",
           {.expected = std::to_string(early_bytes) + " bytes"});
    }
    std::byte* to = early_.get();
    std::uint64_t left = 0;
    for (const auto& place : layout_->items) {
      if (!place.early) {
        left += place.bytes;
        continue;
      }
      auto& source = sources_[place.item];
      copy_item(source, place.bytes, 0, place.bytes, to, plain_copy);
      source = {contiguous_view(to, dtype::u8, extents{place.bytes}), nullptr};
      to += place.bytes;
    }
    control_->advance(layout_->bytes);
    if (left == 0) control_->release();
  }
  /// An image that is dropped before it was read fails, so that training does not wait for it.
  ~unstaged_image() override {
    if (!control_->copied()) control_->fail();
  }
  void gather(std::uint64_t begin, std::span<std::byte> out) const override {
    gather_image(*layout_, sources_, begin, out);
  }
  [[nodiscard]] std::exception_ptr failure() const noexcept override { return nullptr; }
  [[nodiscard]] const std::shared_ptr<image_control>& control() const noexcept { return control_; }
  [[nodiscard]] std::span<std::uint64_t> digests() noexcept { return digests_; }

 private:
  std::shared_ptr<const image_layout> layout_;
  std::vector<item_source> sources_;
  std::shared_ptr<image_control> control_ = detail::make_shared<image_control>();
  std::unique_ptr<std::byte[]> early_;
  std::vector<std::uint64_t> digests_;
};

}  // namespace detail

CAIRN_BODY staged_image no_staging::stage(std::shared_ptr<const image_layout> layout,
                                          const source_table& sources, stage_options, deadline) {
  check_sources(*layout, sources);
  for (const auto& source : sources) check_host_readable(source);
  auto image = detail::make_shared<detail::unstaged_image>(layout, sources);
  return {std::move(layout), image->control(), {}, image->digests(), false, image};
}

static_assert(Stager<no_staging>, "no_staging must model Stager");

}  // namespace v1
}  // namespace cairn
