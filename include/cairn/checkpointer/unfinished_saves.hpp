// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/options.hpp>
#include <cairn/checkpointer/save_services.hpp>
#include <cairn/checkpointer/saves_under_way.hpp>
#include <cairn/checkpointer/unconfirmed_check.hpp>
#include <cairn/checkpointer/update_barrier.hpp>
#include <cairn/concepts/device_access.hpp>
#include <cairn/model/save_handle.hpp>
#include <cairn/model/save_progress.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/system/owned.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

/// The saves of one checkpointer from where they are under way until they have ended, and how a checkpointer
/// ends while some are: whether memory may change, and what becomes of an overlapped save that nobody
/// confirmed. The thread of training, but for before_update().
class unfinished_saves {
 public:
  /// `check`: null where saves are not overlapped, or copies are compared by other means. `options` outlive this.
  unfinished_saves(const checkpointer_options& options, bool overlapped, owned<unconfirmed_check> check,
                   int rank, std::shared_ptr<save_services> services, std::shared_ptr<device_access> devices)
      : options_(options),
        overlapped_(overlapped),
        rank_(rank),
        services_(std::move(services)),
        devices_(std::move(devices)),
        check_(std::move(check)) {}

  [[nodiscard]] const saves_under_way& all() const noexcept { return saves_; }
  /// Makes room, so that the next begin() throws nothing for want of memory.
  void make_room() { saves_.make_room(); }

  /// What items the next save has, and where they lie.
  void learn(const state_dict& state, const save_plan& plan,
             const std::shared_ptr<const image_layout>& layout) {
    overlap_.set_layout(state, plan, layout);
  }
  /// Before anything of a save is copied.
  void before_copying(const std::shared_ptr<const cached_plan>& planned,
                      const std::shared_ptr<const image_layout>& layout, const source_table& sources) {
    if (check_ != nullptr) check_->begin(planned, layout, sources);
  }
  /// From here on the save is under way.
  void begin(const std::shared_ptr<save_progress>& save, const staged_image& image,
             const source_table& sources) {
    save_context c;
    c.timeout = options_.timeout;
    saves_.add(save, deadline::in(c.longest()));
    if (!overlapped_) return;
    overlap_.arm(save, image, sources);
    if (check_ != nullptr) check_->keep();
  }
  /// A save whose memory is released already.
  void add_last(const std::shared_ptr<save_progress>& save) noexcept {
    save_context c;
    c.timeout = options_.timeout;
    saves_.add(save, deadline::in(c.longest()));
  }
  /// The save that close() tells of, also where it failed before it was under way.
  void set_last(std::shared_ptr<save_progress> save) noexcept { saves_.set_last(std::move(save)); }
  /// Fails the overlapped save before this one, where nobody confirmed it.
  void give_up_unconfirmed() { overlap_.give_up(deadline::in(options_.timeout)); }
  void wait_for_earlier() const {
    saves_.wait([](save_progress& late) {
      late.fail_late(error_id::timeout_commit,
                     "an earlier save had not ended in time, so this one was not begun");
    });
  }

  void before_update() {
    warn_late(overlap_.wait(deadline::in(options_.timeout), options_.handover_timeout));
  }
  void before_update(std::string_view name) {
    warn_late(overlap_.wait(name, deadline::in(options_.timeout), options_.handover_timeout));
  }
  /// Changes of this device's memory come after the copies of the last save.
  void ordered_by_device(int device, deadline until) { overlap_.confirm(device, until); }
  /// Warns of a save that the process which carries it out did not have in time; null: there is none.
  void warn_late(const std::shared_ptr<save_progress>& save) {
    if (save == nullptr || options_.handover_timeout.count() == 0) return;
    services_->report().warned(
        "training goes on before the worker has the save of step " + std::to_string(save->report().step) +
        ": the store answers late; a trainer that ended now would take the save along");
  }

