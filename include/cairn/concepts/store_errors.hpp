// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/byte_store.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>

#include <cstdint>
#include <string_view>

namespace cairn {
inline namespace v1 {

// For those who write a store: the errors that the contract of ByteStore names, with their fields.

/// @throws storage_error (storage_bad_key) unless valid_key(key).
void check_key(std::string_view key);
/// Checks that an object of so many bytes holds a range. @throws corrupt_error (corrupt_truncated) where it ends before.
void check_range(const read_range& range, std::uint64_t object_bytes);
/// Throws storage_error (storage_not_found): nothing stands under a key that is read.
[[noreturn]] void fail_no_object(std::string_view key);
/// Throws storage_error (storage_exists): the key of a new object was taken.
[[noreturn]] void fail_object_exists(std::string_view key);

/// The error of a publish_new() or put_new() of which the store knows that it has put nothing under the key, and that it
/// will not do so later. A checkpointer then ends the save at once, and tells the other ranks. After any other
/// storage_error it takes the object for perhaps published, unless the id is storage_no_space, storage_limit,
/// storage_permission or storage_bad_key.
struct unpublished_error : storage_error {
  /// With the id, sentence and fields of `e`.
  explicit unpublished_error(const storage_error& e) : storage_error(e) {}
};
namespace detail {
/// Whether a storage_error with this id says that its request was not carried out, and will not be.
[[nodiscard]] constexpr bool denies_publication(error_id id) noexcept {
  return id == error_id::storage_no_space || id == error_id::storage_limit ||
         id == error_id::storage_permission || id == error_id::storage_bad_key;
}
/// Returns what `call` returns, which publishes nothing; its storage_error becomes an unpublished_error.
template <class Call>
auto before_publishing(Call call) {
  try {
    return call();
  } catch (const storage_error& e) {
    throw unpublished_error(e);
  }
}
}  // namespace detail

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/concepts/store_errors.ipp>
#endif
