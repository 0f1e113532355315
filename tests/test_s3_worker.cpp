// SPDX-License-Identifier: Apache-2.0
// links: cairn::s3 cairn::interprocess
//
// Worker processes that write to an object store: their trainer gives them credentials, as long as it lives.
#include <cairn/checkpointer.hpp>
#include <cairn/execute/process_executor.hpp>
#include <cairn/observe/trace_file.hpp>
#include <cairn/stage/shared_stager.hpp>
#include <cairn/storage/commit/leases.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/stores/s3_store.hpp>

#include <doctest/doctest.h>
#include <support/quick_clock.hpp>
#include <support/s3_access.hpp>
#include <support/scratch_directory.hpp>

#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <paths.hpp>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

/// Called by main() before anything else.
void cairn_test_before_main(int argc, char** argv) {
  cairn::worker_main(argc, argv);
}

namespace {
namespace s3 = cairn_test::s3;
using cairn::error_id;
using namespace std::chrono_literals;

const s3::credentials first{"AKIDFIRST", "the-first-secret-of-all", "a-token-that-nobody-may-see", false};
const s3::credentials second{"AKIDSECOND", "the-second-secret-of-all", "another-token-to-be-kept", false};
const std::vector<std::string> secrets = {first.secret_key, first.session_token, second.secret_key,
                                          second.session_token};
bool tells(const std::string& text) {
  for (const auto& secret : secrets)
    if (text.find(secret) != std::string::npos) return true;
  return false;
}
cairn::s3_credentials as_given(const s3::credentials& c, std::int64_t expires) {
  return {c.access_key, c.secret_key, c.session_token, expires};
}

/// A clock that only a test moves on.
struct standing_clock : cairn::s3_clock {
  [[nodiscard]] time_point now() noexcept override { return time_point(1h + passed.load()); }
  [[nodiscard]] std::int64_t unix_time() noexcept override {
    return begun + std::chrono::floor<std::chrono::seconds>(passed.load()).count();
  }
  [[nodiscard]] std::chrono::nanoseconds suspended() noexcept override { return 0ns; }
  void pass(std::chrono::nanoseconds time) noexcept { passed = passed.load() + time; }
  const std::int64_t begun = static_cast<std::int64_t>(std::time(nullptr));
  std::atomic<std::chrono::nanoseconds> passed{0ns};
};

s3::server_options service() {
  auto o = s3::quick_server();
  o.signatures.accepted = {first};
  return o;
}

struct state {
  explicit state(float value) : weights(std::size_t{11} << 18, value) {
    all.tensor("weights", weights, {static_cast<std::int64_t>(weights.size())});
  }
  std::vector<float> weights;
  cairn::state_dict all;
};

/// However busy this machine is, nothing is given up.
cairn::checkpointer_options patient() {
  return {.timeout = 240s, .peer_timeout = 240s, .quiet = true};
}

auto trainer_on(const std::string& endpoint, cairn::s3_credential_source credentials,
                const cairn::trace_file& trace) {
  return cairn::checkpointer{cairn::s3_store(s3::own_bucket_at(endpoint), std::move(credentials)),
                             cairn::shared_stager{}, cairn::process_executor{}, trace, patient()};
}

/// What the workers of this process show of themselves to everybody on the host.
std::string shown_by_workers() {
  const auto read = [](const std::filesystem::path& path) {
    std::ifstream file(path);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const auto parent = "\nPPid:\t" + std::to_string(::getpid()) + "\n";
  std::string found;
  for (const auto& process : std::filesystem::directory_iterator("/proc"))
    if (read(process.path() / "status").find(parent) != std::string::npos)
      found += read(process.path() / "cmdline") + read(process.path() / "environ");
  return found;
}

cairn::s3_store reader(const s3::server& server, const s3::credentials& with) {
  return cairn::s3_store(s3::own_bucket_at(server.endpoint()), s3::credentials_of(with));
}

}  // namespace

TEST_CASE("a worker asks its trainer for credentials, and for fresh ones when the server refuses them") {
  s3::server server{service()};
  std::atomic<int> asked{0};
  std::atomic<int> giving{1};
  const cairn_test::scratch_directory directory;
  const auto traced = directory.path() + "/trace.json";
  auto ckpt = trainer_on(server.endpoint(), cairn::s3_credential_source::callback([&] {
                           ++asked;
                           if (giving == 0) throw std::runtime_error("cannot give " + first.secret_key);
                           return as_given(giving == 1 ? first : second, 0);
                         }),
                         cairn::trace_file{traced});
  const state one(1);
  ckpt.save(one.all, 1).wait();
  CHECK(asked == 1);  // the trainer's own store asks the same
  const auto shown = shown_by_workers();
  CHECK(shown.find("cairn-worker") != std::string::npos);
  CHECK_FALSE(tells(shown));

  // The first ones expire behind everybody's back.
  auto expired = first;
  expired.expired = true;
  server.set_credentials({expired, second});
  giving = 2;
  const state two(2);
  ckpt.save(two.all, 2).wait();
  CHECK(asked == 2);

  // They expire again, and nobody can give others: a typed error that tells nothing, and training goes on.
  auto second_expired = second;
  second_expired.expired = true;
  server.set_credentials({first, second_expired});
  giving = 0;
  std::string told;
  try {
    ckpt.save(state(3).all, 3).wait();
  } catch (const cairn::error& e) {
    CHECK(e.id() == error_id::storage_permission);
    told = e.what();
  }
  CHECK(told.find("callback") != std::string::npos);
  CHECK_FALSE(tells(told));
  giving = 1;
  const state four(4);
  ckpt.save(four.all, 4).wait();
  state loaded(0);
  CHECK(ckpt.resume(loaded.all) == 4);
  CHECK(loaded.weights == four.weights);
  ckpt.load(loaded.all, 2);
  CHECK(loaded.weights == two.weights);
  ckpt.close();
  // What is traced of all that, of the save that failed too.
  std::ifstream file(traced);
  const std::string trace(std::istreambuf_iterator<char>(file), {});
  CHECK(trace.find("write") != std::string::npos);
  CHECK_FALSE(tells(trace));
}

TEST_CASE("credentials that are about to expire serve until they do, where there are no fresh ones") {
  std::atomic<int> asked{0};
  standing_clock clock;
  cairn::detail::credential_cache cache(cairn::s3_credential_source::callback([&] {
    if (++asked > 1) throw std::runtime_error("the vault is closed");
    return as_given(first, clock.begun + 100);
  }));
  const auto get = [&](std::int64_t after, std::optional<std::uint64_t> refused = {}) {
    clock.passed = std::chrono::seconds(after);
    return cache.get(clock, refused);
  };
  CHECK(get(0).credentials.access_key == first.access_key);
  CHECK(get(1).credentials.access_key == first.access_key);
  CHECK(asked == 2);
  CHECK(get(2).credentials.access_key == first.access_key);
  CHECK(asked == 2);  // not for each request
  CHECK(get(99).number == 1);
  CHECK_THROWS_AS(static_cast<void>(get(100)), cairn::storage_error);
  CHECK_THROWS_AS(static_cast<void>(get(50, 1)), cairn::storage_error);
}

TEST_CASE("a source of credentials that fails slowly holds up no request for as long as it took before") {
  s3::server server{service()};
  const auto clock = std::make_shared<standing_clock>();
  std::atomic<int> asked{0};
  cairn::s3_store store{s3::own_bucket_at(server.endpoint()), cairn::s3_credential_source::callback([&] {
                          if (++asked > 1) {
                            clock->pass(9s);
                            throw std::runtime_error("the vault does not answer");
                          }
                          return as_given(first, clock->begun + 100);
                        }),
                        clock};
  store.put_new("object", {});
  clock->pass(2s);
  for (int i = 0; i < 3; ++i) CHECK(store.size("object") == 0);
  CHECK(asked == 2);
  clock->pass(8s);
  CHECK(store.size("object") == 0);
  CHECK(asked == 2);
  clock->pass(1s);
  CHECK(store.size("object") == 0);
  CHECK(asked == 3);
}

/// What the trainer that is killed finds in its environment: the end point.
constexpr const char* trainer_variable = "CAIRN_TEST_S3_WORKERS_TRAINER";

TEST_CASE("the trainer that is killed" * doctest::skip()) {
  const char* const endpoint = std::getenv(trainer_variable);
  REQUIRE(endpoint != nullptr);
  ::alarm(280);
  auto ckpt = trainer_on(endpoint, cairn::s3_credential_source::callback([] { return as_given(first, 0); }),
                         cairn::trace_file{"/dev/null"});
  const state one(1);
  ckpt.save(one.all, 1).wait();
  const state two(2);
  const auto save = ckpt.save(two.all, 2);
  for (;;) ::pause();
}

/// A trainer of whose second save the worker has begun to send parts when it is killed. Its error output, and
/// its worker's, is `told`, which ends when both have.
struct killed_trainer {
  explicit killed_trainer(s3::server& server) {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    ::setenv(trainer_variable, server.endpoint().c_str(), 1);
    std::string program = "/proc/self/exe";
    std::string all = "--no-skip";
    std::string which = "-tc=the trainer that is killed";
    char* const arguments[] = {program.data(), all.data(), which.data(), nullptr};
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    ::posix_spawn_file_actions_adddup2(&actions, ends[1], 2);
    const int error = ::posix_spawn(&trainer, program.c_str(), &actions, nullptr, arguments, environ);
    ::posix_spawn_file_actions_destroy(&actions);
    ::unsetenv(trainer_variable);
    ::close(ends[1]);
    output = ends[0];
    REQUIRE(error == 0);
  }
  void kill() {
    ::kill(trainer, SIGKILL);
    int status = 0;
    REQUIRE(::waitpid(trainer, &status, 0) == trainer);
    CHECK(WIFSIGNALED(status));
  }
  /// Until trainer and worker have ended.
  [[nodiscard]] bool ends() {
    const auto until = std::chrono::steady_clock::now() + 240s;
    char piece[4096];
    while (std::chrono::steady_clock::now() < until) {
      pollfd one{output, POLLIN, 0};
      if (::poll(&one, 1, 1000) <= 0) continue;
      const auto n = ::read(output, piece, sizeof piece);
      if (n <= 0) return true;
      told.append(piece, static_cast<std::size_t>(n));
    }
    return false;
  }
  ~killed_trainer() { ::close(output); }
  ::pid_t trainer = 0;
  int output = -1;
  std::string told;
};

bool await(const std::function<bool()>& condition) {
  const auto until = std::chrono::steady_clock::now() + 240s;
  while (!condition())
    if (std::chrono::steady_clock::now() > until)
      return false;
    else
      std::this_thread::sleep_for(1ms);
  return true;
}

/// What becomes of the worker, or of the run that resumes.
enum class then { goes_on, expires, awaited, fenced };

TEST_CASE(
    "a worker whose trainer was killed goes on, until its credentials expire; a run that resumes waits") {
  for (const auto what : {then::goes_on, then::expires, then::awaited, then::fenced}) {
    CAPTURE(static_cast<int>(what));
    s3::server server{service()};
    // The second save stands still until it is released.
    server.faults.add("gather UploadPart all key=step-00000002/rank-00000 count=1000 ms=600000");
    const auto let_go_on = [&] {
      server.faults.clear();
      server.release();
    };
    killed_trainer run(server);
    // Its trainer and its worker have announced it, its upload is begun, and a part of it is held.
    REQUIRE(await([&] {
      for (const auto& entry : server.journal())
        if (entry.fault == "gather" && entry.key.ends_with(".safetensors")) return true;
      return false;
    }));
    run.kill();
    if (what == then::expires) {
      auto expired = first;
      expired.expired = true;
      server.set_credentials({expired, second});
    }
    const bool at_once = what == then::awaited || what == then::fenced;
    server.clear_journal();
    std::thread release([&] {
      // After a resume has looked again and again; at once where there is none.
      if (what == then::awaited)
        static_cast<void>(await([&] { return server.count("ListMultipartUploads") >= 6; }));
      if (what != then::fenced) let_go_on();
    });
    if (!at_once) {
      CHECK(run.ends());
      if (what == then::expires) server.set_credentials({second});
    }
    const bool lost = what == then::expires || what == then::fenced;
    const float last = lost ? 1.0F : 2.0F;
    for (const bool again : {false, true}) {
      auto options = patient();
      options.earlier_run_timeout = what == then::fenced ? 0s : 240s;
      cairn::checkpointer ckpt{reader(server, what == then::expires ? second : first), options};
      state loaded(0);
      CHECK(ckpt.resume(loaded.all) == (lost ? 1 : 2));
      CHECK(loaded.weights == std::vector<float>(loaded.weights.size(), last));
      ckpt.close();
      if (again) break;
      let_go_on();
      if (at_once) CHECK(run.ends());
    }
    release.join();
    CHECK_FALSE(tells(run.told));
    // What the worker could not end, as its credentials had expired, the next run has ended.
    CHECK(server.objects().uploads() == 0);
  }
}

/// What a body writes on stderr.
template <class Body>
[[nodiscard]] std::string errors_told_by(Body&& body) {
  const cairn::detail::file_descriptor kept(::dup(STDERR_FILENO)), told(::memfd_create("told", 0));
  REQUIRE(::dup2(told.get(), STDERR_FILENO) >= 0);
  body();
  REQUIRE(::dup2(kept.get(), STDERR_FILENO) >= 0);
  std::string text(16'384, '\0');
  text.resize(
      static_cast<std::size_t>(std::max<ssize_t>(::pread(told.get(), text.data(), text.size(), 0), 0)));
  return text;
}

TEST_CASE("announcements count while their process lives, and those of other hosts while heartbeats come") {
  s3::server server{service()};
  const auto key = "step-00000002/rank-00000.0000000000000001.record.begun";
  auto store = reader(server, first);
  auto other = reader(server, first);
  {
    auto announced = store.create(key, 0);
    CHECK(other.live_writers("step-").empty());
    announced.announce();
    CHECK(other.live_writers("step-").size() == 1);
    CHECK(store.live_writers("step-").size() == 1);
    CHECK(other.live_writers("step-00000003/").empty());
    CHECK(store.leftovers("").empty());
    CHECK(other.leftovers("").empty());
  }
  CHECK(other.live_writers("").empty());
  CHECK(server.objects().uploads() == 0);

  cairn::detail::s3_client client(s3::own_bucket_at(server.endpoint()), s3::credentials_of(first),
                                  std::make_shared<cairn::s3_clock>());
  const auto begin = [&](const std::string& tag) {
    const auto call = client.run({.method = "POST",
                                  .key = key + ("." + tag + ".writer"),
                                  .query = {{"uploads", ""}},
                                  .root = "InitiateMultipartUploadResult"});
    REQUIRE(call->fine());
    return std::string(call->document().text_of("UploadId"));
  };
  const auto id = begin("0123456789abcdef-1-1");
  // A process of this host that is gone, and names that are no signs.
  const auto here = cairn::detail::host_tag();
  static_cast<void>(begin(here + "-" + std::to_string(::getpid()) + "-1"));
  static_cast<void>(begin(here + "-x-"));
  static_cast<void>(begin(here));
  CHECK(store.live_writers("step-").size() == 1);
  CHECK(store.leftovers("step-").size() == 3);
  server.set_clock_offset(300);
  CHECK(store.live_writers("step-").empty());
  CHECK(store.leftovers("step-").size() == 4);
  cairn::detail::s3_request sign{.method = "PUT", .key = key + std::string(".0123456789abcdef-1-1.writer")};
  sign.query = {{"partNumber", "1"}, {"uploadId", id}};
  client.set_body(sign, {}, false);
  CHECK(client.run(std::move(sign))->fine());
  CHECK(store.live_writers("step-").size() == 1);

  // A service that has no time does not make it a dead one, which others would end.
  server.faults.add("error ListParts all status=503 code=SlowDown");
  cairn::s3_store hasty{s3::own_bucket_at(server.endpoint()), s3::credentials_of(first),
                        std::make_shared<cairn_test::quick_clock>()};
  CHECK_THROWS_AS(static_cast<void>(hasty.leftovers("step-")), cairn::storage_error);
  CHECK_THROWS_AS(static_cast<void>(hasty.live_writers("step-")), cairn::storage_error);
  server.faults.clear();
  // Nor does one that refuses to say whether it lives: however old what is known of it, nobody ends its save.
  server.set_clock_offset(600);
  for (const auto& [refusal, why] : {std::pair{"status=403 code=AccessDenied", "s3:ListMultipartUploadParts"},
                                     {"status=501 code=NotImplemented", "refuses ListParts"},
                                     {"status=400 code=InvalidRequest", "refuses ListParts"}}) {
    CAPTURE(refusal);
    server.faults.add("error ListParts all " + std::string(refusal));
    auto forbidden = reader(server, first);
    const auto told = errors_told_by([&] {
      CHECK(forbidden.live_writers("step-").size() == 1);
      CHECK(forbidden.leftovers("step-").size() == 3);
    });
    CHECK(told.find(why) != std::string::npos);
    CHECK(told.find(key) != std::string::npos);
    CHECK(std::count(told.begin(), told.end(), '\n') == 1);  // once
    server.faults.clear();
  }
  // Nor one whose answers tell no time, or two.
  for (const auto& [fault, why] :
       {std::pair{"header ListParts all text=Date:~Thu,~01~Jan~2026~00:00:00~GMT", "Date"},
        {"none ListParts all", "times"}}) {
    CAPTURE(why);
    server.objects().rules.no_times = std::string_view(why) == "times";
    server.faults.add(fault);
    auto untold = reader(server, first);
    const auto told = errors_told_by([&] {
      CHECK(untold.live_writers("step-").size() == 1);
      CHECK(untold.leftovers("step-").size() == 3);
    });
    CHECK(told.find(why) != std::string::npos);
    CHECK(told.find(key) != std::string::npos);
    CHECK(std::count(told.begin(), told.end(), '\n') == 1);
    server.faults.clear();
  }
  server.objects().rules.no_times = false;
  for (const auto& left : store.leftovers("step-")) store.discard(left);
  CHECK(server.objects().uploads() == 0);
}

/// A lease on a checkpoint of a bucket, on a clock that the test moves on.
struct leased {
  s3::server server{service()};
  std::shared_ptr<cairn_test::quick_clock> clock = std::make_shared<cairn_test::quick_clock>();
  cairn::s3_store store{s3::own_bucket_at(server.endpoint()), s3::credentials_of(first), clock};
  cairn::s3_store other = reader(server, first);
  cairn::checkpoint_lease lease = [this] {
    store.put_new(cairn::manifest_key(7), {});
    return cairn::detail::step_leases(cairn::any_store(store)).lease(7, cairn::deadline::in(240s));
  }();

  void pass(std::chrono::nanoseconds time) { clock->skipped += time.count(); }
};

TEST_CASE("a lease whose sign of life another run has removed says so, and is shown again") {
  leased one;
  CHECK(one.lease.held());
  REQUIRE(one.other.live_writers("lease-").size() == 1);
  // As a run does that takes this process for dead, since nothing came of it for long.
  cairn::detail::s3_bucket bucket(s3::own_bucket_at(one.server.endpoint()), s3::credentials_of(first),
                                  std::make_shared<cairn::s3_clock>());
  for (const auto& upload : bucket.uploads("")) bucket.abort(upload.key, upload.id);
  CHECK(one.other.live_writers("lease-").empty());
  one.pass(10s);
  CHECK(await([&] { return one.other.live_writers("lease-").size() == 1; }));
  CHECK_FALSE(one.lease.held());
  one.lease.release();
  CHECK(one.server.objects().uploads() == 0);
}

TEST_CASE("a lease is not said to be held where the service lists uploads by whole names alone") {
  auto options = service();
  options.objects.whole_names = true;
  s3::server server{options};
  auto store = reader(server, first);
  store.put_new(cairn::manifest_key(7), {});
  cairn::detail::step_leases leases{cairn::any_store(store)};
  const auto told = errors_told_by([&] {
    CHECK_FALSE(leases.lease(7, cairn::deadline::in(240s)).held());
    CHECK_NOTHROW(static_cast<void>(leases.begin_removal(7)));
  });
  CHECK(told.find("lists unfinished uploads by whole names alone") != std::string::npos);
  CHECK(std::count(told.begin(), told.end(), '\n') == 1);  // once
  CHECK(server.objects().uploads() == 0);
}

TEST_CASE(
    "a lease of a host that is cut off from the bucket says so once others take it for dead, and ever "
    "after") {
  leased one;
  CHECK(one.lease.held());
  one.server.faults.add("error UploadPart all status=503 code=SlowDown");
  one.pass(31s);
  CHECK_FALSE(one.lease.held());
  one.server.faults.clear();
  // Its sign comes through again, and the checkpoint may be gone.
  const auto signs = one.server.count("UploadPart");
  one.pass(10s);
  REQUIRE(await([&] { return one.server.count("UploadPart") > signs; }));
  one.pass(10s);
  REQUIRE(await([&] { return one.server.count("UploadPart") > signs + 1; }));
  CHECK_FALSE(one.lease.held());
  CHECK(one.other.live_writers("lease-").size() == 1);
}

TEST_CASE("a lease of a host that was suspended for long says that others may have taken it for dead") {
  leased one;
  one.server.faults.add("error UploadPart all status=503 code=SlowDown");
  one.clock->asleep = std::chrono::nanoseconds(29s).count();
  CHECK(one.lease.held());
  one.clock->asleep = std::chrono::nanoseconds(31s).count();
  CHECK_FALSE(one.lease.held());
}

TEST_CASE("a sign of life whose first answer was lost is shown once, and taken back as a whole") {
  for (const bool used_before : {false, true}) {
    CAPTURE(used_before);
    s3::server server{service()};
    const auto clock = std::make_shared<cairn_test::quick_clock>();
    auto options = s3::own_bucket_at(server.endpoint());
    options.max_attempts = 2;
    cairn::s3_store store{options, s3::credentials_of(first), clock};
    // libcurl itself tries again where the connection was used before.
    if (used_before) CHECK(store.list("").empty());
    server.faults.add("lost_reply CreateMultipartUpload first");
    {
      const auto sign = store.show("lease");
      CHECK(server.count("CreateMultipartUpload") == 2);
      CHECK(server.objects().uploads() == 1);
    }
    CHECK(server.objects().uploads() == 0);
    // The others can be ended only later.
    server.faults.add("lost_reply CreateMultipartUpload first");
    server.faults.add("error ListMultipartUploads all status=403 code=AccessDenied");
    {
      const auto sign = store.show("lease");
      CHECK(server.objects().uploads() == 2);
      server.faults.clear();
      // Its thread may not wait yet.
      CHECK(await([&, looks = 0]() mutable {
        if (looks++ % 100 == 0 && server.count("UploadPart") == 0)
          clock->skipped += std::chrono::nanoseconds(8s).count();
        return server.objects().uploads() == 1;
      }));
    }
    CHECK(server.objects().uploads() == 0);
    CHECK(server.count("ListMultipartUploads") == 3);
    server.faults.add("lost_reply CreateMultipartUpload all");
    CHECK_THROWS_AS(static_cast<void>(store.show("lease")), cairn::storage_error);
    CHECK(server.objects().uploads() == 0);
  }
}

TEST_CASE("a sign of life that could not be taken back is, once the service answers again") {
  s3::server server{service()};
  auto options = s3::own_bucket_at(server.endpoint());
  options.max_attempts = 2;
  cairn::s3_store store{options, s3::credentials_of(first), std::make_shared<cairn_test::quick_clock>()};
  auto other = reader(server, first);
  server.faults.add("error AbortMultipartUpload all status=503 code=SlowDown");
  { const auto sign = store.show("lease"); }
  CHECK(store.live_writers("").empty());
  // As this host sees, its process lives.
  CHECK(other.live_writers("").size() == 1);
  server.faults.clear();
  CHECK(await([&] { return server.objects().uploads() == 0; }));
  CHECK(other.live_writers("").empty());
}

TEST_CASE("in a child of fork() a sign of life, and its store, end at once, and that of the parent goes on") {
  s3::server server{service()};
  auto options = s3::own_bucket_at(server.endpoint());
  options.max_attempts = 2;
  std::optional<cairn::s3_store> store{std::in_place, options, s3::credentials_of(first),
                                       std::make_shared<cairn_test::quick_clock>()};
  // A thread waits for the next upload that could not be ended at once.
  server.faults.add("error AbortMultipartUpload all status=503 code=SlowDown");
  { const auto sign = store->show("lease"); }
  server.faults.clear();
  REQUIRE(await([&] { return server.objects().uploads() == 0; }));
  std::optional sign{store->show("lease")};
  const ::pid_t child = ::fork();
  if (child == 0) {
    sign.reset();
    store.reset();
    ::_exit(7);
  }
  REQUIRE(child > 0);
  int status = 0;
  const bool ended = await([&] { return ::waitpid(child, &status, WNOHANG) == child; });
  if (!ended) ::kill(child, SIGKILL), ::waitpid(child, &status, 0);
  CHECK(ended);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 7));
  CHECK(server.objects().uploads() == 1);
}

