// SPDX-License-Identifier: Apache-2.0
// What file_store acknowledged survives every legal state after a power loss, nothing is ever seen in part,
// and each of its fsyncs is needed for that.
#include <cairn/stores/basic_file_store.hpp>
#include <cairn/stores/file_store.hpp>

#include "support/byte_store_conformance.hpp"
#include "support/recording_file_system.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace {

using cairn_test::pattern;
using cairn_test::recording_file_system;
using store = cairn::basic_file_store<recording_file_system>;

constexpr cairn::file_store_options small_requests{.write_bytes = 64u << 10, .writes_in_flight = 1};

struct expectation {
  std::vector<std::byte> bytes;
  std::size_t acknowledged = 0;    // operations when the call came back
  std::size_t removed = SIZE_MAX;  // operations when its removal began
  std::size_t gone = SIZE_MAX;     // operations when its removal came back
};

/// A small run of all that makes objects. /data was made by somebody who has not come to an fsync; what is
/// below is new.
struct run {
  recording_file_system fs;
  std::map<std::string, expectation> objects;

  explicit run(std::function<bool(const recording_file_system::sync_call&)> ignore = {}) {
    const int root = fs.open_directory("/");
    REQUIRE(fs.make_directory_at(root, "data", 0755) == 0);
    REQUIRE(fs.close(root) == 0);
    fs.ignore_syncs(std::move(ignore));
    store s{"data/checkpoints", small_requests, fs};
    const auto made = [&](const std::string& key, std::vector<std::byte> bytes) {
      objects[key] = {std::move(bytes), fs.operations(), SIZE_MAX, SIZE_MAX};
    };
    {
      const auto bytes = pattern(200'000, 1);
      cairn_test::write_object(s, "step-1/rank-0.data", bytes);
      made("step-1/rank-0.data", bytes);
    }
    s.put_new("step-1/rank-0.record", pattern(300, 2));
    made("step-1/rank-0.record", pattern(300, 2));
    CHECK(s.publish_new("step-1/manifest", pattern(2'000, 3)));
    made("step-1/manifest", pattern(2'000, 3));
    s.put_new("step-2/a/b", pattern(1'000, 5));
    made("step-2/a/b", pattern(1'000, 5));
    {
      auto aborted = s.create("step-2/aborted", 100'000);
      const auto bytes = pattern(70'000, 6);
      const cairn::write_range part{0, bytes};
      aborted.write(std::span(&part, 1));
    }
    objects["step-1/manifest"].removed = fs.operations();
    s.remove("step-1/manifest");
    objects["step-1/manifest"].gone = fs.operations();
  }

  /// What is wrong in this state, or nothing.
  [[nodiscard]] std::optional<std::string> wrong(const recording_file_system::cut& cut) const {
    store s{"data/checkpoints", small_requests, fs.after(cut)};
    for (const auto& [key, want] : objects) {
      const auto got = s.read_all(key, 1u << 20);
      if (got && *got != want.bytes) return key + " is seen in part: " + cut.text();
      if (!got && cut.at >= want.acknowledged && cut.at <= want.removed)
        return key + " is lost: " + cut.text();
      if (got && cut.at >= want.gone) return key + " came back: " + cut.text();
    }
    for (const auto& object : s.list(""))
      if (objects.count(object.key) == 0) return object.key + " should not be there: " + cut.text();
    return {};
  }

  [[nodiscard]] std::optional<std::string> first_wrong(std::size_t random, std::size_t& states) const {
    for (std::size_t at = 0; at <= fs.operations(); ++at)
      for (const auto& cut : fs.cuts(at, random, 42)) {
        ++states;
        if (auto what = wrong(cut)) return what;
      }
    return {};
  }
};

}  // namespace

TEST_CASE("acknowledged objects survive every state after a power loss") {
  const run r;
  CHECK(r.fs.open_handles() == 0);
  std::size_t states = 0;
  const auto wrong = r.first_wrong(60, states);
  CHECK_MESSAGE(!wrong.has_value(), wrong.value_or(""));
  CHECK(states >= 2'000);
}

TEST_CASE("each fsync is needed: without any one of them some state loses something or shows a part") {
  const run whole;
  const auto calls = whole.fs.sync_calls();
  CHECK(calls.size() >= 14);
  for (const auto& call : calls) {
    CAPTURE(call.number);
    CAPTURE(call.path);
    const run mutant([&](const auto& c) { return c.number == call.number; });
    std::size_t states = 0;
    CHECK(mutant.first_wrong(4, states).has_value());
  }
}

TEST_CASE("the loser of publish_new may rely on the winner's bytes, also before the winner's fsync") {
  for (const bool mutated : {false, true}) {
    recording_file_system fs;
    store s{"data", small_requests, fs};
    s.put_new("step/record", pattern(10, 1));
    const auto before = fs.sync_calls().size();
    // The winner's file is durable (its first fsync), the entry in the directory (its second) is not yet.
    fs.ignore_syncs([&](const auto& c) { return c.directory && (mutated || c.number == before + 1); });
    CHECK(s.publish_new("step/manifest", pattern(500, 2)));
    CHECK_FALSE(s.publish_new("step/manifest", pattern(500, 3)));
    bool lost = false;
    for (const auto& cut : fs.cuts(fs.operations(), 10, 1)) {
      store t{"data", small_requests, fs.after(cut)};
      lost = lost || t.read_all("step/manifest", 500) != pattern(500, 2);
    }
    CHECK(lost == mutated);
  }
}

TEST_CASE("a repeated remove makes the first one durable, even where the directory is gone") {
  recording_file_system fs;
  store s{"data", small_requests, fs};
  s.put_new("step/only", pattern(10, 1));
  fs.ignore_syncs([](const auto&) { return true; });
  s.remove("step/only");
  fs.ignore_syncs({});
  s.remove("step/only");
  for (const auto& cut : fs.cuts(fs.operations(), 10, 1)) {
    store t{"data", small_requests, fs.after(cut)};
    CHECK_FALSE(t.size("step/only").has_value());
  }
}

TEST_CASE("a state after a power loss is a file system on which work goes on") {
  const run r;
  const auto cuts = r.fs.cuts(r.fs.operations() / 2, 5, 7);
  for (const auto& cut : cuts) {
    auto fs = r.fs.after(cut);
    store s{"data/checkpoints", small_requests, fs};
    for (const auto& key : s.leftovers("")) s.discard(key);
    CHECK(s.leftovers("").empty());
    s.put_new("step-9/new", pattern(10, 1));
    const auto again = fs.after(fs.cuts(fs.operations(), 0, 1).front());
    store t{"data/checkpoints", small_requests, again};
    CHECK(t.read_all("step-9/new", 10) == pattern(10, 1));
  }
}
