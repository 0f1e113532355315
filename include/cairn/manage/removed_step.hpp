// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/model/checkpoint_lease.hpp>
#include <cairn/storage/commit/leases.hpp>
#include <cairn/storage/commit/step_objects.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// A lease for one who only reads. Holds nothing where the store gives none, as where this process may not write: it is read
/// all the same. Waits at most 10 s for a remover that neither goes on nor gives way.
/// @throws storage_error (storage_not_committed) if there is no such checkpoint
[[nodiscard]] inline checkpoint_lease lease_to_read(const any_store& store, std::int64_t step) {
  try {
    return step_leases(store).lease(step, deadline::in(std::chrono::seconds(10)));
  } catch (const storage_error& e) {
    if (e.id() == error_id::storage_not_committed) throw;
  } catch (const timeout_error&) {
  }
  return {};
}

/// Looks whether a checkpoint that is being read is still the one that was opened. A job that removes old checkpoints takes
/// the manifest away before the files, so whoever misses a file asks here before it calls the checkpoint damaged.
/// `manifest_digest`: of the bytes that were opened. @throws storage_error (storage_not_committed) where it is not
inline void require_committed(const any_store& store, std::int64_t step, std::uint64_t manifest_digest) {
  const auto key = manifest_key(step);
  std::optional<std::vector<std::byte>> bytes;
  try {
    bytes = step_objects(store).read_manifest(key);
  } catch (const storage_error& e) {
    // A store that cannot be read says nothing about the step: what the caller found stands.
    if (e.id() != error_id::storage_not_found) return;
  }
  if (!bytes || digest(*bytes) != manifest_digest)
    fail(error_id::storage_not_committed,
         "step " + std::to_string(step) + " was removed from " + std::string(store.describe()) +
             " while it was read",
         {.file = key});
}

/// Whether an error may come from reading a checkpoint that was removed meanwhile.
[[nodiscard]] inline bool may_be_removed(const error& e) noexcept {
  return e.kind() == error_kind::corrupt || e.id() == error_id::storage_not_found;
}

/// What `read` returns. What it throws is thrown as storage_not_committed where the step was removed meanwhile.
template <class Read>
auto read_committed(const any_store& store, std::int64_t step, std::uint64_t manifest_digest, Read&& read) {
  try {
    return read();
  } catch (const error& e) {
    if (may_be_removed(e)) require_committed(store, step, manifest_digest);
    throw;
  }
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
