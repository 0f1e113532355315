// SPDX-License-Identifier: Apache-2.0
// group: checkpoints
// What users do wrong, and must be told of: nothing that is committed may be something else than its step.
#include <doctest/doctest.h>
#include <cairn/cairn.hpp>

#include <sys/mman.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

/// What a checkpointer told, in order.
struct listener {
  using cairn_role = cairn::role::observer;
  struct line {
    enum cairn::observation::what kind;
    std::int64_t step;
    std::string text;
  };
  void observe(const cairn::observation& o) noexcept {
    const std::lock_guard lock(*mutex);
    lines->push_back({o.kind, o.step, std::string(o.text)});
  }
  [[nodiscard]] std::vector<std::string> warnings() const {
    const std::lock_guard lock(*mutex);
    std::vector<std::string> found;
    for (const auto& l : *lines)
      if (l.kind == cairn::observation::what::warning) found.push_back(l.text);
    return found;
  }
  std::shared_ptr<std::mutex> mutex = std::make_shared<std::mutex>();
  std::shared_ptr<std::vector<line>> lines = std::make_shared<std::vector<line>>();
};

cairn::checkpointer_options quiet() {
  return {.patience = std::chrono::seconds(60), .peer_patience = std::chrono::seconds(60), .quiet = true};
}
[[nodiscard]] bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}
/// What `call` throws; fails the test where it throws nothing.
template <class Call>
std::optional<cairn::error> thrown_by(Call&& call) {
  try {
    call();
  } catch (const cairn::error& e) {
    return e;
  }
  FAIL_CHECK("nothing was thrown");
  return std::nullopt;
}

/// Gives away when all is copied, of which no handle has told.
struct watched_stager {
  using cairn_role = cairn::role::stager;
  std::shared_ptr<cairn::image_control>* control = nullptr;
  cairn::heap_stager heap = {};
  cairn::staged_image stage(std::shared_ptr<const cairn::image_layout> layout,
                            const cairn::source_table& sources, cairn::stage_options options,
                            cairn::deadline until) {
    auto image = heap.stage(std::move(layout), sources, options, until);
    *control = image.control();
    return image;
  }
  void prepare(const cairn::image_layout&, cairn::deadline) {}
  [[nodiscard]] int depth() const { return 1; }
};

