// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/chunk_progression.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/model/record.hpp>
#include <cairn/storage/manifest/corrupt.hpp>
#include <cairn/storage/manifest/record_format.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/wire.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

inline constexpr std::string_view record_magic = "cairnrec";

inline constexpr std::uint16_t record_major = 1;

inline constexpr std::uint16_t record_minor = 0;

[[nodiscard]] inline std::vector<std::byte> encode_record_bytes(const record_identity& r,
                                                                std::uint64_t data_bytes, std::uint32_t files,
                                                                bool failed,
                                                                std::span<const std::byte> body) {
  wire_writer out;
  out.raw(std::as_bytes(std::span{record_magic.data(), record_magic.size()}));
  out.put(record_major).put(record_minor);
  out.put(std::uint32_t{0}).put(std::uint32_t{0});  // required and optional features
  out.put(static_cast<std::uint32_t>(failed));
  out.put(r.run.high).put(r.run.low).put(r.attempt).put(r.step).put(r.rank).put(r.world_size);
  out.put(r.plan_digest).put(data_bytes);
  out.put(static_cast<std::uint64_t>(body.size())).put(digest(body));
  out.put(files).put(std::uint32_t{0}).put(std::uint64_t{0}).put(std::uint64_t{0});
  out.put(digest(out.view()));
  out.raw(body);
  return out.take();
}

}  // namespace detail

CAIRN_BODY std::vector<std::byte> encode_record(const record& r) {
  std::uint64_t data_bytes = 0;
  for (const auto& f : r.files)
    if (__builtin_add_overflow(data_bytes, f.bytes, &data_bytes))
      fail(error_id::usage_overflow, "the sizes of a record's files exceed 2^64 bytes", {.rank = r.rank});
  wire_writer body;
  body.put(static_cast<std::uint64_t>(r.files.size()));
  body.put(static_cast<std::uint64_t>(r.items.size()));
  body.put(static_cast<std::uint64_t>(r.blocks.size()));
  for (const auto& f : r.files) body.put(f.bytes);
  for (const auto& i : r.items)
    body.put(i.key.name)
        .put(i.key.box)
        .put(i.offset)
        .put(i.bytes)
        .put(i.digest)
        .put(i.first_block)
        .put(i.file)
        .put(std::uint32_t{0});
  body.raw(std::as_bytes(std::span{r.blocks}));
  return detail::encode_record_bytes(r, data_bytes, static_cast<std::uint32_t>(r.files.size()), false,
                                     body.view());
}

CAIRN_BODY std::vector<std::byte> encode_failure_record(const record_identity& identity,
                                                        const std::exception_ptr& failure) {
  auto body = encode_failure(failure);
  try {
    wire_reader in{body};
    (void)decode_failure(in);
  } catch (const wire_error&) {
    std::string message = "the failure's text was too long to be kept";
    error_id id = error_id::storage_io;
    try {
      std::rethrow_exception(failure);
    } catch (const error& e) {
      id = e.id();
      message = e.message().substr(0, 4096);
    } catch (const std::exception& e) {
      message = std::string(std::string_view(e.what()).substr(0, 4096));
    } catch (...) {
      // The general sentence above is all that can be said.
    }
    body = encode_failure(make_failure(id, message, {.rank = identity.rank}));
  }
  return detail::encode_record_bytes(identity, 0, 0, true, body);
}

