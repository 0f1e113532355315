// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/redundancy/block_table.hpp>
#include <cairn/system/digest.hpp>

#include <algorithm>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY std::size_t block_table::block_at(std::uint64_t offset) const noexcept {
  return static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), offset) - ends_.begin());
}
CAIRN_BODY bool block_table::fits(std::size_t block, std::span<const std::byte> bytes) const noexcept {
  return bytes.size() == end(block) - begin(block) && digest(bytes) == digests_[block];
}

CAIRN_BODY void add_blocks(block_table& table, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto part = bytes.first(std::min<std::size_t>(bytes.size(), digest_block_bytes));
    table.add(part.size(), digest(part));
    bytes = bytes.subspan(part.size());
  }
}
CAIRN_BODY block_table blocks_of(std::span<const std::byte> bytes) {
  block_table table;
  add_blocks(table, bytes);
  return table;
}
CAIRN_BODY void encode(wire_writer& out, const block_table& table) {
  out.put(static_cast<std::uint64_t>(table.ends_.size()));
  for (std::size_t i = 0; i < table.ends_.size(); ++i)
    out.put(static_cast<std::uint32_t>(table.end(i) - table.begin(i))).put(table.digests_[i]);
}
CAIRN_BODY block_table decode_block_table(wire_reader& in) {
  block_table table;
  const auto count = in.get_count(sizeof(std::uint32_t) + sizeof(std::uint64_t));
  table.ends_.reserve(count);
  table.digests_.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto bytes = in.get<std::uint32_t>();
    if (bytes == 0 || bytes > digest_block_bytes) in.fail_here("a block has an impossible length");
    table.add(bytes, in.get<std::uint64_t>());
  }
  return table;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
