// SPDX-License-Identifier: Apache-2.0
// links: cairn::s3
//
// What requests an s3_store makes of a service, and when: of round trips no more than it must.
#include <cairn/stores/s3_store.hpp>

#include <doctest/doctest.h>
#include <support/byte_store_conformance.hpp>
#include <support/s3_access.hpp>
#include <support/saved_world.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace {
using namespace cairn_test;
namespace s3 = cairn_test::s3;
using cairn::error_id;

constexpr std::size_t mib = std::size_t{1} << 20;

cairn::s3_store store_at(const cairn::s3_options& o) {
  return cairn::s3_store(o, s3::credentials_of());
}

}  // namespace

TEST_CASE("a long object is looked for while its upload begins: one round trip for both") {
  s3::server server{s3::quick_server()};
  auto store = store_at(s3::own_bucket_at(server.endpoint()));
  const auto bytes = pattern(11 * mib + 5, 3);
  // Neither is answered before the other one is there.
  server.faults.add("gather HeadObject first count=2 ms=60000");
  server.faults.add("gather CreateMultipartUpload first count=2 ms=60000");
  {
    auto writer = store.create("object", bytes.size());
    const auto journal = server.journal();
    CHECK(
        std::any_of(journal.begin(), journal.end(), [](const auto& entry) { return entry.in_flight == 2; }));
    const cairn::write_range whole{0, bytes};
    writer.write_stable({&whole, 1});
    writer.finish();
  }
  CHECK(store.read_all("object", 1u << 30) == bytes);

  // What stands there is told at once, as ever, and nothing of the upload stays.
  CHECK(failure_of([&] { static_cast<void>(store.create("object", bytes.size())); }).id ==
        error_id::storage_exists);
  CHECK(server.objects().uploads() == 0);
  CHECK(store.read_all("object", 1u << 30) == bytes);
}

TEST_CASE("an object of another length than create() was told is written all the same") {
  s3::server server{s3::quick_server()};
  auto store = store_at(s3::own_bucket_at(server.endpoint()));
  for (const std::size_t size : {std::size_t{0}, std::size_t{100}, 5 * mib, 5 * mib + 1, 11 * mib}) {
    for (const std::uint64_t told : {std::uint64_t{0}, std::uint64_t{100}, std::uint64_t{40 * mib}}) {
      CAPTURE(size);
      CAPTURE(told);
      const auto key = "object-" + std::to_string(size) + "-" + std::to_string(told);
      const auto bytes = pattern(size, 3);
      auto writer = store.create(key, told);
      const cairn::write_range whole{0, bytes};
      writer.write_stable({&whole, 1});
      writer.finish();
      CHECK(store.read_all(key, 1u << 30) == bytes);
    }
    CHECK(server.objects().uploads() == 0);
  }
  // Nor does anything stay of one that is given up before its first byte.
  { const auto writer = store.create("given-up", 40 * mib); }
  CHECK(server.objects().uploads() == 0);
  CHECK_FALSE(store.size("given-up"));
}
