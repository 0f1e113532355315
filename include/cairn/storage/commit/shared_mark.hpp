// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/concepts/storage.hpp>
#include <cairn/model/record.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Two small objects by which the ranks of a run see that they have one store: rank 0 leaves them, the others
/// look for them. For one of them they have looked before: what remembers that a name was not there answers
/// wrongly for that one alone.
class shared_mark {
 public:
  explicit shared_mark(any_store store) noexcept : store_(std::move(store)) {}

  void look_early(const run_id& run) { static_cast<void>(store_.size(early_key(run))); }
  /// What it gives is kept as long as the marks are needed: by it, others see that they are.
  [[nodiscard]] std::shared_ptr<const void> leave(const run_id& run);
  /// Waits some seconds where nothing is seen.
  [[nodiscard]] mark_visibility seen(const run_id& run);
  void remove(const run_id& run) noexcept;
  /// Those that other runs left behind, also unfinished ones; the number removed.
  std::uint64_t remove_others(const run_id& run);

 private:
  static constexpr const char* prefix = "shared-mark.";
  [[nodiscard]] static std::string key_of(const run_id& run);
  [[nodiscard]] static std::string early_key(const run_id& run);
  [[nodiscard]] static std::string this_host();
  [[nodiscard]] bool has_locks() const { return store_.tracks_writers() && !store_.announces_writers(); }
  /// Whether a run may be just looking for it: who left it lives. Of another host that may be hidden, and the
  /// mark is left alone for an hour, by two clocks that may differ by minutes.
  [[nodiscard]] bool is_needed(const std::string& key);
  any_store store_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/commit/shared_mark.ipp>
#endif
