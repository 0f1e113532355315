// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/concepts/storage.hpp>
#include <cairn/model/record.hpp>
#include <cairn/storage/commit/store_look.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Two small objects by which the ranks of a run check that they share one store: rank 0 writes them, the
/// others look for them. For one of the names they have looked before: a client that caches absent names
/// does not see that one.
class shared_mark {
 public:
  explicit shared_mark(any_store store) noexcept : store_(std::move(store)) {}

  void look_up_mark(const run_id& run) { static_cast<void>(store_.size(early_key(run))); }
  /// The returned object shows others that the marks are needed, and is kept as long as they are.
  [[nodiscard]] std::shared_ptr<const void> leave(const run_id& run);
  /// Waits some seconds if it sees nothing.
  [[nodiscard]] mark_visibility seen(const run_id& run);
  void remove(const run_id& run) noexcept;
  /// Removes marks that other runs left behind, also unfinished ones, and returns their number.
  std::uint64_t remove_others(const run_id& run, const store_look& look);

 private:
  static constexpr const char* prefix = "shared-mark.";
  [[nodiscard]] static std::string key_of(const run_id& run);
  [[nodiscard]] static std::string early_key(const run_id& run);
  [[nodiscard]] static std::string this_host();
  [[nodiscard]] bool has_locks() const { return store_.tracks_writers() && !store_.announces_writers(); }
  /// Whether a run may still need the mark, because its writer lives. For a writer on another host that
  /// may be unknown; its mark is kept for an hour, by two clocks that may differ by minutes.
  [[nodiscard]] bool is_needed(const std::string& key);
  any_store store_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/commit/shared_mark.ipp>
#endif
