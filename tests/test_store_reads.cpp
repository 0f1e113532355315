// SPDX-License-Identifier: Apache-2.0
// Large reads of file_store: any offset, length and address, from the page cache, past it or through it, with faults.
// optimised
// cost: 25
// threaded
#include <cairn/stores/basic_file_store.hpp>
#include <cairn/stores/file_store.hpp>

#include "support/cached_file_system.hpp"
#include "support/faulty_file_system.hpp"
#include "support/random_bytes.hpp"
#include "support/scratch_directory.hpp"

#include <doctest/doctest.h>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace {

using cairn_test::faulty_file_system;
using cairn_test::file_call;
using cairn_test::file_fault;
using manner = file_fault::manner;

constexpr std::size_t object_bytes = (std::size_t{3} << 20) + 1234;

std::vector<std::byte> random_bytes(std::size_t count) {
  std::vector<std::byte> bytes(count);
  cairn_test::fill_random(bytes, 11);
  return bytes;
}

template <class FileSystem = faulty_file_system<>>
struct fixture_on {
  cairn_test::scratch_directory directory;
  FileSystem fs;
  cairn::basic_file_store<FileSystem> s{directory.path(), {.read_bytes = std::size_t{1} << 20}, fs};
  std::vector<std::byte> content = random_bytes(object_bytes);

  explicit fixture_on(const char* where = nullptr) : directory(where) { s.put_new("x", content); }

  /// Reads a range to `skew` bytes behind a multiple of 4096.
  bool right(std::size_t offset, std::size_t bytes, std::size_t skew) {
    return right(s, offset, bytes, skew);
  }
  template <class Reads>
  bool right(Reads& reads, std::size_t offset, std::size_t bytes, std::size_t skew) {
    std::vector<std::byte> memory(bytes + 3 * 4096, std::byte{0x5a});
    auto* to = memory.data() + (4096 - reinterpret_cast<std::uintptr_t>(memory.data()) % 4096) + skew;
    const cairn::read_range range{"x", offset, {to, bytes}};
    reads.read({&range, 1});
    return std::memcmp(to, content.data() + offset, bytes) == 0 && to[-1] == std::byte{0x5a} &&
           to[bytes] == std::byte{0x5a};
  }
  void check_all() { check_all(s); }
  template <class Reads>
  void check_all(Reads& reads) {
    CHECK(right(reads, 0, object_bytes, 0));
    CHECK(right(reads, 0, object_bytes, 1));
    CHECK(right(reads, 4096, std::size_t{2} << 20, 0));
    CHECK(right(reads, 1, object_bytes - 1, 1));
    CHECK(right(reads, 1, object_bytes - 1, 2));
    CHECK(right(reads, object_bytes - 70'000, 70'000, 4));
    std::mt19937_64 random(5);
    for (int i = 0; i < 100; ++i) {
      const auto offset = random() % (object_bytes - 1);
      const auto bytes = 1 + random() % (object_bytes - offset);
      CHECK(right(reads, offset, bytes, i % 3 == 0 ? offset % 4096 : random() % 4096));
    }
  }
};
using fixture = fixture_on<>;
using cached_fixture = fixture_on<cairn_test::cached_file_system>;

constexpr std::size_t mebibyte = std::size_t{1} << 20;

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