CAIRN_BODY record_header decode_record_header(std::span<const std::byte> first_128, std::string_view file) {
  using detail::corrupt;
  if (first_128.size() < record_header_bytes)
    corrupt(error_id::corrupt_truncated, "a record is shorter than its header", file, first_128.size(),
            "128 bytes", std::to_string(first_128.size()));
  const auto bytes = first_128.first(record_header_bytes);
  if (std::memcmp(bytes.data(), detail::record_magic.data(), 8) != 0)
    corrupt(error_id::corrupt_bad_magic, "this is not a record of cairn", file, 0);
  wire_reader tail{bytes.subspan(120)};
  record_header h;
  h.header_digest = tail.get<std::uint64_t>();
  if (const auto got = digest(bytes.first(120)); got != h.header_digest)
    corrupt(error_id::corrupt_digest, "the header of a record is damaged", file, 0,
            detail::digest_text(h.header_digest), detail::digest_text(got));
  wire_reader in{bytes.subspan(8)};
  const auto version = in.get<std::uint16_t>();
  (void)in.get<std::uint16_t>();
  if (version != detail::record_major)
    corrupt(error_id::corrupt_unsupported_version,
            "this record was written by another major version of cairn; use that version to read it", file, 8,
            std::to_string(detail::record_major), std::to_string(version));
  if (const auto required = in.get<std::uint32_t>(); required != 0)
    corrupt(error_id::corrupt_unsupported_feature,
            "this record needs a feature that this version of cairn does not have", file, 12, {},
            std::to_string(required));
  (void)in.get<std::uint32_t>();
  const auto flags = in.get<std::uint32_t>();
  h.failed = (flags & 1) != 0;
  h.run.high = in.get<std::uint64_t>(), h.run.low = in.get<std::uint64_t>();
  h.attempt = in.get<std::uint64_t>(), h.step = in.get<std::int64_t>();
  h.rank = in.get<std::int32_t>(), h.world_size = in.get<std::int32_t>();
  h.plan_digest = in.get<std::uint64_t>(), h.data_bytes = in.get<std::uint64_t>();
  h.body_bytes = in.get<std::uint64_t>(), h.body_digest = in.get<std::uint64_t>();
  h.files = in.get<std::uint32_t>();
  const char* problem = flags > 1                                         ? "unknown flags"
                        : h.step < 0                                      ? "a negative step"
                        : h.rank < 0 || h.world_size <= h.rank            ? "a rank outside of its world"
                        : h.failed && (h.files != 0 || h.data_bytes != 0) ? "files of a rank that failed"
                                                                          : nullptr;
  if (problem != nullptr)
    corrupt(error_id::corrupt_bad_value, "the header of a record holds impossible numbers", file, 20, {},
            problem);
  return h;
}

namespace detail {

CAIRN_BODY void check_record_identity(const record_header& h, std::uint64_t expected_digest,
                                      std::string_view file) {
  if (h.header_digest != expected_digest)
    corrupt(error_id::corrupt_identity, "this is not the record that the manifest names", file, 120,
            digest_text(expected_digest), digest_text(h.header_digest));
}

/// The body of a record whose header is `h`, with its digest verified.
[[nodiscard]] inline std::span<const std::byte> record_body(const record_header& h,
                                                            std::span<const std::byte> whole,
                                                            std::string_view file) {
  const auto body = whole.subspan(record_header_bytes);
  if (body.size() < h.body_bytes)
    corrupt(error_id::corrupt_truncated, "a record ends early", file, whole.size(),
            std::to_string(h.body_bytes) + " bytes after its header", std::to_string(body.size()));
  if (body.size() > h.body_bytes)
    corrupt(error_id::corrupt_size_mismatch, "bytes follow the end of a record", file,
            record_header_bytes + h.body_bytes);
  if (const auto got = digest(body); got != h.body_digest)
    corrupt(error_id::corrupt_digest, "the tables of a record are damaged", file, record_header_bytes,
            digest_text(h.body_digest), digest_text(got));
  return body;
}

inline void check_record_item(const record& r, const record_item& i, std::string_view file,
                              std::uint64_t at) {
  if (i.file >= r.files.size())
    corrupt(error_id::corrupt_bad_value, "an item of a record lies in a file that the record does not have",
            file, at, std::to_string(r.files.size()) + " files", std::to_string(i.file));
  const auto size = r.files[i.file].bytes;
  if (i.offset > size || i.bytes > size - i.offset)
    corrupt(error_id::corrupt_bad_value, "an item of a record lies outside of its file", file, at,
            "at most " + std::to_string(size),
            std::to_string(i.offset) + " + " + std::to_string(i.bytes) + " bytes");
  const auto blocks = block_count(i.bytes);
  if (i.first_block > r.blocks.size() || blocks > r.blocks.size() - i.first_block)
    corrupt(error_id::corrupt_bad_value, "an item of a record has more blocks than the record", file, at,
            "at most " + std::to_string(r.blocks.size()),
            std::to_string(i.first_block) + " + " + std::to_string(blocks) + " blocks");
}

}  // namespace detail

