// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/model/checkpoint_lease.hpp>
#include <cairn/system/deadline.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Who reads a checkpoint, and who removes one, so that all processes see it: unfinished objects named
/// "lease-00000300.reads.<host>.<process>" beside the steps' directories, which nobody ever finishes. The
/// store knows whether their writers live, by a lock on files, by a heartbeat in buckets; of a process that
/// has died nothing holds anybody up.
///
/// A reader first shows its lease and then looks for one who removes; who removes shows that first and then
/// looks for readers. So at least one of two sees the other. Who removes gives way at once; a reader waits
/// until the other has given way, or the manifest is gone. Any thread; throws the store's errors.
class step_leases {
 public:
  /// In the store below all that lie over others.
  explicit step_leases(const any_store& store) : store_(store.innermost()) {}

  /// Whether the store can tell who lives. Without that, lease() holds nothing and everything may be removed.
  [[nodiscard]] bool possible() { return store_.tracks_writers(); }

  /// A lease on a committed checkpoint; not held() where that is not possible().
  /// @throws storage_error (storage_not_committed) where there is none; timeout_error (timeout_load) where
  /// another process begins to remove it and comes to no end.
  [[nodiscard]] checkpoint_lease lease(std::int64_t step, deadline until);

  /// Shows that the caller removes the checkpoint, as long as what this gives lives.
  /// @throws storage_error (storage_leased) naming who reads it; nothing was removed then.
  [[nodiscard]] std::shared_ptr<void> begin_removal(std::int64_t step);

  /// Removes what is left of processes that have died. Without a lease of their own, nobody sees these.
  void clean();

 private:
  static constexpr std::string_view beginning = "lease-";
  static constexpr std::string_view reads = ".reads.";
  static constexpr std::string_view removes = ".removes.";

  /// "lease-00000300.reads."
  [[nodiscard]] static std::string key_of(std::int64_t step, std::string_view what);
  [[nodiscard]] std::shared_ptr<void> show(std::int64_t step, std::string_view what);
  /// The processes that do this with a step, by host and number.
  [[nodiscard]] std::vector<std::string> who(std::int64_t step, std::string_view what);
  [[nodiscard]] static std::string own_name();
  [[nodiscard]] static std::string joined(const std::vector<std::string>& names);
  [[noreturn]] void fail_not_committed(std::int64_t step);

  any_store store_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/commit/leases.ipp>
#endif
