// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/annotations.hpp>
#include <cairn/model/retention_policy.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/finite.hpp>
#include <cairn/system/vector.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

CAIRN_BODY void retention_policy::add(const retention_policy& other) {
  if (other.last_) {
    const auto scrub = last_ && last_->scrub ? last_->scrub : other.last_->scrub;
    // What check() refuses stays.
    const bool none = other.last_->count == 0 || (last_ && last_->count == 0);
    last_ = keep_last(none ? 0 : std::max(last_ ? last_->count : 0, other.last_->count));
    last_->scrub = scrub;
  }
  every_.insert(every_.end(), other.every_.begin(), other.every_.end());
  best_.insert(best_.end(), other.best_.begin(), other.best_.end());
  if (!other.seconds_ || (seconds_ && !(*seconds_ >= 0))) return;
  seconds_ = seconds_ && *other.seconds_ >= 0 ? std::max(*seconds_, *other.seconds_) : *other.seconds_;
}

CAIRN_BODY void retention_policy::check() const {
  if (last_ && last_->count == 0)
    fail(error_id::usage_bad_option,
         "keep_last(n) keeps the newest n, at least 1; leave keep_last out to keep all of them");
  for (const auto n : every_)
    if (n < 1)
      fail(error_id::usage_bad_option, "keep_every(n) keeps the steps that n divides; n is at least 1",
           {.got = std::to_string(n)});
  for (const auto& b : best_)
    if (b.count == 0 || b.name.empty())
      fail(error_id::usage_bad_option,
           "keep_best names an annotation and how many checkpoints stay, at least 1", {.item = b.name});
  if (seconds_ && !(*seconds_ >= 0))
    fail(error_id::usage_bad_option, "keep_within takes a time that is not negative",
         {.got = std::to_string(*seconds_)});
}

namespace detail {
/// Nothing where a checkpoint has no number in this annotation.
[[nodiscard]] inline std::optional<double> annotated_number(const retained_checkpoint& of,
                                                            std::string_view name) {
  const auto* said = of.annotations.find(name);
  const auto value = said != nullptr ? said->number() : std::nullopt;
  return value && !is_nan(*value) ? value : std::nullopt;
}
}  // namespace detail

CAIRN_BODY std::vector<std::string> retention_policy::missing_annotations(
    const std::vector<retained_checkpoint>& line) const {
  std::vector<std::string> names;
  for (const auto& rule : best_) {
    bool any_readable = false, found = false;
    for (const auto& each : line) {
      any_readable = any_readable || each.readable;
      found = found || detail::annotated_number(each, rule.name);
    }
    if (any_readable && !found) names.push_back(rule.name);
  }
  return names;
}

CAIRN_BODY std::vector<std::string> retention_policy::reasons(const std::vector<retained_checkpoint>& line,
                                                              std::int64_t now) const {
  std::vector<std::string> why(line.size());
  const auto keep = [&](std::size_t i, const std::string& reason) {
    if (why[i].empty()) why[i] = reason;
  };
  if (last_) {
    const auto reason = "one of the last " + std::to_string(last_->count);
    std::size_t counted = 0;
    for (auto i = line.size(); i > 0 && counted < last_->count; --i) {
      keep(i - 1, reason);
      counted += line[i - 1].counts;
    }
    // Nothing goes before as many as are wanted are known to be good, whatever the other policies say.
    if (last_->scrub && counted < last_->count)
      for (std::size_t i = 0; i < line.size(); ++i) keep(i, reason);
  }
  for (const auto n : every_)
    for (std::size_t i = 0; i < line.size(); ++i)
      if (line[i].step % n == 0) keep(i, "divisible by " + std::to_string(n));
  for (const auto& rule : best_) {
    detail::vector<std::pair<double, std::size_t>> found;
    for (std::size_t i = 0; i < line.size(); ++i) {
      if (!line[i].readable) keep(i, "its manifest cannot be read");
      if (const auto value = detail::annotated_number(line[i], rule.name))
        found.push_back({rule.order == best::lowest ? *value : -*value, line.size() - i});
    }
    detail::sort(found);
    for (std::size_t k = 0; k < found.size() && k < rule.count; ++k)
      keep(line.size() - found[k].second,
           "one of the best " + std::to_string(rule.count) + " by " + rule.name);
  }
  if (seconds_)
    for (std::size_t i = 0; i < line.size(); ++i) {
      const auto at = line[i].committed_at;
      if (!line[i].readable || at == 0)
        keep(i, "nobody knows when it was committed");
      else if (static_cast<double>(now) - static_cast<double>(at) <= *seconds_)
        keep(i, "it is young enough");
    }
  return why;
}

}  // namespace v1
}  // namespace cairn
