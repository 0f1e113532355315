// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/roles.hpp>
#include <cairn/concepts/stager.hpp>
#include <cairn/stage/image_pieces.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

namespace detail {
/// An image that stays in training memory, but for its early items.
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
  /// Dropped before it was read: training must not wait for it.
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
  std::shared_ptr<image_control> control_ = std::make_shared<image_control>();
  std::unique_ptr<std::byte[]> early_;
  std::vector<std::uint64_t> digests_;
};
}  // namespace detail

/// Copies nothing but the items that are early: writers read straight from training memory, which is released
/// when they have read all of it (or have given up the image). Needs no memory beyond those items; digests
/// are the writer's. With an executor that is not the calling thread, training must not change its memory
/// until the save is `released`.
class no_staging {
 public:
  using cairn_role = role::stager;

  /// See Stager. @throws usage_error where sources do not fit or are not readable by the host, storage_error
  /// (storage_out_of_memory).
  [[nodiscard]] staged_image stage(std::shared_ptr<const image_layout> layout, const source_table& sources,
                                   stage_options, deadline) {
    check_sources(*layout, sources);
    for (const auto& source : sources) check_host_readable(source);
    auto image = std::make_shared<detail::unstaged_image>(layout, sources);
    return {std::move(layout), image->control(), {}, image->digests(), false, image};
  }
  void prepare(const image_layout&, deadline) noexcept {}
  [[nodiscard]] int depth() const noexcept { return std::numeric_limits<int>::max(); }
};
static_assert(Stager<no_staging>, "no_staging must model Stager");

}  // namespace v1
}  // namespace cairn
