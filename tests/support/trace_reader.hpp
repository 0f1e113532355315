// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include <paths.hpp>

namespace cairn_test {

/// A python3 that can import trace_events, which reads what a trace_file wrote. It leaves no files beside that.
inline std::string trace_reader() {
  return "PYTHONPATH='" + source_dir() + "/tests/python' " + python() + " -B";
}

}  // namespace cairn_test