CAIRN_BODY record decode_record(std::span<const std::byte> whole, std::string_view file,
                                std::optional<std::uint64_t> expected_digest) {
  using detail::corrupt;
  const auto h = decode_record_header(whole, file);
  if (expected_digest) detail::check_record_identity(h, *expected_digest, file);
  if (h.failed)
    corrupt(error_id::corrupt_bad_value, "this is the record of a rank that failed: it names no data", file,
            20);
  const auto body = detail::record_body(h, whole, file);
  if (body.size() < detail::record_counts_bytes)
    corrupt(error_id::corrupt_truncated, "a record ends within its counts", file, whole.size());
  wire_reader in{body};
  const auto files = in.get<std::uint64_t>();
  const auto items = in.get<std::uint64_t>();
  const auto blocks = in.get<std::uint64_t>();
  std::uint64_t left = body.size() - detail::record_counts_bytes;
  const auto takes = [&](std::uint64_t count, std::uint64_t each) {
    if (count > left / each)
      corrupt(error_id::corrupt_bad_value, "a count of a record does not fit the bytes that follow", file,
              record_header_bytes, {}, std::to_string(count));
    left -= count * each;
  };
  takes(files, 8), takes(items, detail::record_item_bytes), takes(blocks, 8);
  if (left != 0)
    corrupt(error_id::corrupt_size_mismatch, "bytes follow the tables of a record", file,
            whole.size() - left);
  if (files != h.files)
    corrupt(error_id::corrupt_bad_value, "a record's header and tables disagree on the number of files", file,
            record_header_bytes, std::to_string(h.files), std::to_string(files));

  record r{static_cast<const record_identity&>(h), {}, {}, {}};
  r.files.resize(files);
  std::uint64_t sum = 0;
  bool overflow = false;
  for (auto& f : r.files) {
    f.bytes = in.get<std::uint64_t>();
    overflow |= __builtin_add_overflow(sum, f.bytes, &sum);
  }
  if (overflow || sum != h.data_bytes)
    corrupt(error_id::corrupt_bad_value, "the sizes of a record's files do not add up", file,
            record_header_bytes + detail::record_counts_bytes, std::to_string(h.data_bytes),
            overflow ? "an overflow" : std::to_string(sum));
  const auto first_item = record_header_bytes + in.offset();
  r.items.resize(items);
  for (auto& i : r.items) {
    i.key.name = in.get<std::uint64_t>(), i.key.box = in.get<std::uint64_t>();
    i.offset = in.get<std::uint64_t>(), i.bytes = in.get<std::uint64_t>();
    i.digest = in.get<std::uint64_t>(), i.first_block = in.get<std::uint64_t>();
    i.file = in.get<std::uint32_t>();
    if (in.get<std::uint32_t>() != 0)
      corrupt(error_id::corrupt_bad_value, "a reserved field of a record is not zero", file,
              record_header_bytes + in.offset() - 4);
  }
  const auto table = in.take(blocks * 8);
  r.blocks.resize(blocks);
  if (blocks != 0) std::memcpy(r.blocks.data(), table.data(), table.size());
  for (std::size_t i = 0; i < r.items.size(); ++i) {
    const auto& item = r.items[i];
    const auto at = first_item + i * detail::record_item_bytes;
    detail::check_record_item(r, item, file, at);
    // Items may share blocks in a hostile record; then this would be quadratic, so the order is part of the
    // format.
    const std::uint64_t follows = i == 0 ? 0 : r.items[i - 1].first_block + block_count(r.items[i - 1].bytes);
    if (item.first_block != follows)
      corrupt(error_id::corrupt_bad_value, "the blocks of a record's items do not follow each other", file,
              at, std::to_string(follows), std::to_string(item.first_block));
    const auto got = digest_of_blocks(
        std::span<const std::uint64_t>{r.blocks}.subspan(item.first_block, block_count(item.bytes)));
    if (got != item.digest)
      corrupt(error_id::corrupt_digest, "an item's digest is not that of its blocks", file, at,
              detail::digest_text(item.digest), detail::digest_text(got));
  }
  const std::uint64_t used =
      r.items.empty() ? 0 : r.items.back().first_block + block_count(r.items.back().bytes);
  if (used != blocks)
    corrupt(error_id::corrupt_bad_value, "a record has more blocks than its items", file, first_item,
            std::to_string(used), std::to_string(blocks));
  return r;
}

CAIRN_BODY std::exception_ptr decode_failure_record(std::span<const std::byte> whole, std::string_view file) {
  const auto h = decode_record_header(whole, file);
  if (!h.failed)
    detail::corrupt(error_id::corrupt_bad_value, "this is not the record of a rank that failed", file, 20);
  wire_reader in{detail::record_body(h, whole, file)};
  try {
    auto failure = decode_failure(in, h.rank);
    in.finish();
    return failure;
  } catch (const wire_error& e) {
    detail::corrupt(error_id::corrupt_bad_value, e.what(), file, record_header_bytes + e.offset);
  }
}

}  // namespace v1
}  // namespace cairn
