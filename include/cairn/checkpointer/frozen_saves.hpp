// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/image_layout.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/model/source_table.hpp>
#include <cairn/model/tensor_view.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/shared.hpp>
#include <cairn/system/vector.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Which saves of one checkpointer have the files of frozen items that a later save can link. Each rank decides for
/// itself: what is in its files concerns no other rank. Any thread.
class frozen_saves {
 public:
  /// What a save that was laid out like this puts into its image: where the newest committed save of this rank has the
  /// same files of frozen items, from the same memory, everything else; then `c` says where those files are. Later saves
  /// that are still under way are named before it, since their end may have the older one removed; where one of them has
  /// other files, the image is whole. `plan` and `sources`: of this save.
  [[nodiscard]] std::shared_ptr<const image_layout> choose(const std::shared_ptr<const image_layout>& whole,
                                                           const save_plan& plan, const source_table& sources,
                                                           save_context& c) {
    const std::lock_guard lock(mutex_);
    look_at(whole);
    look_at(plan, sources);
    if (files_.empty() || gives_up_) return whole;
    std::vector<save_attempt> from;
    for (auto i = saves_.size(); i-- > 0;) {
      const auto& earlier = saves_[i];
      if (earlier.files != files_ || earlier.memory != memory_) break;
      from.push_back(earlier.attempt);
      if (!earlier.committed) continue;
      if (rest_ == nullptr) rest_ = detail::make_shared<const image_layout>(with_linked_files(*whole));
      c.link_from = std::move(from);
      return rest_;
    }
    return whole;
  }
  /// A save that `choose` was asked for is under way.
  void begun(const save_context& c) {
    const std::lock_guard lock(mutex_);
    saves_.push_back({{c.step, c.attempt}, files_, memory_, !c.link_from.empty(), false});
  }
  /// It has ended. After a save that linked has failed, for whatever reason, the next one writes everything; after two
  /// such failures with no save that linked between them, all do. True at the second one.
  [[nodiscard]] bool ended(std::uint64_t attempt, const std::exception_ptr& failure) noexcept {
    const std::lock_guard lock(mutex_);
    const auto at = detail::find_if(saves_, [&](const save& s) { return s.attempt.attempt == attempt; });
    if (at == saves_.end()) return false;
    if (failure == nullptr) {
      at->committed = true;
      if (at->linked) failures_ = 0;
      saves_.erase(saves_.begin(), last_committed());
    } else if (at->linked) {
      saves_.clear();
      if (++failures_ != 2) return false;
      gives_up_ = true;
      return true;
    } else {
      saves_.erase(at);
    }
    return false;
  }
  /// The step is removed: where its files would be linked, the next save writes everything.
  void removed(std::int64_t step) noexcept {
    const std::lock_guard lock(mutex_);
    if (detail::any_of(saves_, [&](const save& s) { return s.attempt.step == step; })) saves_.clear();
  }
  /// The next save writes frozen items anew: memory may have other values than it had.
  void forget() noexcept {
    const std::lock_guard lock(mutex_);
    saves_.clear();
  }

 private:
  /// Where an item lies, and in which order its elements are: a matrix and its transpose may begin at one address.
  struct place {
    explicit place(const tensor_view& view) : data(view.data) {
      if (view.shape.volume() == 0) return;
      for (int d = 0; d < view.shape.rank(); ++d)
        if (view.shape[d] != 1)
          strides[static_cast<std::size_t>(d)] = view.strides[static_cast<std::size_t>(d)];
    }
    bool operator==(const place&) const = default;
    const std::byte* data;
    std::array<std::int64_t, extents::max_rank> strides{};  ///< 0 where they say nothing
  };
  struct save {
    save_attempt attempt;
    std::vector<linked_file> files;
    std::vector<place> memory;
    bool linked;
    bool committed;
  };
  void look_at(const std::shared_ptr<const image_layout>& whole) {
    if (whole_ == whole) return;
    files_ = frozen_files(*whole);
    rest_ = nullptr;
    whole_ = whole;
  }
  /// Where the items lie that are flagged as frozen. What is found unchanged by its bytes may move.
  void look_at(const save_plan& plan, const source_table& sources) {
    memory_.clear();
    if (files_.empty()) return;
    for (const auto& each : whole_->items)
      if (plan.items[each.item].flags.frozen) memory_.emplace_back(sources[each.item].view);
  }
  [[nodiscard]] save* last_committed() noexcept {
    auto found = saves_.begin();
    for (auto i = saves_.begin(); i != saves_.end(); ++i)
      if (i->committed) found = i;
    return found;
  }

  std::mutex mutex_;
  vector<save> saves_;  // in the order in which they began; from the newest committed one on
  std::shared_ptr<const image_layout> whole_;
  std::vector<linked_file> files_;  // of whole_
  std::vector<place> memory_;       // of its frozen items
  std::shared_ptr<const image_layout> rest_;
  int failures_ = 0;  // of saves that linked, since one was committed
  bool gives_up_ = false;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
