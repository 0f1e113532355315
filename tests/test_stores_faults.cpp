// SPDX-License-Identifier: Apache-2.0
// cost: 15
// Every system call of file_store fails in turn, once and for ever; and the faults of real file systems.
#include <cairn/concepts/any_store.hpp>
#include <cairn/concepts/store_errors.hpp>
#include <cairn/stores/basic_file_store.hpp>
#include <cairn/stores/file_store.hpp>

#include "support/byte_store_conformance.hpp"
#include "support/faulty_file_system.hpp"
#include "support/nfs_client_file_system.hpp"
#include "support/odd_file_system.hpp"
#include "support/recording_file_system.hpp"
#include "support/rounds.hpp"
#include "support/scratch_directory.hpp"
#include "support/small_disk.hpp"
#include "support/still_threads.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using namespace cairn_test;
using cairn::error_id;
using model = faulty_file_system<recording_file_system>;
using model_store = cairn::basic_file_store<model>;
using real_store = cairn::basic_file_store<faulty_file_system<>>;

constexpr cairn::file_store_options small_requests{
    .write_bytes = 64u << 10, .writes_in_flight = 1, .read_bytes = 64u << 10};

struct wanted {
  std::vector<std::byte> bytes;
  bool acknowledged = false;
};

struct outcome {
  std::map<std::string, wanted> objects;
  std::vector<error_id> errors;
  bool foreign = false;  // an exception that is no cairn::error
};

