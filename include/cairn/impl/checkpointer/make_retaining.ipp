// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/make_retaining.hpp>
#include <cairn/checkpointer/other_runs.hpp>
#include <cairn/checkpointer/retaining.hpp>
#include <cairn/checkpointer/retention.hpp>
#include <cairn/checkpointer/save_services.hpp>
#include <cairn/checkpointer/scrubber.hpp>
#include <cairn/checkpointer/step_list.hpp>
#include <cairn/concepts/any_reader.hpp>
#include <cairn/concepts/any_writer.hpp>
#include <cairn/model/retention_policy.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/model/save_journal.hpp>
#include <cairn/observe/event_reporter.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/owned.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

template <class>
class policy_retaining final : public retaining {
 public:
  policy_retaining(const std::shared_ptr<save_services>& services, const retention_policy& policy)
      : services_(services),
        writer_(services->writer()),
        reader_(services->reader()),
        reporter_(services->report()),
        retention_(policy) {
    if (policy.scrub()) scrubber_ = make_owned<scrubber>(policy.scrub()->bytes_per_second);
  }

  void set_base_step(std::int64_t step) noexcept override {
    try {
      retention_.set_base_step(step, reader_.list());
    } catch (...) {
      reporter_.warned("the store could not be listed: nothing of earlier runs is removed",
                       std::current_exception());
      retention_.set_base_step_unlisted(step);
    }
  }
  void begun(save_attempt save) noexcept override {
    try {
      retention_.begun(save);
    } catch (...) {  // it may be told as a stranger's then
    }
  }
  void stop_scrubbing(deadline until) noexcept override {
    if (scrubber_ != nullptr && !scrubber_->stop(until))
      reporter_.warned("the store did not answer in time to end the verifying of a checkpoint", nullptr);
  }
  void held(save_attempt save) noexcept override {
    retention_.ended(save, false);  // it is no checkpoint of the store
  }
  /// Removes only after a commit: the old checkpoints are good until the new one exists.
  void ended(save_attempt save, bool committed, step_listing& listing,
             save_journal* journal) noexcept override {
    try {
      retention_.ended(save, committed);
      if (!committed) return;
      if (scrubber_ != nullptr)
        if (auto kept = services_.lock())
          scrubber_->ask(save.step, [this, kept = std::move(kept)](
                                        std::int64_t s, const scrubber::gate& gate) { scrub(s, gate); });
      remove_outdated(listing, journal);
    } catch (...) {  // the next commit tries again
      reporter_.warned("old checkpoints could not be removed", std::current_exception());
    }
  }

 private:
  void remove_outdated(step_listing& listing, save_journal* journal) {
    const auto commits = retention_.commits();
    learn_of_line();
    const auto chosen =
        retention_.choose(listing.steps(), static_cast<std::int64_t>(std::time(nullptr)), commits);
    warn_of_other_lines(chosen.other_lines);
    if (chosen.remove.empty()) return;
    for (const auto& name : chosen.missing_annotations)
      reporter_.warned("no checkpoint of this run has a number in the annotation " + name +
                       ": keep_best keeps none, and older ones go; annotate() before save(), with this name");
    const span_note span(journal, span_kind::remove);
    const auto pinned = writer_.pinned();
    for (const auto old : chosen.remove)
      if (!has_step(pinned, old)) remove_old(old);
  }
  /// Reads some of the manifests that a policy asks for. What is not read yet stays.
  void learn_of_line() {
    constexpr std::size_t max_of_a_commit = 64;  // they are read one after another, and the save waits
    for (const auto step : retention_.unknown(max_of_a_commit)) {
      try {
        auto opened = reader_.open(step, reader_.fetch(step));
        const auto& said = opened.metadata();
        retention_.learn({.step = step, .committed_at = said.committed_at, .annotations = said.annotations});
      } catch (const storage_error& e) {
        if (e.id() == error_id::storage_not_committed) continue;  // gone since it was listed
        retention_.postpone(step);
        return;  // the next commit goes on with the others
      } catch (const timeout_error&) {
        retention_.postpone(step);
        return;
      } catch (const error&) {  // it stays; the next one that reads it tells why
        retention_.learn({.step = step, .readable = false});
      }
    }
  }
  /// On the scrubber's thread.
  void scrub(std::int64_t step, const scrubber::gate& gate) noexcept {
    try {
      const auto begin = deadline::clock::now();
      gate(0);
      auto opened = reader_.open(step, reader_.fetch(step));
      const auto until = deadline::in(std::chrono::hours(24 * 7));
      const auto bytes = reader_.verify(opened, until, gate);
      retention_.verified(step);
      step_listing listing(reader_);
      remove_outdated(listing, nullptr);
      reporter_.verified(step, bytes, seconds_since(begin));
    } catch (const error& e) {
      if (e.id() == error_id::timeout_close) return;
      reporter_.warned([&] {
        return "the checkpoint of step " + std::to_string(step) +
               " could not be verified, the older ones stay: " + e.what();
      });
    } catch (...) {
      reporter_.warned("a checkpoint could not be verified, the older ones stay", std::current_exception());
    }
  }
  void remove_old(std::int64_t step) {
    try {
      if (const auto attempt = retention_.attempt_of(step))
        (void)writer_.remove_attempt({step, *attempt});  // where another run made it anew, that one stays
      else
        writer_.remove(step);
      retention_.removed(step);
    } catch (const storage_error& e) {
      if (e.id() == error_id::storage_permission) {  // a lock perhaps, of this one alone
        if (!refused_reported_.exchange(true))
          reporter_.warned("the checkpoint of step " + std::to_string(step) +
                           " would go now and stays, others still go: " + e.what());
        return;
      }
      if (e.id() == error_id::storage_pinned) return;  // since the pins were listed
      if (e.id() != error_id::storage_leased) throw;
      if (retention_.first_lease_of(step))
        reporter_.warned("the checkpoint of step " + std::to_string(step) +
                         " would go now and stays while it is read: " + e.what());
    }
  }
  void warn_of_other_lines(const std::vector<std::int64_t>& steps) {
    if (steps.empty()) return;
    const auto first = std::to_string(steps.front());
    if (steps.size() == 1)
      reporter_.warned("retention leaves 1 checkpoint alone that is not of this run, step " + first +
                       ": it has neither committed it nor resumed from one at or after it; remove(" + first +
                       ") removes it");
    else
      reporter_.warned("retention leaves " + std::to_string(steps.size()) +
                       " checkpoints alone that are not of this run, the first of step " + first +
                       ": it has neither committed them nor resumed from one at or after them; remove(step) "
                       "removes one");
  }

  const std::weak_ptr<save_services> services_;  // which owns this
  any_writer& writer_;
  any_reader& reader_;
  event_reporter& reporter_;
  retention retention_;
  owned<scrubber> scrubber_;
  std::atomic<bool> refused_reported_{false};
};

template <class Named>
owned<retaining> make_retaining(const std::shared_ptr<save_services>& services,
                                const retention_policy& policy) {
  return make_owned<policy_retaining<Named>>(services, policy);
}

#if defined(CAIRN_COMPILED)
template owned<retaining> make_retaining<void>(const std::shared_ptr<save_services>& services,
                                               const retention_policy& policy);
#endif

}  // namespace detail
}  // namespace v1
}  // namespace cairn