TEST_CASE("a large range beyond the end of a file is an error, and so is an endless interruption") {
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

TEST_CASE("cached bytes come from the page cache, to any address, and nothing is read past it") {
  for (const std::size_t most : {SIZE_MAX, std::size_t{5000}}) {
    cached_fixture f;
    f.fs.cache->all = true;
    f.fs.cache->most = most;
    f.fs.cache->interrupted = 2;
    auto all = f.s.begin_reads();
    f.check_all(all);
    CHECK(f.fs.cache->direct_reads == 0);
    CHECK(f.fs.cache->cached_reads > 0);
  }
  cached_fixture f;
  f.fs.cache->all = true;
  CHECK(f.right(0, object_bytes, 0));  // not by a session: asked of the device
  CHECK(f.fs.cache->direct_reads > 0);
  CHECK(f.fs.cache->cached_reads == 0);
  auto reads = f.s.begin_reads();
  CHECK(reads.is_cached("x", 1, object_bytes - 1));
  CHECK(f.right(reads, 1, object_bytes - 1, 2));
  CHECK(reads.figures().cached == object_bytes - 1);
  CHECK(reads.figures().direct == 0);
}

TEST_CASE("each request for a partly cached file reads from where its bytes are") {
  cached_fixture f;
  f.fs.cache->add(mebibyte, mebibyte);              // all of the second request
  f.fs.cache->add(2 * mebibyte, mebibyte * 3 / 4);  // the beginning of the third
  auto reads = f.s.begin_reads();
  f.check_all(reads);
  reads = f.s.begin_reads();
  CHECK(f.right(reads, 0, 3 * mebibyte, 0));
  CHECK(reads.figures().cached == mebibyte + mebibyte * 3 / 4);
  CHECK(reads.figures().direct == mebibyte + mebibyte / 4);
  CHECK(f.fs.cache->asked_in_vain == 0);
  CHECK(reads.is_cached("x", mebibyte, mebibyte));
  CHECK_FALSE(reads.is_cached("x", mebibyte - 1, 2));
  CHECK_FALSE(reads.is_cached("x", 2 * mebibyte, mebibyte));
  CHECK_FALSE(reads.is_cached("y", 0, 1));

  cached_fixture end;  // cached behind what is not
  end.fs.cache->add(mebibyte / 4, mebibyte * 3 / 4);
  auto more = end.s.begin_reads();
  CHECK(end.right(more, 0, mebibyte, 3));
  CHECK(end.fs.cache->direct_reads > 0);
  CHECK(end.fs.cache->cached_reads == 0);

  cached_fixture hole;  // what is missing is not asked of the page cache, which would read it, too
  hole.fs.cache->add(0, mebibyte / 2);
  hole.fs.cache->add(mebibyte / 2 + 4096, mebibyte / 4);
  auto rest = hole.s.begin_reads();
  CHECK(hole.right(rest, 1, mebibyte - 1, 1));
  CHECK(hole.fs.cache->asked_in_vain == 0);
  CHECK(rest.figures().cached >= mebibyte / 4);
  CHECK(rest.figures().cached + rest.figures().direct == mebibyte - 1);
}

TEST_CASE(
    "that a file cannot be opened past the page cache is remembered, that it could not just now is not") {
  for (const int error : {EIO, EMFILE, EINVAL, EOPNOTSUPP}) {
    cached_fixture f;
    f.fs.cache->no_direct = error;
    auto reads = f.s.begin_reads();
    CHECK(f.right(reads, 0, mebibyte, 0));
    f.fs.cache->no_direct = 0;
    CHECK(f.right(reads, 0, mebibyte, 0));
    CHECK((f.fs.cache->direct_reads == 0) == (error == EINVAL || error == EOPNOTSUPP));
  }
}

TEST_CASE(
    "where the kernel does not tell what is cached, a file is tried once, and goes on so if that was good") {
  for (const int unknown : {ENOSYS, EPERM}) {
    cached_fixture cold;
    cold.fs.cache->unknown = unknown;
    auto reads = cold.s.begin_reads();
    for (std::size_t i = 0; i < 3; ++i) CHECK(cold.right(reads, i * mebibyte, mebibyte, 0));
    CHECK(cold.fs.cache->cached_reads == 1);
    CHECK_FALSE(reads.is_cached("x", 0, mebibyte));

    cached_fixture warm;
    warm.fs.cache->unknown = unknown;
    warm.fs.cache->all = true;
    auto more = warm.s.begin_reads();
    CHECK_FALSE(more.is_cached("x", 0, mebibyte));
    for (std::size_t i = 0; i < 3; ++i) CHECK(warm.right(more, i * mebibyte, mebibyte, 0));
    CHECK(warm.fs.cache->direct_reads == 0);
    CHECK(more.is_cached("x", 0, mebibyte));
  }
}

TEST_CASE("a kernel that says wrongly that all is cached is asked only a few times for each file") {
  cached_fixture f;
  f.fs.cache->says_all = true;
  auto reads = f.s.begin_reads();
  for (int i = 0; i < 20; ++i) CHECK(f.right(reads, mebibyte, mebibyte, static_cast<std::size_t>(i)));
  CHECK(f.fs.cache->cached_reads == 3);
  CHECK(reads.figures().cached == 0);
}

TEST_CASE(
    "where reads of what is cached are not offered, cached ranges come through the page cache all the same") {
  for (const int refused : {EOPNOTSUPP, EINVAL, ENOSYS}) {
    cached_fixture f;
    f.fs.cache->refused = refused;
    f.fs.cache->all = true;
    auto all = f.s.begin_reads();
    f.check_all(all);
    CHECK(f.fs.cache->direct_reads == 0);
    cached_fixture half;
    half.fs.cache->refused = refused;
    half.fs.cache->add(0, mebibyte / 2 + 4096);
    auto more = half.s.begin_reads();
    CHECK(half.right(more, 0, mebibyte, 0));
    CHECK(half.fs.cache->direct_reads > 0);
  }
  for (const int no_direct : {0, EINVAL}) {  // past the page cache or not, wrong errors are not told
    cached_fixture f;
    f.fs.cache->no_direct = no_direct;
    f.fs.cache->all = true;
    f.fs.cache->refused = EIO;
    auto all = f.s.begin_reads();
    f.check_all(all);
  }
}

TEST_CASE("errors of reads are the same for what is cached in part") {
  cached_fixture f;
  f.fs.cache->add(0, mebibyte / 2);
  std::vector<std::byte> memory(object_bytes + 1);
  for (const bool all : {false, true}) {
    f.fs.cache->all = all;
    auto reads = f.s.begin_reads();
    const cairn::read_range range{"x", 0, memory};
    try {
      reads.read({&range, 1});
      FAIL("bytes beyond the end were brought");
    } catch (const cairn::corrupt_error& e) {
      CHECK(e.id() == cairn::error_id::corrupt_truncated);
    }
  }
  f.fs.cache->all = false;
  f.fs.cache->unreadable = EIO;
  auto reads = f.s.begin_reads();
  try {
    (void)f.right(reads, 0, mebibyte, 0);
    FAIL("an unreadable half was brought");
  } catch (const cairn::storage_error& e) {
    CHECK(e.id() == cairn::error_id::storage_io);
    CHECK(e.fields().offset == mebibyte / 2);
  }
}

TEST_CASE("a session opens a file once for each way, and reads on what was removed") {
  cached_fixture f;
  f.fs.cache->add(0, mebibyte);
  {
    auto reads = f.s.begin_reads();
    f.fs.cache->opened = 0;
    for (std::size_t i = 0; i < 12; ++i) CHECK(f.right(reads, i % 3 * mebibyte, mebibyte, i));
    CHECK(f.fs.cache->opened == 2);
    CHECK(f.fs.cache->open_files.size() == 2);
    f.s.remove("x");
    CHECK(f.right(reads, 0, object_bytes, 0));
    auto later = f.s.begin_reads();
    CHECK_THROWS_AS((void)f.right(later, 0, object_bytes, 0), cairn::storage_error);
  }
  CHECK(f.fs.cache->open_files.empty());
}

TEST_CASE("a session opens a file anew that a server has forgotten") {
  cached_fixture f;
  auto reads = f.s.begin_reads();
  CHECK(f.right(reads, 0, mebibyte, 0));
  f.fs.cache->stale = 1;
  CHECK(f.right(reads, 0, mebibyte, 0));
  f.fs.cache->stale = 1000;
  CHECK_THROWS_AS((void)f.right(reads, 0, mebibyte, 0), cairn::storage_error);
}

TEST_CASE("a session over many files keeps few of them open, and none that others need") {
  cached_fixture f;
  const auto bytes = random_bytes(100);
  constexpr std::size_t files = 600;
  for (std::size_t i = 0; i < files; ++i) f.s.put_new("many/" + std::to_string(i), bytes);
  const auto read_all = [&](auto& reads) {
    for (std::size_t i = 0; i < files; ++i) {
      std::vector<std::byte> got(bytes.size());
      const auto key = "many/" + std::to_string(i);
      const cairn::read_range range{key, 0, got};
      reads.read({&range, 1});
      CHECK(got == bytes);
    }
  };
  rlimit limit{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
  const auto most = std::clamp<rlim_t>(limit.rlim_cur / 16, 4, 256);
  f.fs.cache->most_open = 0;
  {
    auto reads = f.s.begin_reads();
    read_all(reads);
    CHECK(f.fs.cache->most_open <= most + 1);
    CHECK(f.fs.cache->open_files.size() >= 4);
  }
  f.fs.cache->max_open = 3;
  auto reads = f.s.begin_reads();
  read_all(reads);
  CHECK(f.fs.cache->most_open <= most + 1);
}

TEST_CASE("where there is a descriptor for one way alone, the other one is not waited for each time") {
  cached_fixture f;
  f.fs.cache->all = true;
  f.fs.cache->no_buffered = EMFILE;
  auto reads = f.s.begin_reads();
  constexpr std::size_t count = 100;
  for (std::size_t i = 0; i < count; ++i) CHECK(f.right(reads, i % 3 * mebibyte, mebibyte, 0));
  CHECK(f.fs.cache->not_opened < count);
  CHECK(f.fs.cache->direct_reads >= count);
}

TEST_CASE("threads that read many files with few descriptors take them from one another") {
  cached_fixture f;
  const auto bytes = random_bytes((std::size_t{128} << 10) + 100);
  constexpr std::size_t files = 200;
  for (std::size_t i = 0; i < files; ++i) f.s.put_new("many/" + std::to_string(i), bytes);
  f.fs.cache->add(0, std::size_t{96} << 10);  // so that long requests take both ways
  for (const std::size_t length : {std::size_t{100}, bytes.size()}) {
    f.fs.cache->max_open = length < 4096 ? 6 : 12;  // fewer than the threads could use at once
    auto reads = f.s.begin_reads();
    std::atomic<std::size_t> next{0}, right{0};
    {
      std::vector<std::jthread> threads;
      for (int t = 0; t < 8; ++t)
        threads.emplace_back([&] {
          std::vector<std::byte> got(length);
          for (auto i = next++; i < files; i = next++) {
            const auto key = "many/" + std::to_string(i);
            const cairn::read_range range{key, 0, got};
            try {
              reads.read({&range, 1});
              right += std::memcmp(got.data(), bytes.data(), length) == 0;
            } catch (const cairn::error& e) {
              MESSAGE(std::string(e.what()));
            }
          }
        });
    }
    CHECK(right.load() == files);
    f.fs.cache->max_open = SIZE_MAX;
  }
}

namespace {

/// On a tmpfs, which lets the owner of a file have a lease.
struct mapped_fixture : cached_fixture {
  static constexpr std::size_t skew = 3;
  std::vector<std::byte> memory = std::vector<std::byte>(object_bytes + 2 * 4096);
  std::byte* to = memory.data() + skew;

  mapped_fixture() : cached_fixture("/dev/shm") { fs.cache->all = fs.cache->leases = true; }

  /// Copies a range, with its digest or without: whether it was to be had, and is right then.
  template <class Reads>
  bool copied(Reads& reads, std::size_t offset, std::size_t bytes, bool with_digest = true) {
    std::fill(memory.begin(), memory.end(), std::byte{0x5a});
    std::uint64_t digest = 0;
    if (!reads.copy("x", offset, std::span(to, bytes), with_digest ? &digest : nullptr)) return false;
    const std::span<const std::byte> expected(content.data() + offset, bytes);
    CHECK(std::memcmp(to, expected.data(), bytes) == 0);
    CHECK(to[-1] == std::byte{0x5a});
    CHECK(to[bytes] == std::byte{0x5a});
    if (with_digest) CHECK(digest == cairn::digest(expected));
    return true;
  }
  /// Some sandboxes have none.
  [[nodiscard]] bool has_leases() const {
    const int file = ::open((directory.path() + "/x").c_str(), O_RDONLY | O_CLOEXEC);
    const bool given = fs.posix_file_system::lease(file) == 0;
    ::close(file);
    if (!given) MESSAGE("this system gives no leases");
    return given;
  }
  /// Opens the file in order to truncate it: the errno with which the kernel refuses to do so just now, or 0.
  [[nodiscard]] int truncate() const {
    const int file = ::open((directory.path() + "/x").c_str(), O_WRONLY | O_TRUNC | O_NONBLOCK | O_CLOEXEC);
    if (file < 0) return errno;
    ::close(file);
    return 0;
  }
};

}  // namespace

TEST_CASE("what the page cache has is copied from a mapping, at any offset, and nothing stays mapped") {
  mapped_fixture f;
  if (!f.has_leases()) return;
  {
    auto reads = f.s.begin_reads();
    for (const bool with_digest : {true, false}) {
      CHECK(f.copied(reads, 0, object_bytes, with_digest));
      CHECK(f.copied(reads, 1, mebibyte, with_digest));
      CHECK(f.copied(reads, object_bytes - 100'000, 100'000, with_digest));
    }
    CHECK(f.fs.cache->mapped == 1);
    CHECK(f.fs.cache->cached_reads == 0);
    CHECK(reads.figures().cached == 2 * (object_bytes + mebibyte + 100'000));
    CHECK_FALSE(f.copied(reads, 0, 1000));  // read() is as good
    f.fs.cache->all = false;
    CHECK_FALSE(f.copied(reads, 0, mebibyte));
    CHECK(f.right(reads, 0, mebibyte, 0));
  }
  CHECK(f.fs.cache->unmapped == 1);
  auto reads = f.s.begin_reads();
  std::uint64_t digest = 0;
  CHECK_FALSE(reads.copy("y", 0, std::span(f.to, mebibyte), &digest));  // is not there
}

TEST_CASE("a long file is mapped a part at a time, by any number of threads") {
  mapped_fixture f;
  if (!f.has_leases()) return;
  constexpr std::size_t blocks = 140;  // more than two parts
  std::vector<std::byte> all;
  for (std::size_t i = 0; i < blocks; ++i)
    all.insert(all.end(), f.content.begin(), f.content.begin() + mebibyte);
  f.s.put_new("long", all);
  std::atomic<std::size_t> next{0}, right{0};
  {
    auto reads = f.s.begin_reads();
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&] {
        std::vector<std::byte> to(mebibyte);
        for (auto i = next++; i < blocks; i = next++) {
          std::uint64_t digest = 0;
          // Straddles two blocks, and so the end of a part now and then.
          const auto offset = std::min(i * mebibyte + 12'345, all.size() - mebibyte);
          right += reads.copy("long", offset, to, &digest) &&
                   std::memcmp(to.data(), all.data() + offset, mebibyte) == 0 && digest == cairn::digest(to);
        }
      });
    threads.clear();
    CHECK(right == blocks);
    CHECK(f.fs.cache->mapped >= 3);
    CHECK(f.fs.cache->mapped <= f.fs.cache->unmapped + 1);
  }
  CHECK(f.fs.cache->mapped == f.fs.cache->unmapped);
}

TEST_CASE("who truncates a file waits until no copy is under way, and the next read tells of it") {
  mapped_fixture f;
  if (!f.has_leases()) return;
  auto reads = f.s.begin_reads();
  int refused = 0;
  f.fs.cache->while_copying = [&] { refused = f.truncate(); };
  CHECK(f.copied(reads, 0, mebibyte));  // by the kernel: somebody waits
  CHECK(refused == EWOULDBLOCK);        // a process that waits goes on as soon as it may
  CHECK(f.fs.cache->mapped == 1);
  CHECK(f.fs.cache->unmapped == 1);
  CHECK(f.fs.cache->cached_reads > 0);
  CHECK(f.truncate() == 0);
  CHECK_FALSE(f.copied(reads, 0, mebibyte));
  CHECK_THROWS_AS((void)f.right(reads, 0, mebibyte, 0), cairn::corrupt_error);
}

TEST_CASE("a file is leased while it is copied, and not while it lies open") {
  mapped_fixture f;
  if (!f.has_leases()) return;
  auto reads = f.s.begin_reads();
  CHECK(f.copied(reads, 0, mebibyte));
  CHECK(f.copied(reads, mebibyte, mebibyte));
  CHECK(f.fs.cache->cached_reads == 0);
  CHECK(f.fs.cache->leased == 2);
  CHECK_FALSE(f.fs.cache->open_files.empty());
  CHECK(f.truncate() == 0);
  CHECK_THROWS_AS((void)f.right(reads, 0, mebibyte, 0), cairn::corrupt_error);
}

TEST_CASE("what cannot be mapped is read, and digested on the way") {
  for (const int what : {0, 1, 2, 3}) {
    mapped_fixture f;
    f.fs.cache->leases = what != 0;
    f.fs.cache->unmappable = what == 1;
    f.fs.cache->depopulates = what == 2;
    if (what == 3) REQUIRE(f.truncate() == 0);
    auto reads = f.s.begin_reads();
    CHECK(f.copied(reads, 1, 2 * mebibyte) == (what != 3));
    CHECK(f.copied(reads, 1, 2 * mebibyte, false) == (what != 3));
    CHECK((f.fs.cache->cached_reads > 0) == true);
  }
  // Behind the end of a file its last page has zeros, which are no bytes of it.
  mapped_fixture f;
  auto reads = f.s.begin_reads();
  std::uint64_t digest = 0;
  std::vector<std::byte> more(200'000);
  CHECK_FALSE(reads.copy("x", object_bytes - more.size() + 1, more, &digest));
  CHECK(f.truncate() == 0);
}

TEST_CASE("keep_cached writes through the page cache, and begins early to send it on") {
  for (const bool keep : {false, true}) {
    const cairn_test::scratch_directory directory;
    const cairn_test::cached_file_system fs;
    cairn::basic_file_store<cairn_test::cached_file_system> s{directory.path(), {.keep_cached = keep}, fs};
    const auto content = random_bytes(object_bytes);
    auto writer = s.create("x", object_bytes);
    const cairn::write_range all{0, content};
    writer.write({&all, 1});
    writer.finish();
    CHECK((fs.cache->direct_writes == 0) == keep);
    CHECK(fs.cache->written_back == (keep ? object_bytes : 0));
    CHECK(s.read_all("x", object_bytes) == content);
  }
  const auto described = cairn::file_store{"d", {.keep_cached = true}}.description();
  CHECK(cairn::file_store::from_description(described).options().keep_cached);
}

TEST_CASE(
    "an error of sending on what keep_cached wrote fails the write, but not where that cannot be done") {
  for (const int error : {ENOSYS, EINVAL, ESPIPE, EOPNOTSUPP, ENOSPC, EIO}) {
    CAPTURE(error);
    const cairn_test::scratch_directory directory;
    const cairn_test::cached_file_system fs;
    fs.cache->write_back = error;
    cairn::basic_file_store<cairn_test::cached_file_system> s{directory.path(), {.keep_cached = true}, fs};
    const auto content = random_bytes(object_bytes);
    auto writer = s.create("x", object_bytes);
    const cairn::write_range all{0, content};
    if (error != EIO) {
      writer.write({&all, 1});
      writer.finish();
      CHECK(s.read_all("x", object_bytes) == content);
      continue;
    }
    try {
      writer.write({&all, 1});
      FAIL("a lost write was not told");
    } catch (const cairn::storage_error& e) {
      CHECK(e.id() == cairn::error_id::storage_io);
      CHECK(std::string(e.what()).find("sync_file_range") != std::string::npos);
    }
    CHECK_THROWS_AS(writer.finish(), cairn::usage_error);
    CHECK_FALSE(s.read_all("x", object_bytes).has_value());
  }
}

TEST_CASE("the kernel's own page cache is asked and read") {
  const cairn_test::scratch_directory directory;
  cairn::file_store s{directory.path()};
  const auto content = random_bytes(object_bytes);
  s.put_new("x", content);  // through the page cache
  const int file = ::open((directory.path() + "/x").c_str(), O_RDONLY | O_CLOEXEC);
  REQUIRE(file >= 0);
  const cairn::posix_file_system fs;
  std::vector<std::byte> got(object_bytes);
  struct statfs where {};
  REQUIRE(::fstatfs(file, &where) == 0);
  // Others may not let go of what they have cached, as tmpfs, or not tell of it: ext4, XFS, btrfs do both.
  const bool evicts = where.f_type == 0xEF53 || where.f_type == 0x58465342 || where.f_type == 0x9123683E;
  const int past = ::open((directory.path() + "/x").c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
  if (past >= 0) ::close(past);
  for (const bool evicted : {false, true}) {
    if (evicted) {
      CHECK(::fdatasync(file) == 0);
      CHECK(::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0);
    }
    auto reads = s.begin_reads();
    const auto cached = fs.cached(file, 0, object_bytes);
    if (cached < 0) MESSAGE("the kernel does not tell what is cached");
    if (cached >= 0) CHECK(cached <= static_cast<std::int64_t>(object_bytes + 4096));
    if (cached >= 0 && evicts) CHECK((cached < static_cast<std::int64_t>(object_bytes)) == evicted);
    CHECK(reads.is_cached("x", 0, object_bytes) == (cached >= static_cast<std::int64_t>(object_bytes)));
    std::fill(got.begin(), got.end(), std::byte{0});
    const cairn::read_range range{"x", 0, got};
    reads.read({&range, 1});
    CHECK(got == content);
    CHECK(reads.figures().cached + reads.figures().direct <= object_bytes);
    if (cached >= static_cast<std::int64_t>(object_bytes) && past >= 0)
      CHECK(reads.figures().cached == object_bytes);
  }
  ::close(file);
}
