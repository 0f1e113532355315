// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/byte_store.hpp>
#include <cairn/concepts/storage.hpp>
#include <cairn/manage/readable_checkpoint.hpp>
#include <cairn/manage/removed_step.hpp>
#include <cairn/model/chunk_progression.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/record.hpp>
#include <cairn/model/state_dict.hpp>
#include <cairn/storage/foreign/foreign_checkpoint.hpp>
#include <cairn/storage/foreign/foreign_reader.hpp>
#include <cairn/storage/load/stored_checkpoint.hpp>
#include <cairn/storage/load/stored_record.hpp>
#include <cairn/storage/safetensors_reader.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

CAIRN_BODY readable_checkpoint::readable_checkpoint(safetensors_reader reader, std::int64_t step)
    : step_(step), reader_(std::move(reader)) {
  const auto manifest_bytes = reader_->fetch(step);
  manifest_digest_ = digest(manifest_bytes);
  lease_ = detail::lease_to_read(reader_->store(), step);
  stored_.emplace(reader_->open(step, manifest_bytes));
}

CAIRN_BODY readable_checkpoint::readable_checkpoint(foreign_reader files) : files_(std::move(files)) {
  foreign_.emplace(files_->open(0, files_->fetch(0)));
  require_unchanged();  // from here on each is known, also one that is read hours later
}

CAIRN_BODY void readable_checkpoint::require_unchanged() {
  if (foreign_) files_->check_unchanged(*foreign_, deadline::never());
}

CAIRN_BODY const cairn::metadata& readable_checkpoint::metadata() const noexcept {
  return stored_ ? stored_->metadata() : foreign_->metadata();
}

CAIRN_BODY const stored_checkpoint* readable_checkpoint::with_records() {
  if (!stored_) return nullptr;
  (void)detail::read_committed(reader_->store(), step_, manifest_digest_,
                               [&] { return reader_->load_records(*stored_, deadline::never()); });
  return &*stored_;
}

CAIRN_BODY std::uint64_t readable_checkpoint::read(const load_plan& plan, const target_resolver& resolver,
                                                   std::uint64_t memory_bytes) {
  read_options options;
  options.memory_budget = memory_bytes;
  if (!stored_) return files_->read(*foreign_, state_dict(), plan, resolver, options, deadline::never());
  return detail::read_committed(reader_->store(), step_, manifest_digest_, [&] {
    return reader_->read(*stored_, state_dict(), plan, resolver, options, deadline::never());
  });
}

CAIRN_BODY std::vector<std::byte> readable_checkpoint::read_stored(std::uint32_t item,
                                                                   const stored_chunk& chunk) {
  const auto& records = *with_records();
  const auto& found = records.find(records.metadata().items[item], chunk);
  const auto& record = records.record_of(chunk.rank).content();
  std::vector<std::byte> bytes(static_cast<std::size_t>(found.bytes));
  const auto key = records.file_key_of(chunk.rank, found.file);
  if (bytes.empty()) return bytes;
  detail::read_committed(reader_->store(), step_, manifest_digest_, [&] {
    try {
      const read_range range{key, found.offset, bytes};
      reader_->store().read({&range, 1});
    } catch (const storage_error& e) {
      if (e.id() != error_id::storage_not_found) throw;
      fail(error_id::corrupt_missing_file, "a data file of the checkpoint is not there",
           {.rank = chunk.rank, .item = records.metadata().items[item].name, .file = key});
    }
  });
  for (std::uint64_t block = 0; block < block_count(found.bytes); ++block) {
    const auto at = block * digest_block_bytes;
    const auto part =
        std::span(bytes).subspan(static_cast<std::size_t>(at),
                                 static_cast<std::size_t>(std::min(digest_block_bytes, found.bytes - at)));
    if (digest(part) != record.blocks[static_cast<std::size_t>(found.first_block + block)])
      fail(error_id::corrupt_digest, "a block is damaged: its bytes are not what was written",
           {.rank = chunk.rank,
            .item = records.metadata().items[item].name,
            .file = key,
            .offset = static_cast<std::int64_t>(found.offset + at)});
  }
  return bytes;
}

}  // namespace v1
}  // namespace cairn
