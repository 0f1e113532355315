// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/model/record.hpp>
#include <cairn/storage/commit/leases.hpp>
#include <cairn/storage/commit/run_signs.hpp>
#include <cairn/storage/commit/store_look.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/system/algorithm.hpp>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY std::optional<run_id> parse_run(std::string_view text) noexcept {
  if (text.size() != 32) return std::nullopt;
  const auto high = parse_hex16(text.substr(0, 16)), low = parse_hex16(text.substr(16));
  return high && low ? std::optional<run_id>({*high, *low}) : std::nullopt;
}

CAIRN_BODY std::shared_ptr<void> run_signs::show(const run_id& run) {
  if (!store_.tracks_writers()) return nullptr;
  return show_lease(store_, std::string(live_run_prefix) + to_string(run));
}

CAIRN_BODY std::vector<run_id> run_signs::living() {
  std::vector<run_id> found;
  if (!store_.tracks_writers()) return found;
  for (const auto& key : store_.live_writers(std::string(live_run_prefix)))
    if (const auto run = parse_run(std::string_view(key).substr(live_run_prefix.size(), 32)))
      found.push_back(*run);
  return found;
}

CAIRN_BODY bool run_signs::lived(const store_look& look, const run_id& run) {
  const auto sign = std::string(live_run_prefix) + to_string(run);
  return detail::any_of(look.unfinished, [&](const auto& u) { return u.lives && u.key.starts_with(sign); });
}

CAIRN_BODY void run_signs::clean(const store_look& look, const run_id& run) {
  if (store_.tracks_writers() && lived(look, run))
    static_cast<void>(discard_dead(store_, look.unfinished, live_run_prefix));
}

CAIRN_BODY bool run_signs::has_died(const run_id& run) {
  return !store_.leftovers(std::string(live_run_prefix) + to_string(run)).empty();
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
