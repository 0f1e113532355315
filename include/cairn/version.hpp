// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The version of the library, for `#if`; the same as the CMake package's (CMake reads these three lines).
#define CAIRN_VERSION_MAJOR 0
#define CAIRN_VERSION_MINOR 1
#define CAIRN_VERSION_PATCH 0
#include <cairn/system/compiler.hpp>

#include <string_view>

namespace cairn {
inline namespace v1 {

inline constexpr int version_major = CAIRN_VERSION_MAJOR;  ///< the first number
inline constexpr int version_minor = CAIRN_VERSION_MINOR;  ///< the second number
inline constexpr int version_patch = CAIRN_VERSION_PATCH;  ///< the third number

/// "major.minor.patch".
inline constexpr std::string_view version_string = "0.1.0";

}  // namespace v1
}  // namespace cairn
