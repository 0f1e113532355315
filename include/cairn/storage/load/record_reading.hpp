// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/storage/commit/record_collection.hpp>
#include <cairn/storage/load/stored_checkpoint.hpp>
#include <cairn/storage/load/stored_record.hpp>
#include <cairn/storage/manifest/corrupt.hpp>
#include <cairn/storage/manifest/manifest.hpp>
#include <cairn/storage/manifest/record_format.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/owned.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// The bytes of a rank's record, wherever it lies; nothing if its file is not there. Memory is asked for only
/// when the header is the one that the manifest names and the file has so many bytes. @throws corrupt_error
[[nodiscard]] inline std::optional<std::vector<std::byte>> read_record(const any_store& store,
                                                                       const manifest& m,
                                                                       const manifest_record& named,
                                                                       const std::string& key) {
  if (!m.placement.shared()) return store.read_all(key, max_record_bytes);
  const auto file_bytes = store.size(key);
  if (!file_bytes) return {};
  const auto world = m.content.world_size;
  // The headers of this rank and those behind it, which tell where its body ends.
  auto at = record_header_offset(m.placement, named.rank, world, *file_bytes, key);
  std::vector<std::byte> headers(static_cast<std::size_t>(*file_bytes - at));
  const read_range of_headers{key, at, headers};
  store.read({&of_headers, 1});
  check_record_identity(decode_record_header(headers, key), named.record_digest, key);
  at -= static_cast<std::uint64_t>(named.rank - m.placement.first_of(named.rank)) * record_header_bytes;
  std::uint64_t body_bytes = 0;
  for (auto left = std::span<const std::byte>(headers); !left.empty();) {
    const auto last = left.last(record_header_bytes);
    body_bytes = decode_record_header(last, key).body_bytes;
    if (body_bytes > at || body_bytes > max_record_bytes)
      corrupt(error_id::corrupt_truncated, "a file of several ranks ends before their records", key, at);
    at -= body_bytes;
    left = left.first(left.size() - record_header_bytes);
  }
  std::vector<std::byte> bytes(record_header_bytes + static_cast<std::size_t>(body_bytes));
  std::copy_n(headers.begin(), record_header_bytes, bytes.begin());
  const read_range of_body{key, at, std::span(bytes).subspan(record_header_bytes)};
  store.read({&of_body, 1});
  return bytes;
}

/// The record of a rank, verified, and how many bytes it has. What comes damaged is read once more before it is called so: it
/// may have been so on its way alone. `bytes` gets what was read. @throws corrupt_error (corrupt_missing_file)
[[nodiscard]] inline owned<stored_record> read_stored_record(const any_store& store, const manifest& m,
                                                             const manifest_record& named,
                                                             const std::string& key,
                                                             std::vector<std::byte>& bytes) {
  const auto read = [&] {
    auto content = read_record(store, m, named, key);
    if (!content)
      fail(error_id::corrupt_missing_file, "a record that the manifest names is not there", {.file = key});
    bytes = std::move(*content);
    return make_owned<stored_record>(named, bytes, key);
  };
  try {
    return read();
  } catch (const corrupt_error&) {
    return read();
  }
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
