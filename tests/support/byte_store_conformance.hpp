// SPDX-License-Identifier: Apache-2.0
#pragma once
// What every ByteStore does. A store's test file gives an environment of about twenty lines and invokes the
// suite:
//
//   struct memory_environment {
//     cairn::memory_store store;
//     cairn::memory_store make() { return store; }  // each call: a handle on the same objects, at first none
//   };
//   TEST_CASE_TEMPLATE_INVOKE(byte_store_conformance, memory_environment);
//
// The environment's destructor cleans up. A TEST_CASE_TEMPLATE makes one for each subcase.
#include <cairn/concepts/any_store.hpp>
#include <cairn/system/error.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace cairn_test {

/// Bytes that differ from place to place and from seed to seed.
inline std::vector<std::byte> pattern(std::size_t size, std::uint64_t seed = 1) {
  std::vector<std::byte> bytes(size);
  std::uint64_t x = seed * 0x9E3779B97F4A7C15u + 1;
  auto* const end = bytes.data() + size;
  for (auto* b = bytes.data(); b != end; ++b) {  // no calls: it is not optimised
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    *b = static_cast<std::byte>(x >> 32);
  }
  return bytes;
}

/// A copy that begins `skew` bytes after an aligned address.
class skewed {
 public:
  explicit skewed(std::size_t size, std::size_t skew) : memory_(size + 8192), size_(size) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    at_ = static_cast<std::size_t>((4096 - address % 4096) % 4096) + skew;
  }
  skewed(const std::vector<std::byte>& bytes, std::size_t skew) : skewed(bytes.size(), skew) {
    std::copy(bytes.begin(), bytes.end(), span().begin());
  }
  [[nodiscard]] std::span<std::byte> span() { return std::span(memory_).subspan(at_, size_); }
  [[nodiscard]] bool equals(const std::vector<std::byte>& bytes) {
    return std::equal(bytes.begin(), bytes.end(), span().begin(), span().end());
  }

 private:
  std::vector<std::byte> memory_;
  std::size_t size_;
  std::size_t at_ = 0;
};

/// The id of the cairn::error that the call throws, or nothing if it throws none.
template <class Call>
std::optional<cairn::error_id> thrown(Call call) {
  try {
    call();
  } catch (const cairn::error& e) {
    return e.id();
  }
  return {};
}

template <class Store>
void write_object(Store& store, std::string_view key, std::span<const std::byte> bytes) {
  auto writer = store.create(key, bytes.size());
  const cairn::write_range whole{0, bytes};
  writer.write(std::span(&whole, 1));
  writer.finish();
}

template <class Store>
std::vector<std::byte> read_range(Store& store, std::string_view key, std::uint64_t offset,
                                  std::size_t bytes) {
  std::vector<std::byte> out(bytes);
  const cairn::read_range range{key, offset, out};
  store.read(std::span(&range, 1));
  return out;
}

inline std::vector<std::string> keys_of(const std::vector<cairn::listed_object>& listing) {
  std::vector<std::string> keys;
  for (const auto& object : listing) keys.push_back(object.key);
  return keys;
}

/// The store itself where it has all functions that the suite calls; else the handle that stands for the others.
template <class Store>
auto complete(Store store) {
  using namespace cairn;
  if constexpr (PutsNew<Store> && ReadsWhole<Store> && PrefersWriteSizes<Store> && KeepsLeftovers<Store> &&
                ReportsSpace<Store>)
    return store;
  else
    return any_store(std::move(store));
}

