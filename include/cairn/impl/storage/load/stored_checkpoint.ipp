// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/chunk_progression.hpp>
#include <cairn/model/chunk_set.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/model/item.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/record.hpp>
#include <cairn/model/stored_items.hpp>
#include <cairn/storage/load/stored_checkpoint.hpp>
#include <cairn/storage/load/stored_record.hpp>
#include <cairn/storage/manifest/manifest.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/storage/safetensors/safetensors_layout.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/vector.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace cairn {
inline namespace v1 {

struct stored_checkpoint::contents {
  cairn::manifest manifest;
  detail::vector<detail::owned<stored_record>> records;
};

CAIRN_BODY stored_checkpoint::stored_checkpoint(cairn::manifest m)
    : contents_(new contents{std::move(m), {}}) {
  contents_->records.resize(contents_->manifest.records.size());
}
CAIRN_BODY stored_checkpoint::stored_checkpoint(stored_checkpoint&& other) noexcept = default;
CAIRN_BODY stored_checkpoint& stored_checkpoint::operator=(stored_checkpoint&& other) noexcept = default;
CAIRN_BODY stored_checkpoint::~stored_checkpoint() = default;

CAIRN_BODY const cairn::metadata& stored_checkpoint::metadata() const noexcept {
  return contents_->manifest.content;
}

CAIRN_BODY const cairn::manifest& stored_checkpoint::manifest() const noexcept {
  return contents_->manifest;
}

CAIRN_BODY bool stored_checkpoint::has_record(std::int32_t rank) const noexcept {
  return contents_->records[static_cast<std::size_t>(rank)] != nullptr;
}

CAIRN_BODY void stored_checkpoint::add_record(std::int32_t rank, detail::owned<stored_record> r) noexcept {
  contents_->records[static_cast<std::size_t>(rank)] = std::move(r);
}

CAIRN_BODY const stored_record& stored_checkpoint::record_of(std::int32_t rank) const noexcept {
  return *contents_->records[static_cast<std::size_t>(rank)];
}

CAIRN_BODY stored_chunk stored_checkpoint::chunk_of(const read_item& item) const {
  if (item.stored >= metadata().items.size() || item.chunk >= metadata().items[item.stored].chunks.size())
    fail(error_id::plan_out_of_bounds,
         "a load plan names what this checkpoint does not hold; it was made for another one");
  return metadata().items[item.stored].chunks[item.chunk];
}

CAIRN_BODY const record_item& stored_checkpoint::find(const stored_item& item, const stored_chunk& c) const {
  const auto& named = manifest().records[static_cast<std::size_t>(c.rank)];
  const auto* found = record_of(c.rank).find(key_of(file_key(item.name, item.per_rank, c.rank), c.box));
  if (found == nullptr)
    fail(error_id::corrupt_bad_value, "the record of a rank lacks an item that the manifest says it has",
         {.rank = c.rank,
          .item = item.name,
          .file = record_key(named.step, named.rank, named.attempt, manifest().placement),
          .expected = to_string(c.box)});
  if (item.kind != item_kind::bytes && checked_bytes(item.type, c.box.sizes) != found->bytes)
    fail(error_id::corrupt_size_mismatch, "a stored item has another size than its shape",
         {.rank = c.rank,
          .item = item.name,
          .file = record_key(named.step, named.rank, named.attempt, manifest().placement),
          .got = std::to_string(found->bytes)});
  return *found;
}

CAIRN_BODY void stored_checkpoint::check_complete() const {
  for (const auto& item : metadata().items)
    for (const auto& c : item.chunks) (void)find(item, c);
}

CAIRN_BODY std::string stored_checkpoint::record_key_of(std::int32_t rank) const {
  const auto& named = manifest().records[static_cast<std::size_t>(rank)];
  return record_key(named.step, named.rank, named.attempt, manifest().placement);
}

CAIRN_BODY std::string stored_checkpoint::file_key_of(std::int32_t rank, std::uint32_t file) const {
  const auto& named = manifest().records[static_cast<std::size_t>(rank)];
  return data_key(named.step, named.rank, named.attempt, file, manifest().placement);
}

}  // namespace v1
}  // namespace cairn
