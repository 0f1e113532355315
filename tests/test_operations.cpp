// SPDX-License-Identifier: Apache-2.0
// group: files
// What an operator needs: permission bits; limits of the process and the file system, which errors name; the
// request to stop; the interval of saves.
#include <cairn/cairn.hpp>
#include <cairn/checkpointer/group_loading.hpp>
#include <cairn/comm/thread_communicator.hpp>
#include <cairn/model/save_progress.hpp>
#include <cairn/stores/basic_file_store.hpp>
#include <cairn/system/late_notice.hpp>

#include "support/faulty_file_system.hpp"
#include "support/faulty_store.hpp"
#include "support/scratch_directory.hpp"
#include "support/still_threads.hpp"
#include "support/trace_reader.hpp"

#include <doctest/doctest.h>
#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <paths.hpp>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <clocale>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <initializer_list>
#include <map>
#include <optional>
#include <ratio>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace {

using namespace cairn_test;
using cairn::error_id;

/// The result of `work` in a child process, whose limits, user and signals it may change.
std::string in_child(const std::function<std::string()>& work) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  await_still_threads();
  const auto child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::string text;
    try {
      text = work();
    } catch (const std::exception& e) {
      text = std::string("thrown: ") + e.what();
    }
    const bool whole = ::write(ends[1], text.data(), text.size()) == static_cast<::ssize_t>(text.size());
    ::_exit(whole ? 0 : 1);
  }
  ::close(ends[1]);
  std::string text;
  char part[4096];
  for (::ssize_t n = 0; (n = ::read(ends[0], part, sizeof part)) > 0;)
    text.append(part, static_cast<std::size_t>(n));
  ::close(ends[0]);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  return text;
}

/// "<name of the id>|<text>" of what `work` throws, or "nothing".
std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const cairn::error& e) {
    return std::string(cairn::error_name(e.id())) + "|" + e.what();
  }
  return "nothing";
}

void check_says(const std::string& text, std::initializer_list<std::string_view> parts) {
  for (const auto part : parts)
    CHECK_MESSAGE(text.find(part) != std::string::npos, part, " is not in: ", text);
}

template <class Resource>
void limit(Resource resource, rlim_t value) {
  const rlimit both{value, value};
  if (::setrlimit(resource, &both) != 0) throw std::runtime_error("setrlimit failed");
}

/// Some limits do not hold for root: becomes a user that nobody else is.
void become_nobody() {
  if (::geteuid() == 0 && (::setgid(61'321) != 0 || ::setuid(61'321) != 0))
    throw std::runtime_error("setuid failed");
}

class umask_set {
 public:
  explicit umask_set(mode_t mask) : before_(::umask(mask)) {}
  ~umask_set() { ::umask(before_); }
  umask_set(const umask_set&) = delete;
  umask_set& operator=(const umask_set&) = delete;

 private:
  mode_t before_;
};

/// The permission bits of all below a directory, by what it is: "manifest", "record", "data", "mark",
/// "directory".
std::map<std::string, std::vector<unsigned>> modes_below(const std::string& root) {
  std::map<std::string, std::vector<unsigned>> found;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    const auto name = entry.path().filename().string();
    struct ::stat s {};
    REQUIRE(::lstat(entry.path().c_str(), &s) == 0);
    const std::string kind = entry.is_directory()             ? "directory"
                             : name == "manifest.cairn"       ? "manifest"
                             : name.ends_with(".record")      ? "record"
                             : name.ends_with(".safetensors") ? "data"
                             : name.starts_with("aborted.")   ? "mark"
                                                              : "other";
    found[kind].push_back(s.st_mode & 07777u);
  }
  return found;
}

constexpr cairn::checkpointer_options quiet{.quiet = true};

struct warnings_into {
  using cairn_role = cairn::role::observer;
  std::string* texts;
  void observe(const cairn::observation& what) const noexcept {
    if (what.kind == cairn::observation::event::warning) *texts += what.text;
  }
};

