// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/save_services.hpp>
#include <cairn/comm/collectives.hpp>
#include <cairn/concepts/any_reader.hpp>
#include <cairn/concepts/image_rebuilder.hpp>
#include <cairn/concepts/image_tier.hpp>
#include <cairn/concepts/surveyed_tier.hpp>
#include <cairn/model/surveyed_save.hpp>
#include <cairn/system/deadline.hpp>

#include <cstddef>
#include <cstdint>
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
  /// rank of the place.
  void survey(std::string& reasons, deadline until);
  /// The saves that are complete, or can be made so, as far as records tell; ascending by step, of one run as they were
  /// saved. No message.
  [[nodiscard]] std::vector<held_step> found() const;
  /// Rebuilds the images that no place has of a save that was found, each in the place of one rank, and verified by the
  /// digests of the save. @throws peer_error (peer_lost) where the loss is too much; corrupt_error; storage_error
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
  /// Whether this rank looks after its place. No message.
  [[nodiscard]] bool looks_after_place() const {
    return first_of_.empty() || tier_->first_rank() == group_.rank();
  }

 private:
  struct place {
    std::int32_t first = 0;           // rank, by which it is known
    std::vector<std::int32_t> ranks;  // that are there, ascending
    std::vector<surveyed_save> saves;
  };
  class rebuild_rounds;
  [[nodiscard]] const surveyed_save* find(const held_step& which) const;
  [[nodiscard]] const surveyed_save& of(const held_step& which) const;
  [[nodiscard]] static std::vector<std::int32_t> lost_of(const surveyed_save& save);
  /// The place that has the image, or the piece, of a rank; null: none.
  template <class Has>
  [[nodiscard]] const place* place_with(const surveyed_save& save, const Has& has) const;
  [[nodiscard]] const place& own_place() const;
  void bring_plan(const surveyed_save& save, deadline until);
  void tell(const std::vector<std::string>& notes);

  const std::shared_ptr<spread_tier> tier_;
  const std::shared_ptr<image_rebuilder> rebuilder_;
  const std::shared_ptr<save_services> services_;
  collectives& group_;
  std::vector<std::int32_t> first_of_;  // the first rank of each rank's place
  std::vector<place> places_;           // ascending by first rank
  std::vector<surveyed_save> all_;      // what they have together
  std::vector<std::int32_t> rebuilt_;   // ranks whose images were made again, of rebuilt_of_
  std::optional<held_step> rebuilt_of_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/checkpointer/spread_recovery.ipp>
#endif
