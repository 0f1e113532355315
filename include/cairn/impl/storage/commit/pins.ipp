// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/storage/commit/pins.hpp>
#include <cairn/storage/commit/store_look.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY void step_pins::add(std::int64_t step) const {
  static_cast<void>(store_.publish_new(key_of(step), {}));
}

CAIRN_BODY std::vector<std::int64_t> step_pins::steps() const {
  std::vector<std::int64_t> found;
  for (const auto& key : store_.keys(std::string(prefix)))
    if (const auto step = step_of(key)) found.push_back(*step);
  detail::sort(found);
  return found;
}

CAIRN_BODY void step_pins::clean(const store_look& look) const {
  if (store_.tracks_writers()) static_cast<void>(discard_dead(store_, look.unfinished, prefix));
}

CAIRN_BODY std::string step_pins::key_of(std::int64_t step) {
  return std::string(prefix) + step_directory(step).substr(std::string_view("step-").size());
}

CAIRN_BODY std::optional<std::int64_t> step_pins::step_of(std::string_view key) noexcept {
  if (!key.starts_with(prefix)) return std::nullopt;
  const auto step = parse_padded(key.substr(prefix.size()), 8, INT64_MAX);
  return step ? std::optional(static_cast<std::int64_t>(*step)) : std::nullopt;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
