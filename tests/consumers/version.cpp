// SPDX-License-Identifier: Apache-2.0
// The least that a consumer can do: used while there is no examples/first_save.cpp.
#include <xxhash.h>

#include <cairn/version.hpp>
#include <cstdio>

int main() {
  std::printf("cairn %s, xxhash %u\n", cairn::version_string.data(), XXH_versionNumber());
  return 0;
}
