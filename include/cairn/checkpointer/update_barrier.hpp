// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/item_positions.hpp>
#include <cairn/model/image_control.hpp>
#include <cairn/model/save_journal.hpp>
#include <cairn/model/save_notes.hpp>
#include <cairn/model/save_progress.hpp>
#include <cairn/model/source_table.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/list_view.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// The last overlapped save, from save() until training confirms that it kept its memory unchanged while it
/// was copied: for all of it at once, or for one item after another. Any thread.
class update_barrier {
 public:
  /// What items there are, and where they lie; kept while a save that was laid out otherwise is under way.
  void set_layout(const state_dict& state, const save_plan& plan,
                  const std::shared_ptr<const image_layout>& layout) {
    const std::lock_guard lock(mutex_);
    if (save_ == nullptr) items_.set_layout(state, plan, layout);
  }
  void arm(std::shared_ptr<save_progress> save, const staged_image& image, source_table sources) {
    const std::lock_guard lock(mutex_);
    sources_ = std::move(sources);
    confirmed_.assign(items_.size(), 0);  // reuses its memory
    left_ = items_.late();
    save_ = std::move(save);
    image_ = image;
    waiting_.store(true, std::memory_order_release);
  }
  /// Waits until the save has copied its memory, and confirms it; then, at most for the second time, until
  /// the process that carries it out has it. Costs one load where there is none. @return the save if its
  /// process did not have it in time, else null. @throws timeout_error; the save is then still not confirmed.
  std::shared_ptr<save_progress> wait(deadline until, std::chrono::nanoseconds handover) {
    if (!waiting_.load(std::memory_order_acquire)) return nullptr;
    std::shared_ptr<save_progress> save;
    {
      const std::lock_guard lock(mutex_);
      save = save_;
    }
    if (save == nullptr) return nullptr;
    const auto begin = deadline::clock::now();
    bool handed_over = false;
    {
      const span_note span(save->notes().journal.get(), span_kind::before_update);
      save->wait_released(until);
      handed_over = save->wait_handed_over(deadline::in(handover).earlier(until));
    }
    note_wait(*save, begin);
    const std::lock_guard lock(mutex_);
    if (save_ == save) confirm(until);
    return handed_over ? nullptr : save;
  }
  /// Waits until the save has copied the items of one name, or of all names that begin with what stands
  /// before a final `*`. Confirms the save when that was the last of its items, and waits for the handover
  /// then, as above. No allocation; O(log n + items of that name). @throws usage_error (usage_unknown_name),
  /// timeout_error.
  std::shared_ptr<save_progress> wait(std::string_view name, deadline until,
                                      std::chrono::nanoseconds handover) {
    std::shared_ptr<save_progress> save;
    staged_image image;
    std::shared_ptr<const vector<item_positions::part>> parts;
    item_positions::range range, wanted;
    {
      const std::lock_guard lock(mutex_);
      if (!items_.known()) return nullptr;
      range = items_.find(name);
      if (save_ == nullptr) return nullptr;
      wanted = items_.parts_of(range);
      parts = items_.parts();
      save = save_;
      image = image_;
    }
    if (wanted.first != wanted.last && !image.control()->copied())
      wait_for(*save, image, list_view(*parts).subspan(wanted.first, wanted.last - wanted.first), until);
    {
      const std::lock_guard lock(mutex_);
      if (save_ != save) return nullptr;
      for (auto i = range.first; i < range.last; ++i) {
        if (!items_.is_late(i) || confirmed_[i] != 0) continue;
        confirmed_[i] = 1;
        --left_;
      }
      if (left_ != 0) return nullptr;
      confirm(until);
    }
    if (save->handed_over()) return nullptr;
    const auto begin = deadline::clock::now();
    const bool handed_over = save->wait_handed_over(deadline::in(handover).earlier(until));
    note_wait(*save, begin);
    return handed_over ? nullptr : save;
  }
  /// Training has ordered its changes of the memory of one device behind the copies by other means, as its
  /// stream does. Confirms the save, without waiting until all is copied, when nothing is left that is copied
  /// late: memory of other devices, or of the host. O(items). @throws timeout_error only where changes are
  /// looked for.
  void confirm(int device, deadline until) {
    const std::lock_guard lock(mutex_);
    if (save_ == nullptr) return;
    const auto& parts = *items_.parts();
    for (std::size_t i = 0; i < confirmed_.size(); ++i) {
      if (!items_.is_late(i) || confirmed_[i] != 0) continue;
      const auto own = items_.parts_of({i, i + 1});
      bool ordered = true;
      for (auto k = own.first; k < own.last; ++k) {
        const auto& view = sources_[parts[k].item].view;
        ordered = ordered && view.space == memory_space::device && view.device == device;
      }
      if (!ordered) continue;
      confirmed_[i] = 1;
      --left_;
    }
    if (left_ != 0) return;
    save_->confirm(until);
    open();
  }
  /// The save, if nothing tells that its memory stayed as it was while it was copied: nobody confirmed it,
  /// nor was told by its handle that it is released. Null: there is none.
  [[nodiscard]] std::shared_ptr<save_progress> unconfirmed() const {
    const std::lock_guard lock(mutex_);
    return unconfirmed_here() ? save_ : nullptr;
  }
  /// For calls that tell nothing of what training did since the save: `look(image, waited_for)` answers why
  /// the save must not become a checkpoint, which fails it, or null; waited_for(entry) is true of entries of
  /// the state whose memory may have changed, as somebody waited for it. Waits until all is copied. Not
  /// called where unconfirmed() is null. @throws timeout_error, what look throws.
  template <class Look>
  void examine(Look&& look, deadline until) {
    const auto save = unconfirmed();
    if (save == nullptr) return;
    save->wait_released(until);
    const std::lock_guard lock(mutex_);
    if (save_ != save || !unconfirmed_here() || save_->finished() || image_.failed()) return;
    auto why = look(std::as_const(image_),
                    [this](std::size_t entry) { return confirmed_[items_.of_entry(entry)] != 0; });
    if (why == nullptr) return;
    save_->give_up(std::move(why));
    open();
  }
  /// A save whose memory may have changed while it was copied must not become a checkpoint: waits until
  /// nobody reads the memory, and fails the save. `unwinding`: as an exception ends the program's part that
  /// would have confirmed it. @throws timeout_error; the save is then as it was.
  void give_up(deadline until, bool unwinding = false) {
    std::shared_ptr<save_progress> save;
    {
      const std::lock_guard lock(mutex_);
      save = save_;
    }
    if (save == nullptr) return;
    save->wait_released(until);
    const std::lock_guard lock(mutex_);
    if (save_ != save) return;
    if (image_.control()->confirmed()) return open();  // by its handle
    // Who is told of an exception, of a rank that is lost perhaps, did not forget anything.
    save_->give_up(
        unwinding
            ? make_failure(error_id::storage_aborted,
                           "an exception ended its checkpointer before before_update() was called, so the "
                           "save was given up: its memory may have changed while it was copied; nothing of "
                           "it was published")
            : make_failure(error_id::usage_before_update_missing,
                           "an overlapped save was not followed by before_update(), so its memory may have "
                           "changed while it was copied: nothing of it was published; call before_update() "
                           "before each update (cairn::checked{} tells which memory was changed while it "
                           "was copied)",
                           {.item = first_left_out()}));
    open();
  }

