// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/device_access.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/plan/plan_cache.hpp>
#include <cairn/stage/image_sources.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/list_view.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// The digests of a save's items as they were when this was made, to compare with what was copied. Immutable.
class copy_check {
 public:
  /// Which items are looked at; null: all.
  using selection = std::function<bool(const item_placement&)>;

  /// Reads the memory of the items, that of devices by `devices` (may be null): once, in the calling thread.
  /// @throws usage_error for memory that neither can read; what devices throw.
  copy_check(std::shared_ptr<const cached_plan> planned, std::shared_ptr<const image_layout> layout,
             list_view<const item_source> sources, int rank, device_access* devices, deadline until,
             selection looked_at = nullptr)
      : planned_(std::move(planned)),
        layout_(std::move(layout)),
        looked_at_(std::move(looked_at)),
        rank_(rank) {
    check_sources(*layout_, sources);
    std::unique_ptr<device_read> reader;
    for (const auto& source : sources)
      if (source.view.space == memory_space::device && reader == nullptr) {
        if (devices == nullptr)
          fail(error_id::usage_bad_option,
               "checked{} must read a tensor in device memory, and nothing here can: give the checkpointer a "
               "stager that copies from devices, or cuda::device_loads{}, or leave checked{} out");
        reader = devices->begin_read();
      }
    digests_.resize(static_cast<std::size_t>(layout_->blocks));
    std::vector<std::byte> packed;
    each_block([&](const item_placement& place, std::uint64_t at, std::uint64_t bytes, std::size_t block) {
      const auto& source = sources[place.item];
      if (source.view.space == memory_space::device) {
        packed.resize(static_cast<std::size_t>(digest_block_bytes));
        reader->read(source.view, at, at + bytes, packed.data(), planned_->plan->items.at(place.item).name,
                     until);
        digests_[block] = digest(std::span<const std::byte>(packed).first(static_cast<std::size_t>(bytes)));
      } else if (source.cast == nullptr && source.view.contiguous()) {
        digests_[block] = digest(std::span<const std::byte>(source.view.data + at, bytes));
      } else {
        packed.resize(static_cast<std::size_t>(digest_block_bytes));
        copy_item(source, place.bytes, at, at + bytes, packed.data(), plain_copy);
        digests_[block] = digest(std::span<const std::byte>(packed).first(static_cast<std::size_t>(bytes)));
      }
      return true;
    });
  }

  /// What was copied otherwise, as an error with this id and sentence that names the item and its first
  /// block, or null. @pre all is copied; digests that the stager does not compute are complete where the
  /// image stays in training memory.
  [[nodiscard]] std::exception_ptr compare(const staged_image& image, error_id id,
                                           std::string_view sentence) const {
    const bool digested = image.digested() || !image.resident();
    std::exception_ptr failure;
    each_block([&](const item_placement& place, std::uint64_t at, std::uint64_t bytes, std::size_t block) {
      const auto got = digested ? image.digests()[block]
                                : digest(image.bytes().subspan(static_cast<std::size_t>(place.begin + at),
                                                               static_cast<std::size_t>(bytes)));
      if (got == digests_[block]) return true;
      failure = changed(place, at, id, sentence);
      return false;
    });
    return failure;
  }
  /// What of the items that are looked at was otherwise when `earlier` was made, likewise.
  /// @pre that looked at the same items
  [[nodiscard]] std::exception_ptr compare(const copy_check& earlier, error_id id,
                                           std::string_view sentence) const {
    std::vector<std::uint64_t> before;
    earlier.each_block([&](const item_placement&, std::uint64_t, std::uint64_t, std::size_t block) {
      before.push_back(earlier.digests_[block]);
      return true;
    });
    std::exception_ptr failure;
    std::size_t next = 0;
    each_block([&](const item_placement& place, std::uint64_t at, std::uint64_t, std::size_t block) {
      if (next < before.size() && before[next++] == digests_[block]) return true;
      failure = changed(place, at, id, sentence);
      return false;
    });
    return failure;
  }
  /// The same for digests that were made when save() began.
  [[nodiscard]] std::exception_ptr compare(const staged_image& image) const {
    return compare(
        image, error_id::usage_memory_changed,
        "the memory of an item changed after save() began and before it was copied: nothing of this save "
        "was published; change it when save() or, with overlapped{}, before_update() has returned, and flag "
        "with copy_now what forward or backward changes");
  }

 private:
  [[nodiscard]] std::exception_ptr changed(const item_placement& place, std::uint64_t at, error_id id,
                                           std::string_view sentence) const {
    const auto& item = planned_->plan->items.at(place.item);
    return make_failure(
        id, sentence,
        {.rank = rank_,
         .item = item.name,
         .offset = static_cast<std::int64_t>(at),
         .got = item.kind != item_kind::tensor || item.box == whole(item.global) ? std::string()
                                                                                 : to_string(item.box)});
  }
  /// Calls `visit(place, first byte in the item, bytes, index of the digest)` until it answers false.
  template <class Visit>
  void each_block(Visit&& visit) const {
    for (const auto& place : layout_->items) {
      if (looked_at_ != nullptr && !looked_at_(place)) continue;
      for (std::uint64_t at = 0; at < place.bytes; at += digest_block_bytes)
        if (!visit(place, at, std::min(digest_block_bytes, place.bytes - at),
                   static_cast<std::size_t>(place.first_block + at / digest_block_bytes)))
          return;
    }
  }

  std::shared_ptr<const cached_plan> planned_;
  std::shared_ptr<const image_layout> layout_;
  selection looked_at_;
  std::vector<std::uint64_t> digests_;
  int rank_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
