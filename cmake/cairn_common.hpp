// SPDX-License-Identifier: Apache-2.0
#pragma once
// With CAIRN_PRECOMPILE, what is compiled once for all tests, examples and benchmarks: cairn's inline
// functions, the compositions that most programs make, and what most tests include beside them.
#include <cairn/cairn.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <sstream>
#include <thread>

namespace cairn_common {

/// Never called: a program that composes the same finds the templates instantiated.
inline void instantiate(cairn::thread_group ranks) {
  cairn::any_checkpointer each = cairn::checkpointer{cairn::file_store{""}};
  each = cairn::checkpointer{cairn::memory_store{}};
  each = cairn::checkpointer{cairn::file_store{""}, ranks.communicator(0)};
  each = cairn::checkpointer{cairn::memory_store{}, ranks.communicator(0)};
}

}  // namespace cairn_common
