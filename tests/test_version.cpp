// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cairn/version.hpp>
#include <string>

TEST_CASE("the version's string says the same as its numbers") {
  const std::string numbers = std::to_string(cairn::version_major) + "." +
                              std::to_string(cairn::version_minor) + "." +
                              std::to_string(cairn::version_patch);
  CHECK(cairn::version_string == numbers);
}
