// SPDX-License-Identifier: Apache-2.0
// The one place where doctest's main is compiled; every test program links it.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <cstdlib>
#include <paths.hpp>
#include <string>

std::string cairn_test::source_dir() {
  const char* chosen = std::getenv("CAIRN_SOURCE_DIR");
  return chosen != nullptr ? chosen : CAIRN_TEST_SOURCE_DIR;
}

std::string cairn_test::python() {
  const char* chosen = std::getenv("CAIRN_PYTHON");
  return chosen != nullptr ? chosen : CAIRN_TEST_PYTHON;
}
