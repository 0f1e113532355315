// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/dtype.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/storage/safetensors/safetensors_entry.hpp>
#include <cairn/storage/safetensors/safetensors_parser.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/json_parser.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY bool number_list::add(std::uint64_t value) noexcept {
  if (size_ == values_.size()) return false;
  values_[size_++] = value;
  return true;
}

CAIRN_BODY bool number_list::to_extents(extents& out) const {
  out = extents::filled(static_cast<int>(size_), 0);
  for (std::size_t i = 0; i < size_; ++i) {
    if (values_[i] > INT64_MAX) return false;
    out.set(static_cast<int>(i), static_cast<std::int64_t>(values_[i]));
  }
  return true;
}

CAIRN_BODY const char* safetensors_events::begin_object() {
  if (++depth_ > 2 || (depth_ == 2 && in_array_)) return "has an object where none belongs";
  if (depth_ == 2 && !in_metadata_) seen_ = 0, field_ = field::none;
  return nullptr;
}

CAIRN_BODY const char* safetensors_events::key(std::string_view text) {
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

CAIRN_BODY const char* safetensors_events::end_object() {
  if (depth_-- == 2 && !in_metadata_ && seen_ != all_fields)
    return "describes a tensor without dtype, shape or data_offsets";
  return nullptr;
}

CAIRN_BODY const char* safetensors_events::begin_array() {
  if (depth_ != 2 || in_metadata_ || in_array_ || (field_ != field::shape && field_ != field::offsets))
    return "has an array where none belongs";
  in_array_ = true;
  numbers_.begin();
  return nullptr;
}

CAIRN_BODY const char* safetensors_events::end_array() {
  in_array_ = false;
  auto& e = entries.back();
  if (field_ == field::shape)
    return numbers_.to_extents(e.shape) ? nullptr : "has a dimension above 2^63 - 1";
  if (numbers_.size() != 2) return "has data_offsets that are not two numbers";
  e.begin = numbers_[0];
  e.end = numbers_[1];
  return nullptr;
}

CAIRN_BODY const char* safetensors_events::string(std::string_view text) {
  if (depth_ != 2 || in_array_) return "has a text where none belongs";
  if (in_metadata_) {
    metadata.back().second = text;
    return nullptr;
  }
  if (field_ != field::dtype) return "has a text where none belongs";
  const auto type = dtype_from_name(text);
  if (!type) {
    unknown_dtype = text.substr(0, 64);
    return "has a tensor of a dtype that cairn does not know";
  }
  entries.back().type = *type;
  return nullptr;
}

CAIRN_BODY const char* safetensors_events::number(std::uint64_t value) {
  if (!in_array_) return "has a number where none belongs";
  if (!numbers_.add(value)) return "has a tensor of more than eight dimensions";
  return nullptr;
}

CAIRN_BODY const char* safetensors_events::other() {
  return in_array_ ? "has a shape or offset that is not a plain integer"
                   : "has a value of a type that does not belong there";
}

CAIRN_BODY const char* sharding_events::begin_object() {
  unknown_.clear();
  return ++depth_ > 2 ? "has an object where none belongs" : nullptr;
}

CAIRN_BODY const char* sharding_events::key(std::string_view text) {
  if (depth_ == 1) {
    places.emplace_back().key = text;
    return nullptr;
  }
  offsets_ = text == "saved_offsets";
  global_ = text == "global_shape";
  if ((offsets_ && places.back().has_offsets) || (global_ && places.back().has_global))
    return "has a field twice";
  if (offsets_ || global_) return nullptr;
  if (detail::contains(unknown_, text)) return "has a field twice";
  unknown_.emplace_back(text);
  return unknown_.size() > 16 ? "has too many unknown fields" : nullptr;
}

CAIRN_BODY const char* sharding_events::end_object() {
  if (--depth_ == 1 && !places.back().has_offsets) return "has an entry without saved_offsets";
  return nullptr;
}

CAIRN_BODY const char* sharding_events::begin_array() {
  if (depth_ < 2 || (depth_ > 2 && wanted())) return "has an array where none belongs";
  ++depth_;
  numbers_.begin();
  return nullptr;
}

CAIRN_BODY const char* sharding_events::end_array() {
  if (--depth_ != 2 || !wanted()) return nullptr;
  auto& p = places.back();
  (offsets_ ? p.has_offsets : p.has_global) = true;
  const bool fits = numbers_.to_extents(offsets_ ? p.offsets : p.global);
  offsets_ = global_ = false;
  return fits ? nullptr : "has a number above 2^63 - 1";
}

CAIRN_BODY const char* sharding_events::number(std::uint64_t value) {
  if (depth_ < 2 || (depth_ == 2 && wanted())) return "has a number where none belongs";
  if (wanted() && !numbers_.add(value)) return "has more than eight dimensions";
  return nullptr;
}

CAIRN_BODY const char* sharding_events::other() {
  return depth_ < 2 || wanted() ? "has a value of a type that does not belong there" : nullptr;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
