// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/chunk_progression.hpp>
#include <cairn/model/dtype.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/storage/manifest/record_format.hpp>
#include <cairn/storage/safetensors/safetensors_entry.hpp>
#include <cairn/storage/safetensors/safetensors_header.hpp>
#include <cairn/storage/safetensors/shared_file_plan.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/list_view.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY std::string shared_records_name(std::int32_t first) {
  char text[48];
  std::snprintf(text, sizeof text, "cairn.records@rank%05d", static_cast<int>(first));
  return text;
}

CAIRN_BODY void widen_safetensors_header(std::vector<std::byte>& header, std::uint64_t bytes) {
  bytes = (bytes + 4095) / 4096 * 4096;
  if (bytes <= header.size()) return;
  if (bytes - 8 > max_safetensors_json)
    fail(error_id::storage_limit,
         "the ranks of one file have so many tensors that its header exceeds what readers accept: let fewer "
         "share a file",
         {.expected = "at most 100000000 bytes", .got = std::to_string(bytes - 8)});
  header.resize(static_cast<std::size_t>(bytes), std::byte{' '});
  const std::uint64_t length = bytes - 8;
  std::memcpy(header.data(), &length, 8);
}

CAIRN_BODY bool joins(shared_run& run, const safetensors_entry& e) {
  auto& r = run.entry;
  const int dims = e.shape.rank();
  if (!r.sharded || !e.sharded || dims == 0 || r.type != e.type || r.shape.rank() != dims ||
      !(r.global_shape == e.global_shape) || r.saved_offsets[0] + r.shape[0] != e.saved_offsets[0])
    return false;
  for (int d = 1; d < dims; ++d)
    if (r.saved_offsets[d] != e.saved_offsets[d] || r.shape[d] != e.shape[d]) return false;
  auto shape = r.shape;
  shape.set(0, r.shape[0] + e.shape[0]);
  const auto bytes = checked_bytes(r.type, shape);
  if (!bytes || *bytes != (r.end - r.begin) + (e.end - e.begin)) return false;  // of packed types
  run.begins.push_back(r.end - r.begin);
  r.shape = shape;
  r.end = r.begin + *bytes;
  return true;
}

/// All runs; those of one key in different files.
[[nodiscard]] inline std::vector<shared_run> find_shared_runs(list_view<const shared_member> members) {
  struct part {
    const safetensors_entry* entry;
    std::uint32_t member;
    std::uint32_t item;
  };
  std::vector<part> parts;
  for (std::uint32_t m = 0; m < members.size(); ++m) {
    std::uint32_t item = 0;
    for (const auto& f : members[m].files)
      for (const auto& e : f.entries) parts.push_back({&e, m, item++});
  }
  detail::sort(parts, [](const part& a, const part& b) {
    if (a.entry->key != b.entry->key) return a.entry->key < b.entry->key;
    const auto &x = a.entry->saved_offsets, &y = b.entry->saved_offsets;
    return std::lexicographical_compare(x.begin(), x.end(), y.begin(), y.end());
  });
  std::vector<shared_run> runs;
  for (const auto& p : parts) {
    const bool known = !runs.empty() && runs.back().entry.key == p.entry->key;
    if (!known || !joins(runs.back(), *p.entry)) {
      const auto file = known ? runs.back().file + 1 : 0;
      runs.push_back({*p.entry, {}, {0}, file});
    }
    runs.back().parts.emplace_back(p.member, p.item);
  }
  return runs;
}

CAIRN_BODY shared_file_plan plan_shared_files(list_view<const shared_member> members, std::int32_t first,
                                              std::uint64_t least_header) {
  auto runs = find_shared_runs(members);
  const auto alignment = [](dtype t) {
    const auto bits = bits_of(t);
    return bits == 64 ? 0 : bits == 32 ? 1 : bits == 16 ? 2 : bits == 8 ? 3 : 4;
  };
  detail::sort(runs, [&](const shared_run& a, const shared_run& b) {
    return std::pair(a.file, alignment(a.entry.type)) < std::pair(b.file, alignment(b.entry.type));
  });
  shared_file_plan plan;
  const auto count = runs.empty() ? 1 : runs.back().file + 1;
  plan.files.resize(count);
  plan.places.resize(members.size());
  std::uint64_t record_bytes = 0;
  for (std::size_t m = 0; m < members.size(); ++m) {
    std::uint64_t items = 0;
    for (const auto& f : members[m].files) items += f.entries.size();
    plan.places[m].resize(static_cast<std::size_t>(items));
    plan.bodies.push_back(record_bytes);
    record_bytes += record_counts_bytes + 8 * count + record_item_bytes * items + 8 * members[m].blocks;
  }
  std::size_t next = 0;
  for (std::uint32_t f = 0; f < count; ++f) {
    safetensors_header header;
    std::uint64_t position = 0;
    const auto from = next;
    for (; next < runs.size() && runs[next].file == f; ++next) {
      auto e = runs[next].entry;
      const auto bytes = e.end - e.begin;
      e.begin = position;
      if (__builtin_add_overflow(position, bytes, &position) || position > INT64_MAX / 2)
        fail(error_id::usage_overflow, "the items of one file exceed 2^62 bytes", {.item = e.key});
      e.end = position;
      e.sharded = e.sharded && !(chunk{e.saved_offsets, e.shape} == whole(e.global_shape));
      header.entries.push_back(std::move(e));
    }
    const auto data_end = position;
    if (f == 0) {
      safetensors_entry records;
      records.key = shared_records_name(first);
      records.begin = position;
      position += record_bytes + members.size() * record_header_bytes;
      records.end = position;
      records.shape = extents{records.end - records.begin};
      header.entries.push_back(std::move(records));
    }
    auto& file = plan.files[f];
    file.header = encode_safetensors_header(header, 4096);
    if (f == 0) widen_safetensors_header(file.header, least_header);
    file.bytes = file.header.size() + position;
    for (auto i = from; i < next; ++i)
      for (std::size_t k = 0; k < runs[i].parts.size(); ++k) {
        const auto [member, item] = runs[i].parts[k];
        plan.places[member][item] = {f,
                                     file.header.size() + header.entries[i - from].begin + runs[i].begins[k]};
      }
    if (f != 0) continue;
    for (auto& body : plan.bodies) body += file.header.size() + data_end;
    plan.headers = file.header.size() + data_end + record_bytes;
  }
  return plan;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
