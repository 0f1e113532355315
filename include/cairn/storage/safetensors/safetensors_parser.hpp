// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/extents.hpp>
#include <cairn/storage/safetensors/safetensors_entry.hpp>
#include <cairn/system/json_parser.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Collects an array of at most eight numbers.
class number_list {
 public:
  void begin() noexcept { size_ = 0; }
  [[nodiscard]] bool add(std::uint64_t value) noexcept;
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::uint64_t operator[](std::size_t i) const noexcept { return values_[i]; }
  /// False if a number is above 2^63 - 1.
  [[nodiscard]] bool to_extents(extents& out) const;

 private:
  std::array<std::uint64_t, extents::max_rank> values_{};
  std::size_t size_ = 0;
};

/// The header's JSON: {"__metadata__": {text: text}, key: {"dtype": text, "shape": [..], "data_offsets":
/// [b, e]}}.
class safetensors_events final : public json_events {
 public:
  std::vector<safetensors_entry> entries;
  std::vector<std::pair<std::string, std::string>> metadata;
  bool has_metadata = false;
  std::string unknown_dtype;  ///< why a text was refused: this one is no dtype

  /// The tensor that was read last, for messages; empty where there was none.
  [[nodiscard]] std::string last_key() const {
    return entries.empty() ? std::string() : entries.back().key.substr(0, 200);
  }

  const char* begin_object() override;
  const char* key(std::string_view text) override;
  const char* end_object() override;
  const char* begin_array() override;
  const char* end_array() override;
  const char* string(std::string_view text) override;
  const char* number(std::uint64_t value) override;
  const char* other() override;

 private:
  enum class field : unsigned { none = 0, dtype, shape, offsets };
  static constexpr unsigned all_fields = 0b1110;
  number_list numbers_;
  int depth_ = 0;
  unsigned seen_ = 0;
  field field_ = field::none;
  bool in_metadata_ = false;
  bool in_array_ = false;
};

/// The text of DCP_SHARDING_INFO: {key: {"saved_offsets": [..], "global_shape": [..], ...}}. Up to sixteen
/// unknown fields of an entry are skipped where they hold no objects.
class sharding_events final : public json_events {
 public:
  struct place {
    std::string key;
    extents offsets;
    extents global;
    bool has_offsets = false;
    bool has_global = false;
  };
  std::vector<place> places;

  const char* begin_object() override;
  const char* key(std::string_view text) override;
  const char* end_object() override;
  const char* begin_array() override;
  const char* end_array() override;
  const char* string(std::string_view) override { return other(); }
  const char* number(std::uint64_t value) override;
  const char* other() override;

 private:
  [[nodiscard]] bool wanted() const noexcept { return depth_ >= 2 && (offsets_ || global_); }
  number_list numbers_;
  std::vector<std::string> unknown_;
  int depth_ = 0;
  bool offsets_ = false;
  bool global_ = false;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/safetensors/safetensors_parser.ipp>
#endif
