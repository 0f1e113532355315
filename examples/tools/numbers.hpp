// SPDX-License-Identifier: Apache-2.0
#pragma once
// Numbers of a command line. CLI11 takes 00000100 for octal, and what an integer has no room for as its largest.
#include <CLI/CLI.hpp>

#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <system_error>

namespace tools {

/// For an option's transform(): a decimal number of at least `least`; zeros may lead, as in the names of steps.
inline CLI::Validator whole_number(std::int64_t least) {
  return {[least](std::string& text) {
            std::int64_t value = 0;
            const char* const last = text.data() + text.size();
            const auto [end, failure] = std::from_chars(text.data(), last, value);
            if (failure == std::errc() && end == last && value >= least) {
              text = std::to_string(value);
              return std::string();
            }
            return "'" + text + "' is no whole number from " + std::to_string(least) + " to " +
                   std::to_string(INT64_MAX);
          },
          ""};
}

/// For an option's check(): a number, which is not negative, or above zero.
inline CLI::Validator amount(bool above_zero = false) {
  return {[above_zero](std::string& text) {
            char* end = nullptr;
            const double value = std::strtod(text.c_str(), &end);
            const bool fits = end != text.c_str() && *end == '\0' && std::isfinite(value) && value >= 0 &&
                              (value > 0 || !above_zero);
            return fits ? std::string()
                        : "'" + text + "' is no number " + (above_zero ? "above 0" : "of 0 or more");
          },
          ""};
}

}  // namespace tools
