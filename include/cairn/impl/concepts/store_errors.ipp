// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/byte_store.hpp>
#include <cairn/concepts/store_errors.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

namespace cairn {
inline namespace v1 {

CAIRN_BODY void check_key(std::string_view key) {
  if (!valid_key(key))
    fail(error_id::storage_bad_key,
         "a key is a relative path of [A-Za-z0-9._-] and '/', without empty, '.' or '..' parts, of at most "
         "512 bytes",
         {.file = std::string(key.substr(0, 600))});
}

CAIRN_BODY void check_range(const read_range& range, std::uint64_t object_bytes) {
  const auto wanted = std::uint64_t{range.destination.size()};
  const auto left = object_bytes - std::min(range.offset, object_bytes);
  if (range.offset > object_bytes || wanted > left)
    fail(error_id::corrupt_truncated, "the object ends before the requested bytes",
         {.file = std::string(range.key),
          .offset = static_cast<std::int64_t>(range.offset & INT64_MAX),
          .expected = std::to_string(wanted) + " bytes",
          .got = std::to_string(left) + " bytes"});
}

CAIRN_BODY void fail_no_object(std::string_view key) {
  fail(error_id::storage_not_found, "there is no object of this key", {.file = std::string(key)});
}

CAIRN_BODY void fail_object_exists(std::string_view key) {
  fail(error_id::storage_exists, "an object of this key exists already; it was not touched",
       {.file = std::string(key)});
}

}  // namespace v1
}  // namespace cairn