 private:
  static void wait_for(save_progress& save, const staged_image& image,
                       list_view<const item_positions::part> parts, deadline until) {
    const auto begin = deadline::clock::now();
    {
      const span_note span(save.notes().journal.get(), span_kind::before_update);
      if (image.resident())
        for (const auto& part : parts) image.copy_part(part.begin, part.end, until);
      else
        save.wait_released(until);
    }
    note_wait(save, begin);
  }
  static void note_wait(save_progress& save, deadline::clock::time_point begin) {
    const auto seconds = seconds_since(begin);
    save.note([&](save_report& r) {
      r.before_update_seconds += seconds;
      r.blocked_seconds += seconds;
    });
  }
  /// @pre locked
  [[nodiscard]] bool unconfirmed_here() const {
    return save_ != nullptr && left_ != 0 && !image_.control()->confirmed() && !save_->release_observed();
  }
  /// @pre locked; all is copied, or about to be.
  void confirm(deadline until) {
    save_->wait_released(until);
    save_->note([&](save_report& r) { r.released_seconds = seconds_since(save_->begun()); });
    save_->confirm(until);
    open();
  }
  /// An item that was not waited for, where others were.
  [[nodiscard]] std::string first_left_out() const {
    if (left_ == items_.late()) return {};
    for (std::size_t i = 0; i < confirmed_.size(); ++i)
      if (confirmed_[i] == 0 && items_.is_late(i)) return items_.name(i);
    return {};
  }
  void open() noexcept {
    save_ = nullptr;
    image_ = staged_image();
    sources_ = {};
    waiting_.store(false, std::memory_order_release);
  }

  mutable std::mutex mutex_;
  item_positions items_;
  std::shared_ptr<save_progress> save_;
  staged_image image_;  // whose buffer is not free before the save is confirmed anyway
  source_table sources_;
  std::vector<unsigned char> confirmed_;  // for each name
  std::size_t left_ = 0;                  // names with items that are copied late and were not waited for
  std::atomic<bool> waiting_{false};
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
