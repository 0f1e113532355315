// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the program that pages.py makes of the pages' code needs.
#include <sys/wait.h>
#include <unistd.h>

#include <docs/existing_trainer.h>
#include <atomic>
#include <cairn/cairn.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace docs_support {

inline void check(bool good, const char* what, const char* file, int line) {
  if (!good) throw std::runtime_error(std::string(file) + ":" + std::to_string(line) + ": not so: " + what);
}

struct example {
  const char* name;
  void (*run)(const std::string& directory);
};

/// Runs each example in an empty directory of its own, and returns the exit status.
inline int run(std::initializer_list<example> examples) {
  int failures = 0;
  for (const auto& each : examples) {
    std::string directory = (std::filesystem::temp_directory_path() / "cairn-docs-XXXXXX").string();
    if (::mkdtemp(directory.data()) == nullptr) {
      std::perror("mkdtemp");
      return 1;
    }
    try {
      std::filesystem::current_path(directory);
      each.run(directory);
      std::printf("passed  %s\n", each.name);
    } catch (const std::exception& e) {
      std::printf("FAILED  %s: %s\n", each.name, e.what());
      ++failures;
    }
    std::fflush(stdout);
    std::filesystem::remove_all(directory);
  }
  return failures == 0 ? 0 : 1;
}

}  // namespace docs_support

#define DOCS_CHECK(condition) docs_support::check(condition, #condition, __FILE__, __LINE__)
