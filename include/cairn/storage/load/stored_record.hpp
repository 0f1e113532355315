// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/record.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <vector>

namespace cairn {
inline namespace v1 {

struct manifest_record;

namespace detail {
/// The most bytes of a record that are read.
inline constexpr std::uint64_t max_record_bytes = std::uint64_t{4} << 30;
}  // namespace detail

/// A rank's record with an index of its items.
class stored_record {
 public:
  /// @throws corrupt_error if the bytes are not the record that the manifest names.
  stored_record(const manifest_record& named, std::span<const std::byte> bytes, const std::string& key);
  /// The record as the rank wrote it.
  [[nodiscard]] const record& content() const noexcept { return record_; }
  /// The item of a key, or nullptr. O(log items).
  [[nodiscard]] const record_item* find(const item_key& key) const noexcept;

 private:
  static bool less(const item_key& a, const item_key& b) noexcept {
    return std::tie(a.name, a.box) < std::tie(b.name, b.box);
  }
  record record_;
  std::vector<std::uint32_t> order_;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/load/stored_record.ipp>
#endif
