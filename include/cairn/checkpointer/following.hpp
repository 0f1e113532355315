// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/follow_options.hpp>
#include <cairn/concepts/any_reader.hpp>
#include <cairn/concepts/any_writer.hpp>
#include <cairn/model/change_watch.hpp>
#include <cairn/model/record.hpp>
#include <cairn/system/deadline.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What a step_follower knows. What is of rank 0 alone is not used on the others.
struct following {
  follow_options options;
  follow_end why = follow_end::none;
  std::int64_t last = -1;               ///< the step that was returned last
  std::unique_ptr<change_watch> watch;  ///< of rank 0
  std::optional<deadline::clock::time_point>
      last_commit;                       ///< of rank 0: when it was noticed, or when the wait began
  std::chrono::nanoseconds interval{0};  ///< of rank 0: between two commits; 0: not known
  std::optional<run_id> seen;            ///< of rank 0: the run that was seen to live last
};

/// Waits for another newest checkpoint, on rank 0. Sets `why` where it returns nothing.
[[nodiscard]] std::optional<std::int64_t> wait_for_step(following& f, any_reader& reader, any_writer& writer,
                                                        const run_id& run);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/checkpointer/following.ipp>
#endif