TEST_CASE_TEMPLATE_DEFINE("ByteStore conformance", Environment, byte_store_conformance) {
  using cairn::error_id;
  Environment environment;
  using store_type = decltype(environment.make());
  static_assert(cairn::ByteStore<store_type>);
  auto store = complete(environment.make());

  SUBCASE("an empty store is read like any other") {
    CHECK(store.list("").empty());
    CHECK(store.leftovers("").empty());
    CHECK_FALSE(store.size("a").has_value());
    CHECK_FALSE(store.read_all("a/b", 10).has_value());
    CHECK_NOTHROW(store.remove("a/b"));
    CHECK_FALSE(std::string(store.describe()).empty());
    CHECK(store.io_alignment() >= 1);
    CHECK(store.min_write_bytes() >= 1);
    static_cast<void>(store.free_space());
  }

  SUBCASE("empty object") {
    {
      auto writer = store.create("empty", 0);
      writer.finish();
    }
    CHECK(store.size("empty") == 0);
    CHECK(store.read_all("empty", 0)->empty());
    CHECK_NOTHROW(read_range(store, "empty", 0, 0));
    CHECK(thrown([&] { read_range(store, "empty", 0, 1); }) == error_id::corrupt_truncated);
    store.put_new("empty2", {});
    CHECK(store.size("empty2") == 0);
  }

  SUBCASE("one byte") {
    write_object(store, "d/one", pattern(1));
    CHECK(store.size("d/one") == 1);
    CHECK(read_range(store, "d/one", 0, 1) == pattern(1));
    CHECK(store.read_all("d/one", 1) == pattern(1));
    CHECK(thrown([&] { static_cast<void>(store.read_all("d/one", 0)); }) == error_id::corrupt_size_mismatch);
  }

  SUBCASE("parts out of order and unaligned, hint too small, too large and missing") {
    const auto bytes = pattern(300'001);
    const std::size_t cuts[] = {0, 1, 4095, 4097, 70'000, 204'800, 300'000, 300'001};
    for (const std::uint64_t hint : {std::uint64_t{0}, std::uint64_t{10}, std::uint64_t{5'000'000}}) {
      const auto key = "cut/" + std::to_string(hint);
      {
        auto writer = store.create(key, hint);
        for (std::size_t i = std::size(cuts) - 1; i > 0; --i) {
          const cairn::write_range part{cuts[i - 1],
                                        std::span(bytes).subspan(cuts[i - 1], cuts[i] - cuts[i - 1])};
          writer.write(std::span(&part, 1));
        }
        CHECK_FALSE(store.size(key).has_value());
        writer.finish();
      }
      CHECK(store.read_all(key, 1u << 20) == bytes);
    }
  }

  SUBCASE("several parts in one call, from memory of every alignment") {
    const auto bytes = pattern(1'200'000, 7);
    for (const std::size_t skew : {std::size_t{0}, std::size_t{1}, std::size_t{8}, std::size_t{512}}) {
      skewed image(bytes, skew);
      const auto whole = image.span();
      const cairn::write_range parts[] = {{800'000, whole.subspan(800'000)},
                                          {0, whole.subspan(0, 4096)},
                                          {4096, whole.subspan(4096, 400'000)},
                                          {404'096, whole.subspan(404'096, 395'904)}};
      const auto key = "skew" + std::to_string(skew);
      auto writer = store.create(key, bytes.size());
      writer.write(parts);
      writer.write({});
      writer.finish();
      skewed back(bytes.size(), skew + 3);
      const cairn::read_range ranges[] = {{key, 0, back.span().subspan(0, 700'001)},
                                          {key, 700'001, back.span().subspan(700'001)}};
      store.read(ranges);
      CHECK(back.equals(bytes));
    }
  }

  SUBCASE("a big object") {
    const auto bytes = pattern((20u << 20) + 12'345, 3);
    write_object(store, "big", bytes);
    CHECK(store.size("big") == bytes.size());
    CHECK(read_range(store, "big", 0, bytes.size()) == bytes);
    CHECK(store.read_all("big", bytes.size()) == bytes);
  }

  SUBCASE("many ranges of several objects in one call") {
    std::vector<std::vector<std::byte>> objects;
    std::vector<std::string> keys;
    for (std::uint64_t i = 0; i < 5; ++i) {
      objects.push_back(pattern(100'000 + i, i));
      keys.push_back("many/" + std::to_string(i));
      write_object(store, keys.back(), objects.back());
    }
    std::vector<std::vector<std::byte>> pieces;
    std::vector<cairn::read_range> ranges;
    for (std::size_t i = 0; i < 200; ++i) pieces.emplace_back(97 + i);
    for (std::size_t i = 0; i < 200; ++i) ranges.push_back({keys[i / 40], (i % 40) * 2'400, pieces[i]});
    store.read(ranges);
    bool same = true;
    for (std::size_t i = 0; i < 200; ++i)
      same = same && std::equal(pieces[i].begin(), pieces[i].end(),
                                objects[i / 40].begin() + static_cast<std::ptrdiff_t>((i % 40) * 2'400));
    CHECK(same);
    store.read({});
  }

  SUBCASE("reads of what is not there") {
    CHECK(thrown([&] { read_range(store, "missing", 0, 1); }) == error_id::storage_not_found);
    CHECK(thrown([&] { read_range(store, "missing/too", 0, 0); }) == error_id::storage_not_found);
    write_object(store, "short", pattern(10));
    CHECK(read_range(store, "short", 9, 1).size() == 1);
    CHECK(thrown([&] { read_range(store, "short", 9, 2); }) == error_id::corrupt_truncated);
    CHECK(thrown([&] { read_range(store, "short", 11, 1); }) == error_id::corrupt_truncated);
    CHECK(thrown([&] { read_range(store, "short", UINT64_MAX - 1, 1); }) == error_id::corrupt_truncated);
    CHECK(thrown([&] { read_range(store, "short", UINT64_MAX, 1); }) == error_id::corrupt_truncated);
    try {
      read_range(store, "short", 4, 20);
      FAIL("a read beyond the end came back");
    } catch (const cairn::corrupt_error& e) {
      CHECK(e.fields().file.find("short") != std::string::npos);
      CHECK(e.fields().offset == 4);
      CHECK(e.fields().expected == "20 bytes");
      CHECK(e.fields().got == "6 bytes");
    }
  }

  SUBCASE("an existing key is never touched") {
    store.put_new("k", pattern(100, 1));
    CHECK(thrown([&] { store.put_new("k", pattern(100, 2)); }) == error_id::storage_exists);
    CHECK(thrown([&] { static_cast<void>(store.create("k", 100)); }) == error_id::storage_exists);
    CHECK_FALSE(store.publish_new("k", pattern(100, 3)));
    auto first = store.create("raced", 10);
    auto second = store.create("raced", 10);
    const auto bytes = pattern(10, 4);
    const cairn::write_range part{0, bytes};
    first.write(std::span(&part, 1));
    const auto other = pattern(10, 5);
    const cairn::write_range other_part{0, other};
    second.write(std::span(&other_part, 1));
    first.finish();
    CHECK(thrown([&] { second.finish(); }) == error_id::storage_exists);
    CHECK(store.read_all("k", 100) == pattern(100, 1));
    CHECK(store.read_all("raced", 100) == bytes);
  }

  SUBCASE("destroyed unfinished is aborted") {
    {
      auto writer = store.create("aborted", 5'000'000);
      const auto bytes = pattern(1'000'000);
      const cairn::write_range part{0, bytes};
      writer.write(std::span(&part, 1));
      CHECK(store.list("").empty());
      CHECK(store.leftovers("").empty());
      auto moved = std::move(writer);
      auto other = store.create("other", 0);
      other = std::move(moved);
      CHECK_FALSE(store.size("aborted").has_value());
    }
    CHECK(store.list("").empty());
    CHECK(store.leftovers("").empty());
    CHECK_NOTHROW(write_object(store, "aborted", pattern(3)));
  }

  SUBCASE("an object with a hole is refused") {
    auto writer = store.create("hole", 10'000);
    const auto bytes = pattern(10);
    const cairn::write_range part{90, bytes};
    writer.write(std::span(&part, 1));
    CHECK(thrown([&] { writer.finish(); }) == error_id::usage_incomplete_object);
    CHECK_FALSE(store.size("hole").has_value());
    CHECK(thrown([&] { writer.finish(); }) == error_id::usage_closed);
    CHECK(thrown([&] { writer.write(std::span(&part, 1)); }) == error_id::usage_closed);
  }

  SUBCASE("publish_new by eight threads: one wins, and its bytes stand whole") {
    for (int round = 0; round < 5; ++round) {
      const auto key = "step/manifest." + std::to_string(round);
      std::atomic<int> winners{0};
      std::atomic<std::uint64_t> winner{0};
      std::atomic<bool> go{false};
      std::vector<std::thread> threads;
      for (std::uint64_t t = 0; t < 8; ++t)
        threads.emplace_back([&, t] {
          auto own = complete(environment.make());
          while (!go.load()) std::this_thread::yield();
          if (own.publish_new(key, pattern(5'000, t))) {
            ++winners;
            winner = t;
          }
          if (store.read_all(key, 5'000)->size() != 5'000) winners += 100;
        });
      go = true;
      for (auto& t : threads) t.join();
      CHECK(winners == 1);
      CHECK(store.read_all(key, 5'000) == pattern(5'000, winner));
    }
    CHECK(store.leftovers("").empty());
  }

  SUBCASE("listing by prefix, sorted; removing") {
    for (const auto* key : {"b/2", "a", "b/10", "b/c/x", "b.d", "bb"}) store.put_new(key, pattern(3));
    using keys = std::vector<std::string>;
    CHECK(keys_of(store.list("")) == keys{"a", "b.d", "b/10", "b/2", "b/c/x", "bb"});
    CHECK(keys_of(store.list("b")) == keys{"b.d", "b/10", "b/2", "b/c/x", "bb"});
    CHECK(keys_of(store.list("b/")) == keys{"b/10", "b/2", "b/c/x"});
    CHECK(keys_of(store.list("b/1")) == keys{"b/10"});
    CHECK(keys_of(store.list("b/c/x")) == keys{"b/c/x"});
    CHECK(cairn::detail::list_keys(store, "b") == keys{"b.d", "b/10", "b/2", "b/c/x", "bb"});
    CHECK(cairn::detail::list_keys(store, "b", 2) == keys{"b.d", "b/10", "b/2", "bb"});
    CHECK(cairn::detail::list_keys(store, "", 1) == keys{"a", "b.d", "bb"});
    CHECK(store.list("b/c/x")[0].bytes == 3);
    CHECK(store.list("c").empty());
    CHECK(store.list("b/c/x/").empty());
    store.remove("b/c/x");
    store.remove("b/c/x");
    CHECK(keys_of(store.list("b/")) == keys{"b/10", "b/2"});
    CHECK_NOTHROW(store.put_new("b/c/x", pattern(4)));
    CHECK(store.size("b/c/x") == 4);
  }

  SUBCASE("a removal on condition takes what was looked at, and nothing else") {
    const auto one = pattern(3000, 1);
    auto other = one;
    other[2999] ^= std::byte{1};
    store.put_new("c/manifest", one);
    CHECK_FALSE(cairn::detail::remove_if(store, "c/manifest", other));
    CHECK_FALSE(cairn::detail::remove_if(store, "c/manifest", pattern(2999, 1)));
    CHECK(store.read_all("c/manifest", 3000) == one);
    CHECK(cairn::detail::remove_if(store, "c/manifest", one));
    CHECK_FALSE(store.size("c/manifest").has_value());
    CHECK(cairn::detail::remove_if(store, "c/manifest", one));
    store.put_new("c/manifest", other);
    CHECK_FALSE(cairn::detail::remove_if(store, "c/manifest", one));
    CHECK(store.read_all("c/manifest", 3000) == other);
  }

  SUBCASE("bad keys are refused everywhere") {
    const std::string bad[] = {"",
                               "/",
                               "/a",
                               "a/",
                               "a//b",
                               ".",
                               "..",
                               "a/..",
                               "../a",
                               "./a",
                               "a b",
                               "a\\b",
                               "\xc3\xa9",
                               std::string("a\0b", 3),
                               std::string(513, 'a')};
    for (const auto& key : bad) {
      CAPTURE(key);
      CHECK(thrown([&] { static_cast<void>(store.create(key, 0)); }) == error_id::storage_bad_key);
      CHECK(thrown([&] { store.put_new(key, {}); }) == error_id::storage_bad_key);
      CHECK(thrown([&] { static_cast<void>(store.publish_new(key, {})); }) == error_id::storage_bad_key);
      CHECK(thrown([&] { read_range(store, key, 0, 0); }) == error_id::storage_bad_key);
      CHECK(thrown([&] { static_cast<void>(store.read_all(key, 0)); }) == error_id::storage_bad_key);
      CHECK(thrown([&] { static_cast<void>(store.size(key)); }) == error_id::storage_bad_key);
      CHECK(thrown([&] { store.remove(key); }) == error_id::storage_bad_key);
      CHECK(thrown([&] { store.discard(key); }) == error_id::storage_bad_key);
    }
    CHECK(store.list("").empty());
    CHECK_NOTHROW(store.put_new("...", pattern(1)));
    CHECK_NOTHROW(store.put_new("-x/_.Y-0", pattern(1)));
  }

  SUBCASE("many threads at once") {
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (std::uint64_t t = 0; t < 8; ++t)
      threads.emplace_back([&, t] {
        try {
          for (std::uint64_t i = 0; i < 4; ++i) {
            const auto bytes = pattern(300'000 + t * 1'001 + i, t * 100 + i);
            const auto key = "t" + std::to_string(t % 4) + "/" + std::to_string(t) + "." + std::to_string(i);
            write_object(store, key, bytes);
            if (read_range(store, key, 0, bytes.size()) != bytes) ++wrong;
            static_cast<void>(store.list(""));
            if (!store.leftovers("none").empty()) ++wrong;
            if (i % 2 == 1) store.remove(key);
          }
        } catch (...) {
          ++wrong;
        }
      });
    for (auto& t : threads) t.join();
    CHECK(wrong == 0);
    CHECK(store.list("").size() == 16);
  }

  if constexpr (cairn::DirectoryStore<store_type>) {
    SUBCASE("a directory that one makes and others take as it is") {
      CHECK_FALSE(store.adopt_directory("d/e"));
      store.make_directory("d/e");
      store.make_directory("d/e");
      auto anew = environment.make();
      CHECK(anew.adopt_directory("d/e"));
      CHECK(anew.adopt_directory("d"));
      CHECK_FALSE(anew.adopt_directory("d/f"));
      CHECK(store.list("").empty());
      write_object(anew, "d/e/x", pattern(10));
      CHECK(store.read_all("d/e/x", 10) == pattern(10));
      CHECK_FALSE(store.adopt_directory("d/e/x"));
      CHECK_NOTHROW(store.make_name_durable("d/e/x"));
      CHECK_NOTHROW(store.make_name_durable("d/f/x"));
      if constexpr (cairn::DurabilityHints<store_type>) {
        CHECK(store.publish_new("d/e/y", pattern(10)));
        store.note_durable("d/e/y");
        CHECK(anew.is_noted_durable("d/e/y"));
        CHECK(store.read_all("d/e/y", 10) == pattern(10));
        CHECK_FALSE(store.publish_new("d/e/y", pattern(11)));
        store.remove("d/e/y");
        CHECK_FALSE(store.size("d/e/y").has_value());
        for (const auto* key : {"d/e/y", "d/f/x", "../d"}) CHECK_NOTHROW(store.note_durable(key));
      }
      CHECK(thrown([&] { store.make_directory("../d"); }) == error_id::storage_bad_key);
      CHECK(thrown([&] { static_cast<void>(store.adopt_directory("d//e")); }) == error_id::storage_bad_key);
    }
  }

  if constexpr (cairn::LinksObjects<store_type>) {
    SUBCASE("an object with a second key: both stand, and each goes alone") {
      if constexpr (cairn::MayLink<store_type>)
        if (!store.links()) return;
      const auto bytes = pattern(300'001, 3);
      auto other = environment.make();
      write_object(store, "l/one", bytes);
      other.link("l/one", "l/m/two");
      CHECK(store.read_all("l/m/two", 1u << 20) == bytes);
      CHECK(store.size("l/m/two") == bytes.size());
      CHECK(keys_of(store.list("l/")) == std::vector<std::string>{"l/m/two", "l/one"});
      store.put_new("l/three", pattern(5));
      CHECK(thrown([&] { other.link("l/one", "l/three"); }) == error_id::storage_exists);
      CHECK(store.read_all("l/three", 10) == pattern(5));
      CHECK(thrown([&] { other.link("l/none", "l/four"); }) == error_id::storage_not_found);
      CHECK(thrown([&] { other.link("n/one", "l/four"); }) == error_id::storage_not_found);
      CHECK(thrown([&] { other.link("l/one", "../four"); }) == error_id::storage_bad_key);
      CHECK(thrown([&] { other.link("/one", "l/four"); }) == error_id::storage_bad_key);
      store.remove("l/one");
      CHECK(thrown([&] { other.link("l/one", "l/four"); }) == error_id::storage_not_found);
      CHECK(store.read_all("l/m/two", 1u << 20) == bytes);
      other.link("l/m/two", "l/one");
      store.remove("l/m/two");
      CHECK(read_range(store, "l/one", 300'000, 1) == std::vector<std::byte>{bytes.back()});
      store.put_new("l/empty", {});
      other.link("l/empty", "l/none");
      CHECK(store.size("l/none") == 0);
      CHECK(store.leftovers("").empty());
    }
  }

  if constexpr (cairn::SharedStore<store_type>) {
    SUBCASE("an object that several writers fill") {
      const auto bytes = pattern(300'001);
      const auto all = std::span<const std::byte>(bytes);
      const auto write = [&](auto& writer, std::size_t from, std::size_t to) {
        const cairn::write_range part{from, all.subspan(from, to - from)};
        writer.write(std::span(&part, 1));
      };
      auto other = environment.make();
      CHECK_FALSE(other.join("s/x", 7).has_value());
      auto first = store.share("s/x", 7);
      CHECK_FALSE(other.join("s/x", 8).has_value());
      CHECK_FALSE(other.join("s/y", 7).has_value());
      CHECK(thrown([&] { static_cast<void>(other.share("s/x", 7)); }) == error_id::storage_exists);
      auto second = other.join("s/x", 7).value();
      auto third = other.join("s/x", 7).value();
      SUBCASE("is there as a whole when it is finished") {
        std::vector<std::byte> seen(3);
        CHECK_FALSE(second.read(4097, seen));
        first.put(4097, pattern(3, 9));
        CHECK(second.read(4097, seen));
        CHECK(seen == pattern(3, 9));
        CHECK(second.read(0, seen));
        CHECK(seen == std::vector<std::byte>(3));
        std::jthread a([&] { write(first, 100'001, 200'003); });
        std::jthread b([&] { write(second, 0, 100'001); });
        write(third, 200'003, 300'001);
        a.join(), b.join();
        third.put(400'000, pattern(3));  // to be cut
        second.sync(), third.sync();
        CHECK_FALSE(store.size("s/x").has_value());
        CHECK(store.list("").empty());
        CHECK(thrown([&] { third.finish(bytes.size()); }) == error_id::usage_closed);
        first.finish(bytes.size());
        CHECK(store.read_all("s/x", 1u << 20) == bytes);
        CHECK_FALSE(other.join("s/x", 7).has_value());
        CHECK(thrown([&] { static_cast<void>(store.share("s/x", 9)); }) == error_id::storage_exists);
      }
      SUBCASE("is aborted with the writer that began it") {
        write(second, 0, 100'001);
        { const auto gone = std::move(second); }
        CHECK(other.join("s/x", 7).has_value());
        { const auto gone = std::move(first); }
        CHECK_FALSE(other.join("s/x", 7).has_value());
        CHECK_NOTHROW(third.sync());
        CHECK(store.list("").empty());
      }
      SUBCASE("never takes the place of another") {
        store.put_new("s/x", pattern(5));
        CHECK(thrown([&] { first.finish(3); }) == error_id::storage_exists);
        CHECK(store.read_all("s/x", 10) == pattern(5));
      }
    }
  }

  SUBCASE("a moved store and a store opened anew see the same objects") {
    write_object(store, "x/y", pattern(1'000));
    auto moved = std::move(store);
    CHECK(moved.read_all("x/y", 1'000) == pattern(1'000));
    auto anew = complete(environment.make());
    CHECK(anew.read_all("x/y", 1'000) == pattern(1'000));
  }
}

}  // namespace cairn_test
