// SPDX-License-Identifier: Apache-2.0
#pragma once
// With CAIRN_PRECOMPILE, CLI11 as programs use it.
#if __has_include(<CLI/CLI.hpp>)
// A precompiled header emits every inline function, and one of libstdc++'s <filesystem> calls what its library keeps to itself.
#define CLI11_HAS_FILESYSTEM 0
#include <CLI/CLI.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace cairn_common {

/// Never called.
inline int instantiate(CLI::App& app, std::string& text, std::vector<std::string>& texts, bool& flag,
                       std::int64_t& step, std::uint64_t& number, int argc, char** argv) try {
  app.add_option("", text, "")->required()->check(CLI::NonNegativeNumber)->check(CLI::ExistingPath);
  app.add_option("", texts, "");
  app.add_option("", step, "")->check(CLI::Range(1, 2));
  app.add_option("", number, "");
  app.add_flag("", flag, "");
  app.parse(argc, argv);
  return 0;
} catch (const CLI::ParseError& error) {
  return app.exit(error);
}

}  // namespace cairn_common
#endif
