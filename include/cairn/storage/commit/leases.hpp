// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/concepts/storage.hpp>
#include <cairn/model/checkpoint_lease.hpp>
#include <cairn/storage/commit/store_look.hpp>
#include <cairn/system/deadline.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What the keys of run_signs begin with.
inline constexpr std::string_view live_run_prefix = "lease-run.";

/// An unfinished object by which all processes see that this one lives, until what it returns is gone.
[[nodiscard]] std::shared_ptr<any_store::object_writer> show_lease(any_store& store, const std::string& key);

/// Leases, by which all processes see who reads and who removes a checkpoint. They are unfinished objects
/// with names such as "lease-00000300.reads.<host>.<process>" beside the steps' directories, which nobody
/// ever finishes. The store knows whether their writers live: for files by a lock, in buckets by a
/// heartbeat. The lease of a process that has died holds up nobody.
///
/// A reader first shows its lease, then looks for removers, and whether the checkpoint is there when there are none; a remover first shows its lease and then
/// looks for readers. So at least one of two sees the other. A remover gives way at once; a reader waits
/// until the remover has given way, or the manifest is gone. Any thread. Throws the store's errors.
class step_leases {
 public:
  /// Uses the innermost store, see LayeredStore.
  explicit step_leases(const any_store& store) : store_(store.innermost()) {}

  /// Whether the store tracks writers. If not, lease() holds nothing and everything may be removed.
  [[nodiscard]] bool possible() { return store_.tracks_writers(); }

  /// Takes a lease on a committed checkpoint; not held() unless possible(), and where the store does not show what
  /// was just shown in it, which a line on stderr says once.
  /// @throws storage_error (storage_not_committed) if there is no such checkpoint; timeout_error
  /// (timeout_load) if another process begins to remove it and does not finish.
  [[nodiscard]] checkpoint_lease lease(std::int64_t step, deadline until,
                                       lease_check check = lease_check::at_once);

  /// Shows that the caller removes the checkpoint, as long as the returned object lives.
  /// @throws storage_error (storage_leased) naming who reads it; it removes nothing then.
  [[nodiscard]] std::shared_ptr<void> begin_removal(std::int64_t step);

  /// Shows that the caller removes files of attempts that have ended without a checkpoint, as long as the returned object
  /// lives; null where that cannot be shown, as on a full disk.
  [[nodiscard]] std::shared_ptr<void> show_removal(std::int64_t step) noexcept;

  /// The processes that have a lease on a checkpoint, by host and process number.
  [[nodiscard]] std::vector<std::string> readers(std::int64_t step);
  /// The processes that remove it, or files of its attempts, alike.
  [[nodiscard]] std::vector<std::string> removers(std::int64_t step);

  /// Removes the leases of processes that have died, but for those on runs.
  void clean(const store_look& look);

  /// "<host>.<process>" of this process, as its leases have it.
  [[nodiscard]] static std::string own_name();
  /// Whether any process, or the one with this name, lived and had a lease on a step when a store was looked at.
  [[nodiscard]] static bool was_read(const store_look& look, std::int64_t step, std::string_view name = {});

 private:
  static constexpr std::string_view beginning = "lease-";
  static constexpr std::string_view reads = ".reads.";
  static constexpr std::string_view removes = ".removes.";

  /// "lease-00000300.reads."
  [[nodiscard]] static std::string key_of(std::int64_t step, std::string_view what);
  [[nodiscard]] std::shared_ptr<void> show(std::int64_t step, std::string_view what);
  /// The leases on a step, of readers and of removers.
  [[nodiscard]] std::vector<std::string> all_on(std::int64_t step);
  /// The processes that have a lease of this kind among these, by host and process number.
  [[nodiscard]] static std::vector<std::string> who(const std::vector<std::string>& all, std::int64_t step,
                                                    std::string_view what);
  /// Whether the caller's own lease is among these.
  [[nodiscard]] bool shows_own(const std::vector<std::string>& all, std::int64_t step, std::string_view what);
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