/// A checkpoint, and a save that failed and left its mark, below `root`.
void save_and_fail(const std::string& root, const cairn::file_store_options& options) {
  std::vector<float> weights(20'000, 1.5f);
  cairn::state_dict state;
  state.tensor("weights", weights, {20'000});
  cairn::checkpointer ckpt{cairn::file_store{root, options}, quiet};
  ckpt.save(state, 1).wait();
  weights.resize(10);
  CHECK_THROWS_AS(static_cast<void>(ckpt.save(state, 2)), cairn::usage_error);
  ckpt.close();
}

}  // namespace

TEST_CASE("files and directories have the bits that the umask leaves, or exactly those that were asked for") {
  struct row {
    mode_t mask;
    std::optional<unsigned> file, directory;
    unsigned file_bits, directory_bits;
  };
  const row rows[] = {
      {022, {}, {}, 0644, 0755},     {077, {}, {}, 0600, 0700},   {0, {}, {}, 0666, 0777},
      {077, 0664, 0775, 0664, 0775}, {0, 0600, 0700, 0600, 0700}, {027, 0640, {}, 0640, 0750},
      {022, {}, 02770, 0644, 02770},
  };
  for (const auto& row : rows) {
    CAPTURE(row.file_bits);
    CAPTURE(row.directory_bits);
    const scratch_directory directory;
    const umask_set mask(row.mask);
    save_and_fail(directory.path() + "/a/b", {.file_mode = row.file,
                                              .directory_mode = row.directory,
                                              .root = cairn::root_directory::make_parents});
    const auto found = modes_below(directory.path());
    CHECK(found.count("other") == 0);
    for (const auto* kind : {"manifest", "record", "data", "mark", "directory"}) {
      CAPTURE(kind);
      REQUIRE(found.count(kind) == 1);
      const auto bits = std::string_view(kind) == "directory" ? row.directory_bits : row.file_bits;
      for (const auto mode : found.at(kind)) CHECK(mode == bits);
    }
    CHECK(found.at("directory").size() == 4);  // a, b and two steps
  }
}

TEST_CASE(
    "a set-group-id bit is inherited whatever bits are asked for; a directory that stood there keeps its "
    "own") {
  const scratch_directory directory;
  REQUIRE(::chmod(directory.path().c_str(), 02750) == 0);
  cairn::file_store store{directory.path(), {.file_mode = 0660, .directory_mode = 0770}};
  store.put_new("step/x", {});
  struct ::stat s {};
  REQUIRE(::stat((directory.path() + "/step").c_str(), &s) == 0);
  CHECK((s.st_mode & 07777u) == 02770u);
  REQUIRE(::stat(directory.path().c_str(), &s) == 0);
  CHECK((s.st_mode & 07777u) == 02750u);
}

TEST_CASE("an unfinished file never has more permissions than the options give") {
  const scratch_directory directory;
  const umask_set mask(0);
  cairn::file_store store{directory.path(), {.file_mode = 0600}};
  auto writer = store.create("x", 1'000);
  int seen = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory.path())) {
    struct ::stat s {};
    REQUIRE(::lstat(entry.path().c_str(), &s) == 0);
    CHECK((s.st_mode & 07777u) == 0600u);
    ++seen;
  }
  CHECK(seen == 1);
}

TEST_CASE("permission bits that make no sense are refused, and so is a file system that does not keep them") {
  const auto refused = [](cairn::file_store_options o) {
    return error_of([&] { cairn::file_store("/tmp/never-made", o); }).starts_with("usage.bad_option|");
  };
  for (const unsigned mode : {0u, 0400u, 0044u, 01600u, 04600u, 010600u}) CHECK(refused({.file_mode = mode}));
  for (const unsigned mode : {0u, 0600u, 0500u, 04700u, 010700u}) CHECK(refused({.directory_mode = mode}));
  CHECK_FALSE(refused({.file_mode = 0600, .directory_mode = 03777}));

  struct forgetful : cairn::posix_file_system {
    int change_mode(int, unsigned) const noexcept { return 0; }
  };
  const scratch_directory directory;
  const umask_set mask(022);
  const cairn::file_store_options files{.file_mode = 0666}, directories{.directory_mode = 0777};
  cairn::basic_file_store<forgetful> deaf{directory.path(), files};
  check_says(error_of([&] { deaf.put_new("x", {}); }), {"storage.permission|", "0666", "permission bits"});
  cairn::basic_file_store<forgetful> deaf_directories{directory.path(), directories};
  check_says(error_of([&] { deaf_directories.put_new("d/x", {}); }), {"storage.permission|", "0777"});
  faulty_file_system<> refusing;
  cairn::basic_file_store<faulty_file_system<>> store{directory.path(), files, refusing};
  refusing.fail({.call = file_call::change_mode, .k = 1, .error = EPERM});
  check_says(error_of([&] { store.put_new("x", {}); }),
             {"storage.permission|", "0666", "Operation not permitted"});
  CHECK(store.list("").empty());
  CHECK(store.leftovers("").empty());
  store.put_new("x", {});
}

TEST_CASE("descriptors: the error names the limit, its value and how many are open") {
  const scratch_directory directory;
  const auto said = in_child([&] {
    cairn::file_store store{directory.path()};
    limit(RLIMIT_NOFILE, 60);
    while (::dup(0) >= 0) {
    }
    return error_of([&] { store.put_new("x", {}); });
  });
  check_says(said, {"storage.limit|", "RLIMIT_NOFILE is 60 (ulimit -n; at most 60)", "60 are open",
                    directory.path()});
  faulty_file_system<> fs;
  cairn::basic_file_store<faulty_file_system<>> store{directory.path(), {}, fs};
  fs.fail({.call = file_call::open, .k = 1, .error = ENFILE});
  check_says(error_of([&] { store.put_new("x", {}); }), {"storage.limit|", "fs.file-max is ", " are open"});
}

TEST_CASE("file size: the error names the limit and its value, or says that there is none") {
  const scratch_directory directory;
  const std::vector<std::byte> bytes(400'000);
  const auto said = in_child([&] {
    cairn::file_store store{directory.path()};
    limit(RLIMIT_FSIZE, 100'000);
    return error_of([&] { store.put_new("x", bytes); });
  });
  check_says(said, {"storage.limit|", "RLIMIT_FSIZE is 100000 (ulimit -f", "offset 100000"});
  faulty_file_system<> fs;
  cairn::basic_file_store<faulty_file_system<>> store{directory.path(), {}, fs};
  fs.fail({.call = file_call::pwrite, .k = 1, .error = EFBIG});
  check_says(error_of([&] { store.put_new("x", bytes); }), {"storage.limit|", "RLIMIT_FSIZE is unlimited"});
}

TEST_CASE("locked memory: the error names the limit and its value") {
  const auto said = in_child([&] {
    become_nobody();
    limit(RLIMIT_MEMLOCK, 65'536);
    cairn::heap_memory memory{{.lock = true}};
    static_cast<void>(memory.allocate(40'000));
    return error_of([&] { static_cast<void>(memory.allocate(1u << 20)); });
  });
  check_says(said, {"storage.limit|", "RLIMIT_MEMLOCK is 65536 (ulimit -l", "1048576 bytes are needed"});
}

TEST_CASE("threads: the save fails with the limit and its value, and training goes on") {
  const auto said = in_child([&] {
    std::vector<float> weights(1'000, 1.5f);
    cairn::state_dict state;
    state.tensor("weights", weights, {1'000});
    cairn::checkpointer ckpt{cairn::memory_store{}, quiet};
    become_nobody();
    limit(RLIMIT_NPROC, 1);
    const auto handle = ckpt.save(state, 1);
    return error_of([&] { handle.wait(); });
  });
  check_says(said, {"storage.limit|", "no thread could be started to write", "RLIMIT_NPROC is 1 (ulimit -u"});
}

TEST_CASE("threads: where none can be started to digest, the one that writes does it") {
  const auto said = in_child([&] {
    std::vector<float> weights(3'000'000, 1.5f);  // 12 MB
    cairn::state_dict state;
    state.tensor("weights", weights, {3'000'000});
    auto options = quiet;
    options.checksum_in_writer = true;
    cairn::checkpointer ckpt{cairn::memory_store{}, options};
    ckpt.save(state, 1).wait();  // starts the threads that copy and write
    become_nobody();
    limit(RLIMIT_NPROC, 1);
    std::fill(weights.begin(), weights.end(), 2.5f);
    ckpt.save(state, 2).wait();
    std::fill(weights.begin(), weights.end(), 0.0f);
    ckpt.load(state, 2);  // compares with the digests
    return std::string(weights.front() == 2.5f && weights.back() == 2.5f ? "saved" : "lost");
  });
  check_says(said, {"saved"});
}

namespace {
struct reports_into {
  using cairn_role = cairn::role::observer;
  cairn::save_report* last;
  void observe(const cairn::observation& what) const noexcept {
    if (what.kind == cairn::observation::event::committed) *last = *what.report;
  }
};
}  // namespace

TEST_CASE("a save by the thread that trains is told with all of the time that it took from training") {
  std::vector<float> weights(1'000'000, 1.5f);
  cairn::state_dict state;
  state.tensor("weights", weights, {1'000'000});
  cairn::save_report told;
  cairn::checkpointer ckpt{cairn::memory_store{}, cairn::inline_executor{}, reports_into{&told}, quiet};
  for (const std::int64_t step : {1, 2}) ckpt.save(state, step).wait();  // the second one plans nothing
  CHECK(told.committed_seconds > 0);
  CHECK(told.blocked_seconds >= told.committed_seconds);
}

TEST_CASE("threads: a preparation that fails is reported, and left to the first save") {
  const auto said = in_child([&] {
    std::vector<float> weights(1'000, 1.5f);
    cairn::state_dict state;
    state.tensor("weights", weights, {1'000});
    std::string told;
    cairn::checkpointer ckpt{cairn::memory_store{}, cairn::inline_executor{}, warnings_into{&told}, quiet};
    become_nobody();
    limit(RLIMIT_NPROC, 1);
    if (ckpt.resume(state)) return std::string("it resumed from nothing");
    ckpt.save(state, 1).wait();
    return told + (ckpt.list() == std::vector<std::int64_t>{1} ? ", and saved" : ", and lost");
  });
  check_says(said, {"saves could not be prepared", "no thread could be started to prepare buffers",
                    "RLIMIT_NPROC is 1 (ulimit -u", ", and saved"});
}

namespace {
/// The real one, with quotas and free space as a test says.
struct full_file_system : cairn::posix_file_system {
  std::vector<cairn::quota_use> use;
  std::uint64_t free_inodes = 1'000;
  int free_space(int, cairn::space_left& out) const noexcept {
    out = {1u << 20, free_inodes};
    return 0;
  }
  void quotas(int, std::vector<cairn::quota_use>& out) const { out = use; }
};
}  // namespace

TEST_CASE("quotas and inodes: the error says which of them is used up, and by whom") {
  const scratch_directory directory;
  full_file_system full;
  full.use = {{.group = false, .id = 1'000, .bytes = 999, .bytes_limit = 1'000, .files = 7, .files_limit = 0},
              {.group = true, .id = 100, .bytes = 5, .bytes_limit = 0, .files = 10, .files_limit = 10}};
  full.free_inodes = 0;
  faulty_file_system<full_file_system> fs{full};
  cairn::basic_file_store<faulty_file_system<full_file_system>> store{directory.path(), {}, fs};
  const std::vector<std::byte> bytes(10);
  fs.fail({.call = file_call::pwrite, .k = 1, .error = EDQUOT});
  check_says(error_of([&] { store.put_new("x", bytes); }),
             {"storage.no_space|", "user 1000 has 999 of 1000 bytes and 7 of unlimited files",
              "group 100 has 5 of unlimited bytes and 10 of 10 files"});
  fs.fail({.call = file_call::open, .k = 1, .error = ENOSPC});
  check_says(error_of([&] { store.put_new("x", bytes); }), {"storage.no_space|", "no inodes are left"});

  // Where the file system cannot tell, the error says whose quota it is and how to ask.
  full.use.clear();
  full.free_inodes = 10;
  faulty_file_system<full_file_system> silent{full};
  cairn::basic_file_store<faulty_file_system<full_file_system>> other{directory.path(), {}, silent};
  silent.fail({.call = file_call::pwrite, .k = 1, .error = EDQUOT});
  check_says(error_of([&] { other.put_new("x", bytes); }),
             {"user " + std::to_string(::geteuid()), "group " + std::to_string(::getegid()), "'quota -s'"});
  silent.fail({.call = file_call::pwrite, .k = 1, .error = ENOSPC});
  const auto said = error_of([&] { other.put_new("x", bytes); });
  check_says(said, {"storage.no_space|", "free space on the file system"});
  CHECK(said.find("no inodes") == std::string::npos);
}

namespace {
int former_calls = 0;
void former_handler(int) {
  ++former_calls;
}
}  // namespace

TEST_CASE("threads of the library leave signals to the program, but for faults of their own") {
  const scratch_directory directory;
  auto faults = std::make_shared<store_faults>();
  sigset_t blocked;
  sigemptyset(&blocked);
  faults->add({.kind = store_call::create, .key_contains = ".safetensors", .action = [&](std::string_view) {
                 CHECK(::pthread_sigmask(SIG_SETMASK, nullptr, &blocked) == 0);
               }});
  cairn::checkpointer ckpt{faulty_store(cairn::file_store(directory.path()), faults)};
  float value = 1;
  cairn::state_dict state;
  state.value("value", value);
  ckpt.save(state, 1).wait();
  ckpt.close();
  CHECK(faults->triggered() == 1);
  for (const int request : {SIGTERM, SIGINT, SIGUSR1, SIGCHLD, SIGALRM})
    CHECK(sigismember(&blocked, request) == 1);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) CHECK(sigismember(&blocked, fault) == 0);
}

TEST_CASE("what takes long is told, once, and what ends before that is not") {
  std::atomic<int> told{0};
  const auto tell = [&] {
    ++told;
    told.notify_all();
  };
  {
    const cairn::detail::late_notice late(std::chrono::milliseconds(1), tell);
    told.wait(0);
  }
  CHECK(told == 1);
  { const cairn::detail::late_notice soon(std::chrono::hours(1), tell); }
  CHECK(told == 1);
}
TEST_CASE("ranks that wait in vain for what rank 0 reads for all say that the store may be why") {
  const cairn::thread_group group(2);
  std::promise<void> told;
  std::thread waits([&] {
    cairn::collectives job{group.communicator(1)};
    const auto why = error_of([&] {
      static_cast<void>(cairn::detail::read_once(
          job, [] { return std::vector<std::byte>(); }, cairn::deadline::in(std::chrono::milliseconds(20))));
    });
    CHECK(why.starts_with("timeout.peer|"));
    CHECK(why.find("as long as the store does not answer") != std::string::npos);
    told.set_value();
  });
  cairn::collectives job{group.communicator(0)};
  const auto answer = [&] {
    told.get_future().wait();
    return std::vector<std::byte>();
  };
  static_cast<void>(error_of([&] {
    static_cast<void>(cairn::detail::read_once(job, answer, cairn::deadline::in(std::chrono::minutes(1))));
  }));
  waits.join();
}

TEST_CASE("stop_signal notes number, time and count; the former handlers are not called, and come back") {
  struct sigaction mine {
  }, now{};
  mine.sa_handler = former_handler;
  mine.sa_flags = SA_NODEFER;
  struct sigaction before {};
  REQUIRE(::sigaction(SIGUSR1, &mine, &before) == 0);
  {
    cairn::stop_signal stop{SIGTERM, SIGUSR1};
    CHECK_FALSE(stop.requested());
    CHECK(stop.signal() == 0);
    CHECK(stop.since().count() == 0);
    const auto begin = std::chrono::steady_clock::now();
    errno = 4711;
    REQUIRE(::raise(SIGUSR1) == 0);
    CHECK(errno == 4711);
    const auto end = std::chrono::steady_clock::now();
    CHECK(stop.requested());
    CHECK(stop.signal() == SIGUSR1);
    CHECK(stop.when() >= begin);
    CHECK(stop.when() <= end);
    const auto first = stop.when();
    std::thread([] { ::raise(SIGTERM); }).join();
    CHECK(stop.signal() == SIGUSR1);
    CHECK(stop.when() == first);
    CHECK(stop.count() == 2);
    CHECK(stop.since().count() > 0);
  }
  CHECK(former_calls == 0);
  REQUIRE(::raise(SIGUSR1) == 0);
  CHECK(former_calls == 1);
  REQUIRE(::sigaction(SIGUSR1, nullptr, &now) == 0);
  CHECK((now.sa_flags & SA_NODEFER) != 0);
  {
    cairn::stop_signal again;  // a new one begins anew
    CHECK_FALSE(again.requested());
    again.request();
    CHECK(again.requested());
    CHECK(again.signal() == 0);
    CHECK(again.since().count() >= 0);
    // A handler that the program puts over it stays.
    struct sigaction over {};
    over.sa_handler = former_handler;
    REQUIRE(::sigaction(SIGTERM, &over, nullptr) == 0);
  }
  REQUIRE(::sigaction(SIGTERM, nullptr, &now) == 0);
  CHECK((now.sa_handler == former_handler));
  ::signal(SIGTERM, SIG_DFL);
  REQUIRE(::sigaction(SIGUSR1, &before, nullptr) == 0);
}

TEST_CASE("a stop file asks to stop, and is looked for at intervals only") {
  const cairn_test::scratch_directory scratch;
  const auto path = scratch.path() + "/stop";
  {
    const cairn::stop_signal stop({SIGUSR1}, {path, std::chrono::nanoseconds(0)});
    CHECK_FALSE(stop.requested());
    std::ofstream(path) << "by hand";
    CHECK(stop.requested());
    CHECK(stop.signal() == 0);
    CHECK(std::filesystem::remove(path));
    CHECK(stop.requested());  // a request stays, whatever happens to the file
    CHECK(stop.count() == 1);
  }
  for (const auto every :
       {std::chrono::nanoseconds(std::chrono::hours(1)), std::chrono::nanoseconds::max()}) {
    const cairn::stop_signal seldom({SIGUSR1}, {path, every});
    CHECK_FALSE(seldom.requested());
    std::ofstream(path) << "by hand";
    CHECK_FALSE(seldom.requested());
    CHECK(std::filesystem::remove(path));
  }
}

TEST_CASE(
    "stop_signal refuses a second one, and signals that it cannot or should not catch, and changes nothing "
    "then") {
  const auto refused = [](std::initializer_list<int> signals) {
    return error_of([&] { cairn::stop_signal stop(signals); }).starts_with("usage.bad_option|");
  };
  CHECK(refused({}));
  for (const int number : {0, -1, SIGKILL, SIGSTOP, SIGSEGV, SIGFPE, SIGABRT, 100'000, 32})
    CHECK(refused({SIGUSR2, number}));
  struct sigaction now {};
  REQUIRE(::sigaction(SIGUSR2, nullptr, &now) == 0);
  CHECK((now.sa_handler == SIG_DFL));
  cairn::stop_signal one{SIGUSR1};
  one.request();
  CHECK(refused({SIGUSR2}));
  CHECK(one.requested());
  REQUIRE(::sigaction(SIGUSR2, nullptr, &now) == 0);
  CHECK((now.sa_handler == SIG_DFL));
}

TEST_CASE(
    "without stop_signal nothing is caught; with it a process that was asked to stop ends when it wants") {
  const auto ends_by = [](bool with) {
    await_still_threads();
    const auto child = ::fork();
    if (child == 0) {
      ::signal(SIGTERM, SIG_DFL);  // doctest has a handler of its own
      std::optional<cairn::stop_signal> stop;
      if (with) stop.emplace();
      cairn::checkpointer ckpt{cairn::memory_store{}, quiet};
      ::raise(SIGTERM);
      ::_exit(stop && stop->requested() ? 7 : 8);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    return status;
  };
  const int without = ends_by(false), with = ends_by(true);
  CHECK(WIFSIGNALED(without));
  CHECK(WTERMSIG(without) == SIGTERM);
  CHECK(WIFEXITED(with));
  CHECK(WEXITSTATUS(with) == 7);
}

TEST_CASE(
    "the suggested interval is Daly's, near Young's where a save is cheap, and never shorter than a save "
    "lasts") {
  using minutes = std::chrono::duration<double, std::ratio<60>>;
  const auto interval = [](double cost, double mean, double durable = 0) {
    return minutes(cairn::suggested_interval(minutes(cost), minutes(mean), minutes(durable))).count();
  };
  // 5 minutes and a day: Young's is 120 minutes.
  CHECK(interval(5, 1'440) == doctest::Approx(120 * (1 + std::sqrt(1.0 / 576) / 3 + 1.0 / 576 / 9) - 5));
  CHECK(interval(5, 1'440) == doctest::Approx(116.69).epsilon(1e-4));
  CHECK(interval(1e-6, 1'440) == doctest::Approx(std::sqrt(2 * 1e-6 * 1'440)).epsilon(1e-3));
  CHECK(interval(10, 60) == doctest::Approx(28.295).epsilon(1e-3));
  // Where a save costs twice the time between failures or more, the interval is that time.
  CHECK(interval(120, 60) == doctest::Approx(60));
  CHECK(interval(1'000, 60) == doctest::Approx(60));
  CHECK(interval(119.999, 60) > 0);
  // A save that does not stall training is limited by how long it lasts.
  CHECK(interval(0, 1'440) == 0);
  CHECK(interval(0, 1'440, 7) == doctest::Approx(7));
  CHECK(interval(5, 1'440, 7) == doctest::Approx(116.69).epsilon(1e-4));
  for (const double mean : {0.0, -1.0, std::nan(""), HUGE_VAL})
    CHECK(error_of([&] { interval(1, mean); }).starts_with("usage.bad_option|"));
  for (const double wrong : {-1.0, std::nan(""), HUGE_VAL}) {
    CHECK(error_of([&] { interval(wrong, 60); }).starts_with("usage.bad_option|"));
    CHECK(error_of([&] { interval(1, 60, wrong); }).starts_with("usage.bad_option|"));
  }
  // It is the optimum of Daly's exact expectation, to within what the expansion leaves out.
  const auto expected = [](double t, double cost, double mean) {
    return mean * std::expm1((t + cost) / mean) / t;  // time for a unit of work, restarts left out
  };
  for (const double cost : {0.1, 1.0, 10.0, 100.0}) {
    const double t = interval(cost, 1'440);
    for (const double other : {0.8, 1.25})
      CHECK(expected(t, cost, 1'440) <= expected(t * other, cost, 1'440));
  }
}

TEST_CASE(
    "time_to_save is nothing before the first commit, then what the longest save took; the report suggests "
    "an interval") {
  const scratch_directory directory;
  std::vector<float> weights(20'000, 1.5f);
  cairn::state_dict state;
  state.tensor("weights", weights, {20'000});
  CHECK(error_of([&] {
          cairn::checkpointer bad{
              cairn::memory_store{},
              cairn::checkpointer_options{.mean_time_between_failures = -std::chrono::hours(1)}};
        }).starts_with("usage.bad_option|"));
  cairn::checkpointer quick{
      cairn::file_store{directory.path() + "/a"},
      cairn::checkpointer_options{.mean_time_between_failures = std::chrono::hours(24), .quiet = true}};
  CHECK_FALSE(quick.time_to_save().has_value());
  CHECK_FALSE(quick.any_rank(false));
  CHECK(quick.any_rank(true));
  double longest = 0;
  for (int step = 1; step <= 3; ++step) {
    const auto handle = quick.save(state, step);
    handle.wait();
    const auto report = handle.report();
    const double durable = report.committed_seconds - report.wait_seconds;
    longest = std::max(longest, durable);
    REQUIRE(quick.time_to_save().has_value());
    CHECK(quick.time_to_save()->count() == doctest::Approx(longest));
    CHECK(report.suggested_interval_seconds >= longest);
    // Of the mean stall of the saves so far, each of which stalled for less than the longest took.
    CHECK(report.suggested_interval_seconds <=
          cairn::suggested_interval(std::chrono::duration<double>(longest), std::chrono::hours(24)).count());
  }
  quick.close();
  CHECK(error_of([&] { static_cast<void>(quick.time_to_save()); }).starts_with("usage.closed|"));

  // Behind one type, and without a mean time: nothing is suggested.
  cairn::any_checkpointer other{cairn::checkpointer{cairn::file_store{directory.path() + "/b"}, quiet}};
  CHECK_FALSE(other.time_to_save().has_value());
  CHECK(other.any_rank(true));
  const auto handle = other.save(state, 1);
  handle.wait();
  CHECK(other.time_to_save().has_value());
  CHECK(handle.report().suggested_interval_seconds == 0);
  // A save that fails changes no estimate.
  const auto before = other.time_to_save();
  const auto again = other.save(state, 1);
  CHECK(error_of([&] { again.wait(); }).starts_with("storage.already_committed|"));
  CHECK(other.time_to_save() == before);
}

namespace {
/// A policy and a critic, each with a directory of its own, and a state whose values tell the step.
struct actor_critic {
  explicit actor_critic(const std::string& root, cairn::memory_budget budget = {}, std::size_t keep = 100)
      : policy(make(root + "/policy", budget, keep)), critic(make(root + "/critic", budget, keep)) {
    policy_state.tensor("weights", policy_weights, {50'000});
    critic_state.tensor("weights", critic_weights, {40'000});
  }
  using type = cairn::checkpointer_for<cairn::file_store>;
  static type make(const std::string& directory, const cairn::memory_budget& budget, std::size_t keep) {
    return type{cairn::file_store{directory, {.root = cairn::root_directory::make_parents}},
                cairn::heap_stager{{.budget = budget}}, cairn::keep_last(keep), quiet};
  }
  void set(std::int64_t step) {
    std::fill(policy_weights.begin(), policy_weights.end(), static_cast<float>(step));
    std::fill(critic_weights.begin(), critic_weights.end(), static_cast<float>(-step));
  }
  [[nodiscard]] bool holds(std::int64_t step) const {
    const auto all = [](const auto& weights, float value) {
      return std::all_of(weights.begin(), weights.end(), [&](float w) { return w == value; });
    };
    return all(policy_weights, static_cast<float>(step)) && all(critic_weights, static_cast<float>(-step));
  }
  std::optional<std::int64_t> resume() {
    return cairn::resume_together({{policy, policy_state}, {critic, critic_state}});
  }

  std::vector<float> policy_weights = std::vector<float>(50'000);
  std::vector<float> critic_weights = std::vector<float>(40'000);
  cairn::state_dict policy_state, critic_state;
  type policy, critic;
};

void damage_data_of(const std::string& directory) {
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    if (entry.path().extension() == ".safetensors") std::filesystem::resize_file(entry.path(), 5'000);
}
using steps = std::vector<std::int64_t>;
}  // namespace

TEST_CASE(
    "two states of one run share a budget for one image, and their saves overlap without disturbing each "
    "other") {
  const scratch_directory directory;
  const cairn::memory_budget budget{240'000};  // the images need 209 kB and 168 kB
  {
    actor_critic run(directory.path(), budget, 2);
    CHECK_FALSE(run.resume().has_value());
    for (std::int64_t step = 1; step <= 6; ++step) {
      run.set(step);
      const auto first = run.policy.save(run.policy_state, step);  // each save waits for the other's buffer
      const auto second = run.critic.save(run.critic_state, step);
      CHECK(budget.used() <= budget.limit());
      if (step % 2 == 0) first.wait(), second.wait();
    }
    run.policy.close();
    run.critic.close();
    CHECK(budget.used() <= budget.limit());
  }
  CHECK(budget.used() == 0);
  actor_critic again(directory.path(), budget);
  CHECK(again.policy.list() == steps{5, 6});
  CHECK(again.critic.list() == steps{5, 6});
  REQUIRE(again.resume() == 6);
  CHECK(again.holds(6));

  // An image that is larger than the budget: the error is on the handle, and names both numbers.
  actor_critic small(directory.path() + "/small", cairn::memory_budget{180'000});
  small.set(1);
  const auto large = small.policy.save(small.policy_state, 1);
  check_says(error_of([&] { large.wait(); }),
             {"storage.limit|", "208896 bytes", "180000 bytes", "memory budget"});
  small.critic.save(small.critic_state, 1).wait();
}

TEST_CASE("two states resume at the newest step that both have and that loads in both") {
  const scratch_directory directory;
  const auto root = directory.path();
  const auto save = [&](actor_critic& run, std::int64_t step, bool both = true) {
    run.set(step);
    run.policy.save(run.policy_state, step).wait();
    if (both) run.critic.save(run.critic_state, step).wait();
  };
  {
    // The run ends before its first step is committed everywhere: it begins anew, and saves that step again.
    actor_critic run(root);
    save(run, 10, false);
  }
  {
    actor_critic run(root);
    CHECK_FALSE(run.resume().has_value());
    CHECK(run.policy.list().empty());
    for (const std::int64_t step : {10, 20, 30, 40}) save(run, step, step != 40);
  }
  {
    actor_critic run(root);
    run.set(0);
    REQUIRE(run.resume() == 30);
    CHECK(run.holds(30));
    CHECK(run.policy.list() == steps{10, 20, 30});  // 40 went aside, and can be saved again
    CHECK(std::filesystem::exists(root + "/policy/step-00000040/manifest.damaged.0"));
    save(run, 40);
  }
  damage_data_of(root + "/critic/step-00000040");
  damage_data_of(root + "/policy/step-00000030");
  {
    actor_critic run(root);
    REQUIRE(run.resume() == 20);
    CHECK(run.holds(20));
    CHECK(run.policy.list() == steps{10, 20});
    CHECK(run.critic.list() == steps{10, 20});
  }
  // No step in common and more than one checkpoint: an error, not a start from zero.
  {
    actor_critic run(root);
    run.critic.remove(10);
    run.critic.remove(20);
    check_says(error_of([&] { static_cast<void>(run.resume()); }),
               {"storage.nothing_loads|", "2 from step 10 to 20; none"});
    CHECK(run.policy.list() == steps{10, 20});
  }
}

TEST_CASE(
    "the one checkpoint that a run of two states keeps stays where the other directory is another one") {
  const scratch_directory directory;
  const auto root = directory.path();
  {
    actor_critic run(root, {}, 1);
    CHECK_FALSE(run.resume().has_value());
    for (const std::int64_t step : {10, 20}) {
      run.set(step);
      run.policy.save(run.policy_state, step).wait();
      run.critic.save(run.critic_state, step).wait();
    }
  }
  std::filesystem::rename(root + "/critic", root + "/elsewhere");  // as a disk that is not mounted
  {
    actor_critic run(root, {}, 1);
    CHECK(run.policy.list() == steps{20});
    check_says(error_of([&] { static_cast<void>(run.resume()); }),
               {"storage.nothing_loads|", "1 from step 20 to 20; none", "mounted"});
    CHECK(run.policy.list() == steps{20});
  }
  std::filesystem::remove_all(root + "/critic");
  std::filesystem::rename(root + "/elsewhere", root + "/critic");
  actor_critic run(root, {}, 1);
  REQUIRE(run.resume() == 20);
  CHECK(run.holds(20));
}

namespace {
/// A state of a run that has several, over a store whose calls can be disturbed.
struct disturbed_part {
  disturbed_part() { state.tensor("weights", weights, {1000}); }
  /// As an earlier run does.
  void commit(std::int64_t step) {
    std::vector<float> values(1000, static_cast<float>(step));
    cairn::state_dict of_then;
    of_then.tensor("weights", values, {1000});
    cairn::checkpointer{files, quiet}.save(of_then, step).wait();
  }
  [[nodiscard]] steps list() { return cairn::checkpointer{files, quiet}.list(); }

  cairn::memory_store files;
  std::shared_ptr<store_faults> faults = std::make_shared<store_faults>();
  std::vector<float> weights = std::vector<float>(1000);
  cairn::state_dict state;
};
/// As a new run.
std::optional<std::int64_t> resume_both(disturbed_part& policy, disturbed_part& critic) {
  cairn::checkpointer first{faulty_store{policy.files, policy.faults}, quiet};
  cairn::checkpointer second{faulty_store{critic.files, critic.faults}, quiet};
  return cairn::resume_together({{first, policy.state}, {second, critic.state}});
}
}  // namespace

TEST_CASE("a step that two states have stays in both where one of them cannot be read for the moment") {
  disturbed_part policy, critic;
  for (const std::int64_t step : {200, 300}) policy.commit(step), critic.commit(step);
  policy.faults->add(
      {.kind = store_call::read,
       .for_ever = true,
       .key_contains = "step-00000300",
       .action = [](std::string_view) { cairn::fail(error_id::storage_io, "an injected fault"); }});
  CHECK(resume_both(policy, critic) == 200);
  CHECK(policy.faults->triggered() > 0);
  CHECK(policy.weights.back() == 200);
  CHECK(critic.weights.back() == 200);
  CHECK(policy.list() == steps{200, 300});
  CHECK(critic.list() == steps{200, 300});
  policy.faults->clear();
  CHECK(resume_both(policy, critic) == 300);
  CHECK(policy.weights.back() == 300);
  CHECK(critic.weights.back() == 300);
}

TEST_CASE("two states resume from a step that an earlier run commits while they resume") {
  // What the two have when they are listed; step 300 of the critic comes after that.
  const std::initializer_list<std::pair<steps, steps>> cases = {
      {{200, 300}, {200}}, {{300}, {200}}, {{300}, {}}};
  for (const auto& [of_policy, of_critic] : cases) {
    CAPTURE(of_policy.size());
    CAPTURE(of_critic.size());
    disturbed_part policy, critic;
    for (const auto step : of_policy) policy.commit(step);
    for (const auto step : of_critic) critic.commit(step);
    critic.faults->add(
        {.kind = store_call::list, .after = true, .action = [&](std::string_view) { critic.commit(300); }});
    CHECK(resume_both(policy, critic) == 300);
    CHECK(critic.faults->triggered() == 1);
    CHECK(policy.weights.back() == 300);
    CHECK(critic.weights.back() == 300);
    CHECK(policy.list() == of_policy);
    CHECK(critic.list().back() == 300);
  }

  // A step that still only one has when all have resumed goes aside there.
  disturbed_part policy, critic;
  for (auto* each : {&policy, &critic}) each->commit(200);
  critic.faults->add(
      {.kind = store_call::list, .after = true, .action = [&](std::string_view) { critic.commit(300); }});
  CHECK(resume_both(policy, critic) == 200);
  CHECK(critic.list() == steps{200});
}

TEST_CASE("a trace opens as JSON at any moment, and tells the parts of a save, loads, failures and marks") {
  const scratch_directory scratch;
  const auto path = scratch.path() + "/trace.json";
  std::vector<float> weights(100'000, 1.0f);
  cairn::state_dict state;
  state.tensor("weights", weights, {100'000});
  cairn::trace_file trace{path, 3};
  cairn::checkpointer ckpt{cairn::file_store{scratch.path() + "/store"}, trace, cairn::overlapped{},
                           cairn::keep_last(1), cairn::checkpointer_options{.quiet = true}};
  static_cast<void>(ckpt.resume(state));
  trace.step(1);
  auto save = ckpt.save(state, 1);
  ckpt.before_update();
  save.wait();
  trace.step(2);
  const auto report = save.report();
  CHECK(report.copying.process == ::getpid());
  CHECK(report.copying.bytes >= 400'000);
  CHECK(report.copying.seconds > 0);
  CHECK(report.copying.cpu_seconds > 0);
  CHECK(report.writing.process == ::getpid());
  CHECK(report.writing.bytes == report.copying.bytes);
  CHECK(report.writing.cpu_seconds > 0);
  CHECK(report.writing.bytes_per_second() ==
        static_cast<double>(report.writing.bytes) / report.writing.seconds);
  CHECK(report.copying.seconds <= report.committed_seconds);
  CHECK(report.writing.seconds <= report.written_seconds);
  CHECK(save.bytes_written() == report.bytes);
  trace.mark("a mark of \"mine\"\n");
  CHECK_THROWS_AS(ckpt.save(state, 1).wait(), cairn::storage_error);
  ckpt.load(state, 1);
  for (const std::int64_t step : {5, 6}) {  // what was loaded stays, 5 goes
    auto next = ckpt.save(state, step);
    ckpt.before_update();
    next.wait();
  }
  const auto command = trace_reader() + R"( -c '
import sys, trace_events
events = trace_events.read(sys.argv[1])
names = [each["name"] for each in events]
for name in ["process_name", "save step 1", "plan", "stage", "before_update", "copy and hash", "write", "sync", "record",
             "commit", "remove old", "a mark of \"mine\"\n", "load step 1", "step 2", "copied MB/s", "written MB/s", "cores in use"]:
    assert name in names, (name, names)
assert any("already_committed" in name for name in names), names
assert "step 1" not in names
assert any(each["name"] == "process_name" and each["args"]["name"].startswith("rank 3 trainer") for each in events)
assert len({each["pid"] for each in events}) == 1
parts = {}
for each in events:
    if each["ph"] == "X": parts.setdefault(each["name"], each)
begin, write, commit = parts["save step 1"], parts["write"], parts["commit"]
copy, update = parts["copy and hash"], parts["before_update"]
assert begin["ts"] <= parts["plan"]["ts"] <= parts["stage"]["ts"] and parts["plan"]["ts"] <= copy["ts"]
assert copy["ts"] + copy["dur"] <= update["ts"] + update["dur"] + 1 <= commit["ts"] + 2
assert begin["ts"] <= write["ts"] and write["ts"] + write["dur"] <= commit["ts"] + 1
assert commit["ts"] + commit["dur"] <= begin["ts"] + begin["dur"] + 1
assert begin["args"]["bytes"] >= 400000' )" +
                       path;
  CHECK(std::system(command.c_str()) == 0);
  CHECK_THROWS_AS(cairn::trace_file("/no/such/directory/trace.json"), cairn::storage_error);
}

TEST_CASE("a trace shows saves that overlap each on a track where it overlaps none") {
  const scratch_directory scratch;
  const auto path = scratch.path() + "/trace.json";
  std::vector<float> weights(1000, 1.0f);
  cairn::state_dict state;
  state.tensor("weights", weights, {1000});
  cairn::trace_file trace{path};
  std::promise<void> gate;
  auto faults = std::make_shared<store_faults>();
  faults->add(
      {.kind = store_call::write, .at = 1, .action = [&](std::string_view) { gate.get_future().wait(); }});
  cairn::checkpointer ckpt{
      faulty_store{cairn::file_store{scratch.path() + "/store"}, faults}, trace,
      cairn::checkpointer_options{.when_busy = cairn::busy_policy::queue, .quiet = true}};
  trace.step(1);
  const auto first = ckpt.save(state, 1);
  const auto second = ckpt.save(state, 2);
  gate.set_value();
  first.wait();
  second.wait();
  ckpt.save(state, 3).wait();
  trace.step(2);
  const auto command = trace_reader() + R"( -c '
import sys, trace_events
events = trace_events.read(sys.argv[1])
tracks = {each["tid"]: each["args"]["name"] for each in events if each["name"] == "thread_name"}
saves = [each for each in events if each["ph"] == "X" and tracks[each["tid"]] in ("saves", "saves 2")]
assert [each["name"] for each in saves] == ["save step 1", "save step 2", "save step 3"], saves
assert saves[1]["ts"] < saves[0]["ts"] + saves[0]["dur"], saves' )" +
                       path;
  CHECK(std::system(command.c_str()) == 0);
}

TEST_CASE("a trace is JSON in any locale, and whatever the bytes of a text are") {
  const scratch_directory scratch;
  const auto path = scratch.path() + "/trace.json";
  // A locale with a decimal comma. That it has no other category is a warning.
  std::ofstream(scratch.path() + "/source") << "LC_NUMERIC\ndecimal_point \",\"\nthousands_sep \"\"\n"
                                               "grouping -1\nEND LC_NUMERIC\n";
  static_cast<void>(std::system(("localedef -c -i '" + scratch.path() + "/source' -f ANSI_X3.4-1968 '" +
                                 scratch.path() + "/comma' 2>/dev/null")
                                    .c_str()));
  ::setenv("LOCPATH", scratch.path().c_str(), 1);
  const bool found = std::setlocale(LC_NUMERIC, "comma") != nullptr;
  ::unsetenv("LOCPATH");
  REQUIRE(found);
  const std::string half = std::to_string(0.5);
  {
    std::vector<float> weights(100'000, 1.0f);
    cairn::state_dict state;
    state.tensor("weights", weights, {100'000});
    cairn::trace_file trace{path};
    cairn::checkpointer ckpt{cairn::file_store{scratch.path() + "/store"}, trace,
                             cairn::checkpointer_options{.quiet = true}};
    trace.step(1);
    ckpt.save(state, 1).wait();
    ckpt.load(state, 1);
    trace.step(2);
    trace.mark("M\xfcller, \xed\xa0\x80, M\u00fcller\t\"\\\x7f");
  }
  REQUIRE(std::setlocale(LC_NUMERIC, "C") != nullptr);
  CHECK(half == "0,500000");
  const auto command = trace_reader() + R"( -c '
import sys, trace_events
events = trace_events.read(sys.argv[1])
names = [each["name"] for each in events]
assert "M\ufffdller, \ufffd\ufffd\ufffd, M\u00fcller\t\"\\\x7f" in names, names
for each in events:
    if each["ph"] == "X": assert each["ts"] > 0 and each["dur"] >= 0, each
load = [each for each in events if each["name"] == "load step 1"][0]
assert load["args"]["read s"] + load["args"]["verify s"] > 0, load
assert any(each["name"] == "cores in use" and each["args"]["value"] > 0 for each in events)' )" +
                       path;
  CHECK(std::system(command.c_str()) == 0);
}

TEST_CASE("a bar grows on a terminal while a save is written, and what happened stays as lines") {
  const scratch_directory scratch;
  std::vector<float> weights(8'000'000, 1.0f);
  cairn::state_dict state;
  state.tensor("weights", weights, {8'000'000});
  // Saves step 7, whose second write is held until `seen` is called, and fails to save it again.
  const auto save_on = [&](const std::string& name, int file, const std::function<void()>& seen) {
    std::promise<void> gate;
    auto faults = std::make_shared<store_faults>();
    faults->add(
        {.kind = store_call::write, .at = 1, .action = [&](std::string_view) { gate.get_future().wait(); }});
    cairn::checkpointer ckpt{faulty_store{cairn::file_store{scratch.path() + "/" + name}, faults},
                             cairn::no_staging{}, cairn::overlapped{},
                             cairn::progress_bar{{.file = file, .every = std::chrono::milliseconds(1)}},
                             cairn::checkpointer_options{.quiet = true}};
    auto save = ckpt.save(state, 7);
    seen();
    gate.set_value();
    save.wait();
    CHECK(save.bytes_written() == save.report().bytes);
    CHECK_THROWS_AS(ckpt.save(state, 7).wait(), cairn::storage_error);
  };
  std::string text;
  const auto read_until = [&](int from, const std::function<bool()>& there) {
    char part[4096];
    while (!there()) {
      pollfd ready{from, POLLIN, 0};
      REQUIRE(::poll(&ready, 1, 60'000) == 1);
      const auto n = ::read(from, part, sizeof part);
      REQUIRE(n > 0);
      text.append(part, static_cast<std::size_t>(n));
    }
  };
  const auto has = [&](std::string_view what) { return text.find(what) != std::string::npos; };

  int screen = -1;
  int terminal = -1;
  const winsize size{24, 70, 0, 0};
  REQUIRE(::openpty(&screen, &terminal, nullptr, nullptr, &size) == 0);
  save_on("terminal", terminal, [&] {
    read_until(screen, [&] { return has("[#"); });
    read_until(screen, [&] { return text.ends_with("\x1b[K"); });
  });
  const auto bar = text.substr(text.rfind('\r') + 1);
  CHECK(bar.starts_with("step 7  [#"));
  CHECK(bar.find(" MB of 32.00 MB") != std::string::npos);
  CHECK(bar.find(" 100 %") == std::string::npos);
  CHECK(bar.size() <= 69 + std::string_view("\x1b[K").size());
  read_until(screen, [&] { return has("already_committed]"); });
  CHECK(has("\r\x1b[Kstep 7  committed: 32.00 MB in "));
  // It may fail before a bar of it is drawn.
  CHECK((has("\r\x1b[Kstep 7  failed: [cairn.storage.already_committed]") ||
         has("\nstep 7  failed: [cairn.storage.already_committed]")));
  ::close(screen);
  ::close(terminal);

  text.clear();
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  save_on("pipe", ends[1], [] {});
  read_until(ends[0], [&] { return has("failed: "); });
  CHECK(text.starts_with("step 7  committed: 32.00 MB in "));
  CHECK(text.find('\r') == std::string::npos);
  CHECK(text.find('#') == std::string::npos);
  CHECK(std::count(text.begin(), text.end(), '\n') == 2);
  ::close(ends[0]);
  ::close(ends[1]);
  CHECK_THROWS_AS(cairn::progress_bar({.file = -1}), cairn::usage_error);
}

TEST_CASE("a bar that is never drawn anew is drawn once") {
  int screen = -1;
  int terminal = -1;
  REQUIRE(::openpty(&screen, &terminal, nullptr, nullptr, nullptr) == 0);
  {
    cairn::progress_bar bar{{.file = terminal, .every = std::chrono::milliseconds::max()}};
    const auto progress = std::make_shared<cairn::save_progress>(7);
    const cairn::save_handle save{progress};
    bar.observe({.kind = cairn::observation::event::began, .step = 7, .save = &save});
    pollfd ready{screen, POLLIN, 0};
    REQUIRE(::poll(&ready, 1, 20'000) == 1);
    std::string text(4096, '\0');
    const auto read = [&] {
      return std::string_view(text.data(), static_cast<std::size_t>(std::max<ssize_t>(
                                               ::read(screen, text.data(), text.size()), 0)));
    };
    CHECK(std::ranges::count(read(), '\r') == 1);
    CHECK(::poll(&ready, 1, 100) == 0);
  }
  ::close(screen);
  ::close(terminal);
}

TEST_CASE("a bar stays while a save is written that has become redundant meanwhile") {
  int screen = -1;
  int terminal = -1;
  REQUIRE(::openpty(&screen, &terminal, nullptr, nullptr, nullptr) == 0);
  std::string text;
  const auto read_until = [&](const std::function<bool()>& there) {
    char part[4096];
    while (!there()) {
      pollfd ready{screen, POLLIN, 0};
      REQUIRE(::poll(&ready, 1, 20'000) == 1);
      const auto n = ::read(screen, part, sizeof part);
      REQUIRE(n > 0);
      text.append(part, static_cast<std::size_t>(n));
    }
  };
  cairn::progress_bar bar{{.file = terminal, .every = std::chrono::milliseconds(1)}};
  const auto progress = std::make_shared<cairn::save_progress>(7);
  const cairn::save_handle save{progress};
  using event = cairn::observation::event;
  bar.observe({.kind = event::began, .step = 7, .save = &save});
  const auto report = progress->report();
  bar.observe({.kind = event::redundant, .step = 7, .seconds = 0.1, .report = &report});
  const auto told = [&] { return text.find("redundant: pieces on other ranks"); };
  read_until([&] { return told() != std::string::npos && text.find(" % ", told()) != std::string::npos; });
  bar.observe({.kind = event::committed, .step = 7, .seconds = 0.2, .report = &report});
  read_until([&] { return text.ends_with("training waited 0.0 ms\r\n"); });
  ::close(screen);
  ::close(terminal);
}
