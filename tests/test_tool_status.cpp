// SPDX-License-Identifier: Apache-2.0
// group: files
// The numbers that the programs end with, and how texts become JSON, on which scripts rely.
#include <doctest/doctest.h>

#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <tools/json.hpp>
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
  CHECK(tools::worse(tools::not_reached, tools::unreadable) == tools::unreadable);
  CHECK(tools::worse(tools::damaged, tools::not_finite) == tools::damaged);
  CHECK(tools::worse(tools::fine, tools::not_reached) == tools::not_reached);
}

TEST_CASE("a text in JSON is UTF-8, whatever bytes a path has") {
  CHECK(tools::json_text("a \"b\\\n\x1f") == R"("a \"b\\\u000a\u001f")");
  CHECK(tools::json_text("Zürich 😀\x7f") == "\"Zürich 😀\x7f\"");
  CHECK(tools::json_text("odd\xff\"dir") == R"("odd\ufffd\"dir")");
  CHECK(tools::json_text("\xe2\x82") == R"("\ufffd\ufffd")");      // ends inside of a character
  CHECK(tools::json_text("\xe2\x82\"") == R"("\ufffd\ufffd\"")");  // which does not take the next one along
  CHECK(tools::json_text("\xed\xa0\x80") == R"("\ufffd\ufffd\ufffd")");  // half of a surrogate pair
}

}  // namespace
