// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/rebuild_exchange.hpp>
#include <cairn/checkpointer/save_services.hpp>
#include <cairn/checkpointer/surveyed_places.hpp>
#include <cairn/comm/collectives.hpp>
#include <cairn/concepts/any_reader.hpp>
#include <cairn/concepts/image_rebuilder.hpp>
#include <cairn/concepts/image_tier.hpp>
#include <cairn/concepts/surveyed_tier.hpp>
#include <cairn/model/surveyed_save.hpp>
#include <cairn/system/deadline.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What the places of a tier hold together, for a job that resumes. All ranks make the same calls, in the same order; each
/// is collective, and ends alike on all of them, unless it says otherwise. Messages are those of the job's communicator:
/// O(log ranks) of them for survey(). The thread of training.
class spread_recovery {
 public:
  /// `tier` is open. `rebuilder`: null: what is lost stays lost. `group` outlives it.
  spread_recovery(std::shared_ptr<spread_tier> tier, std::shared_ptr<image_rebuilder> rebuilder,
                  std::shared_ptr<save_services> services, collectives& group);

  /// Looks through all places: the first rank of each through its own. `reasons`: gets what cannot be read, on the first
  /// rank of the place, and, on rank 0, which plans are lost.
  void survey(std::string& reasons, deadline until);
  /// The saves that are complete, or can be made so, as far as records tell; ascending by step, of one step the newest
  /// last. No message.
  [[nodiscard]] std::vector<held_step> found() const;
  /// A save of which the places hold something, and that is neither whole nor can be made so.
  struct incomplete_save {
    held_step which;
    std::string why;        // in words
    bool is_first = false;  // there may have been no save that all ranks held
    std::string other;      // see image_rebuilder::other_redundancy()
  };
  /// These, ascending by step, without those that a rank whose place is there had no time for. No message.
  [[nodiscard]] std::vector<incomplete_save> incomplete() const;
  /// Rebuilds the images that no place has of a save that was found, each in the place of one rank, and verified by the
  /// digests of the save. Where a place does not take it, such as a disk that fails, another one does.
  /// @throws peer_error (peer_lost) where the loss is too much; corrupt_error; storage_error where no place takes it
  void make_complete(const held_step& which, deadline until);
  /// The manifest of a save that is complete.
  [[nodiscard]] std::vector<std::byte> manifest(const held_step& which, deadline until);
  /// A reader of it for this rank. No message.
  [[nodiscard]] any_reader reader(const held_step& which);
  /// A save was not loaded as something of it is damaged: each place gives up its images that are. Returns whether there
  /// is another source of the same save.
  [[nodiscard]] bool find_other_sources(const held_step& which, deadline until);
  /// Where the save that was loaded came from, in words.
  [[nodiscard]] std::string sources(const held_step& which) const;
  /// The job goes on, from the save that is held where it is not null: each place gives up the pieces of earlier runs that nobody
  /// needs. Where the ranks have all pieces and images of a save, those of other saves but of `from`; else those of saves that
  /// are lost in spite of them. Once, before the first save. No message. @throws storage_error
  void give_up_old_pieces(const held_step* from);
  /// Whether this rank looks after its place. No message.
  [[nodiscard]] bool looks_after_place() const {
    return places_.empty() || tier_->first_rank() == group_.rank();
  }

 private:
  [[nodiscard]] const surveyed_save* find(const held_step& which) const;
  [[nodiscard]] const surveyed_save& of(const held_step& which) const;
  [[nodiscard]] static std::vector<std::int32_t> lost_of(const surveyed_save& save);
  [[nodiscard]] bool can_be_whole(const surveyed_save& save) const;
  [[nodiscard]] std::vector<rebuild_exchange::task> share_out(const std::vector<std::int32_t>& lost,
                                                              const std::vector<std::int32_t>& refused,
                                                              deadline until);
  [[nodiscard]] std::vector<std::int32_t> bring_plan(const surveyed_save& save, deadline until);
  void tell_refusal();
  void tell(const std::vector<std::string>& notes);

  const std::shared_ptr<spread_tier> tier_;
  const std::shared_ptr<image_rebuilder> rebuilder_;
  const std::shared_ptr<save_services> services_;
  collectives& group_;
  surveyed_places places_;
  std::vector<std::int32_t> rebuilt_;  // ranks whose images were made again, of rebuilt_of_
  std::optional<held_step> rebuilt_of_;
  bool gave_up_pieces_ = false;
  std::exception_ptr place_failure_;  // why this rank's place did not take an image
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/checkpointer/spread_recovery.ipp>
#endif
