// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

namespace cairn_test {

/// The root of cairn's source tree (golden files, scripts), without a slash at its end.
std::string source_dir();

/// A python3 that can import numpy and safetensors.
std::string python();

/// The path of a program of this build that the test names in its line `// needs:` (an example, or
/// tests/helper_*.cpp). Throws std::runtime_error if it is not there.
std::string program(const std::string& name);

}  // namespace cairn_test
