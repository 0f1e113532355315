// SPDX-License-Identifier: Apache-2.0
#pragma once
// The seed of random tests, and their figures, which are printed and appended as one line of JSON to the file
// that CAIRN_TEST_FIGURES names.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

namespace cairn_test {

/// The number in CAIRN_TEST_SEED, or a constant.
inline std::uint64_t test_seed() {
  const char* text = std::getenv("CAIRN_TEST_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 20'240'601u;
}

inline void report_figures(const std::string& test,
                           const std::vector<std::pair<const char*, std::uint64_t>>& figures) {
  std::string told, json = "{\"test\": \"" + test + "\"";
  for (const auto& [name, value] : figures) {
    told += std::string(told.empty() ? "" : ", ") + name + " " + std::to_string(value);
    json += ", \"" + std::string(name) + "\": " + std::to_string(value);
  }
  MESSAGE(test << ": " << told);
  const char* path = std::getenv("CAIRN_TEST_FIGURES");
  if (path == nullptr) return;
  if (std::FILE* file = std::fopen(path, "a")) {
    std::fputs((json + "}\n").c_str(), file);
    std::fclose(file);
  }
}

}  // namespace cairn_test
