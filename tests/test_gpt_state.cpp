// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <cairn/stores/memory_store.hpp>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "../examples/gpt/killing_store.hpp"
#include "../examples/gpt/state.hpp"
#include "support/gpt_ranks.hpp"
#include "support/still_threads.hpp"

namespace {

gpt::training_settings small() {
  gpt::training_settings settings;
  settings.shape = {.layers = 1, .width = 8, .heads = 2, .context = 5, .vocabulary = 256};
  return settings;
}

void write_object(gpt::killing_store<cairn::memory_store>& store, const std::string& key) {
  const std::vector<std::byte> bytes(10);
  auto object = store.create(key, bytes.size());
  const cairn::write_range part{0, bytes};
  object.write({&part, 1});
  object.finish();
}

static_assert(cairn::ByteStore<gpt::killing_store<cairn::memory_store>>);

}  // namespace

TEST_CASE("gpt state: the ranks' shards of the optimizer state make up the whole") {
  const gpt::text source(std::vector<std::uint8_t>(1000, 'a'));
  for (const std::size_t ranks : {1u, 2u, 4u, 8u}) {
    std::vector<std::int64_t> elements(ranks);
    std::int64_t all = 0;
    cairn_test::run_gpt_ranks(ranks, [&](gpt::group& others) {
      gpt::trainer run(small(), source, others);
      gpt::run_state state(run);
      elements[others.rank()] = state.dict().find("adam.m")->elements;
      if (others.rank() == 0) all = static_cast<std::int64_t>(run.net().parameters().size());
    });
    std::int64_t sum = 0;
    for (const std::int64_t part : elements) sum += part;
    CHECK(sum == all);
  }
}

TEST_CASE("gpt state: parameters are bound in their shapes, and a foreign state is refused") {
  const gpt::text source(std::vector<std::uint8_t>(1000, 'a'));
  cairn_test::run_gpt_ranks(1, [&](gpt::group& others) {
    gpt::trainer run(small(), source, others);
    gpt::run_state state(run);
    const cairn::state_entry* up = state.dict().find("model.layer0.mlp.up.weight");
    REQUIRE(up != nullptr);
    CHECK(up->global == cairn::extents{8, 32});
    CHECK(state.dict().find("rng")->flags.per_rank);

    state.collect(3);
    CHECK_NOTHROW(state.restored(3));
    CHECK_THROWS_AS(state.restored(4), std::runtime_error);
    state.dict().find("config.heads")->view(0).data[0] = std::byte{4};
    CHECK_THROWS_AS(state.restored(3), std::runtime_error);
  });
}

TEST_CASE("gpt state: the kill switch ends the process when all is released and written, not before") {
  void* const shared =
      ::mmap(nullptr, sizeof(std::atomic<bool>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(shared != MAP_FAILED);
  auto& may_kill = *new (shared) std::atomic<bool>(false);
  cairn_test::await_still_threads();
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::alarm(240);
    cairn_test::run_gpt_ranks(2, [&](gpt::group& others) {
      const auto kill = std::make_shared<gpt::kill_switch>(20, gpt::kill_moment::after_release, false);
      gpt::killing_store<cairn::memory_store> store(cairn::memory_store{}, kill);
      for (const char* key :
           {"step-00000010/rank-00000.a.0.safetensors", "step-00000020/rank-00000.a.record"})
        write_object(store, key);
      const auto writer =
          std::async(std::launch::async, write_object, std::ref(store), "step-00000020/a.safetensors");
      if (others.rank() == 0) {
        if (writer.wait_for(std::chrono::milliseconds(50)) == std::future_status::ready) ::_exit(3);
        if (store.size("step-00000020/a.safetensors")) ::_exit(4);
        may_kill = true;
      }
      kill->kill(others);
    });
    ::_exit(5);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CAPTURE(status);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGKILL);
  CHECK(may_kill);
  ::munmap(shared, sizeof may_kill);
}

TEST_CASE("gpt state: a store without a kill switch is the store itself") {
  gpt::killing_store<cairn::memory_store> store(cairn::memory_store{}, nullptr);
  write_object(store, "step-00000020/rank-00000.a.0.safetensors");
  CHECK(store.size("step-00000020/rank-00000.a.0.safetensors") == std::uint64_t{10});
}
