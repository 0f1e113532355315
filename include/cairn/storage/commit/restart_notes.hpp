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

/// Notes of which runs resumed from which step and have committed nothing since: small objects beside the
/// checkpoints, `restart.00000300.<run>`. The names say which, and are parsed strictly; other names are ignored. Each
/// holds the name of the process that left it, see step_leases::own_name().
class restart_notes {
 public:
  explicit restart_notes(any_store store) noexcept : store_(std::move(store)) {}

  void leave(const run_id& run, std::int64_t step);
  /// Returns the step of each note, ascending, and removes unfinished notes of runs that have ended.
  [[nodiscard]] std::vector<std::int64_t> steps();
  /// The same for a run that takes over, without notes of other runs that live: such a run, as an evaluation or another
  /// job, was not ended by what it resumed from. It shows that it lives, or still has its lease on that step.
  [[nodiscard]] std::vector<std::int64_t> steps(const store_look& look, const run_id& self);
  void remove(const run_id& run, std::int64_t step) { store_.remove(key_of(run, step)); }
  /// Removes the notes of all runs for steps up to this one, and returns how many notes are left.
  std::size_t remove_up_to(std::int64_t last);

  [[nodiscard]] static std::string key_of(const run_id& run, std::int64_t step);
  /// The step of a note; nothing for other keys.
  [[nodiscard]] static std::optional<std::int64_t> step_of(std::string_view key) noexcept;

 private:
  /// Whether the process that left a note still had its lease on the step when the store was looked at, or the note is
  /// gone.
  [[nodiscard]] bool stands_on(const store_look& look, std::int64_t step, const std::string& key) const;
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
