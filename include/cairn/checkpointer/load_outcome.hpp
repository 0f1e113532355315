// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>

#include <cstdint>
#include <exception>

namespace cairn {
inline namespace v1 {
namespace detail {

/// How a load ended on the worst-off rank. `unsupported`: another program, or another version of cairn, can read it.
enum class load_outcome : std::uint8_t {
  loaded = 0,
  unreadable = 1,
  damaged = 2,
  unsupported = 3,
  refused = 4
};

/// The failure of the rank whose trouble weighs most; of equals, the lowest rank's.
struct load_verdict {
  load_outcome outcome = load_outcome::loaded;
  std::exception_ptr failure;
};

[[nodiscard]] inline load_outcome outcome_of(const std::exception_ptr& failure) {
  if (failure == nullptr) return load_outcome::loaded;
  try {
    std::rethrow_exception(failure);
  } catch (const corrupt_error& e) {
    const bool whole =
        e.id() == error_id::corrupt_unsupported_feature || e.id() == error_id::corrupt_unsupported_version;
    return whole ? load_outcome::unsupported : load_outcome::damaged;
  } catch (const storage_error& e) {
    // Another checkpoint would not help a device.
    return e.id() == error_id::storage_device ? load_outcome::refused : load_outcome::unreadable;
  } catch (const timeout_error&) {
    return load_outcome::unreadable;
  } catch (...) {
    return load_outcome::refused;
  }
}

/// Whether a load may have failed because the checkpoint was removed; the same on all ranks.
[[nodiscard]] inline bool may_be_gone(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const error& e) {
    return e.id() == error_id::storage_not_committed || e.id() == error_id::storage_not_found ||
           e.id() == error_id::corrupt_missing_file;
  } catch (...) {
    return false;
  }
}

/// Whether what the tier holds was not loaded for a limit of the host, which somebody can raise, as no place takes what
/// is rebuilt, or as a rank was too slow: it is not given up for that. Where its own bytes cannot be read, that is a
/// corrupt_error. The same on all ranks.
[[nodiscard]] inline bool stays_held(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const storage_error& e) {
    return e.id() == error_id::storage_no_space || e.id() == error_id::storage_limit ||
           e.id() == error_id::storage_out_of_memory || e.id() == error_id::storage_permission ||
           e.id() == error_id::storage_io;
  } catch (const timeout_error&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
