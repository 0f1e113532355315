// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/options.hpp>
#include <cairn/concepts/executor.hpp>
#include <cairn/concepts/image_tier.hpp>
#include <cairn/concepts/redundant_saves.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/owned.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {
class collectives;
namespace detail {

class save_services;

/// What a checkpointer asks of a tier when it saves; see held_saves.
class tier_saves {
 public:
  virtual ~tier_saves() = default;
  [[nodiscard]] virtual bool decoupled() const noexcept = 0;
  virtual void open(collectives& group, const run_id& run, const std::string& job,
                    std::chrono::nanoseconds peer_timeout) = 0;
  [[nodiscard]] virtual std::string describe_redundancy() const = 0;
  virtual void check_room(collectives& group, const image_layout& layout, deadline until) = 0;
  [[nodiscard]] virtual bool goes_on(collectives& group, std::uint64_t save_count,
                                     std::chrono::nanoseconds peer_timeout,
                                     std::chrono::nanoseconds timeout) = 0;
  /// See persist.
  [[nodiscard]] virtual std::int32_t writers_at_once() const noexcept = 0;
  virtual void throw_failure_of_store() = 0;
  virtual void make_room() noexcept = 0;
  [[nodiscard]] virtual std::optional<tier_base> base_for_all(collectives& group,
                                                              std::optional<tier_base> base,
                                                              deadline until) const = 0;
  virtual void go_on_from(std::optional<tier_base> base, bool resumed) noexcept = 0;
  virtual void resumed(bool in_store, std::optional<std::int64_t> stored) noexcept = 0;
  virtual void hold(save_job job, std::uint64_t plan_digest, bool alone) = 0;
  /// Null where there is none.
  [[nodiscard]] virtual owned<save_job> take_newest() = 0;
  virtual void end() noexcept = 0;
};

/// What a checkpointer asks of a tier when it loads; see tier_recovery.
class tier_loads {
 public:
  virtual ~tier_loads() = default;
  [[nodiscard]] virtual bool is_spread() const noexcept = 0;
  /// Looks at what is there; before the calls below, and again where that may be more by now. Collective.
  virtual void survey(deadline until) = 0;
  /// For rank 0: whether the tier seems to hold a save that the run of this one made, of its step or a later one.
  [[nodiscard]] virtual bool holds_newer(const save_attempt& save) = 0;
  /// The steps of what may be resumed, ascending: a step again for each save of it. In the calls below a step stands for
  /// the newest save of it that was not refused.
  [[nodiscard]] virtual std::vector<std::int64_t> find(const std::vector<std::int64_t>& stored,
                                                       std::string& reasons, deadline until) = 0;
  [[nodiscard]] virtual any_reader reader(std::int64_t step) = 0;
  [[nodiscard]] virtual std::vector<std::byte> manifest(std::int64_t step, deadline until,
                                                        deadline rebuilt_until) = 0;
  [[nodiscard]] virtual bool find_other_sources(std::int64_t step, deadline until) = 0;
  virtual void refused(std::int64_t step) = 0;
  /// Whether the store's checkpoint of such a step is this save, and not another one that has its number. Collective.
  [[nodiscard]] virtual bool is_in_store(std::int64_t step, deadline until) = 0;
  virtual void loaded(std::optional<std::int64_t> step, bool from_tier, deadline until) noexcept = 0;
  [[nodiscard]] virtual std::optional<tier_base> take_base() noexcept = 0;
  [[nodiscard]] virtual std::string sources(std::int64_t step) const = 0;
};

/// What a checkpointer with a tier has beside the others. Programs without one compile nothing of it: only the composition
/// that has a tier names make_tier_parts(), which is a template for that.
class tier_parts {
 public:
  virtual ~tier_parts() = default;
  /// Of the tier; see image_tier.
  [[nodiscard]] virtual std::string describe() const = 0;
  /// Once, before saves(). `group` outlives the result.
  [[nodiscard]] virtual owned<tier_loads> loads(std::shared_ptr<save_services> services,
                                                collectives& group) = 0;
  /// Once.
  [[nodiscard]] virtual owned<tier_saves> saves(std::shared_ptr<save_services> services) = 0;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