/// What a save does to a store: two data files, one with odd edges, a record, a manifest, and a look at it
/// all. Each step is tried, whatever became of those before.
template <class Store>
outcome save(Store& s) {
  outcome out;
  const auto step = [&](const std::string& key, std::vector<std::byte> bytes, auto call) {
    auto& object = out.objects[key];
    object.bytes = std::move(bytes);
    try {
      call(object.bytes);
      object.acknowledged = true;
    } catch (const cairn::error& e) {
      out.errors.push_back(e.id());
      if (e.fields().file.empty()) out.foreign = true;  // each names the file
    } catch (...) {
      out.foreign = true;
    }
  };
  step("step/rank-0.data", pattern(200'001, 1),
       [&](const auto& bytes) { write_object(s, "step/rank-0.data", bytes); });
  step("step/rank-0.1.data", pattern(150'000, 2), [&](const auto& bytes) {
    skewed image(bytes, 3);
    auto writer = s.create("step/rank-0.1.data", 190'000);
    const cairn::write_range parts[] = {{100'000, image.span().subspan(100'000)},
                                        {0, image.span().subspan(0, 100'000)}};
    writer.write(parts);
    writer.finish();
  });
  step("step/rank-0.record", pattern(200, 3),
       [&](const auto& bytes) { s.put_new("step/rank-0.record", bytes); });
  step("step/manifest", pattern(900, 4), [&](const auto& bytes) {
    if (!s.publish_new("step/manifest", bytes))
      cairn::fail(error_id::storage_exists, "lost", {.file = "step/manifest"});
  });
  step("step/removed", pattern(10, 5), [&](const auto& bytes) {
    s.put_new("step/removed", bytes);
    s.remove("step/removed");
  });
  out.objects.erase("step/removed");
  return out;
}

/// Reads everything back, and looks for what must not be there.
template <class Store>
void check_whole(Store& healthy, const outcome& out) {
  CHECK_FALSE(out.foreign);
  for (const auto& [key, want] : out.objects) {
    CAPTURE(key);
    const auto got = healthy.read_all(key, 1u << 20);
    if (want.acknowledged) CHECK(got.has_value());
    if (got) CHECK((*got == want.bytes));
  }
}

struct fault_kind {
  const char* name;
  file_fault fault;
  std::set<error_id> expected;
};

}  // namespace

TEST_CASE(
    "the k-th call of each kind fails, once and for ever: a typed error or success, never a part of an "
    "object") {
  std::size_t runs = 0;
  for (int c = 0; c < file_calls; ++c) {
    const auto call = static_cast<file_call>(c);
    // Each kind of call with three errors in a short run, which differ from kind to kind, and with all in a
    // long one.
    static constexpr int errors[] = {EIO,    ENOSPC, EINTR,  EACCES,     EMFILE,
                                     ENOENT, EEXIST, EINVAL, EOPNOTSUPP, ENOMEM};
    const auto tried = std::min<std::size_t>(cairn_test::rounds(3), std::size(errors));
    for (std::size_t e = 0; e < tried; ++e)
      for (const bool for_ever : {false, true})
        for (const bool after : {false, true}) {
          // Only names are changed by calls whose reply may be lost and still have worked.
          if (after && (for_ever || (call != file_call::rename && call != file_call::link))) continue;
          const int error = errors[(static_cast<std::size_t>(c) * 3 + e) % std::size(errors)];
          for (std::size_t k = 1;; ++k) {
            recording_file_system disk;
            model fs(disk);
            fs.fail({.call = call,
                     .k = k,
                     .error = error,
                     .for_ever = for_ever,
                     .how = after ? file_fault::manner::fails_after : file_fault::manner::fails});
            outcome out;
            {
              model_store s{"root", small_requests, fs};
              out = save(s);
            }
            const auto hits = fs.hits();
            fs.heal();
            CAPTURE(c);
            CAPTURE(error);
            CAPTURE(k);
            CAPTURE(for_ever);
            model_store healthy{"root", small_requests, fs};
            check_whole(healthy, out);
            CHECK(disk.open_handles() == 0);
            if (hits == 0) CHECK(out.errors.empty());
            // A failed fsync is not tried again on the same file.
            std::map<std::uint64_t, int> syncs;
            for (const auto& sync : disk.sync_calls())
              if (!sync.directory) CHECK(++syncs[sync.inode] == 1);
            // Nothing is left over, unless taking it away was what failed.
            for (const auto& key : healthy.leftovers("")) healthy.discard(key);
            if (call != file_call::unlink)
              for (const auto& path : disk.files()) CHECK(path.find(".part") == std::string::npos);
            ++runs;
            if (hits == 0) break;
            REQUIRE(k < 1'000);
          }
        }
  }
  CHECK(runs > 300);
}

TEST_CASE("each error has its id, and the message names file, call and cause") {
  struct row {
    file_call call;
    int error;
    error_id id;
    const char* says;
  };
  const row rows[] = {
      {file_call::pwrite, EIO, error_id::storage_io, "pwrite"},
      {file_call::pwrite, ENOSPC, error_id::storage_no_space, "No space left"},
      {file_call::allocate, ENOSPC, error_id::storage_no_space, "fallocate"},
      {file_call::allocate, EDQUOT, error_id::storage_no_space, "quota"},
      {file_call::pwrite, EFBIG, error_id::storage_limit, "ulimit -f"},
      {file_call::open, EMFILE, error_id::storage_limit, "ulimit -n"},
      {file_call::open, ENFILE, error_id::storage_limit, "fs.file-max"},
      {file_call::open, ENAMETOOLONG, error_id::storage_limit, "too long"},
      {file_call::open, EROFS, error_id::storage_permission, "read-only"},
      {file_call::open, EACCES, error_id::storage_permission, "Permission denied"},
      {file_call::open_directory, ELOOP, error_id::storage_bad_key, "symbolic link"},
      {file_call::open_directory, ENOTDIR, error_id::storage_not_found, "a file stands where"},
      {file_call::make_directory, EROFS, error_id::storage_permission, "mkdir"},
      {file_call::sync, EIO, error_id::storage_io, "fsync"},
      {file_call::sync, ENOSPC, error_id::storage_no_space, "fsync"},
      {file_call::close, EDQUOT, error_id::storage_no_space, "close"},
      {file_call::rename, EIO, error_id::storage_io, "rename"},
      {file_call::sync_directory, EIO, error_id::storage_io, "directory"},
      {file_call::truncate, EIO, error_id::storage_io, "ftruncate"},
      {file_call::pwrite, ENOMEM, error_id::storage_out_of_memory, "memory"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.says);
    CAPTURE(row.error);
    model fs;
    model_store s{"root", small_requests, fs};
    s.put_new("first", pattern(1));
    // The first open and close are those of directories that the object is looked for in.
    bool seen = false;
    for (std::size_t k = 1; k < 50 && !seen; ++k) {
      fs.fail({.call = row.call, .k = k, .error = row.error});
      try {
        auto writer = s.create("new/object" + std::to_string(k), 300'000);
        const auto bytes = pattern(200'000);
        const cairn::write_range part{0, bytes};
        writer.write(std::span(&part, 1));
        writer.finish();
      } catch (const cairn::storage_error& e) {
        seen = true;
        CHECK(e.id() == row.id);
        CHECK_MESSAGE(std::string(e.what()).find(row.says) != std::string::npos, e.what());
        CHECK(e.message().find(std::system_category().message(row.error)) != std::string::npos);
        CHECK(e.fields().file.find("/root") == 0);
        if (row.id == error_id::storage_no_space) CHECK_FALSE(e.fields().got.empty());
      }
    }
    CHECK(seen);
  }
}

TEST_CASE("short counts, EINTR and calls that move nothing end well or in an error, and never in a loop") {
  using manner = file_fault::manner;
  for (const auto how : {manner::one_byte, manner::half, manner::nothing})
    for (const bool only_direct : {false, true})
      for (const bool for_ever : {false, true}) {
        if (how == manner::one_byte && for_ever && !only_direct)
          continue;  // 350,000 calls prove no more than one
        CAPTURE(static_cast<int>(how));
        CAPTURE(only_direct);
        CAPTURE(for_ever);
        recording_file_system disk;
        model fs(disk);
        fs.fail({.call = file_call::pwrite,
                 .k = 1,
                 .for_ever = for_ever,
                 .only_direct = only_direct,
                 .how = how});
        model_store s{"root", small_requests, fs};
        const auto out = save(s);
        CHECK(fs.hits() > 0);
        fs.heal();
        check_whole(s, out);
        if (how == manner::nothing && for_ever && !only_direct)
          CHECK(out.errors.size() == 5);
        else
          CHECK(out.errors.empty());
      }
  for (const auto how : {manner::one_byte, manner::half}) {
    model fs;
    model_store s{"root", small_requests, fs};
    write_object(s, "x", pattern(10'000, 1));
    fs.fail({.call = file_call::pread, .k = 1, .for_ever = true, .how = how});
    CHECK(read_range(s, "x", 1, 9'999).size() == 9'999);
    CHECK(s.read_all("x", 10'000) == pattern(10'000, 1));
    fs.fail({.call = file_call::pread, .k = 1, .error = EINTR, .for_ever = true});
    CHECK(thrown([&] { read_range(s, "x", 0, 1); }) == error_id::storage_io);
    fs.fail({.call = file_call::pread, .k = 1, .error = EINTR});
    CHECK(read_range(s, "x", 0, 10'000) == pattern(10'000, 1));
    fs.fail({.call = file_call::pread, .k = 1, .error = ESTALE});
    CHECK(read_range(s, "x", 0, 10'000) == pattern(10'000, 1));
    fs.fail({.call = file_call::pread, .k = 1, .error = ESTALE, .for_ever = true});
    CHECK(thrown([&] { read_range(s, "x", 0, 1); }) == error_id::storage_io);
  }
}

TEST_CASE("where O_DIRECT is refused the bytes are the same") {
  for (const auto call : {file_call::open, file_call::pwrite, file_call::direct}) {
    const scratch_directory directory;
    faulty_file_system<> fs;
    for (const std::size_t k : {std::size_t{1}, std::size_t{2}}) {
      fs.fail({.call = call,
               .k = k,
               .error = EINVAL,
               .for_ever = true,
               .only_direct = call != file_call::direct});
      real_store s{directory.path() + "/" + std::to_string(k), {.write_bytes = 64u << 10}, fs};
      const auto out = save(s);
      CHECK(out.errors.empty());
      CHECK(fs.hits() > 0);
      fs.heal();
      check_whole(s, out);
    }
  }
}

TEST_CASE("where names cannot be renamed without replacing, a link does it") {
  for (const int error : {EINVAL, ENOSYS}) {
    recording_file_system disk;
    model fs(disk);
    fs.fail({.call = file_call::rename, .k = 1, .error = error, .for_ever = true});
    model_store s{"root", small_requests, fs};
    const auto out = save(s);
    CHECK(out.errors.empty());
    check_whole(s, out);
    CHECK(disk.files().size() == 4);
    CHECK_FALSE(s.publish_new("step/manifest", pattern(3)));
    CHECK(disk.files().size() == 4);
  }
}

TEST_CASE("a rename or link whose reply was lost is known by the file that stands there") {
  for (const bool by_link : {false, true})
    for (const int error : {EEXIST, ENOENT, EIO}) {
      recording_file_system disk;
      faulty_file_system<model> fs{model(disk)};
      if (by_link) fs.inner().fail({.call = file_call::rename, .k = 1, .error = EINVAL, .for_ever = true});
      fs.fail({.call = by_link ? file_call::link : file_call::rename,
               .k = 1,
               .error = error,
               .for_ever = true,
               .how = file_fault::manner::fails_after});
      cairn::basic_file_store<faulty_file_system<model>> s{"root", small_requests, fs};
      const auto out = save(s);
      CHECK(out.errors.empty());
      CHECK(out.objects.at("step/manifest").acknowledged);
      check_whole(s, out);
    }
}

TEST_CASE("a publication that fails before its rename says that nothing is published, a later one does not") {
  struct row {
    file_call call;
    bool before;
  };
  for (const auto& row :
       {row{file_call::open, true}, row{file_call::duplicate, true}, row{file_call::pwrite, true},
        row{file_call::sync, true}, row{file_call::rename, false}, row{file_call::sync_directory, false}})
    for (const int error : {EIO, ENOSPC})
      for (const bool small : {false, true}) {
        CAPTURE(static_cast<int>(row.call));
        CAPTURE(error);
        CAPTURE(small);
        recording_file_system disk;
        model fs(disk);
        const cairn::any_store s{model_store{"root", small_requests, fs}};
        s.put_new("step/record", pattern(1));
        fs.fail({.call = row.call, .k = 1, .error = error, .for_ever = true});
        bool unpublished = false;
        std::optional<error_id> id;
        try {
          if (small)
            s.put_new("step/manifest", pattern(3));
          else
            static_cast<void>(s.publish_new("step/manifest", pattern(3)));
        } catch (const cairn::unpublished_error& e) {
          unpublished = true;
          id = e.id();
        } catch (const cairn::storage_error& e) {
          id = e.id();
        }
        CHECK(id == (error == EIO ? error_id::storage_io : error_id::storage_no_space));
        CHECK(unpublished == row.before);
        fs.heal();
        CHECK(s.size("step/manifest").has_value() == (row.call == file_call::sync_directory));
        CHECK(disk.files().size() == (row.call == file_call::sync_directory ? 2 : 1));
      }
}

TEST_CASE("leftovers are the files of dead writers only") {
  const scratch_directory directory;
  cairn::file_store s{directory.path()};
  auto alive = s.create("step/alive", 100);
  CHECK(s.leftovers("").empty());
  await_still_threads();
  const auto child = ::fork();
  if (child == 0) {
    cairn::file_store in_child{directory.path()};
    const auto bytes = pattern(100);
    auto dead = in_child.create("step/dead", 100);
    const cairn::write_range part{0, bytes};
    dead.write(std::span(&part, 1));
    ::kill(::getpid(), SIGKILL);
  }
  REQUIRE(child > 0);
  REQUIRE(::waitpid(child, nullptr, 0) == child);
  const auto left = s.leftovers("");
  REQUIRE(left.size() == 1);
  CHECK(left[0].starts_with("step/dead."));
  CHECK(s.leftovers("step/de") == left);
  CHECK(s.leftovers("other").empty());
  CHECK(s.list("").empty());
  CHECK(thrown([&] { s.put_new(left[0], {}); }) == error_id::storage_bad_key);
  s.discard(left[0]);
  s.discard(left[0]);
  CHECK(s.leftovers("").empty());
  CHECK(thrown([&] { s.discard("step/dead"); }) == error_id::storage_bad_key);
  // The live one, by its name on the disk.
  std::vector<cairn::directory_entry> names;
  cairn::posix_file_system fs;
  const int step = fs.open_directory((directory.path() + "/step").c_str());
  REQUIRE(fs.list(step, names) == 0);
  CHECK(fs.close(step) == 0);
  REQUIRE(names.size() == 1);
  CHECK(thrown([&] { s.discard("step/" + names[0].name); }) == error_id::storage_exists);
  alive.finish();
  CHECK(s.size("step/alive") == 0);
}

TEST_CASE("who may not write a file sees by its lock all the same whether its writer lives") {
  const scratch_directory directory;
  cairn::file_store others{directory.path()};
  auto alive = others.create("step/alive", 0);
  auto finished = others.create("finished", 0);
  finished.finish();
  const std::string dead = "step/dead.0123456789abcdef.part";
  faulty_file_system<> fs;
  real_store s{directory.path(), {}, fs};
  const auto forbidding = [&](int error, bool to_read, auto call) {
    fs.fail({.call = file_call::open, .k = 1, .error = error, .for_ever = to_read});
    auto result = call();
    CHECK(fs.hits() > 0);
    fs.heal();
    return result;
  };
  const auto living = [&] { return s.live_writers("step/alive"); };
  const auto left = [&] { return s.leftovers("step/"); };
  for (const int error : {EACCES, EPERM, EROFS}) {
    CAPTURE(error);
    REQUIRE(forbidding(error, false, living).size() == 1);
    const auto key = living()[0];
    CHECK(forbidding(error, false, left).empty());
    CHECK(forbidding(error, false, [&] { return s.writer_lives("finished"); }));
    CHECK(forbidding(error, false, [&] { return thrown([&] { s.discard(key); }); }) ==
          error_id::storage_exists);
  }
  // One that may not even be read may be a living writer's.
  const auto key = living()[0];
  CHECK(forbidding(EACCES, true, living) == std::vector{key});
  CHECK(forbidding(EACCES, true, left).empty());
  CHECK(forbidding(EACCES, true, [&] { return thrown([&] { s.discard(key); }); }) ==
        error_id::storage_exists);
  alive.finish();

  REQUIRE(::close(::open((directory.path() + "/" + dead).c_str(), O_CREAT | O_RDWR, 0644)) == 0);
  CHECK(forbidding(EACCES, false, [&] { return s.live_writers("step/"); }).empty());
  CHECK(forbidding(EACCES, false, left) == std::vector{dead});
  CHECK_FALSE(forbidding(EACCES, false, [&] { return thrown([&] { s.discard(dead); }); }).has_value());
  CHECK(left().empty());
}

TEST_CASE("an error while a lock is asked for is told, and nothing is removed") {
  const scratch_directory directory;
  cairn::file_store others{directory.path()};
  auto alive = others.create("step/alive", 0);
  others.put_new("step/whole", {});
  faulty_file_system<> fs;
  real_store s{directory.path(), {}, fs};
  const auto key = s.live_writers("").at(0);
  struct row {
    file_call call;
    int error;
    error_id id;
  };
  const row rows[] = {
      {file_call::open, EMFILE, error_id::storage_limit},
      {file_call::open, ENFILE, error_id::storage_limit},
      {file_call::open, EIO, error_id::storage_io},
      {file_call::open, ENOMEM, error_id::storage_out_of_memory},
      {file_call::lock, EIO, error_id::storage_io},
      {file_call::lock, ENOLCK, error_id::storage_io},
      {file_call::lock, EINTR, error_id::storage_io},
      {file_call::open_directory, EIO, error_id::storage_io},
  };
  for (const auto& row : rows) {
    CAPTURE(static_cast<int>(row.call));
    CAPTURE(row.error);
    const auto error_of = [&](auto call) {
      fs.fail({.call = row.call, .k = 1, .error = row.error, .for_ever = true});
      const auto id = thrown(call);
      CHECK(fs.hits() > 0);
      fs.heal();
      return id;
    };
    CHECK(error_of([&] { static_cast<void>(s.live_writers("")); }) == row.id);
    CHECK(error_of([&] { static_cast<void>(s.leftovers("")); }) == row.id);
    CHECK(error_of([&] { static_cast<void>(s.writer_lives("step/whole")); }) == row.id);
    CHECK(error_of([&] { s.discard(key); }) == row.id);
    CHECK(s.live_writers("") == std::vector{key});
  }
  // A signal alone hides nothing, and what is gone has no writer.
  fs.fail({.call = file_call::lock, .error = EINTR});
  CHECK(s.live_writers("") == std::vector{key});
  for (const auto call : {file_call::open, file_call::lock}) {
    fs.fail({.call = call, .error = ESTALE});
    CHECK(s.live_writers("").empty());
    fs.fail({.call = call, .error = ESTALE});
    CHECK(s.leftovers("").empty());
  }
  fs.heal();

  fs.fail({.call = file_call::lock, .error = EIO});  // nobody would see that this writer lives
  CHECK(thrown([&] { static_cast<void>(s.create("other", 0)); }) == error_id::storage_io);
  fs.heal();
  CHECK(s.leftovers("").empty());
  alive.finish();
}

TEST_CASE(
    "a writer without a second descriptor for its lock fails before it writes, and else lives until it "
    "ends") {
  const scratch_directory directory;
  cairn::file_store others{directory.path()};
  faulty_file_system<> fs;
  real_store s{directory.path(), {}, fs};
  const auto begin = [&] { return s.create("step/a", 100); };
  fs.fail({.call = file_call::duplicate, .error = EMFILE});
  CHECK(thrown([&] { static_cast<void>(begin()); }) == error_id::storage_limit);
  CHECK(std::filesystem::is_empty(directory.path() + "/step"));
  auto writer = begin();
  auto shared = s.share("step/b", 7);
  fs.fail({.call = file_call::duplicate, .error = EMFILE, .for_ever = true});
  writer.finish();
  shared.finish(0);
  CHECK(others.writer_lives("step/a"));
  CHECK(others.writer_lives("step/b"));
}

TEST_CASE("where there are no locks at all every unfinished file counts as a dead writer's") {
  const scratch_directory directory;
  for (const int error : {ENOLCK, ENOSYS, EOPNOTSUPP, EINVAL}) {
    CAPTURE(error);
    faulty_file_system<> fs;
    fs.fail({.call = file_call::lock, .error = error, .for_ever = true});
    real_store s{directory.path(), {}, fs};
    auto writer = s.create("alive", 0);
    CHECK(s.live_writers("").empty());
    const auto left = s.leftovers("");
    REQUIRE(left.size() == 1);
    CHECK_FALSE(thrown([&] { s.discard(left[0]); }).has_value());
  }
}

TEST_CASE("a file that cannot be opened to be linked or removed is no file that is missing") {
  const scratch_directory directory;
  faulty_file_system<> fs;
  real_store s{directory.path(), {}, fs};
  s.put_new("step/a", {});
  const std::pair<int, error_id> rows[] = {{EMFILE, error_id::storage_limit},
                                           {EACCES, error_id::storage_permission},
                                           {EIO, error_id::storage_io},
                                           {ENOMEM, error_id::storage_out_of_memory}};
  for (const auto call : {file_call::open, file_call::open_directory, file_call::status})
    for (const auto& [error, id] : rows) {
      CAPTURE(static_cast<int>(call));
      CAPTURE(error);
      fs.fail({.call = call, .error = error});
      CHECK(thrown([&] { s.link("step/a", "step/b"); }) == id);
      fs.fail({.call = call, .error = error});
      CHECK(thrown([&] { static_cast<void>(s.remove_if("step/a", {})); }) == id);
      fs.heal();
      CHECK(s.keys("step/", 2) == std::vector<std::string>{"step/a"});
    }
  for (const int error : {ENOENT, ELOOP}) {
    fs.fail({.call = file_call::open, .error = error});
    CHECK(thrown([&] { s.link("step/a", "step/b"); }) == error_id::storage_not_found);
  }
  for (const auto call : {file_call::open, file_call::open_directory}) {
    fs.fail({.call = call, .error = EMFILE});
    CHECK_FALSE(s.is_noted_durable("step/a"));
    fs.fail({.call = call, .error = EMFILE});
    s.note_durable("step/a");
  }
  fs.heal();
  s.link("step/a", "step/b");
  CHECK(s.remove_if("step/a", {}));
}

TEST_CASE("no symbolic link and no pipe below the root is followed") {
  const scratch_directory directory;
  const scratch_directory outside;
  cairn::file_store s{directory.path()};
  cairn::file_store o{outside.path()};
  o.put_new("secret", pattern(10));
  REQUIRE(::symlink(outside.path().c_str(), (directory.path() + "/step").c_str()) == 0);
  REQUIRE(::symlink((outside.path() + "/secret").c_str(), (directory.path() + "/file").c_str()) == 0);
  REQUIRE(::mkfifo((directory.path() + "/pipe").c_str(), 0600) == 0);
  CHECK(thrown([&] { read_range(s, "file", 0, 1); }) == error_id::storage_bad_key);
  CHECK(thrown([&] { static_cast<void>(s.read_all("file", 100)); }) == error_id::storage_bad_key);
  CHECK(thrown([&] { s.put_new("step/new", {}); }) == error_id::storage_bad_key);
  CHECK_FALSE(s.read_all("step/secret", 100).has_value());
  CHECK(thrown([&] { read_range(s, "pipe", 0, 1); }) == error_id::storage_not_found);
  CHECK(s.list("").empty());
  CHECK(thrown([&] { s.put_new("file", {}); }) == error_id::storage_exists);
  s.remove("step/secret");
  CHECK(o.size("secret") == 10);
}

TEST_CASE(
    "keys are listed without a status of each, but where a directory does not tell what its entries are") {
  using keys = std::vector<std::string>;
  const auto check = [](auto& s, auto& fs, bool told) {
    s.put_new("b", {});
    s.put_new("d/a", pattern(10));
    s.put_new("d/e/c", {});
    const auto unfinished = s.create("d/f", 0);
    fs.fail({.call = file_call::status, .for_ever = true});
    if (told)
      CHECK(s.keys("", cairn::detail::any_parts) == keys{"b", "d/a", "d/e/c"});
    else
      CHECK(thrown([&] { static_cast<void>(s.keys("", cairn::detail::any_parts)); }) == error_id::storage_io);
    CHECK((fs.hits() == 0) == told);
    CHECK(thrown([&] { static_cast<void>(s.list("")); }) == error_id::storage_io);
    fs.heal();
    CHECK(s.keys("", cairn::detail::any_parts) == keys{"b", "d/a", "d/e/c"});
    CHECK(s.keys("d/", cairn::detail::any_parts) == keys{"d/a", "d/e/c"});
    CHECK(s.keys("d/e/c", cairn::detail::any_parts) == keys{"d/e/c"});
    CHECK(s.list("d/")[0].bytes == 10);
  };
  const scratch_directory directory;
  faulty_file_system<> real;
  real_store on_disk{directory.path(), small_requests, real};
  REQUIRE(::symlink("b", (directory.path() + "/link").c_str()) == 0);
  check(on_disk, real, true);
  model untold;  // its listings give names alone
  model_store in_memory{"data", small_requests, untold};
  check(in_memory, untold, false);
}

TEST_CASE("a file larger than ulimit -f is an error and no signal") {
  const scratch_directory directory;
  await_still_threads();
  const auto child = ::fork();
  if (child == 0) {
    const rlimit small{100'000, 100'000};
    if (::setrlimit(RLIMIT_FSIZE, &small) != 0) ::_exit(10);
    cairn::file_store s{directory.path(), {.writes_in_flight = 2}};
    const auto bytes = pattern(400'000);
    if (thrown([&] { write_object(s, "hinted", bytes); }) != error_id::storage_limit) ::_exit(11);
    if (thrown([&] { s.put_new("small", bytes); }) != error_id::storage_limit) ::_exit(12);
    auto writer = s.create("unhinted", 0);
    const cairn::write_range part{0, bytes};
    if (thrown([&] { writer.write(std::span(&part, 1)); }) != error_id::storage_limit) ::_exit(13);
    sigset_t pending;
    if (::sigpending(&pending) != 0 || sigismember(&pending, SIGXFSZ) != 0) ::_exit(14);
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE(
    "a full disk is reported at once with what is needed and free, nothing is left over, and work goes on") {
  const small_disk disk("size=4m");
  if (!disk.mounted()) return;
  for (const bool direct : {true, false}) {
    cairn::file_store s{disk.path() + (direct ? "/d" : "/b"), {.direct_io = direct}};
    s.put_new("kept", pattern(1'000));
    REQUIRE(s.free_space().has_value());
    CHECK(s.free_space()->bytes < (4u << 20));
    try {
      static_cast<void>(s.create("too-big", 100u << 20));
      FAIL("100 MiB found room on 4 MiB");
    } catch (const cairn::storage_error& e) {
      CHECK(e.id() == error_id::storage_no_space);
      CHECK(e.fields().expected == "104857600 bytes of space");
      CHECK(e.fields().got.find("bytes and") != std::string::npos);
    }
    const auto bytes = pattern(8u << 20);
    CHECK(thrown([&] { s.put_new("too-big", bytes); }) == error_id::storage_no_space);
    {
      auto writer = s.create("too-big", 0);
      const cairn::write_range part{0, bytes};
      CHECK(thrown([&] { writer.write(std::span(&part, 1)); }) == error_id::storage_no_space);
      CHECK(thrown([&] { writer.finish(); }) == error_id::usage_closed);
    }
    CHECK(s.leftovers("").empty());
    CHECK(keys_of(s.list("")) == std::vector<std::string>{"kept"});
    write_object(s, "fits", pattern(1u << 20));
    CHECK(s.read_all("fits", 1u << 20) == pattern(1u << 20));
    s.remove("fits");
  }
}

TEST_CASE("a disk without inodes is full too") {
  const small_disk disk("size=4m,nr_inodes=6");
  if (!disk.mounted()) return;
  cairn::file_store s{disk.path()};
  std::optional<error_id> id;
  for (int i = 0; i < 10 && !id; ++i) id = thrown([&] { s.put_new("f" + std::to_string(i), {}); });
  CHECK(id == error_id::storage_no_space);
  CHECK(s.free_space()->objects == 0);
}

TEST_CASE("a read-only store can be read, and a write is an error that says why") {
  const small_disk disk("size=4m");
  if (!disk.mounted()) return;
  cairn::file_store s{disk.path()};
  s.put_new("step/kept", pattern(1'000));
  REQUIRE(disk.make_read_only());
  cairn::file_store t{disk.path()};
  CHECK(t.read_all("step/kept", 1'000) == pattern(1'000));
  CHECK(t.list("").size() == 1);
  CHECK(t.leftovers("").empty());
  CHECK(thrown([&] { static_cast<void>(t.create("step/new", 10)); }) == error_id::storage_permission);
  CHECK(thrown([&] { static_cast<void>(t.create("other/new", 10)); }) == error_id::storage_permission);
  CHECK(thrown([&] { static_cast<void>(t.publish_new("step/new", {})); }) == error_id::storage_permission);
  CHECK(thrown([&] { t.remove("step/kept"); }) == error_id::storage_permission);
  CHECK(t.size("step/kept") == 1'000);
}

TEST_CASE("a directory without permission") {
  if (::geteuid() == 0) {
    MESSAGE("skipped: root may write everywhere; the read-only file system above stands for it");
    return;
  }
  const scratch_directory directory;
  REQUIRE(::chmod(directory.path().c_str(), 0555) == 0);
  cairn::file_store s{directory.path()};
  CHECK(thrown([&] { static_cast<void>(s.create("new", 10)); }) == error_id::storage_permission);
  CHECK(thrown([&] { s.put_new("new/x", {}); }) == error_id::storage_permission);
}

namespace {
using verdict = cairn::store_check::verdict;
/// The worst of a report, with what it says of that.
std::pair<verdict, std::string> worst(const cairn::store_test_report& report) {
  std::pair<verdict, std::string> found{verdict::right, ""};
  for (const auto& p : report.points)
    if (p.outcome > found.first) found = {p.outcome, p.what + ": " + p.seen + ": " + p.follows};
  return found;
}
}  // namespace

TEST_CASE("a file store tests what checkpoints rely on, and leaves nothing behind") {
  struct row {
    oddity odd;
    verdict outcome;
    const char* says;
  };
  const row rows[] = {
      {oddity::none, verdict::right, ""},
      {oddity::nfs, verdict::right, ""},
      {oddity::no_rename_new, verdict::right, ""},
      {oddity::rename_replaces, verdict::single_job, "a rename replaces nothing: a file that was there"},
      {oddity::link_replaces, verdict::single_job, "a link replaces nothing: renameat2 over a file: File ex"},
      {oddity::no_links, verdict::unusable, "link over a file: Operation not permitted"},
      {oddity::exclusive_ignored, verdict::single_job, "a name is made once (O_EXCL): done"},
      {oddity::lock_not_seen, verdict::weaker, "a lock is seen from a second open: done: whether a writer"},
      {oddity::no_locks, verdict::weaker, "a lock is given: No locks available"},
      {oddity::directory_sync_fails, verdict::unusable, "fsync of a directory: Input/output error"},
      {oddity::directory_sync_refused, verdict::weaker, "fsync of a directory: Invalid argument"},
      {oddity::file_sync_fails, verdict::unusable, "fsync of a file: Input/output error"},
      {oddity::new_names_unlisted, verdict::unusable, "a new name is listed: it is not"},
      {oddity::unknown_kind, verdict::weaker, "known: fuse.cloudfs: checkpoints were never tried on it"},
      {oddity::kernel_view, verdict::unusable, "proc: it is a view of the kernel and keeps no files"},
      {oddity::full, verdict::weaker, "a file can be made: No space left"},
      {oddity::mounted_nfs, verdict::right, ""},
      {oddity::mounted_nocto, verdict::single_job, "an open asks the server: mounted with nocto: what other"},
      {oddity::mounted_local_locks, verdict::weaker, "other hosts: mounted with local_lock=all: whether a w"},
      {oddity::mounted_soft, verdict::weaker, "requests wait for the server: mounted with soft: a server"},
      {oddity::mounted_lustre, verdict::weaker, "locks reach other hosts: not mounted with flock: whether"},
      {oddity::mounted_unread, verdict::weaker, "the options of its mount are known: they could not be read"},
      {oddity::mounted_volatile, verdict::weaker, "fsync reaches the device: mounted with volatile: a comm"},
      {oddity::mounted_nobarrier, verdict::weaker, "fsync reaches the device: mounted with nobarrier: a co"},
  };
  const scratch_directory directory;
  // Made by an earlier store: a directory whose entry is not known to be durable yet is synced anyway.
  const auto root = directory.path() + "/root";
  cairn::file_store{root}.make_directory("kept");
  for (const auto& row : rows) {
    CAPTURE(row.says);
    cairn::basic_file_store<odd_file_system> s{root, {}, odd_file_system{row.odd}};
    std::pair<verdict, std::string> found;
    if (row.odd == oddity::directory_sync_fails)  // said by the call that makes the directory durable
      CHECK(thrown([&] { static_cast<void>(s.self_test()); }) == error_id::storage_io);
    else {
      found = worst(s.self_test());
      CHECK(found.first == row.outcome);
      CHECK_MESSAGE(found.second.find(row.says) != std::string::npos, found.second);
    }
    CHECK(std::filesystem::directory_iterator { root } -> path() == root + "/kept");
    CHECK(std::distance(std::filesystem::directory_iterator{root}, {}) == 1);
  }
  CHECK(cairn::file_store{root}.describe() == "directory " + root);
  cairn::file_store s{root};
  const auto report = s.self_test();
  CHECK(report.points.size() == 7);
  CHECK(s.describe() == "directory " + root + " (" + report.kind + ")");
  CHECK(report.from.find(" on /") != std::string::npos);
  CHECK(cairn::file_store::from_description(
            cairn::file_store{root, {.root = cairn::root_directory::must_exist, .single_writer = true}}
                .description())
            .self_test()
            .single_writer);
}

TEST_CASE("the options of a mount are known among many mounts") {
  const scratch_directory directory;
  await_still_threads();
  const auto child = ::fork();
  REQUIRE(child >= 0);
  constexpr int cannot = 100;
  if (child == 0) {
    try {
      const auto many = directory.path() + '/' + std::string(240, 'm'), root = many + "/root";
      std::filesystem::create_directory(many);
      if (::unshare(CLONE_NEWNS) != 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
        ::_exit(cannot);
      for (int i = 0; i < 300; ++i)
        if (::mount(many.c_str(), many.c_str(), nullptr, MS_BIND, nullptr) != 0) ::_exit(cannot);
      std::filesystem::create_directory(root);
      if (::mount("none", root.c_str(), "tmpfs", 0, "mode=0755") != 0) ::_exit(cannot);
      const auto from = cairn::file_store{root}.self_test().from;
      ::_exit(from.find("none on " + root + " (rw") == 0 ? 0 : 1);
    } catch (...) {
      ::_exit(2);
    }
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  if (WEXITSTATUS(status) == cannot)
    MESSAGE("skipped: mounting needs root");
  else
    CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("on NFS no name of the client's own stands beside an object, nor keeps a directory from going") {
  const scratch_directory directory;
  nfs_client_file_system fs;
  cairn::basic_file_store<nfs_client_file_system> s{directory.path() + "/root", {}, fs};
  const auto names = [&](const char* where) {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(directory.path() + where))
      found.push_back(entry.path().filename().string());
    std::sort(found.begin(), found.end());
    return found;
  };
  {
    auto writer = s.create("step/data", 0);
    writer.finish();
    // What a client that loses power now leaves: the object, and a name that a cleaner knows.
    const auto there = names("/root/step");
    REQUIRE(there.size() == 2);
    CHECK(there[0] == "data");
    CHECK(cairn::detail::is_part_name(there[1]));
    CHECK(s.writer_lives("step/data"));
    CHECK(s.leftovers("").empty());
  }
  CHECK(names("/root/step") == std::vector<std::string>{"data"});
  CHECK_FALSE(s.writer_lives("step/data"));
  s.put_new("step/more", pattern(10));
  CHECK_FALSE(s.publish_new("step/more", {}));
  CHECK(names("/root/step") == std::vector<std::string>{"data", "more"});
  s.remove("step/data");
  CHECK(s.remove_if("step/more", pattern(10)));
  CHECK(names("/root").empty());

  const auto left = "step/data." + std::string(16, 'a') + ".part";
  s.make_directory("step");
  static_cast<void>(::close(::open((directory.path() + "/root/" + left).c_str(), O_CREAT | O_WRONLY, 0600)));
  CHECK(s.leftovers("") == std::vector<std::string>{left});
  s.discard(left);
  CHECK(names("/root").empty());
}

TEST_CASE("what a server has forgotten is opened anew, three times at most") {
  const scratch_directory directory;
  faulty_file_system<> fs;
  real_store s{directory.path() + "/root", small_requests, fs};
  s.put_new("step/a", pattern(100));
  const std::vector<std::pair<file_call, std::vector<std::string>>> rows = {
      {file_call::open_directory, {"list", "keys", "size", "read", "put", "remove"}},
      {file_call::open, {"read", "put"}},
      {file_call::status, {"list", "size", "read"}},
      {file_call::pread, {"read"}},
      {file_call::list, {"list", "keys"}},
      {file_call::unlink, {"remove"}},
  };
  for (const auto& [call, works] : rows)
    for (const auto& work : works)
      for (const bool for_ever : {false, true}) {
        CAPTURE(static_cast<int>(call));
        CAPTURE(work);
        if (!s.size("step/a")) s.put_new("step/a", pattern(100));
        fs.fail({.call = call, .error = ESTALE, .for_ever = for_ever});
        bool right = work == "put" || work == "remove";
        const auto id = thrown([&] {
          if (work == "list") right = keys_of(s.list("")) == std::vector<std::string>{"step/a"};
          if (work == "keys") right = s.keys("", 2) == std::vector<std::string>{"step/a"};
          if (work == "size") right = s.size("step/a") == 100;
          if (work == "read") right = s.read_all("step/a", 100) == pattern(100);
          if (work == "put") s.put_new("step/b", pattern(10));
          if (work == "remove") s.remove("step/a");
        });
        CHECK(fs.hits() >= 1);
        fs.heal();
        CHECK(id.has_value() == for_ever);
        CHECK((right || for_ever));
        if (work == "put") s.remove("step/b");
      }
}

TEST_CASE("a self-test finds nothing wrong while others clean up") {
  const scratch_directory directory;
  std::atomic<bool> over{false};
  std::thread cleaner([&] {
    cairn::file_store s{directory.path()};
    while (!over)
      for (const auto& key : s.leftovers("cairn-probe")) static_cast<void>(thrown([&] { s.discard(key); }));
  });
  cairn::file_store s{directory.path()};
  for (auto i = rounds(40); i > 0; --i) CHECK(worst(s.self_test()).first == verdict::right);
  over = true;
  cleaner.join();
}

TEST_CASE(
    "the store's directory: made in one that is there, with its parents only where that was asked for") {
  const scratch_directory directory;
  using cairn::root_directory;
  const auto made = [&](const std::string& where, root_directory how) {
    cairn::file_store s{directory.path() + where, {.root = how}};
    CHECK(s.list("").empty());  // to look is no reason to make or to refuse
    return thrown([&] { s.put_new("x", {}); });
  };
  CHECK(made("/a/b", root_directory::make) == error_id::storage_not_found);
  CHECK(made("/a", root_directory::must_exist) == error_id::storage_not_found);
  CHECK(std::filesystem::is_empty(directory.path()));
  CHECK_FALSE(made("/a", root_directory::make));
  CHECK_FALSE(made("/a/b", root_directory::make));
  CHECK_FALSE(made("/a/b/c/d", root_directory::make_parents));
  CHECK_FALSE(made("/a/b/c/d/e", root_directory::make));
  std::filesystem::create_directory(directory.path() + "/there");
  CHECK_FALSE(made("/there", root_directory::must_exist));
  CHECK(made("/none/b", root_directory::must_exist) == error_id::storage_not_found);
}

TEST_CASE("a file where the store's directory should be is named as such") {
  const scratch_directory directory;
  cairn::file_store{directory.path()}.put_new("file", {});
  for (const char* where : {"/file", "/file/store"}) {
    cairn::file_store s{directory.path() + where};
    CHECK(thrown([&] { static_cast<void>(s.self_test()); }) == error_id::storage_not_found);
    CHECK(thrown([&] { s.put_new("x", {}); }) == error_id::storage_not_found);
    CHECK(thrown([&] { static_cast<void>(s.list("")); }) == error_id::storage_not_found);
  }
  CHECK(worst(cairn::file_store{"/proc"}.self_test()).second.find("keeps no files") != std::string::npos);
  CHECK_FALSE(cairn::file_store{"/proc"}.free_space());
}

TEST_CASE("hosts that do not tell their boot are told apart by their names, or take nobody for themselves") {
  using cairn::detail::host_number_of;
  CHECK(host_number_of("boot", "machine", "a") == host_number_of("boot", "other", "b"));
  CHECK(host_number_of("boot", "", "") != host_number_of("reboot", "", ""));
  CHECK(host_number_of("", "machine", "a") == host_number_of("", "machine", "a"));
  CHECK(host_number_of("", "machine", "a") != host_number_of("", "machine", "b"));
  CHECK(host_number_of("", "", "") != host_number_of("", "", ""));
  CHECK(cairn::detail::host_number() == cairn::detail::host_number());
}

TEST_CASE("options that make no sense are refused") {
  const auto id = [](cairn::file_store_options o) {
    return thrown([&] { cairn::file_store s("/tmp/never-made", o); });
  };
  CHECK_FALSE(id({}).has_value());
  CHECK(id({.write_bytes = 0}) == error_id::usage_bad_option);
  CHECK(id({.write_bytes = 1'000}) == error_id::usage_bad_option);
  CHECK(id({.writes_in_flight = 0}) == error_id::usage_bad_option);
  CHECK(id({.read_bytes = 4097}) == error_id::usage_bad_option);
  CHECK(id({.reads_in_flight = 1'000}) == error_id::usage_bad_option);
  CHECK(thrown([&] { cairn::file_store s(""); }) == error_id::usage_bad_option);
}

TEST_CASE("the root is where it was, whatever the working directory becomes") {
  const scratch_directory directory;
  std::vector<char> before(4096);
  REQUIRE(::getcwd(before.data(), before.size()) != nullptr);
  REQUIRE(::chdir(directory.path().c_str()) == 0);
  cairn::file_store s{"relative/"};
  REQUIRE(::chdir(before.data()) == 0);
  CHECK(s.describe() == "directory " + directory.path() + "/relative");
  REQUIRE(s.free_space().has_value());
  s.put_new("k", pattern(5));
  CHECK(cairn::file_store{directory.path() + "/relative"}.size("k") == 5);
}
