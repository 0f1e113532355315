// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/plan.hpp>
#include <cairn/observe/event_reporter.hpp>
#include <cairn/plan/near_names.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What a load left as it was: the first of them by name, and how many.
inline void warn_of_kept_items(event_reporter& told, const load_report& report, std::int64_t step) {
  constexpr std::size_t max_named = 5;
  const auto first_of = [&](const std::vector<std::string>& names, auto&& text) {
    std::string all;
    for (std::size_t i = 0; i < names.size() && i < max_named; ++i)
      all.append(i == 0 ? ": " : ", ").append(text(names[i]));
    if (names.size() > max_named) all += " and " + std::to_string(names.size() - max_named) + " more";
    return all;
  };
  const auto count = [](std::size_t n, const char* one, const char* more) {
    return n == 1 ? one : std::to_string(n) + more;
  };
  if (const auto& names = report.missing; !names.empty())
    told.warned(count(names.size(), "an item is not in the checkpoint of step ",
                      " items are not in the checkpoint of step ") +
                std::to_string(step) +
                (names.size() == 1 ? " and keeps its value" : " and keep their values") +
                first_of(names, [&](const std::string& name) {
                  near_names similar(name);
                  for (const auto& other : report.unexpected) similar.offer(other);
                  const auto others = similar.text();
                  return name + (others.empty() ? "" : " (the checkpoint has " + others + ")");
                }));
  if (const auto& names = report.mismatched; !names.empty())
    told.warned(
        count(names.size(), "an item of the checkpoint of step ", " items of the checkpoint of step ") +
        std::to_string(step) +
        (names.size() == 1 ? " does not fit and keeps its value" : " do not fit and keep their values") +
        first_of(names, [](const std::string& name) { return name; }));
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
