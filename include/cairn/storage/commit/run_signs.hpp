// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/model/record.hpp>
#include <cairn/storage/commit/store_look.hpp>

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// The reverse of to_string(run_id); nothing for any other text.
[[nodiscard]] std::optional<run_id> parse_run(std::string_view text) noexcept;

/// By what processes see that a run lives: a lease of its own, an unfinished object "lease-run.<run>" beside the steps'
/// directories, as step_leases has them. A run that ends takes it back; that of a process that died stays until the next
/// run that shows itself cleans up, and nobody's lock or heartbeat says that it lives. Any thread. Throws the store's errors.
class run_signs {
 public:
  /// Uses the innermost store, see LayeredStore.
  explicit run_signs(const any_store& store) : store_(store.innermost()) {}

  /// Shows that the run lives, as long as what it returns; null where the store does not track writers.
  [[nodiscard]] std::shared_ptr<void> show(const run_id& run);
  /// The runs of all processes that show themselves now.
  [[nodiscard]] std::vector<run_id> living();
  /// Whether a run showed itself when a store was looked at.
  [[nodiscard]] static bool lived(const store_look& look, const run_id& run);
  /// Removes what runs have left whose processes died, where this run showed itself then: who knew of them sees this one
  /// instead. Where it did not, they would be taken for runs that have ended.
  void clean(const store_look& look, const run_id& run);
  /// Whether a run, which does not live any more, did not take back what it showed.
  [[nodiscard]] bool has_died(const run_id& run);

 private:
  any_store store_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/commit/run_signs.ipp>
#endif
