// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

namespace cairn_test {

/// The root of cairn's source tree (golden files, scripts), without a slash at its end.
std::string source_dir();

/// A python3 that can import numpy and safetensors.
std::string python();

}  // namespace cairn_test
