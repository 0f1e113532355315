// SPDX-License-Identifier: Apache-2.0
// Large reads of file_store: any offset, length and address, past the page cache or through it, with faults.
// optimised
#include <cairn/stores/basic_file_store.hpp>
#include <cairn/stores/file_store.hpp>

#include "support/faulty_file_system.hpp"
#include "support/scratch_directory.hpp"

#include <doctest/doctest.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace {

using cairn_test::faulty_file_system;
using cairn_test::file_call;
using cairn_test::file_fault;
using store = cairn::basic_file_store<faulty_file_system<>>;
using manner = file_fault::manner;

constexpr std::size_t object_bytes = (std::size_t{3} << 20) + 1234;

std::vector<std::byte> random_bytes(std::size_t count) {
  std::mt19937_64 random(11);
  std::vector<std::byte> bytes(count);
  for (auto& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

struct fixture {
  cairn_test::scratch_directory directory;
  faulty_file_system<> fs;
  store s{directory.path(), {.read_bytes = std::size_t{1} << 20}, fs};
  std::vector<std::byte> content = random_bytes(object_bytes);

  fixture() { s.put_new("x", content); }

  /// Reads a range to `skew` bytes behind a multiple of 4096.
  bool right(std::size_t offset, std::size_t bytes, std::size_t skew) {
    std::vector<std::byte> memory(bytes + 3 * 4096, std::byte{0x5a});
    auto* to = memory.data() + (4096 - reinterpret_cast<std::uintptr_t>(memory.data()) % 4096) + skew;
    const cairn::read_range range{"x", offset, {to, bytes}};
    s.read({&range, 1});
    return std::memcmp(to, content.data() + offset, bytes) == 0 && to[-1] == std::byte{0x5a} &&
           to[bytes] == std::byte{0x5a};
  }
  void check_all() {
    CHECK(right(0, object_bytes, 0));
    CHECK(right(0, object_bytes, 1));
    CHECK(right(4096, std::size_t{2} << 20, 0));
    CHECK(right(1, object_bytes - 1, 1));
    CHECK(right(1, object_bytes - 1, 2));
    CHECK(right(object_bytes - 70'000, 70'000, 4));
    std::mt19937_64 random(5);
    for (int i = 0; i < 100; ++i) {
      const auto offset = random() % (object_bytes - 1);
      const auto bytes = 1 + random() % (object_bytes - offset);
      CHECK(right(offset, bytes, i % 3 == 0 ? offset % 4096 : random() % 4096));
    }
  }
};

}  // namespace

TEST_CASE("reads bring the same bytes from any offset to any address, and touch nothing beside them") {
  fixture f;
  f.fs.fail({.call = file_call::pread, .k = 1'000'000, .only_direct = true});
  f.check_all();
}

TEST_CASE("large reads go past the page cache where the file system can") {
  fixture f;
  f.fs.fail({.call = file_call::pread, .k = 1, .error = EIO, .only_direct = true});
  try {
    (void)f.right(0, object_bytes, 0);
    MESSAGE("this file system has no direct I/O");
  } catch (const cairn::storage_error& e) {
    CHECK(e.id() == cairn::error_id::storage_io);
    CHECK(f.fs.hits() == 1);
  }
}

TEST_CASE("where direct reads are refused, stop early or are interrupted, the bytes are the same") {
  for (const auto call : {file_call::open, file_call::direct, file_call::pread}) {
    fixture f;
    f.fs.fail(
        {.call = call, .k = 1, .error = EINVAL, .for_ever = true, .only_direct = call != file_call::direct});
    f.check_all();
  }
  for (const auto how : {manner::one_byte, manner::half, manner::nothing})
    for (const bool for_ever : {false, true}) {
      fixture f;
      f.fs.fail({.call = file_call::pread, .k = 1, .for_ever = for_ever, .only_direct = true, .how = how});
      f.check_all();
    }
  fixture f;
  f.fs.fail({.call = file_call::pread, .k = 1, .error = EINTR, .only_direct = true});
  f.check_all();
}

TEST_CASE("a large range beyond the end of a file is told, and an endless interruption ends") {
  fixture f;
  std::vector<std::byte> memory(object_bytes + 1);
  for (const std::size_t offset :
       {std::size_t{1}, std::size_t{4096}, object_bytes - 4096, object_bytes + 10'000}) {
    const cairn::read_range range{"x", offset, memory};
    try {
      f.s.read({&range, 1});
      FAIL("bytes beyond the end were brought");
    } catch (const cairn::corrupt_error& e) {
      CHECK(e.id() == cairn::error_id::corrupt_truncated);
    }
  }
  f.fs.fail({.call = file_call::pread, .k = 1, .error = EINTR, .for_ever = true});
  CHECK_THROWS_AS((void)f.right(0, object_bytes, 0), cairn::storage_error);
}