/// Two large tensors and what is copied at once.
struct model {
  model() {
    state.tensor("wte", wte, {400'000});
    state.tensor("head.weight", head, {300'000});
    state.tensor("bias", bias, {16});
    state.value("rate", rate);
  }
  std::vector<float> wte = std::vector<float>(400'000, 1.0f);
  std::vector<float> head = std::vector<float>(300'000, 2.0f);
  std::vector<float> bias = std::vector<float>(16, 3.0f);
  double rate = 0.5;
  cairn::state_dict state;
};

/// Each way to end with an overlapped save of which training has told nothing.
template <class Make>
void last_saves(const Make& make, const std::function<std::vector<std::int64_t>()>& list) {
  model m;
  const auto refused = [&](auto&& end, const char* item) {
    const auto e = thrown_by(end);
    if (!e) return;
    CHECK(e->id() == cairn::error_id::usage_before_update_missing);
    CHECK(e->fields().item == item);
    CHECK(has(e->what(), "cairn::checked{}"));
  };
  const auto update = [](std::vector<float>& w) {
    for (auto& x : w) x += 1;
  };
  {  // unchanged: as ever
    auto ckpt = make();
    auto handle = ckpt.save(m.state, 1);
    m.rate = 7;  // was copied at once
    m.bias[3] = 7;
    ckpt.close();
    CHECK(handle.committed());
  }
  {  // changed, and nobody waited
    auto ckpt = make();
    auto handle = ckpt.save(m.state, 2);
    update(m.wte);
    refused([&] { ckpt.close(); }, "wte");
    CHECK_FALSE(handle.committed());
  }
  {  // waited: training vouches
    auto ckpt = make();
    auto handle = ckpt.save(m.state, 3);
    ckpt.before_update();
    update(m.wte);
    ckpt.close();
    CHECK(handle.committed());
  }
  {  // waited for one of them, and changed that
    auto ckpt = make();
    auto handle = ckpt.save(m.state, 4);
    ckpt.before_update("wte");
    update(m.wte);
    ckpt.close();
    CHECK(handle.committed());
  }
  {  // waited for one of them, and changed the other
    auto ckpt = make();
    auto handle = ckpt.save(m.state, 5);
    ckpt.before_update("wte");
    update(m.wte);
    update(m.head);
    refused([&] { ckpt.close(); }, "head.weight");
    CHECK_FALSE(handle.committed());
  }
  {  // told by the handle that it may
    auto ckpt = make();
    auto handle = ckpt.save(m.state, 6);
    handle.wait_released();
    update(m.head);
    ckpt.close();
    CHECK(handle.committed());
  }
  {  // waited until it was written
    auto ckpt = make();
    auto handle = ckpt.save(m.state, 9);
    handle.wait_written();
    update(m.wte);
    ckpt.close();
    CHECK(handle.committed());
  }
  {  // a load changes the memory, too
    auto ckpt = make();
    auto handle = ckpt.save(m.state, 7);
    update(m.head);
    ckpt.load(m.state, 6);
    REQUIRE(handle.failed());
    refused([&] { std::rethrow_exception(handle.failure()); }, "head.weight");
    handle = ckpt.save(m.state, 8);
    ckpt.load(m.state, 6);
    ckpt.close();
    CHECK(handle.committed());
  }
  CHECK(list() == std::vector<std::int64_t>{1, 3, 4, 6, 8, 9});
}

}  // namespace

TEST_CASE("a last save whose memory changed without before_update is never committed") {
  cairn::memory_store store;
  const auto list = [&] { return cairn::checkpointer{store, listener(), quiet()}.list(); };
  SUBCASE("copied and digested by threads") {
    last_saves([&] { return cairn::checkpointer{store, cairn::overlapped{}, listener(), quiet()}; }, list);
  }
  SUBCASE("digested by the writer") {
    auto options = quiet();
    options.checksum_in_writer = true;
    last_saves([&] { return cairn::checkpointer{store, cairn::overlapped{}, listener(), options}; }, list);
  }
  SUBCASE("written from training memory") {
    last_saves(
        [&] {
          return cairn::checkpointer{store, cairn::overlapped{}, cairn::no_staging{}, quiet()};
        },
        list);
  }
}

TEST_CASE("one element that changed after it was copied fails a last save, which names its block") {
  cairn::memory_store store;
  model m;
  std::shared_ptr<cairn::image_control> control;
  cairn::checkpointer ckpt{store, cairn::overlapped{}, watched_stager{&control}, quiet()};
  const auto handle = ckpt.save(m.state, 1);
  REQUIRE(control->wait_copied(cairn::deadline::in(std::chrono::seconds(60))));
  m.wte[399'999] += 1;
  const auto e = thrown_by([&] { ckpt.close(); });
  REQUIRE(e.has_value());
  CHECK(e->fields().item == "wte");
  CHECK(e->fields().offset == 1 << 20);
  CHECK_FALSE(handle.committed());
}

TEST_CASE("memory that is gone when a checkpointer is closed fails the save and not the process") {
  cairn::memory_store store;
  constexpr std::size_t bytes = std::size_t{8} << 20;
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  cairn::state_dict state;
  state.tensor("mapped", static_cast<float*>(memory), {bytes / sizeof(float)});
  std::shared_ptr<cairn::image_control> control;
  cairn::checkpointer ckpt{store, cairn::overlapped{}, watched_stager{&control}, quiet()};
  const auto handle = ckpt.save(state, 1);
  REQUIRE(control->wait_copied(cairn::deadline::in(std::chrono::seconds(60))));
  REQUIRE(::munmap(memory, bytes) == 0);
  const auto e = thrown_by([&] { ckpt.close(); });
  REQUIRE(e.has_value());
  CHECK(e->id() == cairn::error_id::usage_before_update_missing);
  CHECK(e->fields().item == "mapped");
  CHECK_FALSE(handle.committed());
}

TEST_CASE("a destructor says what it could not know of a last save") {
  cairn::memory_store store;
  model m;
  const listener told;
  SUBCASE("of one that nobody confirmed") {
    { cairn::checkpointer{store, cairn::overlapped{}, told, quiet()}.save(m.state, 4); }
    REQUIRE(told.warnings().size() == 1);
    CHECK(has(told.warnings()[0], "(step 4)"));
    CHECK(has(told.warnings()[0], "close()"));
  }
  SUBCASE("not of one that was confirmed, closed, or copied at once") {
    {
      cairn::checkpointer ckpt{store, cairn::overlapped{}, told, quiet()};
      ckpt.save(m.state, 1);
      ckpt.before_update();
    }
    {
      cairn::checkpointer ckpt{store, cairn::overlapped{}, told, quiet()};
      ckpt.save(m.state, 2);
      ckpt.close();
    }
    {
      cairn::state_dict small;
      small.tensor("bias", m.bias, {16});
      cairn::checkpointer ckpt{store, cairn::overlapped{}, told, quiet()};
      ckpt.save(small, 3);
    }
    CHECK(told.warnings().empty());
  }
}
