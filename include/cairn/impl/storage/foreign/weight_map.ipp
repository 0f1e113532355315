// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/storage/foreign/weight_map.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/json_parser.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY const char* weight_map_events::begin_object() {
  ++depth_;
  return in_map_ && depth_ > 2 ? "names something else than a file for a tensor" : nullptr;
}

CAIRN_BODY const char* weight_map_events::key(std::string_view text) {
  if (depth_ == 1) {
    in_map_ = text == "weight_map";
    if (in_map_ && has_map) return "has a weight_map twice";
    has_map |= in_map_;
  } else if (in_map_) {
    files.emplace_back(text, std::string_view{});
  }
  return nullptr;
}

CAIRN_BODY const char* weight_map_events::end_object() {
  if (--depth_ == 1) in_map_ = false;
  return nullptr;
}

CAIRN_BODY const char* weight_map_events::begin_array() {
  ++depth_;
  return in_map_ || depth_ == 1 ? "has an array where none belongs" : nullptr;
}

CAIRN_BODY const char* weight_map_events::end_array() {
  --depth_;
  return nullptr;
}

CAIRN_BODY const char* weight_map_events::string(std::string_view text) {
  if (!in_map_) return depth_ == 0 ? "is not a JSON object" : nullptr;
  if (depth_ != 2) return "has a weight_map that is not an object";
  if (text.empty()) return "names no file for a tensor";
  files.back().second = text;
  return nullptr;
}

CAIRN_BODY const char* weight_map_events::number(std::uint64_t) {
  return other();
}

CAIRN_BODY const char* weight_map_events::other() {
  if (in_map_) return "names something else than a file for a tensor";
  return depth_ == 0 ? "is not a JSON object" : nullptr;
}

CAIRN_BODY std::vector<std::pair<std::string, std::string>> parse_weight_map(std::string_view text,
                                                                             std::string_view file) {
  const auto bad = [&](std::string_view what, std::size_t offset, std::string item = {}) {
    fail(error_id::corrupt_bad_json, "the index of safetensors files " + std::string(what),
         {.item = std::move(item), .file = std::string(file), .offset = static_cast<std::int64_t>(offset)});
  };
  weight_map_events events;
  if (const auto problem = parse_json(text, events); problem.what != nullptr)
    bad(problem.what, problem.offset);
  if (!events.has_map) bad("has no weight_map", 0);
  auto files = std::move(events.files);
  detail::sort(files);
  for (std::size_t i = 1; i < files.size(); ++i)
    if (files[i].first == files[i - 1].first) bad("names a tensor twice", 0, files[i].first.substr(0, 200));
  return files;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
