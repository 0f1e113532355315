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
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

CAIRN_BODY raw_bytes::raw_bytes(std::size_t bytes) : data(new std::byte[bytes]), size(bytes) {}

CAIRN_BODY void assign_readers(std::vector<shared_read>& reads) {
  // Short stripes: in every window of an exchange all ranks have something to read.
  constexpr auto stripe = digest_block_bytes;
  struct by_both {
    bool operator()(const std::pair<const rank_set*, const rank_set*>& a,
                    const std::pair<const rank_set*, const rank_set*>& b) const noexcept {
      if (by_ranks()(a.first, b.first)) return true;
      if (by_ranks()(b.first, a.first) || a.second == b.second) return false;
      return a.second == nullptr || (b.second != nullptr && by_ranks()(a.second, b.second));
    }
  };
  detail::sorted_map<std::pair<const rank_set*, const rank_set*>, std::uint64_t, by_both> bytes_before;
  for (auto& u : reads) {
    auto& before = bytes_before[{u.ranks, u.holders}];
    const auto& readers = (u.holders != nullptr ? u.holders : u.ranks)->ranks;
    const auto n = readers.size();
    u.before = before;
    u.tie = u.ranks->digest;
    if (u.holders != nullptr) u.tie ^= u.holders->digest * 0x9e3779b97f4a7c15U;
    // Small sets of reads begin with different ranks.
    u.reader = readers[static_cast<std::size_t>((u.ranks->digest % n + before / stripe) % n)];
    before += u.bytes;
  }
  detail::sort(reads, [](const shared_read& a, const shared_read& b) {
    return a.before != b.before ? a.before < b.before : a.tie < b.tie;
  });
}

}  // namespace v1
}  // namespace cairn
