// SPDX-License-Identifier: Apache-2.0
// group: files
// The numbers that the programs end with, on which scripts rely.
#include <doctest/doctest.h>

#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <tools/status.hpp>

namespace {

TEST_CASE("what another build of cairn reads is not damaged, and what is damaged counts more") {
  using cairn::error_id;
  const auto status_of = [](error_id id) {
    try {
      cairn::fail(id, "an error");
    } catch (const cairn::error& e) {
      return tools::status_of(e);
    }
  };
  CHECK(status_of(error_id::corrupt_unsupported_version) == tools::unreadable);
  CHECK(status_of(error_id::corrupt_unsupported_feature) == tools::unreadable);
  CHECK(status_of(error_id::corrupt_digest) == tools::damaged);
  CHECK(status_of(error_id::storage_not_committed) == tools::nothing_there);
  CHECK(tools::worse(tools::unreadable, tools::damaged) == tools::damaged);
}

}  // namespace
