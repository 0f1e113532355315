// SPDX-License-Identifier: Apache-2.0
#pragma once
// With CAIRN_PRECOMPILE, what is compiled once for all tests, examples and benchmarks: cairn's inline
// functions, and the compositions that most programs make.
#include <cairn/cairn.hpp>

namespace cairn_common {

/// Never called: a program that composes the same finds the templates instantiated.
inline void instantiate(cairn::thread_group ranks) {
  cairn::any_checkpointer each = cairn::checkpointer{cairn::file_store{""}};
  each = cairn::checkpointer{cairn::memory_store{}};
  each = cairn::checkpointer{cairn::file_store{""}, ranks.communicator(0)};
  each = cairn::checkpointer{cairn::memory_store{}, ranks.communicator(0)};
}

}  // namespace cairn_common
