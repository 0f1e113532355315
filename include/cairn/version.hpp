// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <string_view>

namespace cairn {
inline namespace v1 {

/// The version of the library, the same as the CMake package's (CMake reads these three lines).
inline constexpr int version_major = 0;
inline constexpr int version_minor = 1;  ///< the second number
inline constexpr int version_patch = 0;  ///< the third number

/// "major.minor.patch".
inline constexpr std::string_view version_string = "0.1.0";

}  // namespace v1
}  // namespace cairn