  /// before_update() for calls that tell nothing of what training did since the last overlapped save: where
  /// nobody confirmed it, and its memory is not what was copied, the save fails.
  void check_unconfirmed() {
    if (check_ != nullptr) {
      const auto until = deadline::in(options_.timeout);
      const auto look = [&](const staged_image& image, const auto& waited_for) -> std::exception_ptr {
        try {
          return check_->look(image, waited_for, rank_, devices_.get(), until);
        } catch (...) {
          services_->report().warned(
              "nobody could look whether memory was changed while an overlapped save copied it, which no "
              "before_update() followed",
              std::current_exception());
          return nullptr;
        }
      };
      overlap_.examine(look, until);
    }
    before_update();
  }
  /// Waits for all saves. @throws what failed in the last one.
  void close() {
    saves_.lift_write_limits();
    saves_.wait([](save_progress& late) {
      late.fail_late(error_id::timeout_close,
                     "a save had not ended when close() gave up waiting; it goes on until the process ends");
    });
    services_->stop_scrubbing(deadline::in(longest_end));
    end_run();
    if (const auto why = saves_.last_failure(); why != nullptr) std::rethrow_exception(why);
  }
  /// As the destructor of a checkpointer does it, before and after `between()`, which may throw. `unwinding`:
  /// while an exception is on its way.
  template <class Between>
  void shut_down(bool unwinding, Between&& between) noexcept {
    saves_.lift_write_limits();
    // A program that ends because its device hangs is to end.
    const auto until =
        deadline::in(unwinding ? std::min(options_.timeout, copies_at_an_end) : options_.timeout);
    try {
      if (unwinding)
        overlap_.give_up(until, true);
      else
        warn_unconfirmed();
    } catch (...) {
      warn_at_end();
    }
    give_up_uncopied(until);
    try {
      between();
      saves_.wait([&](const save_progress&) {
        services_->report().warned("a save had not ended when its checkpointer was destroyed", nullptr);
      });
      if (!unwinding) end_run();
    } catch (...) {
      warn_at_end();
    }
    services_->stop_scrubbing(deadline::in(longest_end));
  }

 private:
  static constexpr std::chrono::nanoseconds copies_at_an_end = std::chrono::minutes(1);
  /// How long the end of a verification in the background waits for a read that is under way.
  static constexpr std::chrono::seconds longest_end{10};

  /// In a handler.
  void warn_at_end() noexcept {
    services_->report().warned("while a checkpointer was destroyed", std::current_exception());
  }
  /// check_unconfirmed() where the memory may be gone.
  void warn_unconfirmed() {
    if (const auto save = overlap_.unconfirmed(); save != nullptr && check_ != nullptr)
      services_->report().warned(
          "the checkpointer was destroyed after an overlapped save (step " +
          std::to_string(save->report().step) +
          ") that neither before_update() nor close() followed: the save goes on, and nobody knows whether "
          "its memory was changed while it was copied; call close() first, which looks");
    before_update();
  }
  /// Fails the saves whose memory is not copied by then: what waits for their images ends.
  void give_up_uncopied(deadline until) noexcept {
    for (const auto& save : saves_.all()) {
      if (save->finished()) continue;
      try {
        save->wait_released(until);
      } catch (...) {
        save->give_up(std::current_exception());
      }
    }
    try {
      overlap_.give_up(until);  // where the last one was copied only just now
    } catch (...) {
      warn_at_end();
    }
  }
  /// Nothing while a save is under way: it may be committed yet, and until then the run stands on what it has loaded.
  void end_run() noexcept {
    if (!saves_.any()) services_->closed(saves_.last_failure() == nullptr);
  }

  const checkpointer_options& options_;
  const bool overlapped_;
  const int rank_;
  std::shared_ptr<save_services> services_;
  std::shared_ptr<device_access> devices_;
  saves_under_way saves_;
  update_barrier overlap_;
  owned<unconfirmed_check> check_;  // of the save that the gate holds
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
