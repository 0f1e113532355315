// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/model/record.hpp>
#include <cairn/storage/commit/leases.hpp>
#include <cairn/storage/commit/restart_notes.hpp>
#include <cairn/storage/commit/run_signs.hpp>
#include <cairn/storage/commit/store_look.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY void restart_notes::leave(const run_id& run, std::int64_t step) {
  const auto name = step_leases::own_name();
  store_.put_new(key_of(run, step), std::as_bytes(std::span(name)));
}

CAIRN_BODY bool restart_notes::stands_on(const store_look& look, std::int64_t step,
                                         const std::string& key) const {
  if (!step_leases::was_read(look, step)) return false;
  constexpr std::uint64_t longest_name = 128;
  const auto bytes = store_.read_all(key, longest_name);
  if (!bytes) return true;
  const std::string_view name(reinterpret_cast<const char*>(bytes->data()), bytes->size());
  return !name.empty() && step_leases::was_read(look, step, name);
}

CAIRN_BODY std::vector<std::int64_t> restart_notes::steps() {
  static constexpr std::string_view made[] = {prefix};
  store_look look;
  look_together(store_, {[&] { look.unfinished = store_.unfinished(made); },
                         [&] { look.restarts = store_.keys(prefix); }});
  return steps(look, nullptr);
}

CAIRN_BODY std::vector<std::int64_t> restart_notes::steps(const store_look& look, const run_id& self) {
  return steps(look, &self);
}

CAIRN_BODY std::vector<std::int64_t> restart_notes::steps(const store_look& look, const run_id* self) {
  static_cast<void>(discard_dead(store_, look.unfinished, prefix));  // of runs that ended while they left one
  std::vector<std::int64_t> found;
  if (look.restarts)
    for (const auto& key : *look.restarts)
      if (const auto step = step_of(key)) {
        const auto run = parse_run(std::string_view(key).substr(key.rfind('.') + 1));
        const bool lives =
            self != nullptr && *run != *self && (run_signs::lived(look, *run) || stands_on(look, *step, key));
        if (!lives) found.push_back(*step);
      }
  detail::sort(found);
  return found;
}

CAIRN_BODY std::size_t restart_notes::remove_up_to(std::int64_t last) {
  std::size_t left = 0;
  for (const auto& key : store_.keys(prefix)) {
    const auto step = step_of(key);
    if (step && *step <= last)
      store_.remove(key);
    else if (step)
      ++left;
  }
  return left;
}

CAIRN_BODY std::string restart_notes::key_of(const run_id& run, std::int64_t step) {
  char text[32];
  std::snprintf(text, sizeof text, "%08lld.", static_cast<long long>(step));
  return prefix + (text + to_string(run));
}

CAIRN_BODY std::optional<std::int64_t> restart_notes::step_of(std::string_view key) noexcept {
  if (!key.starts_with(prefix)) return std::nullopt;
  key.remove_prefix(std::string_view(prefix).size());
  const auto dot = key.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const auto step = parse_padded(key.substr(0, dot), 8, INT64_MAX);
  const auto run = key.substr(dot + 1);
  if (!step || !parse_run(run)) return std::nullopt;
  return static_cast<std::int64_t>(*step);
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
