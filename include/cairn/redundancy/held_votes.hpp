// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_peer_link.hpp>
#include <cairn/concepts/image_tier.hpp>
#include <cairn/system/callback.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Tells a tier that is in several places which saves all ranks of the job hold: a thread of its own asks the others over
/// their links, save for save, in the order in which this rank holds them. What this rank has said that it holds it keeps until
/// it knows what became of that save. Before it says so, the plan of the save is in its place: the lowest rank there fetches it
/// from the rank above it in a tree with eight children at each rank, and others know it from the lowest rank. So a place that is left has the plan of what is left.
class held_votes {
 public:
  /// The link outlives it. `place`: the lowest rank that sees the same place of the tier. `timeout`: how long ranks wait for one another, for one save. @throws storage_error (storage_limit)
  held_votes(any_peer_link& link, std::shared_ptr<spread_tier> tier, std::int32_t place,
             std::chrono::nanoseconds timeout, std::chrono::nanoseconds block_timeout);
  held_votes(const held_votes&) = delete;
  held_votes& operator=(const held_votes&) = delete;
  /// Ends what is under way.
  ~held_votes();

  /// See redundant_saves. Before the first hold().
  void when_apart(callback<void(std::uint64_t saves, const std::string& why)> call);
  /// This rank holds a save. Returns at once. One thread at a time, in the order of saves.
  void hold(const held_step& which);
  /// Sees to it that the plan of a save that this rank holds is in its place. False where it holds it no more. Any thread.
  /// @throws what PeerLink throws
  [[nodiscard]] bool have_plan(const held_step& which);
  /// Ends what is under way; the destructor then waits for nobody else.
  void stop() noexcept;

 private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/redundancy/held_votes.ipp>
#endif