TEST_CASE("a sign of life counts from when it was sent, not from its answer") {
  s3::server server{service()};
  const auto clock = std::make_shared<standing_clock>();
  cairn::s3_store store{s3::own_bucket_at(server.endpoint()), s3::credentials_of(first), clock};
  server.faults.add("gather CreateMultipartUpload all count=1000 ms=600000");
  server.faults.add("error UploadPart all status=503 code=SlowDown");
  const std::jthread time([&](const std::stop_token& ended) {
    while (server.count("CreateMultipartUpload") == 0 && !ended.stop_requested())
      std::this_thread::sleep_for(1ms);
    clock->pass(9s);
    server.release();
  });
  const auto sign = store.show("lease");
  clock->pass(21s);
  CHECK(sign.announced());
  clock->pass(1s);
  CHECK_FALSE(sign.announced());
}

TEST_CASE(
    "signs of life go past the parts of a save that wait for their turn, and are begun and taken back") {
  s3::server server{service()};
  auto options = s3::own_bucket_at(server.endpoint());
  options.in_flight = 1;
  const auto clock = std::make_shared<cairn_test::quick_clock>();
  cairn::s3_store store{options, s3::credentials_of(first), clock};
  const auto signs = [&] {
    const auto journal = server.journal();
    return std::count_if(journal.begin(), journal.end(), [](const auto& entry) {
      return entry.operation == "UploadPart" && entry.key.ends_with(".writer");
    });
  };
  auto early = std::make_optional(store.show("lease-1"));
  const std::vector<std::byte> bytes(2 * s3::smallest_part);
  auto data = store.create("data", bytes.size());
  server.faults.add("gather UploadPart all key=data count=1000 ms=600000");
  const cairn::write_range whole{0, bytes};
  data.write_stable({&whole, 1});
  REQUIRE(await([&] { return server.count("UploadPart") == 1; }));
  clock->skipped += std::chrono::nanoseconds(10s).count();
  CHECK(await([&] { return signs() == 1; }));
  auto late = std::make_optional(store.show("lease-2"));
  early.reset();
  late.reset();
  CHECK(server.objects().uploads() == 1);
  server.faults.clear();
  server.release();
  data.finish();
  CHECK(store.size("data") == bytes.size());
}

TEST_CASE(
    "the end of a lease waits some seconds for a bucket that does not answer, and is an end nevertheless") {
  leased one;
  one.server.faults.add("gather AbortMultipartUpload all count=1000 ms=600000");
  const std::jthread time([&](const std::stop_token& ended) {
    while (one.server.count("AbortMultipartUpload") == 0 && !ended.stop_requested())
      std::this_thread::sleep_for(1ms);
    one.pass(15s);
  });
  one.lease.release();
  // Neither this store nor its copies wait for what is left of it, and they tidy it up.
  CHECK(one.store.live_writers("lease-").empty());
  one.server.faults.clear();
  one.server.release();
  for (const auto& left : one.store.leftovers("lease-")) one.store.discard(left);
  CHECK(one.server.objects().uploads() == 0);
}
