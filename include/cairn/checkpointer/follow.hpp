// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/follow_options.hpp>
#include <cairn/system/owned.hpp>

#include <cstdint>
#include <optional>

namespace cairn {
inline namespace v1 {

namespace detail {
class engine;
struct following;
}  // namespace detail

/// The steps of a run while they are committed; checkpointer_base::follow() makes it. The checkpointer outlives it. One
/// thread at a time, the one that calls the checkpointer.
class step_follower {
 public:
  step_follower(step_follower&& other) noexcept;
  step_follower& operator=(step_follower&& other) noexcept;
  ~step_follower();

  /// Waits until the newest checkpoint is another one than the last that this returned, and returns its step: a lower one
  /// where the run went back. Steps in between are skipped. Nothing where the wait ended otherwise: why() tells; another
  /// call waits again. Collective: rank 0 waits and tells the others. A step that was removed and committed again under the
  /// same number is not noticed.
  ///
  /// Files of this host are watched, so that a commit is noticed at once. Other stores are asked by one listing, at
  /// intervals that begin at 0.1 s and double up to a tenth of the time between two commits, at most max_pause, each up to a
  /// quarter shorter or longer by chance.
  /// @throws storage_error when the store could not be listed for a minute; usage_error (usage_closed)
  [[nodiscard]] std::optional<std::int64_t> next();
  /// Why the last next() returned nothing. The same on all ranks.
  [[nodiscard]] follow_end why() const noexcept;

 private:
  friend class checkpointer_base;
  step_follower(detail::engine& engine, follow_options options);
  detail::engine* engine_;
  detail::owned<detail::following> state_;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/checkpointer/follow.ipp>
#endif
