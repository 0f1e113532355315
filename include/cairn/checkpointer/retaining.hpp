// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/deadline.hpp>
#include <cairn/system/owned.hpp>

#include <cstdint>
#include <memory>

namespace cairn {
inline namespace v1 {
class retention_policy;
class save_journal;
struct save_attempt;
namespace detail {

class save_services;
class step_listing;

/// What the coordinator of a checkpointer does with a retention policy: removes and verifies. Any thread.
class retaining {
 public:
  virtual ~retaining() = default;
  /// The run goes on from this checkpoint, which it has loaded.
  virtual void set_base_step(std::int64_t step) noexcept = 0;
  virtual void begun(save_attempt save) noexcept = 0;
  /// A save has ended that goes to no store.
  virtual void held(save_attempt save) noexcept = 0;
  /// Another one has ended.
  virtual void ended(save_attempt save, bool committed, step_listing& listing,
                     save_journal* journal) noexcept = 0;
  /// Gives up what is being verified; waits for its end, at most so long.
  virtual void stop_scrubbing(deadline until) noexcept = 0;
};

/// Makes it; `services` owns what comes of it. Programs without a policy compile nothing of it: only a composition with one
/// names make_retaining(), which is a template for that.
using retaining_maker = owned<retaining> (*)(const std::shared_ptr<save_services>& services,
                                             const retention_policy& policy);
}  // namespace detail
}  // namespace v1
}  // namespace cairn
