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
#include <optional>
#include <span>
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
      redundancy_->when_apart([this](std::uint64_t saves, const std::string& why) { apart(saves, why); });
    });
    return places;
  }
  [[nodiscard]] std::string describe() const { return redundancy_->describe(); }
  /// See redundant_saves.
  [[nodiscard]] std::uint64_t missing(std::span<const std::uint64_t> image_bytes) const {
    return redundancy_->missing(image_bytes);
  }

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
  /// So many in a row that go without pieces are told, and again each time that they are eight times as many.
  static constexpr std::uint64_t many = 8;

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
    const bool redundant = report.state == redundancy_state::redundant;
    bool tell = false;
    std::uint64_t without = 0;  // as many as are told
    std::optional<std::int64_t> since;
    {
      const std::lock_guard lock(mutex_);
      since = newest_;
      if (redundant) {
        tell = std::exchange(told_, told::redundant) != told::redundant;
        newest_ = of_save.step, without_ = 0, told_next_ = many;
      } else if (++without_ == told_next_) {
        without = without_, told_next_ *= many;
        told_ = told::failed;
      } else if (report.state == redundancy_state::failed) {
        tell = std::exchange(told_, told::failed) != told::failed;
      }
    }
    auto& to = services_->report();
    if (redundant)
      to.redundant(of_save, tell);
    else if (without != 0)
      to.warned([&] {
        return "the last " + std::to_string(without) + " saves that were due got no pieces on other ranks: " +
               (since ? "a lost host costs all steps after " + std::to_string(*since) +
                            " that are not in the store"
                      : std::string("no step would survive a lost host but those in the store")) +
               ". The last one: " +
               (report.why.empty() ? "newer ones came before all ranks had come to it" : report.why) +
               ". Where hosts or links are slow, give partner_copies or parity a larger `every`; where "
               "nothing gets through, see whether the hosts reach the ports of each other";
      });
    else if (tell)
      to.warned([&] {
        return "step " + std::to_string(of_save.step) + " gets no pieces on other ranks; " +
               (since
                    ? "step " + std::to_string(*since) + " is the newest in memory that survives a lost host"
                    : std::string("no step in memory survives a lost host")) +
               ", until a save gets its pieces, which is told: " + report.why;
      });
  }
  /// In a thread of the redundancy.
  void apart(std::uint64_t saves, const std::string& why) noexcept {
    {
      const std::lock_guard lock(mutex_);
      if (told_ == told::failed) return;  // of the same cause
    }
    services_->report().warned([&] {
      return "of the last " + std::to_string(saves) +
             " saves this rank does not know whether all ranks hold them, so that older images stay, and a "
             "lost host may cost these steps: " +
             why + ". See whether the hosts reach the ports of each other, and whether one of them is slow";
    });
  }

  const std::shared_ptr<save_services> services_;
  std::mutex mutex_;
  std::map<std::uint64_t, std::shared_ptr<save_progress>> expected_;
  enum class told : std::uint8_t { nothing, redundant, failed } told_ = told::nothing;  // by a line, last
  std::optional<std::int64_t> newest_;  // step that is redundant
  std::uint64_t without_ = 0;           // saves since
  std::uint64_t told_next_ = many;
  const owned<redundant_saves> redundancy_;  // last: its threads use the rest
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
