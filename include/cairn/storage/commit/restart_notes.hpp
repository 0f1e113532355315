// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/model/record.hpp>
#include <cairn/storage/commit/store_look.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Notes of which runs resumed from which step and have committed nothing since: empty objects beside the
/// checkpoints, `restart.00000300.<run>`. The names hold all information and are parsed strictly; other
/// names are ignored.
class restart_notes {
 public:
  explicit restart_notes(any_store store) noexcept : store_(std::move(store)) {}

  void leave(const run_id& run, std::int64_t step) { store_.put_new(key_of(run, step), {}); }
  /// Returns the step of each note, ascending, and removes unfinished notes of runs that have ended.
  [[nodiscard]] std::vector<std::int64_t> steps();
  /// The same for a run that takes over, without notes of other runs that show that they live: such a run, as an
  /// evaluation or another job, was not ended by what it resumed from.
  [[nodiscard]] std::vector<std::int64_t> steps(const store_look& look, const run_id& self);
  void remove(const run_id& run, std::int64_t step) { store_.remove(key_of(run, step)); }
  /// Removes the notes of all runs for steps up to this one, and returns how many notes are left.
  std::size_t remove_up_to(std::int64_t last);

  [[nodiscard]] static std::string key_of(const run_id& run, std::int64_t step);
  /// The step of a note; nothing for other keys.
  [[nodiscard]] static std::optional<std::int64_t> step_of(std::string_view key) noexcept;

 private:
  /// `self`: null where notes of all runs count.
  [[nodiscard]] std::vector<std::int64_t> steps(const store_look& look, const run_id* self);
  static constexpr const char* prefix = "restart.";
  any_store store_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/commit/restart_notes.ipp>
#endif
