// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/dtype.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/storage/safetensors/safetensors_entry.hpp>
#include <cairn/system/json_parser.hpp>

#include <algorithm>
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
  [[nodiscard]] bool add(std::uint64_t value) noexcept {
    if (size_ == values_.size()) return false;
    values_[size_++] = value;
    return true;
  }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::uint64_t operator[](std::size_t i) const noexcept { return values_[i]; }
  /// False if a number is above 2^63 - 1.
  [[nodiscard]] bool to_extents(extents& out) const {
    out = extents::filled(static_cast<int>(size_), 0);
    for (std::size_t i = 0; i < size_; ++i) {
      if (values_[i] > INT64_MAX) return false;
      out.set(static_cast<int>(i), static_cast<std::int64_t>(values_[i]));
    }
    return true;
  }

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

  const char* begin_object() override {
    if (++depth_ > 2 || (depth_ == 2 && in_array_)) return "has an object where none belongs";
    if (depth_ == 2 && !in_metadata_) seen_ = 0, field_ = field::none;
    return nullptr;
  }
  const char* key(std::string_view text) override {
    if (depth_ == 1) {
      in_metadata_ = text == "__metadata__";
      if (in_metadata_) {
        if (has_metadata) return "has __metadata__ twice";
        has_metadata = true;
      } else {
        entries.emplace_back().key = text;
      }
      return nullptr;
    }
    if (in_metadata_) {
      metadata.emplace_back(text, std::string_view{});
      return nullptr;
    }
    field_ = text == "dtype"          ? field::dtype
             : text == "shape"        ? field::shape
             : text == "data_offsets" ? field::offsets
                                      : field::none;
    if (field_ == field::none) return "describes a tensor with an unknown field";
    const auto bit = 1u << static_cast<unsigned>(field_);
    if ((seen_ & bit) != 0) return "describes a tensor with a field twice";
    seen_ |= bit;
    return nullptr;
  }
  const char* end_object() override {
    if (depth_-- == 2 && !in_metadata_ && seen_ != all_fields)
      return "describes a tensor without dtype, shape or data_offsets";
    return nullptr;
  }
  const char* begin_array() override {
    if (depth_ != 2 || in_metadata_ || in_array_ || (field_ != field::shape && field_ != field::offsets))
      return "has an array where none belongs";
    in_array_ = true;
    numbers_.begin();
    return nullptr;
  }
  const char* end_array() override {
    in_array_ = false;
    auto& e = entries.back();
    if (field_ == field::shape)
      return numbers_.to_extents(e.shape) ? nullptr : "has a dimension above 2^63 - 1";
    if (numbers_.size() != 2) return "has data_offsets that are not two numbers";
    e.begin = numbers_[0];
    e.end = numbers_[1];
    return nullptr;
  }
  const char* string(std::string_view text) override {
    if (depth_ != 2 || in_array_) return "has a text where none belongs";
    if (in_metadata_) {
      metadata.back().second = text;
      return nullptr;
    }
    if (field_ != field::dtype) return "has a text where none belongs";
    const auto type = dtype_from_name(text);
    if (!type) return "has a tensor of an unknown dtype";
    entries.back().type = *type;
    return nullptr;
  }
  const char* number(std::uint64_t value) override {
    if (!in_array_) return "has a number where none belongs";
    if (!numbers_.add(value)) return "has a tensor of more than eight dimensions";
    return nullptr;
  }
  const char* other() override {
    return in_array_ ? "has a shape or offset that is not a plain integer"
                     : "has a value of a type that does not belong there";
  }

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

  const char* begin_object() override {
    unknown_.clear();
    return ++depth_ > 2 ? "has an object where none belongs" : nullptr;
  }
  const char* key(std::string_view text) override {
    if (depth_ == 1) {
      places.emplace_back().key = text;
      return nullptr;
    }
    offsets_ = text == "saved_offsets";
    global_ = text == "global_shape";
    if ((offsets_ && places.back().has_offsets) || (global_ && places.back().has_global))
      return "has a field twice";
    if (offsets_ || global_) return nullptr;
    if (std::find(unknown_.begin(), unknown_.end(), text) != unknown_.end()) return "has a field twice";
    unknown_.emplace_back(text);
    return unknown_.size() > 16 ? "has too many unknown fields" : nullptr;
  }
  const char* end_object() override {
    if (--depth_ == 1 && !places.back().has_offsets) return "has an entry without saved_offsets";
    return nullptr;
  }
  const char* begin_array() override {
    if (depth_ < 2 || (depth_ > 2 && wanted())) return "has an array where none belongs";
    ++depth_;
    numbers_.begin();
    return nullptr;
  }
  const char* end_array() override {
    if (--depth_ != 2 || !wanted()) return nullptr;
    auto& p = places.back();
    (offsets_ ? p.has_offsets : p.has_global) = true;
    const bool fits = numbers_.to_extents(offsets_ ? p.offsets : p.global);
    offsets_ = global_ = false;
    return fits ? nullptr : "has a number above 2^63 - 1";
  }
  const char* string(std::string_view) override { return other(); }
  const char* number(std::uint64_t value) override {
    if (depth_ < 2 || (depth_ == 2 && wanted())) return "has a number where none belongs";
    if (wanted() && !numbers_.add(value)) return "has more than eight dimensions";
    return nullptr;
  }
  const char* other() override {
    return depth_ < 2 || wanted() ? "has a value of a type that does not belong there" : nullptr;
  }

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
