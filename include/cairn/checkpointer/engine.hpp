// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/planner.hpp>
#include <cairn/model/annotations.hpp>
#include <cairn/model/checkpoint_lease.hpp>
#include <cairn/model/dtype.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/save_handle.hpp>
#include <cairn/model/state_dict.hpp>
#include <cairn/model/stored_items.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/fork_guard.hpp>
#include <cairn/system/function_ref.hpp>
#include <cairn/system/owned.hpp>

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {
inline namespace v1 {
class any_communicator;
class any_stager;
namespace detail {

struct engine_parts;
struct following;

/// What a checkpointer does, whatever it is made of. Its functions are the checkpointer's; see there.
class engine {
 public:
  /// @throws what the constructor of a checkpointer throws
  explicit engine(engine_parts parts);
  engine(const engine&) = delete;
  engine& operator=(const engine&) = delete;
  ~engine();

  [[nodiscard]] int rank() const;
  [[nodiscard]] int world_size() const;
  [[nodiscard]] std::string describe() const;
  [[nodiscard]] any_communicator& communicator() noexcept;
  [[nodiscard]] bool closed() const noexcept;

  void prepare(const state_dict& state);
  save_handle save(const state_dict& state, std::int64_t step);
  void before_update();
  void before_update(std::string_view name);
  /// `order(stager, deadline)` has what changes this device's memory wait for the copies; see
  /// StreamOrderedStager.
  void before_update(int device, function_ref<void(any_stager&, deadline)> order);
  load_report load(const state_dict& state, std::int64_t step, load_request request);
  /// `step`: nothing for the newest.
  refresh_report refresh(const state_dict& state, std::optional<std::int64_t> step, load_request request);
  [[nodiscard]] std::vector<std::string> torn_items();
  [[nodiscard]] std::optional<std::int64_t> next_step(following& f);
  std::optional<std::int64_t> resume(const state_dict& state, const std::vector<std::int64_t>* among);
  [[nodiscard]] stored_items items(std::int64_t step);
  void annotate(const cairn::annotations& said);
  [[nodiscard]] cairn::annotations annotations(std::int64_t step);
  /// The bytes of the manifest of a checkpoint of the store.
  [[nodiscard]] std::vector<std::byte> manifest(std::int64_t step);
  /// `allocate(elements)` gives memory for elements of a dtype.
  void read_item(std::string_view name, std::int64_t step, dtype type, load_request request,
                 function_ref<void*(std::size_t)> allocate);
  [[nodiscard]] std::vector<std::int64_t> list();
  [[nodiscard]] checkpoint_lease lease(std::int64_t step);
  void remove(std::int64_t step);
  void pin(std::int64_t step, bool pinned);
  [[nodiscard]] std::vector<std::int64_t> pinned();
  [[nodiscard]] bool quarantine(std::int64_t step);
  [[nodiscard]] std::optional<std::chrono::duration<double>> time_to_save() const;
  [[nodiscard]] bool any_rank(bool here);
  void close();
  /// Before it is destroyed. `unwinding`: while an exception is on its way.
  void shut_down(bool unwinding) noexcept;

 private:
  struct inside;

  detail::owned<inside> in_;
};

/// An engine and the process that made it. Movable; after a move from it, it holds nothing.
class engine_owner {
 public:
  engine_owner() noexcept = default;
  /// Owns an engine of this process. @pre not null
  explicit engine_owner(detail::owned<engine> made) noexcept;
  engine_owner(engine_owner&& other) noexcept;
  engine_owner& operator=(engine_owner&& other) noexcept;
  /// Shuts the engine down; in a child of fork() nothing: its threads and buffers belong to the parent.
  ~engine_owner();

  [[nodiscard]] bool has_value() const noexcept { return engine_ != nullptr; }
  /// @throws usage_error where it was moved from, in a child of fork(), and when it is closed.
  [[nodiscard]] engine& open() const;
  /// The same, also when it is closed.
  [[nodiscard]] engine& here() const;
  /// Looks at nothing. @pre has_value()
  [[nodiscard]] engine& any() const noexcept { return *engine_; }

 private:
  void end() noexcept;

  detail::owned<engine> engine_;
  fork_guard process_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/checkpointer/engine.ipp>
#endif
