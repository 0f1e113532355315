// SPDX-License-Identifier: Apache-2.0
// The stores of examples/your_own_store keep the promises of ByteStore: the suite, as a user runs it.
#include <doctest/doctest.h>

#include "support/byte_store_conformance.hpp"
#include "support/scratch_directory.hpp"
#include "your_own_store/map_store.hpp"
#include "your_own_store/plain_store.hpp"

namespace cairn_test {

struct plain_files {
  scratch_directory directory;
  plain_store make() { return plain_store{directory.path()}; }
};

TEST_CASE_TEMPLATE_INVOKE(byte_store_conformance, plain_files);

struct objects_in_a_map {
  map_store store;
  map_store make() { return store; }
};

TEST_CASE_TEMPLATE_INVOKE(byte_store_conformance, objects_in_a_map);

}  // namespace cairn_test
