// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <cstdint>
#include <string_view>

namespace cairn {
inline namespace v1 {

/// The kinds of errors, by who can act on them. Each kind has one exception class in model/error.hpp.
enum class error_kind : std::uint8_t { usage = 1, plan = 2, storage = 3, corrupt = 4, timeout = 5, peer = 6 };

/// Stable names of everything that can go wrong: they never change their meaning, and each has a heading in
/// docs/errors.md with cause and cure. The hundreds digit is the error_kind.
enum class error_id : std::uint16_t {
  usage_duplicate_name = 101,
  usage_unknown_name = 102,
  usage_bad_name = 103,
  usage_bad_shape = 104,
  usage_size_changed = 105,
  usage_before_update_missing = 106,
  usage_closed = 107,
  usage_wrong_process = 108,
  usage_bad_option = 109,
  usage_too_many_failures = 110,
  usage_overflow = 111,
  usage_incomplete_object = 112,
  usage_wrong_order = 113,
  usage_unsupported_tensor = 114,
  usage_no_worker = 115,
  usage_memory_changed = 116,
  usage_stream_capturing = 117,

  plan_dtype_mismatch = 201,
  plan_shape_mismatch = 202,
  plan_out_of_bounds = 203,
  plan_overlap = 204,
  plan_not_covered = 205,
  plan_kind_mismatch = 206,
  plan_missing_item = 207,
  plan_unexpected_item = 208,
  plan_disagreement = 209,
  plan_bad_message = 210,
  plan_no_cast = 211,
  plan_state_version = 212,

  storage_io = 301,
  storage_no_space = 302,
  storage_not_found = 303,
  storage_exists = 304,
  storage_permission = 305,
  storage_already_committed = 306,
  storage_not_committed = 307,
  storage_nothing_loads = 308,
  storage_out_of_memory = 309,
  storage_limit = 310,
  storage_bad_key = 311,
  storage_not_shared = 312,
  storage_aborted = 313,
  storage_unavailable = 314,
  storage_device = 315,
  storage_unsafe = 316,
  storage_leased = 317,
  storage_pinned = 318,

  corrupt_truncated = 401,
  corrupt_digest = 402,
  corrupt_bad_magic = 403,
  corrupt_unsupported_version = 404,
  corrupt_bad_value = 405,
  corrupt_bad_json = 406,
  corrupt_size_mismatch = 407,
  corrupt_missing_file = 408,
  corrupt_identity = 409,
  corrupt_unsupported_feature = 410,

  timeout_staging = 501,
  timeout_write = 502,
  timeout_commit = 503,
  timeout_peer = 504,
  timeout_close = 505,
  timeout_load = 506,

  peer_failed = 601,
  peer_lost = 602,
  peer_bad_message = 603,
  peer_not_offered = 604,
  peer_refused = 605,
};

/// The name that stands in messages and documents, such as "plan.overlap".
constexpr std::string_view error_name(error_id id) noexcept {
  switch (id) {
    case error_id::usage_duplicate_name:
      return "usage.duplicate_name";
    case error_id::usage_unknown_name:
      return "usage.unknown_name";
    case error_id::usage_bad_name:
      return "usage.bad_name";
    case error_id::usage_bad_shape:
      return "usage.bad_shape";
    case error_id::usage_size_changed:
      return "usage.size_changed";
    case error_id::usage_before_update_missing:
      return "usage.before_update_missing";
    case error_id::usage_closed:
      return "usage.closed";
    case error_id::usage_wrong_process:
      return "usage.wrong_process";
    case error_id::usage_bad_option:
      return "usage.bad_option";
    case error_id::usage_too_many_failures:
      return "usage.too_many_failures";
    case error_id::usage_overflow:
      return "usage.overflow";
    case error_id::usage_incomplete_object:
      return "usage.incomplete_object";
    case error_id::usage_wrong_order:
      return "usage.wrong_order";
    case error_id::usage_unsupported_tensor:
      return "usage.unsupported_tensor";
    case error_id::usage_no_worker:
      return "usage.no_worker";
    case error_id::usage_memory_changed:
      return "usage.memory_changed";
    case error_id::usage_stream_capturing:
      return "usage.stream_capturing";
    case error_id::plan_dtype_mismatch:
      return "plan.dtype_mismatch";
    case error_id::plan_shape_mismatch:
      return "plan.shape_mismatch";
    case error_id::plan_out_of_bounds:
      return "plan.out_of_bounds";
    case error_id::plan_overlap:
      return "plan.overlap";
    case error_id::plan_not_covered:
      return "plan.not_covered";
    case error_id::plan_kind_mismatch:
      return "plan.kind_mismatch";
    case error_id::plan_missing_item:
      return "plan.missing_item";
    case error_id::plan_unexpected_item:
      return "plan.unexpected_item";
    case error_id::plan_disagreement:
      return "plan.disagreement";
    case error_id::plan_bad_message:
      return "plan.bad_message";
    case error_id::plan_no_cast:
      return "plan.no_cast";
    case error_id::plan_state_version:
      return "plan.state_version";
    case error_id::storage_io:
      return "storage.io";
    case error_id::storage_no_space:
      return "storage.no_space";
    case error_id::storage_not_found:
      return "storage.not_found";
    case error_id::storage_exists:
      return "storage.exists";
    case error_id::storage_permission:
      return "storage.permission";
    case error_id::storage_already_committed:
      return "storage.already_committed";
    case error_id::storage_not_committed:
      return "storage.not_committed";
    case error_id::storage_nothing_loads:
      return "storage.nothing_loads";
    case error_id::storage_out_of_memory:
      return "storage.out_of_memory";
    case error_id::storage_limit:
      return "storage.limit";
    case error_id::storage_bad_key:
      return "storage.bad_key";
    case error_id::storage_not_shared:
      return "storage.not_shared";
    case error_id::storage_aborted:
      return "storage.aborted";
    case error_id::storage_unavailable:
      return "storage.unavailable";
    case error_id::storage_device:
      return "storage.device";
    case error_id::storage_unsafe:
      return "storage.unsafe";
    case error_id::storage_leased:
      return "storage.leased";
    case error_id::storage_pinned:
      return "storage.pinned";
    case error_id::corrupt_truncated:
      return "corrupt.truncated";
    case error_id::corrupt_digest:
      return "corrupt.digest";
    case error_id::corrupt_bad_magic:
      return "corrupt.bad_magic";
    case error_id::corrupt_unsupported_version:
      return "corrupt.unsupported_version";
    case error_id::corrupt_bad_value:
      return "corrupt.bad_value";
    case error_id::corrupt_bad_json:
      return "corrupt.bad_json";
    case error_id::corrupt_size_mismatch:
      return "corrupt.size_mismatch";
    case error_id::corrupt_missing_file:
      return "corrupt.missing_file";
    case error_id::corrupt_identity:
      return "corrupt.identity";
    case error_id::corrupt_unsupported_feature:
      return "corrupt.unsupported_feature";
    case error_id::timeout_staging:
      return "timeout.staging";
    case error_id::timeout_write:
      return "timeout.write";
    case error_id::timeout_commit:
      return "timeout.commit";
    case error_id::timeout_peer:
      return "timeout.peer";
    case error_id::timeout_close:
      return "timeout.close";
    case error_id::timeout_load:
      return "timeout.load";
    case error_id::peer_failed:
      return "peer.failed";
    case error_id::peer_lost:
      return "peer.lost";
    case error_id::peer_bad_message:
      return "peer.bad_message";
    case error_id::peer_not_offered:
      return "peer.not_offered";
    case error_id::peer_refused:
      return "peer.refused";
  }
  return "unknown";
}

/// The kind of an id, or error_kind::corrupt for a number that no version of cairn has given.
constexpr error_kind kind_of(error_id id) noexcept {
  const auto hundreds = static_cast<unsigned>(id) / 100;
  return hundreds >= 1 && hundreds <= 6 ? static_cast<error_kind>(hundreds) : error_kind::corrupt;
}

}  // namespace v1
}  // namespace cairn
