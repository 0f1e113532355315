// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/save_progress.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/list_view.hpp>
#include <cairn/system/vector.hpp>

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

/// The saves of one checkpointer that have not ended, in their order, and how the last one ended. The thread
/// of training.
class saves_under_way {
 public:
  /// Makes room, so that the next add() throws nothing.
  void make_room() { saves_.reserve(saves_.size() + 1); }
  /// `until`: when nobody waits for it, nor for those before it, any more. @pre make_room()
  void add(std::shared_ptr<save_progress> save, deadline until) noexcept {
    detail::erase_if(saves_, [](const auto& s) { return s->finished(); });
    given_up_at_ = until;
    set_last(save);
    saves_.push_back(std::move(save));
  }
  /// The save that last_failure() tells of, also where it failed before it was under way.
  void set_last(std::shared_ptr<save_progress> save) noexcept { last_ = std::move(save); }

  [[nodiscard]] bool any() const {
    return detail::any_of(saves_, [](const auto& s) { return !s->finished(); });
  }
  /// Any whose image a tier is yet to hold, whatever the store does.
  [[nodiscard]] bool any_to_hold() const {
    return detail::any_of(saves_, [](const auto& s) { return !s->finished() && s->in_tier() && !s->held(); });
  }
  [[nodiscard]] list_view<const std::shared_ptr<save_progress>> all() const noexcept { return saves_; }
  /// Training has ended, and goes no faster where these take their time.
  void lift_write_limits() const noexcept {
    for (const auto& save : saves_) save->lift_write_limit();
  }
  /// Waits for all of them; calls late(save), which may throw, for each that had not ended when all were
  /// given up.
  template <class Late>
  void wait(Late&& late) const {
    for (const auto& save : saves_)
      if (!save->wait_finished(given_up_at_)) late(*save);
  }
  [[nodiscard]] bool any_of(std::int64_t step) const {
    return detail::any_of(saves_, [&](const auto& s) { return !s->finished() && s->report().step == step; });
  }
  /// Waits for those of one step, until all were given up.
  void wait_for_step(std::int64_t step) const {
    for (const auto& save : saves_)
      if (save->report().step == step) static_cast<void>(save->wait_finished(given_up_at_));
  }
  /// Why the last save failed; null: it did not, or has not ended.
  [[nodiscard]] std::exception_ptr last_failure() const {
    return last_ == nullptr ? nullptr : last_->failure();
  }

 private:
  vector<std::shared_ptr<save_progress>> saves_;
  std::shared_ptr<save_progress> last_;
  deadline given_up_at_ = deadline::in(std::chrono::nanoseconds(0));
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
