// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/communicator.hpp>
#include <cairn/concepts/read_exchange.hpp>
#include <cairn/concepts/storage.hpp>
#include <cairn/model/rank_set.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/function_ref.hpp>
#include <cairn/system/sorted_map.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace cairn {
inline namespace v1 {

CAIRN_BODY raw_bytes::raw_bytes(std::size_t bytes) : data(new std::byte[bytes]), size(bytes) {}

CAIRN_BODY void assign_readers(std::vector<shared_read>& reads) {
  // Short stripes: in every window of an exchange all ranks have something to read.
  constexpr auto stripe = digest_block_bytes;
  detail::sorted_map<const rank_set*, std::uint64_t, by_ranks> bytes_before;
  for (auto& u : reads) {
    auto& before = bytes_before[u.ranks];
    const auto n = u.ranks->ranks.size();
    u.before = before;
    // Small sets of reads begin with different ranks.
    u.reader = u.ranks->ranks[static_cast<std::size_t>((u.ranks->digest % n + before / stripe) % n)];
    before += u.bytes;
  }
  detail::sort(reads, [](const shared_read& a, const shared_read& b) {
    if (a.before != b.before) return a.before < b.before;
    return a.ranks->digest < b.ranks->digest;
  });
}

}  // namespace v1
}  // namespace cairn
