// SPDX-License-Identifier: Apache-2.0
// group: checkpoints
// The handle on a store of any type: what it passes on, and what it does where a store lacks a capability.
#include <cairn/concepts/any_store.hpp>
#include <cairn/stores/any_store.hpp>
#include <cairn/stores/memory_store.hpp>

#include <doctest/doctest.h>

#include "support/scratch_directory.hpp"
#include "support/store_capability_archetypes.hpp"

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace {

using namespace cairn_test;

struct byte_count_only {
  int live_writers(std::string_view);
  bool writer_lives(std::string_view);
};
struct inner_of_another_kind : extended_archetype {
  int inner();
};
static_assert(!cairn::TracksWriters<byte_count_only> && !cairn::TracksWriters<byte_store_archetype>);
static_assert(!cairn::MayTrackWriters<telling_archetype> && !cairn::AnnouncesWriters<telling_archetype>);
static_assert(!cairn::AnnouncingObjectWriter<byte_store_archetype::writer> &&
              !cairn::LockedObjectWriter<byte_store_archetype::writer> &&
              !cairn::CountsHelperCpu<byte_store_archetype::writer>);
static_assert(!cairn::MayShare<sharing_archetype> && !cairn::LayeredStore<inner_of_another_kind> &&
              !cairn::DecodingStore<byte_store_archetype>);

std::vector<std::byte> some_bytes() {
  return std::vector<std::byte>(3, std::byte{5});
}

TEST_CASE("any_store: without a capability each function does what its contract says") {
  const cairn::any_store store(byte_store_archetype::over(cairn::memory_store{}));
  store.put_new("a/b", some_bytes());
  CHECK(store.reads_at_once() == 0);
  CHECK(store.read_bytes(30) == 0);
  CHECK(store.keys("a", 1).empty());
  CHECK(store.keys("a", 2) == std::vector<std::string>{"a/b"});
  CHECK(store.keys("") == std::vector<std::string>{"a/b"});
  store.make_directory("d");
  CHECK(store.adopt_directory("d"));
  CHECK(store.is_noted_durable("a/b"));
  CHECK_FALSE(store.tracks_writers());
  CHECK_FALSE(store.announces_writers());
  CHECK(store.live_writers("").empty());
  CHECK_FALSE(store.writer_lives("a/b"));
  CHECK_FALSE(store.shares());
  CHECK_FALSE(store.links());
  CHECK_THROWS_AS(store.link("a/b", "a/c"), cairn::usage_error);
  CHECK_THROWS_AS((void)store.share("s", 1), cairn::usage_error);
  CHECK_THROWS_AS((void)store.join("s", 1), cairn::usage_error);
  CHECK(store.decodes(0));
  CHECK_FALSE(store.decodes(1));
  CHECK(store.self_test().points.empty());
  auto writer = store.create("c", 3);
  writer.announce();
  writer.until(cairn::deadline::never());
  CHECK(writer.lock_descriptor() == -1);
  CHECK(writer.helper_cpu() == 0);
  const auto bytes = some_bytes();
  const cairn::write_range part{0, bytes};
  writer.write_stable({&part, 1});
  writer.finish();
  CHECK(store.read_all("c", 3) == bytes);
  CHECK_FALSE(store.remove_if("c", std::span(bytes).first(2)));
  CHECK(store.remove_if("c", bytes));
  CHECK_FALSE(store.size("c").has_value());
}

TEST_CASE("any_store: each capability is reached through the handle") {
  const cairn::memory_store objects;
  const auto asked = std::make_shared<asked_capabilities>();
  SUBCASE("who writes") {
    const cairn::any_store store(telling_archetype{objects});
    CHECK(store.tracks_writers());
    CHECK(store.live_writers("step-") == std::vector<std::string>{"step-live"});
    CHECK(store.writer_lives("lives"));
    static constexpr std::string_view prefixes[] = {"b", "a"};
    const auto unfinished = [&](const cairn::any_store& of) {
      std::string found;
      for (const auto& object : of.unfinished(prefixes))
        found += object.key + (object.lives ? " lives," : ",");
      return found;
    };
    CHECK(unfinished(store) == "alive lives,blive lives,");
    CHECK(unfinished(cairn::any_store(dying_archetype{objects})) == "adied,alive,bdied,blive,");
    CHECK(unfinished(cairn::any_store(unfinished_archetype{objects})) == "a lives,");
    CHECK(unfinished(cairn::any_store(not_telling_archetype{objects})).empty());
    CHECK_FALSE(cairn::any_store(not_telling_archetype{objects}).tracks_writers());
    CHECK(cairn::any_store(listing_archetype{objects}).keys_after("a", "b", 2) ==
          std::vector<std::string>{"bmore2"});
    CHECK_FALSE(cairn::any_store(sizing_archetype{objects}).keys_after("a", "b").has_value());
    CHECK(cairn::any_store(sizing_archetype{objects}).reads_at_once() == 3);
    CHECK(cairn::any_store(sizing_archetype{objects}).read_bytes(30) == 10);
  }
  SUBCASE("object writers") {
    const cairn::any_store store(announcing_archetype{objects, asked});
    CHECK(store.announces_writers());
    store.create("x", 0).announce();
    CHECK(asked->announced == 1);
    static_cast<void>(store.show("y"));
    CHECK(asked->announced == 2);
    CHECK_FALSE(store.size("y").has_value());
    CHECK(cairn::any_store(locked_archetype{objects}).create("x", 0).lock_descriptor() == 7);
    CHECK(cairn::any_store(counting_archetype{objects}).create("x", 0).helper_cpu() == 21);
  }
  SUBCASE("identities") {
    CHECK(cairn::any_store(identifying_archetype{objects}).identify("a")->version == "a");
    const cairn::any_store without(watching_archetype{objects});
    without.put_new("a", some_bytes());
    CHECK(without.identify("a")->bytes == some_bytes().size());
    CHECK(without.identify("a")->version.empty());
    CHECK_FALSE(without.identify("b").has_value());
  }
  SUBCASE("roots") {
    CHECK(cairn::any_store(rooted_archetype{objects}).root_identity() == "root");
    CHECK(cairn::any_store(watching_archetype{objects}).root_identity() == "");
  }
  SUBCASE("second keys") {
    const cairn::any_store store(linking_archetype{objects});
    CHECK(store.links());
    CHECK_FALSE(cairn::any_store(not_linking_archetype{objects}).links());
    CHECK(cairn::any_store(watching_archetype{objects}).watch("step-") != nullptr);
    CHECK(cairn::any_store(linking_archetype{objects}).watch("step-") == nullptr);
    store.put_new("a", some_bytes());
    store.link("a", "b");
    CHECK(store.read_all("b", 10) == some_bytes());
    const auto soon = cairn::deadline::in(std::chrono::milliseconds(1));
    store.link("a", "c", soon);  // by a store that knows no deadline
    CHECK_THROWS_AS(cairn::any_store(hanging_link_archetype{objects}).link("a", "d", soon),
                    cairn::timeout_error);
  }
  SUBCASE("shared objects") {
    const cairn::any_store store(sharing_archetype{objects, asked});
    CHECK(store.shares());
    CHECK_FALSE(cairn::any_store(not_sharing_archetype{objects, asked}).shares());
    CHECK_FALSE(store.join("s", 1).has_value());
    auto first = store.share("s", 1);
    auto second = store.join("s", 1);
    REQUIRE(second.has_value());
    const auto bytes = some_bytes();
    const cairn::write_range part{0, bytes};
    first.write({&part, 1});
    second->put(3, bytes);
    second->sync();
    std::array<std::byte, 6> seen{};
    CHECK(first.read(0, seen));
    CHECK(seen[5] == std::byte{5});
    std::array<std::byte, 7> more{};
    CHECK_FALSE(first.read(0, more));
    first.finish(4);
    CHECK(asked->shared["s"].size() == 4);
    CHECK(first.helper_cpu() == 0);
  }
  SUBCASE("stores over others") {
    const cairn::any_store store(layered_archetype{objects, telling_archetype{cairn::memory_store{}}});
    CHECK_FALSE(store.tracks_writers());
    const auto below = store.innermost();
    CHECK(below.tracks_writers());
    CHECK(below.innermost().tracks_writers());
    below.put_new("below", some_bytes());
    CHECK(store.innermost().size("below") == 3);
    CHECK_FALSE(store.size("below").has_value());
    CHECK(cairn::any_store(decoding_archetype{objects}).decodes(3));
  }
  SUBCASE("sessions of reads") {
    cairn::any_store(objects).put_new("below", some_bytes());
    std::vector<std::byte> got(3);
    const cairn::read_range range{"below", 0, got};
    const cairn::any_store store(session_archetype{objects});
    const auto reads = store.begin_reads();
    const auto same = reads;
    reads.read({&range, 1});
    CHECK(same.figures().cached == 3);
    CHECK(reads.is_cached("cached", 1, 2));
    CHECK_FALSE(reads.is_cached("cached", 2, 1));
    std::uint64_t digest = 0;
    CHECK_FALSE(reads.copy("cached", 1, got, &digest));
    const auto copies = cairn::any_store(copying_archetype{objects}).begin_reads();
    CHECK_FALSE(copies.copy("cached", 0, got, &digest));
    CHECK(copies.copy("cached", 1, got, nullptr));
    CHECK(copies.copy("cached", 1, got, &digest));
    CHECK(got == std::vector<std::byte>(3, std::byte{7}));
    CHECK(digest == 42);
    const auto heirs = cairn::any_store(session_heir{objects}).begin_reads();
    heirs.read({&range, 1});
    CHECK(got == some_bytes());
    CHECK(heirs.figures().cached == 0);
    CHECK_FALSE(heirs.is_cached("cached", 1, 2));
  }
}

/// Counts the calls that come through a handle.
struct counting_handle : cairn::any_store {
  using cairn::any_store::any_store;
  std::optional<std::uint64_t> size(std::string_view key) {
    ++*asked;
    return cairn::any_store::size(key);
  }
  std::shared_ptr<int> asked = std::make_shared<int>(0);
};

TEST_CASE("any_store: a handle of a handle is the same handle, and what derives from one counts") {
  scratch_directory directory;
  cairn::any_store_of<cairn::file_store> named{cairn::file_store{directory.path()}};
  const cairn::any_store plain{named};
  plain.put_new("a", some_bytes());
  CHECK(named.size("a") == 3);
  CHECK(cairn::any_store(std::make_shared<cairn::any_store>(plain)).size("a") == 3);
  CHECK(cairn::any_store::lent(named).tracks_writers());
  counting_handle counts{byte_store_archetype::over(cairn::memory_store{})};
  const auto asked = counts.asked;
  const cairn::any_store over{counts};
  CHECK_FALSE(over.size("a").has_value());
  CHECK(*asked == 1);
  CHECK_FALSE(over.tracks_writers());
  CHECK_FALSE(over.shares());
}

TEST_CASE("any_store: a lent store is the caller's, whatever is done through the handle") {
  auto mine = byte_store_archetype::over(cairn::memory_store{});
  cairn::any_store::lent(mine).put_new("a", some_bytes());
  CHECK(mine.size("a") == 3);
}

}  // namespace
