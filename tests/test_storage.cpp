// SPDX-License-Identifier: Apache-2.0
// What the storage writes, it reads back.
// threaded
#include <cairn/storage/safetensors_storage.hpp>
#include <cairn/stores/file_store.hpp>
#include <cairn/stores/memory_store.hpp>

#include "support/byte_store_conformance.hpp"
#include "support/saved_world.hpp"
#include "support/scratch_directory.hpp"

#include <doctest/doctest.h>

namespace {
using namespace cairn_test;

TEST_CASE("two ranks save; one loads with another sharding, by every way of staging") {
  cairn::safetensors_storage storage{cairn::memory_store{}};
  auto writer = storage.writer();
  auto reader = storage.reader();
  for (const auto how : {staging::copied, staging::copied_without_digests, staging::none}) {
    std::vector<float> a(3'000'000), b(100), c(3'000'000);
    for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i);
    for (std::size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i);
    double lr = 0.5;
    std::vector<unsigned char> blob(70000, 7);
    const auto fill = [](auto& s, auto& x, auto& y, auto& v, auto& bl, int r) {
      s.tensor("a", x.data() + 1'500'000 * r, cairn::shard{{2000, 1500}, {1000 * r, 0}, {1000, 1500}});
      s.tensor("b", y, {10, 10});
      s.value("lr", v);
      s.bytes("blob", bl);
      s.bytes("rng", bl, cairn::per_rank);
    };
    cairn::state_dict s0, s1;
    fill(s0, a, b, lr, blob, 0);
    fill(s1, a, b, lr, blob, 1);
    world_save save(writer, {&s0, &s1}, 7, {1, 2}, 0, how);
    save.run();
    CHECK(reader.list() == std::vector<std::int64_t>{7});
    std::vector<float> x(a.size()), y(b.size());
    double z = 0;
    std::vector<unsigned char> bl;
    cairn::state_dict t;
    t.tensor("a", x.data(), cairn::shard{{2000, 1500}, {0, 3}, {2000, 1497}});
    t.tensor("b", y, {10, 10});
    t.value("lr", z);
    t.bytes("blob", bl);
    t.bytes("rng", bl, cairn::per_rank);
    load_world(reader, 7, {&t});
    CHECK(z == 0.5);
    CHECK(y == b);
    CHECK(bl == blob);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < 2000; ++i)
      for (std::size_t k = 3; k < 1500; ++k) wrong += x[i * 1497 + k - 3] != a[i * 1500 + k];
    CHECK(wrong == 0);
    auto open = reader.open(7, reader.fetch(7));
    reader.verify(open, soon());
    writer.remove(7);
    CHECK(storage.store().list("").empty());
  }
}
}  // namespace
