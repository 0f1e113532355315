// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/engine.hpp>
#include <cairn/concepts/planner.hpp>
#include <cairn/model/checkpoint_lease.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/save_handle.hpp>
#include <cairn/model/state_dict.hpp>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

template <class StorageType, class SavePlannerType, class LoadPlannerType, class StagerType,
          class ExecutorType, class CommunicatorType, class ObserverType, bool Overlapped>
class checkpointer;

/// Any checkpointer behind one type, so that a single .cpp of a trainer includes <cairn/checkpointer.hpp> and
/// pays for its templates:
///
/// `cairn::any_checkpointer make_checkpointer();  // in a header; defined where cairn::checkpointer{...} is
/// made`
///
/// Movable, not copyable; takes over the checkpointer that it is made of. The functions are those of
/// cairn::checkpointer. One that was moved from, or made of nothing, holds none: has_value() is false, rank()
/// and world_size() are undefined, and every other call throws usage_error (usage_closed).
class any_checkpointer {
 public:
  any_checkpointer() = default;
  template <class StorageType, class SavePlannerType, class LoadPlannerType, class StagerType,
            class ExecutorType, class CommunicatorType, class ObserverType, bool Overlapped>
  any_checkpointer(checkpointer<StorageType, SavePlannerType, LoadPlannerType, StagerType, ExecutorType,
                                CommunicatorType, ObserverType, Overlapped>&& held) noexcept
      : engine_(std::move(held.engine_)) {}

  [[nodiscard]] bool has_value() const noexcept { return engine_.has_value(); }

  void prepare(const state_dict& state) { engine_.open().prepare(state); }
  save_handle save(const state_dict& state, std::int64_t step) { return engine_.open().save(state, step); }
  void before_update() { engine_.here().before_update(); }
  void before_update(std::string_view name) { engine_.here().before_update(name); }
  /// `patterns`: as cairn::only; empty for everything. `strict` false: as cairn::partial.
  load_report load(const state_dict& state, std::int64_t step, std::vector<std::string> patterns = {},
                   bool strict = true) {
    load_request request;
    request.only = std::move(patterns);
    request.strict = strict;
    return engine_.open().load(state, step, std::move(request));
  }
  std::optional<std::int64_t> resume(const state_dict& state) {
    return engine_.open().resume(state, nullptr);
  }
  std::optional<std::int64_t> resume(const state_dict& state, const std::vector<std::int64_t>& among) {
    return engine_.open().resume(state, &among);
  }
  [[nodiscard]] std::vector<std::int64_t> list() { return engine_.open().list(); }
  [[nodiscard]] checkpoint_lease lease(std::int64_t step) { return engine_.open().lease(step); }
  void remove(std::int64_t step) { engine_.open().remove(step); }
  bool quarantine(std::int64_t step) { return engine_.open().quarantine(step); }
  [[nodiscard]] std::optional<std::chrono::duration<double>> time_to_save() {
    return engine_.open().time_to_save();
  }
  [[nodiscard]] bool any_rank(bool here) { return engine_.open().any_rank(here); }
  void close() { engine_.open().close(); }
  [[nodiscard]] int rank() const { return engine_.any().rank(); }
  [[nodiscard]] int world_size() const { return engine_.any().world_size(); }

 private:
  detail::engine_owner engine_;
};

}  // namespace v1
}  // namespace cairn
