// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the programs for checkpoints have in common: the numbers that they end with, and texts.
#include <cairn/system/error.hpp>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <string_view>

namespace tools {

/// What the user called: `inspect`, or `cairn-inspect` where it is installed.
inline const char* program_name() noexcept {
  return program_invocation_short_name;
}

/// The exit status. Scripts rely on the numbers: they do not change.
enum exit_status : int {
  fine = 0,
  failed = 1,         ///< another failure; ended by a signal
  wrong_options = 2,  ///< the command line
  nothing_there = 3,  ///< no directory, no checkpoint, no such step or item
  damaged = 4,        ///< a checkpoint is not what was written
  unreadable = 5,  ///< permission, I/O error, a limit, another build's: nothing is known about the checkpoint
  not_reached = 6,  ///< inspect --watch ended before --until
  not_finite = 7,   ///< stat found a NaN, or what --fail-on says
};
inline constexpr const char* status_help =
    "Exit status: 0 all is well; 1 another failure, or a signal; 2 wrong options; 3 nothing there: no\n"
    "checkpoint, no such step or item; 4 a checkpoint is damaged; 5 something could not be read or written:\n"
    "permission, I/O error, a limit.";

/// Damage counts more than what could not be read, and both more than the others.
inline exit_status worse(exit_status a, exit_status b) {
  for (const auto first : {damaged, unreadable})
    if (a == first || b == first) return first;
  return std::max(a, b);
}
inline exit_status status_of(const cairn::error& error) {
  // Another build reads it: nobody should go back to an older one.
  if (error.id() == cairn::error_id::corrupt_unsupported_feature ||
      error.id() == cairn::error_id::corrupt_unsupported_version)
    return unreadable;
  if (error.kind() == cairn::error_kind::corrupt) return damaged;
  if (error.id() == cairn::error_id::usage_unknown_name) return nothing_there;
  if (error.kind() == cairn::error_kind::usage) return wrong_options;
  if (error.kind() != cairn::error_kind::storage) return failed;
  const bool absent = error.id() == cairn::error_id::storage_not_committed ||
                      error.id() == cairn::error_id::storage_not_found;
  return absent ? nothing_there : unreadable;
}

/// What is the matter with a checkpoint of which `error` came, for people and as the name of a member in JSON.
struct fault_words {
  const char* text;
  const char* member;
};
inline fault_words fault_of(const cairn::error& error) {
  if (status_of(error) == damaged) return {"damaged", "damaged"};
  return {"cannot be read", "unreadable"};
}

inline std::string size_text(std::uint64_t bytes) {
  const char* const units[] = {"bytes", "kB", "MB", "GB", "TB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1000 && unit < 4; ++unit) value /= 1000;
  char text[40];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
  return text;
}

/// The shortest text that is read back as this number.
inline std::string number_text(double value) {
  char text[40];
  for (int digits = 6; digits <= 17; ++digits) {
    std::snprintf(text, sizeof text, "%.*g", digits, value);
    if (std::strtod(text, nullptr) == value) break;
  }
  return text;
}

inline std::string count_text(std::uint64_t count, std::string_view one) {
  return std::to_string(count) + " " + std::string(one) + (count == 1 ? "" : "s");
}

}  // namespace tools
