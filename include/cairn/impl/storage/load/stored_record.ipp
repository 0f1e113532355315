// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/item.hpp>
#include <cairn/model/record.hpp>
#include <cairn/storage/load/stored_record.hpp>
#include <cairn/storage/manifest/manifest.hpp>
#include <cairn/storage/manifest/record_format.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace cairn {
inline namespace v1 {

CAIRN_BODY stored_record::stored_record(const manifest_record& named, std::span<const std::byte> bytes,
                                        const std::string& key)
    : record_(decode_record(bytes, key, named.record_digest)) {
  if (record_.step != named.step || record_.attempt != named.attempt || record_.rank != named.rank ||
      record_.files.size() != named.files)
    fail(error_id::corrupt_identity, "a record is of another rank or save than the manifest says",
         {.file = key});
  order_.resize(record_.items.size());
  for (std::size_t i = 0; i < order_.size(); ++i) order_[i] = static_cast<std::uint32_t>(i);
  detail::sort(order_, [&](auto a, auto b) { return less(record_.items[a].key, record_.items[b].key); });
}

CAIRN_BODY const record_item* stored_record::find(const item_key& key) const noexcept {
  const auto at = std::lower_bound(order_.begin(), order_.end(), key,
                                   [&](auto i, const item_key& k) { return less(record_.items[i].key, k); });
  return at != order_.end() && record_.items[*at].key == key ? &record_.items[*at] : nullptr;
}

}  // namespace v1
}  // namespace cairn
