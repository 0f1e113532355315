// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/save_services.hpp>
#include <cairn/comm/collectives.hpp>
#include <cairn/concepts/image_tier.hpp>
#include <cairn/concepts/redundant_saves.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/model/save_progress.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/wire.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// The saves of a checkpointer of which other ranks keep pieces, and who is told how that ends.
class saves_with_pieces {
 public:
  saves_with_pieces(owned<redundant_saves> redundancy, std::shared_ptr<save_services> services)
      : services_(std::move(services)), redundancy_(std::move(redundancy)) {}
  saves_with_pieces(const saves_with_pieces&) = delete;
  saves_with_pieces& operator=(const saves_with_pieces&) = delete;
  ~saves_with_pieces() { end(false); }

  /// The tier is open on all ranks. Collective: throws on all of them what one of them throws. Returns for
  /// each rank the lowest one that sees the same place.
  [[nodiscard]] std::vector<std::int32_t> open(collectives& group, const std::shared_ptr<spread_tier>& tier,
                                               std::chrono::nanoseconds peer_timeout) {
    const auto until = deadline::in(peer_timeout);
    std::vector<std::byte> own;
    std::exception_ptr failure;
    try {
      own = wire_writer().put(tier->first_rank()).put(redundancy_->failure_group()).take();
    } catch (...) {
      failure = std::current_exception();
    }
    const auto all =
        failure != nullptr ? group.all_gather(failure, until) : group.all_gather(std::move(own), until);
    std::vector<std::int32_t> places;
    std::map<std::int32_t, std::int32_t> lowest;  // of those whose place was opened by the same rank
    std::vector<std::string> groups;
    for (const auto& bytes : all) {
      wire_reader in(bytes);
      const auto rank = static_cast<std::int32_t>(places.size());
      places.push_back(lowest.try_emplace(in.get<std::int32_t>(), rank).first->second);
      groups.push_back(in.get_string());
    }
    on_each_rank(group, until, [&] {
      redundancy_->open(group, groups, places, tier, peer_timeout, until);
      redundancy_->when_ended(
          [this](std::uint64_t save_count, const redundancy_report& report) { ended(save_count, report); });
    });
    return places;
  }
  [[nodiscard]] std::string describe() const { return redundancy_->describe(); }

  /// A save that is going to be held, unless it fails.
  void expect(const save_context& context, const std::shared_ptr<save_progress>& save) {
    save->begin_redundancy();
    const std::lock_guard lock(mutex_);
    expected_[save_count_of(context.run, context.step, context.attempt)] = save;
  }
  /// This rank holds it. In the thread that holds saves.
  void held(const held_step& which) noexcept {
    const auto save_count = save_count_of(which.run, which.step, which.attempt);
    bool gets_pieces = false;
    try {
      gets_pieces = redundancy_->hold(which);
    } catch (...) {  // as one that is not held
      services_->report().warned("a save gets no pieces on other ranks", std::current_exception());
    }
    if (!gets_pieces)
      if (const auto save = take(save_count)) save->set_redundant(false, 0);
  }
  /// It is not held.
  void not_held(const save_context& context) noexcept {
    if (const auto save = take(save_count_of(context.run, context.step, context.attempt)))
      save->set_redundant(false, 0);
  }
  /// No pieces are made any more; see redundant_saves::end. Saves that still wait for theirs go without.
  void end(bool remove) noexcept {
    redundancy_->end(remove);
    const std::lock_guard lock(mutex_);
    for (const auto& each : expected_) each.second->set_redundant(false, 0);
    expected_.clear();
  }

 private:
  /// So many in a row that newer ones went before: pieces are made more slowly than saves come.
  static constexpr int many_superseded = 8;

  [[nodiscard]] std::shared_ptr<save_progress> take(std::uint64_t save_count) noexcept {
    const std::lock_guard lock(mutex_);
    const auto found = expected_.find(save_count);
    if (found == expected_.end()) return nullptr;
    auto save = std::move(found->second);
    expected_.erase(found);
    return save;
  }
  /// In a thread of the redundancy.
  void ended(std::uint64_t save_count, const redundancy_report& report) noexcept {
    const auto save = take(save_count);
    if (save == nullptr) return;
    save->set_redundant(report.state == redundancy_state::redundant, report.kept_bytes);
    const auto of_save = save->report();
    bool tell = false;
    {
      const std::lock_guard lock(mutex_);
      const bool redundant = report.state == redundancy_state::redundant;
      if (report.state == redundancy_state::superseded)
        tell = ++superseded_ == many_superseded;
      else
        tell = last_told_ != report.state;
      if (tell) last_told_ = report.state;
      if (redundant) superseded_ = 0;
    }
    auto& to = services_->report();
    if (report.state == redundancy_state::redundant)
      to.redundant(of_save, tell);
    else if (tell && report.state == redundancy_state::failed)
      to.warned("other ranks have no pieces of step " + std::to_string(of_save.step) +
                ", and keep those of an earlier one; told once until a save gets its pieces: " + report.why);
    else if (tell)
      to.warned(
          "no pieces were made of " + std::to_string(many_superseded) +
          " saves, as newer ones came before all ranks had come to them: give partner_copies or parity a "
          "larger `every`");
  }

  const std::shared_ptr<save_services> services_;
  std::mutex mutex_;
  std::map<std::uint64_t, std::shared_ptr<save_progress>> expected_;
  redundancy_state last_told_ = redundancy_state::pending;  // of lines
  int superseded_ = 0;
  const owned<redundant_saves> redundancy_;  // last: its threads use the rest
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
