// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <cstdlib>

namespace cairn_test {

/// How often something random is tried: `usual` times, or `longer` times as often where CAIRN_TEST_LONG is
/// set, as `tests/run.sh --full` does.
inline std::uint64_t rounds(std::uint64_t usual, std::uint64_t longer = 10) {
  return std::getenv("CAIRN_TEST_LONG") != nullptr ? usual * longer : usual;
}

/// Whether slow cases are run, too.
inline bool long_run() {
  return std::getenv("CAIRN_TEST_LONG") != nullptr;
}

}  // namespace cairn_test
