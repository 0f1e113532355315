// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/json_parser.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// The text of an index of Hugging Face: {"weight_map": {tensor: file}, ...}; what else it has is skipped.
class weight_map_events final : public json_events {
 public:
  std::vector<std::pair<std::string, std::string>> files;  ///< tensor and file, in the order of the text
  bool has_map = false;

  const char* begin_object() override;
  const char* key(std::string_view text) override;
  const char* end_object() override;
  const char* begin_array() override;
  const char* end_array() override;
  const char* string(std::string_view text) override;
  const char* number(std::uint64_t value) override;
  const char* other() override;

 private:
  int depth_ = 0;
  bool in_map_ = false;
};

/// The pairs of an index, sorted by tensor, each tensor once. @throws corrupt_error naming the file
[[nodiscard]] std::vector<std::pair<std::string, std::string>> parse_weight_map(std::string_view text,
                                                                                std::string_view file);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/foreign/weight_map.ipp>
#endif
