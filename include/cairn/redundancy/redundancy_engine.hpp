// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_peer_link.hpp>
#include <cairn/concepts/any_redundancy.hpp>
#include <cairn/concepts/image_tier.hpp>
#include <cairn/concepts/redundant_saves.hpp>
#include <cairn/system/callback.hpp>
#include <cairn/tiers/tier_files.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {

/// Options of a redundancy_engine.
struct redundancy_options {
  /// How long the ranks of a job wait for one another, for one save.
  std::chrono::nanoseconds timeout = std::chrono::seconds(60);
  /// How long one block of 1 MiB may be on its way, and the longest that the end of the engine waits for.
  std::chrono::nanoseconds block_timeout = std::chrono::seconds(5);
  /// For tests: who changes the records; null: the file system.
  std::shared_ptr<tier_files> files = nullptr;
};

/// Makes the pieces of saves that are held, beside training: a thread of its own fetches what the others hold over a
/// PeerLink, verifies each block, computes the piece that this rank keeps while the next blocks are on their way, and
/// keeps it in the directory of the rank's tier: piece-00003.1, and by one rename its record kept.<...>. No message
/// of the trainer's communicator is sent.
///
/// Of every `every` saves one is taken. Newest wins: while the pieces of one are made, or the others have not come to
/// it, only the newest of those behind it waits. What a peer does that is slow, wrong or gone costs the pieces of that
/// save, and a report. The pieces of a save are given up when those of a newer one are complete on all ranks of the job,
/// which tell each other over the links, and the image of the newest such save stays as it is until then: what pieces are
/// good for needs it. So there is a step that survives the loss of hosts, once there was one.
///
/// One thread at a time calls hold(); any thread the rest.
class redundancy_engine {
 public:
  /// `groups[rank]`: the failure group of each rank of the job, see failure_group; the same on all ranks.
  /// `directory`: of this rank's tier. The link outlives the engine.
  /// @throws usage_error (usage_bad_option) where no such sets can be made (see form_sets), and for `every` below 1;
  /// storage_error
  redundancy_engine(any_peer_link& link, any_redundancy by, std::span<const std::string> groups,
                    std::string directory, redundancy_options options = {});
  redundancy_engine(const redundancy_engine&) = delete;
  redundancy_engine& operator=(const redundancy_engine&) = delete;
  /// Ends what is under way. What was kept stays.
  ~redundancy_engine();

  /// A save is held by this rank: its image (image_tier::image). Returns at once. Saves come in the order in which they
  /// were made; the first gets pieces, and of the others
  /// those between two that are due are let go. False for such a one, of which there is no report.
  /// @throws corrupt_error where the image has no record
  bool hold(held_image image);
  /// The same of a save whose image is asked for when the work on it begins, in the thread of the engine: a save that is not
  /// held any more by then (`image` gives nothing) goes without pieces.
  bool hold(const held_step& which, detail::callback<std::optional<held_image>()> image);
  /// Calls `call`, which must not throw, each time that a save of which hold() was true has ended, also where it becomes redundant
  /// later than that. Any thread. Before the first hold().
  void when_ended(detail::callback<void(std::uint64_t save_count, const redundancy_report& report)> call);
  /// Whether this save (see save_count_of) is one of those that get pieces, also where it is not the first that
  /// is held.
  [[nodiscard]] bool is_due(std::uint64_t save_count) const noexcept;
  /// What became of a save, one of the last 64 that were due; nothing of others.
  [[nodiscard]] std::optional<redundancy_report> report(std::uint64_t save_count) const;
  /// Waits until it has ended, at most until the deadline; else the same.
  [[nodiscard]] std::optional<redundancy_report> wait(std::uint64_t save_count, deadline until) const;
  /// The memory, or the room on a disk, that this rank has yet to allocate before it keeps the pieces of saves whose images have
  /// so many bytes, one number for each rank: it has room for two.
  [[nodiscard]] std::uint64_t missing(std::span<const std::uint64_t> image_bytes) const;
  /// The ranks of the set of this one, which has this one, too.
  [[nodiscard]] const std::vector<std::int32_t>& set() const noexcept;
  /// Removes the pieces that this rank keeps: the job has ended in order. Nothing is held after it.
  void remove_pieces() noexcept;

 private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/redundancy/redundancy_engine.ipp>
#endif
