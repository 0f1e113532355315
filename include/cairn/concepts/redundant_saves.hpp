// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/image_rebuilder.hpp>
#include <cairn/concepts/image_tier.hpp>
#include <cairn/system/callback.hpp>
#include <cairn/system/deadline.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace cairn {
inline namespace v1 {

class collectives;

/// How the making of pieces ended, or that it has not.
enum class redundancy_state : std::uint8_t {
  pending,  ///< it waits, or its pieces are being made
  redundant,  ///< all ranks of the job keep their pieces: of each set so many may be lost as the redundancy tolerates
  superseded,  ///< it goes without pieces: a newer save came before the work on it had begun
  failed,      ///< it goes without pieces, for a reason that is told
};

/// What became of the pieces of one save.
struct redundancy_report {
  redundancy_state state = redundancy_state::pending;  ///< how it ended
  std::string why = {};                                ///< of `failed`: a sentence
  double seconds = 0;                                  ///< from the moment when this rank held it to the end
  std::uint64_t fetched_bytes = 0;                     ///< from other ranks
  std::uint64_t kept_bytes = 0;                        ///< of the piece of this rank
};

namespace detail {

/// What a checkpointer asks of redundancy, whatever it is made of; make_redundant_saves() makes it.
class redundant_saves {
 public:
  redundant_saves() = default;
  redundant_saves(const redundant_saves&) = delete;
  redundant_saves& operator=(const redundant_saves&) = delete;
  /// Ends what is under way. What was kept stays.
  virtual ~redundant_saves() = default;

  /// What makes images again that are lost, in a tier that changes files so (spread_tier::files), before open() already.
  [[nodiscard]] virtual std::shared_ptr<image_rebuilder> rebuilder(std::shared_ptr<tier_files> files) = 0;
  /// What it is, for messages: "one of two copies on partners".
  [[nodiscard]] virtual std::string describe() const = 0;
  /// The failure group of this rank. @throws storage_error
  [[nodiscard]] virtual std::string failure_group() const = 0;
  /// Makes the sets and the links. Collective. `groups[rank]`: see failure_group(). `places[rank]`: the lowest rank that sees the
  /// same place of the tier, which is open. `timeout`: how long ranks wait for
  /// one another. @throws usage_error (usage_bad_option) where such sets cannot be; what LinkMaker and PeerLink throw
  virtual void open(collectives& job, std::span<const std::string> groups,
                    std::span<const std::int32_t> places, std::shared_ptr<spread_tier> tier,
                    std::chrono::nanoseconds timeout, deadline until) = 0;
  /// What this rank has yet to allocate for pieces of saves whose images have so many bytes, one number for each rank. After open().
  [[nodiscard]] virtual std::uint64_t missing(std::span<const std::uint64_t> image_bytes) const = 0;
  /// Calls `call`, which must not throw, when a save of which hold() was true has ended. Any thread. Before the first hold().
  virtual void when_ended(callback<void(std::uint64_t save_count, const redundancy_report&)> call) = 0;
  /// Calls `call`, which must not throw, when this rank has not learned of so many saves in a row whether all ranks hold them, with a
  /// sentence about the last one; again each time that they are eight times as many. Any thread. Before the first hold().
  virtual void when_apart(callback<void(std::uint64_t saves, const std::string& why)> call) = 0;
  /// This rank holds a save. Returns at once; whether the save is one of those that get pieces. One thread at a time, in
  /// the order of saves. Not before open().
  virtual bool hold(const held_step& which) = 0;
  /// The job has ended in order: ends what is under way. `remove`: this rank keeps no pieces any more.
  virtual void end(bool remove) noexcept = 0;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
