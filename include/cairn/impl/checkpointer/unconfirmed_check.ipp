// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/copy_check.hpp>
#include <cairn/checkpointer/unconfirmed_check.hpp>
#include <cairn/concepts/device_access.hpp>
#include <cairn/model/image_layout.hpp>
#include <cairn/model/source_table.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/plan/plan_cache.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/function_ref.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/vector.hpp>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <string_view>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

template <class>
class probing_check final : public unconfirmed_check {
 public:
  void begin(std::shared_ptr<const cached_plan> planned, const std::shared_ptr<const image_layout>& layout,
             const source_table& sources) override {
    if (layout != layout_ || !(sources == sources_)) {
      if (layout != layout_) {
        layout_ = nullptr;  // where memory runs out below, the next save chooses again
        choose(*layout);
      }
      layout_ = layout;
      sources_ = sources;
      for (auto& p : probes_) p.at = address(p);
    }
    planned_ = std::move(planned);
    // Each lies in memory that nobody has touched for long: it comes while save() does other things.
    for (const auto& p : probes_) __builtin_prefetch(p.at);
  }
  void keep() noexcept override {
    for (auto& p : probes_)
      if (p.at != nullptr) std::memcpy(p.bytes.data(), p.at, probe_bytes);
  }

  [[nodiscard]] std::exception_ptr look(const staged_image& image, function_ref<bool(std::size_t)> waited_for,
                                        int rank, device_access* devices, deadline until) const override {
    const auto looked_at = [&](const item_placement& place) {
      return !place.early && !waited_for(planned_->plan->items.at(place.item).entry);
    };
    for (const auto& place : layout_->items)
      if (looked_at(place) && !mapped(sources_[place.item]))
        return failure(rank, place.item, 0,
                       "an overlapped save was not followed by before_update(), and the memory of an item is "
                       "gone: nothing of the save was published; call close() before the memory of the state "
                       "goes");
    for (const auto& p : probes_)
      if (p.at != nullptr && looked_at(layout_->items[p.place]) &&
          std::memcmp(p.bytes.data(), p.at, probe_bytes) != 0)
        return failure(rank, layout_->items[p.place].item,
                       static_cast<std::int64_t>(p.offset / digest_block_bytes * digest_block_bytes),
                       changed);
    const copy_check now(planned_, layout_, sources_, rank, devices, until, looked_at);
    return now.compare(image, error_id::usage_before_update_missing, changed);
  }

 private:
  static constexpr std::size_t probe_bytes = 64;
  // Each may cost training a page of memory that a host of virtual machines has to look for.
  static constexpr std::uint64_t max_probes = 16;
  static constexpr std::string_view changed =
      "an overlapped save was not followed by before_update(), and the memory of an item changed since "
      "save(), so maybe while it was copied: nothing of the save was published; call before_update() before "
      "each update, also before the last (cairn::checked{} tells which memory was changed while it was "
      "copied)";
  struct probe {
    std::size_t place = 0;          // in the layout
    std::uint64_t offset = 0;       // in the item
    const std::byte* at = nullptr;  // null where the memory is not simply there
    std::array<std::byte, probe_bytes> bytes;
  };

  /// Evenly among the bytes that are copied late.
  void choose(const image_layout& layout) {
    std::uint64_t late = 0;
    for (const auto& place : layout.items)
      if (!place.early && place.bytes >= probe_bytes) late += place.bytes;
    probes_.clear();
    const auto stride = late / max_probes + 1;
    std::uint64_t before = 0;
    for (std::size_t i = 0; i < layout.items.size(); ++i) {
      const auto& place = layout.items[i];
      if (place.early || place.bytes < probe_bytes) continue;
      for (auto at = (before + stride - 1) / stride * stride; at < before + place.bytes; at += stride)
        probes_.push_back({i, std::min(at - before, place.bytes - probe_bytes), nullptr, {}});
      before += place.bytes;
    }
  }
  /// Null where the memory is not simply there.
  [[nodiscard]] const std::byte* address(const probe& p) const noexcept {
    const auto& source = sources_[layout_->items[p.place].item];
    if (source.view.space == memory_space::device || source.cast != nullptr || !source.view.contiguous())
      return nullptr;
    return source.view.data + p.offset;
  }
  [[nodiscard]] std::exception_ptr failure(int rank, std::uint32_t item, std::int64_t offset,
                                           std::string_view sentence) const {
    return make_failure(error_id::usage_before_update_missing, sentence,
                        {.rank = rank, .item = planned_->plan->items.at(item).name, .offset = offset});
  }
  /// False where contiguous memory of the host is not mapped any more, so that reading it would end the
  /// process; true where nothing is known.
  static bool mapped(const item_source& source) noexcept {
    const auto bytes = source.view.bytes();
    if (source.view.space == memory_space::device || !source.view.contiguous() || bytes == 0) return true;
    const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    unsigned char resident[4096];
    const auto first = reinterpret_cast<std::uintptr_t>(source.view.data);
    for (auto at = first / page * page; at < first + bytes;) {
      const auto length = std::min<std::uintptr_t>(first + bytes - at, sizeof resident * page);
      if (::mincore(reinterpret_cast<void*>(at), length, resident) != 0) return errno != ENOMEM;
      at += sizeof resident * page;
    }
    return true;
  }

  std::shared_ptr<const cached_plan> planned_;
  std::shared_ptr<const image_layout> layout_;
  source_table sources_;
  vector<probe> probes_;
};

template <class Named>
owned<unconfirmed_check> make_unconfirmed_check() {
  return make_owned<probing_check<Named>>();
}
#if defined(CAIRN_COMPILED)
template owned<unconfirmed_check> make_unconfirmed_check<void>();
#endif

}  // namespace detail
}  // namespace v1
}  // namespace cairn
