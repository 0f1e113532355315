// SPDX-License-Identifier: Apache-2.0
// threaded
// links: cairn::interprocess
// needs: helper_worker
// cost: 55
// Saving by a worker process: what crosses, what happens when the worker or the trainer dies.
#include <cairn/cairn.hpp>
#include <cairn/comm/thread_communicator.hpp>
#include <cairn/concepts/any_storage.hpp>
#include <cairn/cuda/basic_copy_engine.hpp>
#include <cairn/cuda/basic_pinned.hpp>
#include <cairn/execute/main_program.hpp>
#include <cairn/execute/process_executor.hpp>
#include <cairn/execute/worker_link.hpp>
#include <cairn/execute/worker_main.hpp>
#include <cairn/execute/worker_process.hpp>
#include <cairn/execute/worker_settings.hpp>
#include <cairn/stage/shared_memory.hpp>
#include <cairn/stage/shared_stager.hpp>
#include <cairn/system/file_descriptor.hpp>
#include <cairn/system/rate_limiter.hpp>
#include <cairn/system/shared_event.hpp>
#include <cairn/system/shared_segment.hpp>

#include "support/device_double.hpp"
#include "support/figures.hpp"
#include "support/kill_points.hpp"
#include "support/memory_group.hpp"
#include "support/processes.hpp"
#include "support/rounds.hpp"
#include "support/sanitized.hpp"
#include "support/scratch_directory.hpp"
#include "support/scripted_store.hpp"
#include "support/stager_conformance.hpp"
#include "support/still_threads.hpp"
#include "support/thread_policy.hpp"
#include "support/trace_reader.hpp"
#include "support/worker_trainers.hpp"

#include <doctest/doctest.h>

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <paths.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace {
using namespace cairn_test;

constexpr bool under_tsan = CAIRN_TEST_THREAD_SANITIZED;
/// Of cases that ThreadSanitizer is not for: they fork beside threads, kill, change memory while it is
/// copied, or take long there.
const doctest::skip not_threaded(under_tsan);

// The worker of a rank whose trainer is gone may write on: that ends no save.
static_assert(!cairn::EndsWithProcess<cairn::process_executor>);
static_assert(cairn::EndsWithProcess<cairn::thread_executor> &&
              cairn::EndsWithProcess<cairn::inline_executor>);

struct shared_env {
  static constexpr bool digests = true;
  [[nodiscard]] cairn::shared_stager make() const { return {}; }
};

}  // namespace

TEST_CASE("shared_stager is a stager" * not_threaded) {
  cairn_test::stager_conformance(shared_env{});
}

namespace {
/// KiB of huge pages in the mapping in which an address lies; see proc(5), smaps.
std::uint64_t huge_kib_at(const std::byte* address) {
  std::ifstream maps("/proc/self/smaps");
  bool here = false;
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    std::uint64_t kib = 0;
    if (std::sscanf(line.c_str(), "%zx-%zx ", &begin, &end) == 2)
      here = begin <= reinterpret_cast<std::uintptr_t>(address) &&
             reinterpret_cast<std::uintptr_t>(address) < end;
    else if (here && std::sscanf(line.c_str(), "ShmemPmdMapped: %zu kB", &kib) == 1)
      return kib;
  }
  return 0;
}
}  // namespace

TEST_CASE("shared memory is there when it was allocated, in huge pages where the kernel makes them") {
  constexpr std::uint64_t huge = std::uint64_t{2} << 20;
  // Find out with one block of memory whether the kernel does.
  cairn::shared_segment probe(huge);
  probe.allocate();
  std::memset(probe.bytes().data(), 1, huge);
  const bool kernel_does = ::madvise(probe.bytes().data(), huge, 25) == 0;  // MADV_COLLAPSE
  std::string setting;
  std::getline(std::ifstream("/sys/kernel/mm/transparent_hugepage/shmem_enabled"), setting);
  const bool given_to_all =
      setting.find("[always]") != std::string::npos || setting.find("[force]") != std::string::npos;
  for (const bool asked : {true, false}) {
    CAPTURE(asked);
    cairn::shared_memory memory({.huge_pages = asked});
    const auto block = memory.allocate(3 * huge + 1);
    const auto bytes = block.bytes();
    REQUIRE(bytes.size() >= 3 * huge + 1);
    const auto place = block.shared(0).image;
    struct stat there {};
    REQUIRE(::fstat(place.file, &there) == 0);
    CHECK(static_cast<std::uint64_t>(there.st_blocks) * 512 >= bytes.size());
    CHECK(std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; }));
    CHECK(reinterpret_cast<std::uintptr_t>(bytes.data()) % huge == 0);
    if (!asked && !given_to_all) CHECK(huge_kib_at(bytes.data()) == 0);
    if (asked && kernel_does) CHECK(huge_kib_at(bytes.data()) >= 2048);
    // As the worker maps it.
    bytes[huge + 5] = std::byte{7};
    const cairn::shared_segment other(cairn::detail::file_descriptor(::dup(place.file)), bytes.size());
    CHECK(other.bytes()[huge + 5] == std::byte{7});
    CHECK(reinterpret_cast<std::uintptr_t>(other.bytes().data()) % huge == 0);
  }
}

TEST_CASE("one worker serves all saves, and leaves nothing behind") {
  const scratch_directory scratch;
  trained run;
  int inheritable[2];  // as a log that the trainer's own children are to have
  REQUIRE(::pipe(inheritable) == 0);
  const auto numbers_before = files_by_number(::getpid());
  const auto files_before = open_files();
  const auto children_before = children();
  cpu_set_t mine;
  CPU_ZERO(&mine);
  REQUIRE(::sched_getaffinity(0, sizeof mine, &mine) == 0);
  int core = 0;
  while (!CPU_ISSET(static_cast<std::size_t>(core), &mine)) ++core;
  {
    const char* const of_launchers[] = {"OMPI_COMM_WORLD_RANK",
                                        "PMIX_RANK",
                                        "PMI_RANK",
                                        "PMI2_RANK",
                                        "PRTE_X",
                                        "ORTE_X",
                                        "MPI_LOCALRANKID",
                                        "MPIR_X",
                                        "I_MPI_X",
                                        "HYDI_X",
                                        "HYDRA_X",
                                        "MV2_RANK",
                                        "SLURM_PROCID",
                                        "FLUX_JOB_ID",
                                        "PALS_RANKID",
                                        "ALPS_APP_PE",
                                        "JSM_X",
                                        "TORCHELASTIC_X",
                                        "RANK",
                                        "WORLD_SIZE",
                                        "LOCAL_RANK",
                                        "LOCAL_WORLD_SIZE",
                                        "MASTER_ADDR",
                                        "MASTER_PORT"};
    for (const char* name : of_launchers) ::setenv(name, "3", 1);
    ::setenv("KEPT_BY_CAIRN", "yes", 1);
    ::setenv("RANKED_BY_CAIRN", "yes", 1);
    auto ckpt =
        make(scratch.path(),
             cairn::process_executor{{.worker = {.nice = 3, .io = cairn::io_class::idle, .cores = {core}}}},
             cairn::keep_last{2});
    CHECK_FALSE(ckpt.resume(run.state).has_value());
    run.update(1);
    auto first_save = ckpt.save(run.state, 1);
    first_save.wait();
    CHECK(first_save.report().worker_start_seconds > 0);
    const auto first = workers();
    REQUIRE(first.size() == 1);
    const auto environment = std::string(1, '\0') + proc_file(first[0], "environ");
    const auto has = [&](const std::string& name) {
      return environment.find(std::string(1, '\0') + name + '=') != std::string::npos;
    };
    CHECK(has("KEPT_BY_CAIRN"));
    CHECK(has("RANKED_BY_CAIRN"));
    for (const char* name : of_launchers) {
      CHECK_MESSAGE(!has(name), name);
      ::unsetenv(name);
    }
    CHECK(::getpgid(first[0]) == first[0]);
    CHECK(::getsid(first[0]) == ::getsid(0));
    CHECK(proc_file(first[0], "autogroup") ==
          proc_file(::getpid(), "autogroup"));  // the processor is shared fairly
    std::size_t yielding = 0;
    for (const auto& task :
         std::filesystem::directory_iterator("/proc/" + std::to_string(first[0]) + "/task")) {
      const int thread = std::stoi(task.path().filename());
      CHECK(::getpriority(PRIO_PROCESS, static_cast<id_t>(thread)) ==
            std::min(19, ::getpriority(PRIO_PROCESS, 0) + 3));
      if (::sched_getscheduler(thread) == cairn_test::policy_beside_training()) ++yielding;
      constexpr int one_thread = 1;
      CHECK(::syscall(SYS_ioprio_get, one_thread, thread) == static_cast<int>(cairn::io_class::idle) << 13);
      cpu_set_t cores;
      CPU_ZERO(&cores);
      REQUIRE(::sched_getaffinity(thread, sizeof cores, &cores) == 0);
      CHECK(CPU_COUNT(&cores) == 1);
      CHECK(CPU_ISSET(static_cast<std::size_t>(core), &cores));
    }
    CHECK(yielding >= 2);  // a sanitizer may have one more
    // It has nothing of the trainer's but what it was given, and what is shared has no name.
    for (const auto& [number, target] : files_by_number(first[0])) {
      CHECK_MESSAGE(target != numbers_before.at(inheritable[0]), number);
      CHECK_MESSAGE(target != numbers_before.at(inheritable[1]), number);
    }
    for (const auto process : {::getpid(), first[0]}) {
      const auto maps = proc_file(process, "maps");
      CHECK(maps.find("/memfd:cairn") != std::string::npos);
      CHECK(maps.find("/dev/shm/") == std::string::npos);
    }
    std::size_t after_ten = 0;
    for (std::int64_t step = 2; step <= 40; ++step) {
      run.update(step);
      if (step % 7 == 0) run.blob.assign(static_cast<std::size_t>(step) * 10'000, 'x');  // a larger buffer
      ckpt.annotate({{"step", step}});
      auto save = ckpt.save(run.state, step);
      CHECK(inherited_beyond(numbers_before) == "");
      save.wait();
      CHECK(save.committed());
      CHECK(save.report().worker_start_seconds == 0);
      if (step == 10) after_ten = open_files();
    }
    CHECK(workers() == first);
    CHECK(eventually([&] { return open_files() <= after_ten; }));
    CHECK(eventually([&] { return files_of(first[0]) <= 16; }));
    CHECK(ckpt.list() == std::vector<std::int64_t>{39, 40});
    CHECK(ckpt.annotations(39) == cairn::annotations{{"step", 39}});
    CHECK(ckpt.annotations(40) == cairn::annotations{{"step", 40}});
    ckpt.close();
  }
  CHECK(children() == children_before);
  CHECK(open_files() == files_before);
  ::close(inheritable[0]), ::close(inheritable[1]);
  CHECK(newest(scratch.path()) == 40);
}

TEST_CASE(
    "what training changes after before_update() is not in the checkpoint; ranks have workers of their own") {
  const scratch_directory scratch;
  cairn::thread_group group(2);
  const auto train = [&](int rank) {
    std::vector<float> own(100'000);
    cairn::state_dict state;
    state.tensor("own", own, cairn::shard{{200'000}, {100'000 * rank}});
    auto ckpt =
        make(scratch.path(), cairn::process_executor{}, cairn::overlapped{}, group.communicator(rank));
    static_cast<void>(ckpt.resume(state));
    for (std::int64_t step = 1; step <= 5; ++step) {
      std::fill(own.begin(), own.end(), static_cast<float>(step * 10 + rank));
      ckpt.save(state, step);
      ckpt.before_update();
      std::fill(own.begin(), own.end(), -1.0f);
    }
    ckpt.close();
  };
  {
    const std::jthread other(train, 1);
    train(0);
  }
  std::vector<float> all(200'000);
  cairn::state_dict state;
  state.tensor("own", all, {200'000});
  cairn::checkpointer reader{cairn::file_store{scratch.path()}, cairn::checkpointer_options{.quiet = true}};
  for (std::int64_t step = 1; step <= 5; ++step) {
    reader.load(state, step);
    CHECK(std::count(all.begin(), all.end(), static_cast<float>(step * 10)) == 100'000);
    CHECK(std::count(all.begin(), all.end(), static_cast<float>(step * 10 + 1)) == 100'000);
  }
}

TEST_CASE("a last save whose memory changed without before_update is not committed by the worker" *
          not_threaded) {
  const scratch_directory scratch;
  trained run;
  {
    auto ckpt = make(scratch.path(), cairn::process_executor{}, cairn::overlapped{});
    static_cast<void>(ckpt.resume(run.state));
    run.update(1);
    auto handle = ckpt.save(run.state, 1);
    ckpt.before_update("weights");
    std::fill(run.weights.begin(), run.weights.end(), 0.5f);
    run.blob = "of the next step", run.seen = 2;
    ckpt.close();
    CHECK(handle.committed());
  }
  auto ckpt = make(scratch.path(), cairn::process_executor{}, cairn::overlapped{});
  auto handle = ckpt.save(run.state, 2);
  run.update(3);
  CHECK_THROWS_AS(ckpt.close(), cairn::usage_error);
  REQUIRE(handle.failed());
  CHECK(id_of(handle.failure()) == cairn::error_id::usage_before_update_missing);
  CHECK(newest(scratch.path()) == 1);
}

namespace {
/// A clock that stands still: whoever waits on it goes on only when the limit is lifted.
struct stopped_clock : cairn::rate_clock {
  time_point now() noexcept override { return begin; }
  void wait(cairn::shared_event& word, std::uint32_t seen, time_point) noexcept override {
    word.wait(seen, cairn::deadline::never());
  }
  time_point begin = cairn::deadline::clock::now();
};
}  // namespace

TEST_CASE("a worker links the files of frozen items, and stages nothing of them") {
  const scratch_directory scratch;
  const cairn::file_store store{scratch.path()};
  std::vector<float> base(300'000, 0.5F), adapter(1'000);
  cairn::state_dict state;
  state.tensor("base", base, {300'000}, cairn::frozen);
  state.tensor("adapter", adapter, {1'000});
  {
    cairn::checkpointer ckpt{store, cairn::shared_stager{}, cairn::process_executor{},
                             cairn::checkpointer_options{.quiet = true}};
    for (const std::int64_t step : {1, 2, 3}) {
      adapter[0] = static_cast<float>(step);
      const auto save = ckpt.save(state, step);
      save.wait();
      CHECK((save.report().linked_bytes > 1'200'000) == (step > 1));
      CHECK((save.report().copying.bytes < 20'000) == (step > 1));
    }
  }
  std::filesystem::remove_all(scratch.path() + "/step-00000001");
  std::vector<float> a(300'000), b(1'000);
  cairn::state_dict back;
  back.tensor("base", a, {300'000});
  back.tensor("adapter", b, {1'000});
  cairn::checkpointer{store, cairn::checkpointer_options{.quiet = true}}.load(back, 3);
  CHECK(a == base);
  CHECK(b == adapter);
}

TEST_CASE("items are waited for, changes are found and limits hold in a worker process, too") {
  const scratch_directory scratch;
  const auto clock = std::make_shared<stopped_clock>();
  trained run;
  std::vector<double> table(400'000, 0.5);  // 3.2 MB
  run.state.tensor("table", table, {400'000});
  std::vector<std::uint8_t> generator{1, 2, 3};
  run.state.bytes("generator", generator, cairn::per_rank);
  // Copying stops after its first MiB, until somebody waits for it.
  cairn::shared_stager stager{{}, cairn::host_copy{{.threads = 2, .bytes_per_second = 1, .clock = clock}}};
  const auto make_checkpointer = [&](cairn::process_executor executor, std::chrono::nanoseconds timeout) {
    return cairn::checkpointer{cairn::file_store{scratch.path()},
                               std::move(stager),
                               std::move(executor),
                               cairn::overlapped{},
                               cairn::checked{},
                               cairn::checkpointer_options{.timeout = timeout, .quiet = true}};
  };
  SUBCASE("a save is confirmed by its items, one after another") {
    auto ckpt = make_checkpointer(cairn::process_executor{}, std::chrono::minutes(2));
    ckpt.prepare(run.state);
    run.update(1);
    auto first = ckpt.save(run.state, 1);
    CHECK_FALSE(first.released());
    // Values and bytes were copied by save() itself and may change at once.
    run.seen = -1, run.blob = "of the next step", generator.assign(9, 0);
    for (const char* name : {"table", "moments", "weights"}) ckpt.before_update(name);
    run.update(2);
    CHECK(first.released());
    auto second = ckpt.save(run.state, 2);
    CHECK(first.committed());
    table[200'000] = 7;  // which is not copied yet
    ckpt.before_update();
    REQUIRE(second.failed());
    CHECK(id_of(second.failure()) == cairn::error_id::usage_memory_changed);
    CHECK(text_of(second.failure()).find("item table, offset 1048576") != std::string::npos);
    run.update(3);
    auto third = ckpt.save(run.state, 3);
    std::fill(run.weights.begin(), run.weights.end(), 0.5f);  // before it is copied
    third.wait_released();
    CHECK_THROWS_AS(third.wait(), cairn::usage_error);
    CHECK(ckpt.list() == std::vector<std::int64_t>{1});
    ckpt.load(run.state, 1);
    CHECK(run.is_of(1));
    CHECK(generator == std::vector<std::uint8_t>{1, 2, 3});
    CHECK(workers().size() == 1);
  }
  SUBCASE("a limit of writing crosses to the worker") {
    auto ckpt = make_checkpointer(cairn::process_executor{{.bytes_per_second = 1}}, std::chrono::seconds(5));
    ckpt.prepare(run.state);  // starts the worker
    auto handle = ckpt.save(run.state, 1);
    CHECK_THROWS_AS(handle.wait(), cairn::timeout_error);
    CHECK(text_of(handle.failure()).find("with this limit of bandwidth") != std::string::npos);
  }
}

TEST_CASE("a worker writes what was copied so far while the rest is not copied yet" * not_threaded) {
  const scratch_directory scratch;
  // Copying stops after the 8 MiB that save() itself copies and one more, until somebody waits for it.
  cairn::shared_stager stager{
      {},
      cairn::host_copy{{.threads = 1, .bytes_per_second = 1, .clock = std::make_shared<stopped_clock>()}}};
  std::vector<float> early(2 << 20, 1.5f);
  std::vector<float> late(1 << 20, 2.5f);
  cairn::state_dict state;
  state.tensor("early", early, {2 << 20}, cairn::copy_now);
  state.tensor("late", late, {1 << 20});
  cairn::checkpointer ckpt{scripted_store{cairn::file_store{scratch.path() + "/store"}, scratch.path()},
                           std::move(stager), cairn::process_executor{}, cairn::overlapped{},
                           cairn::checkpointer_options{.quiet = true}};
  ckpt.prepare(state);
  scripted_store::write(scratch.path(), "write after rank hold");
  auto save = ckpt.save(state, 1);
  scripted_store::wait_held(scratch.path());
  CHECK_FALSE(save.released());
  scripted_store::let_go(scratch.path());
  ckpt.before_update();
  std::fill(early.begin(), early.end(), 0.0f), std::fill(late.begin(), late.end(), 0.0f);
  save.wait();
  ckpt.load(state, 1);
  CHECK(std::count(early.begin(), early.end(), 1.5f) == 2 << 20);
  CHECK(std::count(late.begin(), late.end(), 2.5f) == 1 << 20);
}

namespace {
/// A training whose next state depends on every bit of the one before.
struct layers {
  std::array<std::vector<float>, 5> weights;
  std::vector<std::uint8_t> generator = std::vector<std::uint8_t>(40, 1);
  std::string blob = "at ";
  cairn::state_dict state;
  layers() {
    for (std::size_t i = 0; i < weights.size(); ++i) {
      weights[i].resize(70'001);
      std::iota(weights[i].begin(), weights[i].end(), static_cast<float>(i));
      state.tensor("layer" + std::to_string(i), weights[i], {70'001});
    }
    state.bytes("blob", blob);
    state.bytes("generator", generator, cairn::per_rank);
  }
  void update(std::size_t i) {
    auto* const w = weights[i].data();
    const auto noise = static_cast<float>(generator[i]);
    for (std::size_t k = 0; k < weights[i].size(); ++k) w[k] = w[k] * 0.875f + noise;
  }
  void end_update() {
    for (auto& g : generator) g = static_cast<std::uint8_t>(g * 5 + 3);
    blob += static_cast<char>('a' + generator[0] % 26);
  }
};

/// Trains to `last` from what is in memory, with a save at every second update.
template <class Checkpointer>
void train_on(Checkpointer ckpt, layers& run, std::int64_t last) {
  for (auto step = ckpt.resume(run.state).value_or(0); step < last;) {
    for (std::size_t i = 0; i < run.weights.size(); ++i) {
      ckpt.before_update("layer" + std::to_string(i));
      run.update(i);
    }
    ckpt.before_update();
    run.end_update();
    ++step;
    if (step % 2 == 0) ckpt.save(run.state, step);
  }
  ckpt.close();
}
/// The bytes of the data files of all checkpoints in a store, by step.
std::map<std::string, std::string> data_files(const std::string& store) {
  std::map<std::string, std::string> found;
  for (const auto& file : std::filesystem::recursive_directory_iterator(store)) {
    if (file.path().extension() != ".safetensors") continue;
    std::string bytes(static_cast<std::size_t>(file.file_size()), '\0');
    std::ifstream(file.path(), std::ios::binary)
        .read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    found[file.path().parent_path().filename()] += bytes;
  }
  return found;
}
}  // namespace

TEST_CASE("every way of saving gives the same bytes, and a training that goes on with the same bits" *
          not_threaded) {
  const scratch_directory scratch;
  const auto options = [] { return cairn::checkpointer_options{.quiet = true}; };
  const std::vector<std::function<cairn::any_checkpointer(std::string)>> ways{
      [&](std::string d) {
        return cairn::checkpointer{cairn::file_store{d}, cairn::no_staging{}, cairn::inline_executor{},
                                   options()};
      },
      [&](std::string d) {
        return cairn::checkpointer{cairn::file_store{d}, options()};
      },
      [&](std::string d) { return make(d, cairn::process_executor{}); },
      [&](std::string d) {
        return cairn::checkpointer{cairn::file_store{d}, cairn::overlapped{}, options()};
      },
      [&](std::string d) { return make(d, cairn::process_executor{}, cairn::overlapped{}); },
      [&](std::string d) {
        return cairn::checkpointer{cairn::file_store{d}, cairn::no_staging{}, cairn::overlapped{}, options()};
      }};
  layers uninterrupted;
  for (std::int64_t step = 1; step <= 6; ++step) {
    for (std::size_t i = 0; i < uninterrupted.weights.size(); ++i) uninterrupted.update(i);
    uninterrupted.end_update();
  }
  std::map<std::string, std::string> first;
  for (std::size_t way = 0; way < ways.size(); ++way) {
    CAPTURE(way);
    const auto store = scratch.path() + "/" + std::to_string(way);
    {
      layers run;
      train_on(ways[way](store), run, 5);
    }
    layers run;  // begins anew, and goes on from step 4
    train_on(ways[way](store), run, 6);
    CHECK(run.weights == uninterrupted.weights);
    CHECK(run.generator == uninterrupted.generator);
    CHECK(run.blob == uninterrupted.blob);
    const auto files = data_files(store);
    CHECK(files.size() == 3);
    if (way == 0) first = files;
    CHECK((files == first));
  }
}

TEST_CASE(
    "a storage chosen at run time is written by a worker where its writer is portable, else the save fails") {
  const scratch_directory scratch;
  trained run;
  const cairn::checkpointer_options quiet{.quiet = true};
  cairn::checkpointer ckpt{
      cairn::any_storage{cairn::safetensors_storage{cairn::file_store{scratch.path() + "/checkpoints"}}},
      cairn::shared_stager{}, cairn::process_executor{}, quiet};
  auto written = ckpt.save(run.state, 1);
  written.wait();
  CHECK(written.report().writing.process != ::getpid());
  cairn::checkpointer lost{cairn::any_storage{cairn::safetensors_storage{cairn::memory_store{}}},
                           cairn::shared_stager{}, cairn::process_executor{}, quiet};
  auto refused = lost.save(run.state, 1);
  CHECK_THROWS_AS(refused.wait(), cairn::usage_error);
}

TEST_CASE(
    "a worker that is killed at any step fails its save with the reason, or the save goes on without it" *
    not_threaded) {
  const scratch_directory scratch;
  const auto children_before = children().size();
  trained run;
  auto ckpt = make_scripted(scratch.path());
  static_cast<void>(ckpt.resume(run.state));
  std::int64_t step = 0;
  const auto save = [&] {
    run.update(++step);
    auto handle = ckpt.save(run.state, step);
    ckpt.before_update();
    run.update(-1);
    try {
      handle.wait();
    } catch (const cairn::error&) {
    }
    return handle;
  };
  CHECK(save().committed());
  std::int64_t last = 1;
  for (const char* line : steps_of_a_worker) {
    const std::string at = line;
    CAPTURE(at);
    scripted_store::write(scratch.path(), at + " kill");
    const auto before = workers();
    const auto hit = save();
    CHECK_FALSE(std::filesystem::exists(scratch.path() + "/script"));
    if (hit.committed()) {
      last = step;
    } else {
      REQUIRE(hit.failed());
      CHECK(id_of(hit.failure()) == cairn::error_id::peer_lost);
      // Once the record is there, the trainer does the rest.
      CHECK((at.find("rank") != at.npos || at.starts_with("size") || at.starts_with("put_new")));
    }
    CHECK(newest(scratch.path() + "/store") == last);
    const auto next = save();
    CHECK(next.committed());
    CHECK(next.report().worker_start_seconds > 0);
    last = step;
    CHECK(workers() != before);
    CHECK(workers().size() == 1);
    CHECK(children().size() == children_before + 1);  // nothing is left of the one that was killed
  }
  // Killed between two saves: neither fails.
  const auto idle = workers().at(0);
  ::kill(idle, SIGKILL);
  REQUIRE(ends(idle));
  const auto without_it = save();
  CHECK(without_it.committed());
  CHECK(without_it.report().worker_start_seconds > 0);
  CHECK(newest(scratch.path() + "/store") == step);
  CHECK(children().size() == children_before + 1);
  CHECK_NOTHROW(ckpt.close());
}

TEST_CASE("a trainer that is killed after its image was released does not take the checkpoint with it" *
          not_threaded) {
  enum class by { itself, group, terminal };
  struct {
    int signal;
    by whom;
  } const deaths[] = {{SIGKILL, by::itself}, {SIGKILL, by::group}, {SIGINT, by::group},
                      {SIGTERM, by::group},  {SIGHUP, by::group},  {SIGINT, by::terminal},
                      {SIGHUP, by::terminal}};
  for (const auto& death : deaths) {
    CAPTURE(death.signal);
    CAPTURE(static_cast<int>(death.whom));
    const scratch_directory scratch;
    int screen = -1;
    int terminal = -1;
    if (death.whom == by::terminal) {
      REQUIRE(::openpty(&screen, &terminal, nullptr, nullptr, nullptr) == 0);
      for (const int end : {screen, terminal}) ::fcntl(end, F_SETFD, FD_CLOEXEC);
    }
    const auto run = start_trainer(scratch.path(), at_manifest, "killed", "--trainer", terminal);
    scripted_store::wait_held(scratch.path());  // the worker is about to publish the manifest
    if (death.whom == by::terminal) {
      if (death.signal == SIGINT) REQUIRE(::write(screen, "\x03", 1) == 1);  // Ctrl-C
      if (death.signal == SIGHUP) ::close(screen);
    } else {
      ::kill(death.whom == by::group ? -run.process : run.process, death.signal);
    }
    const int status = exit_status_of(run.process);
    CHECK(WIFSIGNALED(status));
    CHECK(WTERMSIG(status) == death.signal);
    // A signal to the worker itself, as from a batch system that ends all processes of a job: the worker
    // alone can commit now, and a stopped one would not end.
    for (const int signal : {SIGHUP, SIGINT, SIGQUIT, SIGPIPE, SIGALRM, SIGTERM, SIGUSR1, SIGUSR2, SIGTSTP,
                             SIGTTIN, SIGTTOU, SIGXCPU, SIGXFSZ})
      CHECK(::kill(run.worker, signal) == 0);
    scripted_store::let_go(scratch.path());
    CHECK(ends(run.worker));
    if (death.whom == by::terminal) ::close(terminal);
    if (death.whom == by::terminal && death.signal != SIGHUP) ::close(screen);
    for (const auto& each : std::filesystem::recursive_directory_iterator(scratch.path() + "/store"))
      CHECK(each.path().extension() != ".part");
    CHECK(newest(scratch.path() + "/store") == 2);
  }
}

TEST_CASE("a worker sees the end of its trainer whatever children that left, and nothing stays" *
          not_threaded) {
  struct {
    std::string end;
    std::string line;
    std::int64_t newest;
  } const ends_of_a_run[] = {{"closed", "", 1},
                             {"killed", at_manifest, 2},
                             {"killed before it confirms", "write before rank hold", 1}};
  for (const auto& each : ends_of_a_run) {
    CAPTURE(each.end);
    const scratch_directory scratch;
    const auto errors = scratch.path() + "/errors";
    REQUIRE(::mkfifo(errors.c_str(), 0600) == 0);
    const cairn::detail::file_descriptor stderr_of_run(
        ::open(errors.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    const auto run = start_trainer(scratch.path(), each.line, each.end.c_str(), "--forking-trainer");
    std::vector<::pid_t> left;
    std::ifstream children_file(scratch.path() + "/children");
    for (::pid_t child = 0; children_file >> child;) left.push_back(child);
    REQUIRE(left.size() == 2);
    if (each.end != "closed") {
      if (!each.line.empty()) scripted_store::wait_held(scratch.path());
      ::kill(run.process, SIGKILL);
    }
    const int status = exit_status_of(run.process);
    CHECK((each.end == "closed" ? WIFEXITED(status) && WEXITSTATUS(status) == 0 : WIFSIGNALED(status)));
    // A reader of the run's output gets its end, also while its worker still writes.
    pollfd one{stderr_of_run.get(), 0, 0};
    CHECK(::poll(&one, 1, 60'000) == 1);
    if (!each.line.empty()) {
      CHECK(::kill(run.worker, 0) == 0);
      scripted_store::let_go(scratch.path());
    }
    CHECK(ends(run.worker));
    for (const auto child : left) {
      CHECK(::kill(child, 0) == 0);
      ::kill(child, SIGKILL);
    }
    for (const auto& file : std::filesystem::recursive_directory_iterator(scratch.path() + "/store"))
      CHECK(file.path().extension() != ".part");
    CHECK(newest(scratch.path() + "/store") == each.newest);
  }
}

TEST_CASE("when training has ended, its worker writes without a limit" * not_threaded) {
  const scratch_directory scratch;
  SUBCASE("by close()") {
    trained run;
    auto ckpt = make_limited(scratch.path() + "/store");
    run.update(1);
    const auto save = ckpt.save(run.state, 1);
    ckpt.before_update();
    CHECK_FALSE(save.written());
    ckpt.close();
    CHECK(save.committed());
  }
  SUBCASE("by the death of the trainer") {
    const auto run = start_trainer(scratch.path(), "", "", "--limited-trainer");
    ::kill(run.process, SIGKILL);
    static_cast<void>(exit_status_of(run.process));
    CHECK(ends(run.worker));
  }
  CHECK(newest(scratch.path() + "/store") == 1);
}

TEST_CASE("signals that come while a worker is started do not end it" * not_threaded) {
  const scratch_directory scratch;
  ::setenv("CAIRN_TEST_SIGNALS_TO_WORKERS", "1", 1);
  trained run;
  auto ckpt = make(scratch.path(), cairn::process_executor{});
  const auto save = ckpt.save(run.state, 1);
  CHECK_NOTHROW(save.wait());
  ::unsetenv("CAIRN_TEST_SIGNALS_TO_WORKERS");
}

TEST_CASE("training goes on only when its worker has the save, but not for ever") {
  enum class way { overlapped, by_name, staged };
  const auto self = static_cast<::pid_t>(::syscall(SYS_gettid));
  const auto asleep = [&] {
    const auto stat = proc_file(::getpid(), "task/" + std::to_string(self) + "/stat");
    return stat.compare(stat.rfind(')') + 2, 1, "S") == 0;
  };
  const auto try_it = [&](auto& ckpt, way how, const scratch_directory& scratch, bool in_time) {
    trained run;
    run.update(1);
    ckpt.save(run.state, 1).wait();
    // The trainer's own store: the save is not shown there yet, and so not sent to the worker.
    scripted_store::write(scratch.path(), "create before begun hold");
    run.update(2);
    std::atomic<bool> let_go{false};
    cairn::save_handle save;
    const auto held = [&] { scripted_store::wait_held(scratch.path()); };
    std::thread opener([&] {
      held();
      if (how == way::staged && !in_time) return;
      // This thread waits for the worker to have the save, or has found that it needs not, and joins.
      CHECK(eventually(asleep));
      if (!in_time) return;
      let_go = true;
      scripted_store::let_go(scratch.path());
    });
    save = ckpt.save(run.state, 2);
    if (how == way::overlapped) ckpt.before_update();
    if (how == way::by_name) {
      save.wait_released();
      ckpt.before_update("*");
    }
    CHECK(save.released());
    CHECK(save.handed_over() == in_time);
    CHECK(let_go == in_time);
    run.update(3);
    opener.join();
    if (!in_time) scripted_store::let_go(scratch.path());
    CHECK_NOTHROW(save.wait());
    CHECK(save.handed_over());
    CHECK(newest(scratch.path() + "/store") == 2);
  };
  for (const bool in_time : {true, false})
    for (const auto how : {way::overlapped, way::by_name, way::staged}) {
      CAPTURE(static_cast<int>(how));
      CAPTURE(in_time);
      const scratch_directory scratch;
      const scripted_store store{cairn::file_store{scratch.path() + "/store"}, scratch.path(), true};
      const cairn::checkpointer_options options{
          .handover_timeout = in_time ? std::chrono::nanoseconds(std::chrono::minutes(5))
                                      : std::chrono::nanoseconds(std::chrono::milliseconds(1)),
          .quiet = true};
      recorded_warnings told;
      if (how == way::staged) {
        cairn::checkpointer ckpt{store, cairn::shared_stager{}, cairn::process_executor{}, told, options};
        try_it(ckpt, how, scratch, in_time);
      } else {
        cairn::checkpointer ckpt{store, cairn::shared_stager{}, cairn::process_executor{},
                                 told,  cairn::overlapped{},    options};
        try_it(ckpt, how, scratch, in_time);
      }
      CHECK((told.texts->find("before the worker has the save of step 2") == std::string::npos) == in_time);
    }
}

TEST_CASE("a trainer that is killed with two saves released takes neither with it" * not_threaded) {
  const scratch_directory scratch;
  const auto run = start_trainer(scratch.path(), at_manifest, "killed", "--queuing-trainer");
  scripted_store::wait_held(scratch.path());  // with step 2
  ::kill(run.process, SIGKILL);
  CHECK(WIFSIGNALED(exit_status_of(run.process)));
  scripted_store::let_go(scratch.path());
  CHECK(ends(run.worker));
  CHECK(newest(scratch.path() + "/store") == 3);
  CHECK(std::filesystem::exists(scratch.path() + "/store/step-00000002/manifest.cairn"));
  CHECK(cairn_test::litter(scratch.path() + "/store", false) == "");
}

TEST_CASE("each of several saves that a worker has ends on its own") {
  const scratch_directory scratch;
  trained run;
  auto ckpt = make_queuing(scratch.path());
  const auto save = [&](std::int64_t step) {
    run.update(step);
    auto handle = ckpt.save(run.state, step);
    ckpt.before_update();
    CHECK(handle.handed_over());
    return handle;
  };
  save(1).wait();
  const auto worker = workers().at(0);
  SUBCASE("one that is given up while the worker is busy with another") {
    scripted_store::write(scratch.path(), "write before rank hold");
    const auto busy = save(2);
    scripted_store::wait_held(scratch.path());
    run.update(3);
    const auto given_up = ckpt.save(run.state, 3);
    given_up.wait_released();
    const auto next = save(4);  // without before_update()
    scripted_store::let_go(scratch.path());
    CHECK_NOTHROW(busy.wait());
    CHECK_NOTHROW(next.wait());
    REQUIRE(given_up.failed());
    CHECK(id_of(given_up.failure()) == cairn::error_id::usage_before_update_missing);
    CHECK(ckpt.list() == std::vector<std::int64_t>{1, 2, 4});
    CHECK(workers().at(0) == worker);
  }
  SUBCASE("where the worker dies, the next one gets those that it had not begun") {
    scripted_store::write(scratch.path(), "write before rank hold");
    const auto busy = save(2);
    scripted_store::wait_held(scratch.path());
    const auto next = save(3);
    const auto last = save(4);
    ::kill(worker, SIGKILL);
    CHECK_NOTHROW(next.wait());
    CHECK_NOTHROW(last.wait());
    REQUIRE(busy.failed());
    CHECK(id_of(busy.failure()) == cairn::error_id::peer_lost);
    CHECK(next.report().worker_start_seconds > 0);
    CHECK(last.report().worker_start_seconds == 0);
    CHECK(ckpt.list() == std::vector<std::int64_t>{1, 3, 4});
  }
  SUBCASE("where it dies when it has said that the first is durable, that one is committed, too") {
    scripted_store::write(scratch.path(), at_manifest);
    const auto busy = save(2);
    scripted_store::wait_held(scratch.path());
    const auto next = save(3);
    ::kill(worker, SIGKILL);
    CHECK_NOTHROW(busy.wait());
    CHECK_NOTHROW(next.wait());
    CHECK(ckpt.list() == std::vector<std::int64_t>{1, 2, 3});
  }
  CHECK(newest(scratch.path() + "/store") == ckpt.list().back());
  CHECK(workers().size() == 1);
}

TEST_CASE(
    "whoever is killed at whatever step of a worker, the next run finds what was released, or the one "
    "before" *
    not_threaded) {
  auto n = cairn_test::long_run() ? 0 : cairn_test::test_seed();
  for (const char* line : steps_of_a_worker)
    for (const bool worker_too : {false, true}) {
      if (n++ % 3 != 0 && !cairn_test::long_run()) continue;
      const std::string at = line;
      CAPTURE(at);
      CAPTURE(worker_too);
      const scratch_directory scratch;
      const auto run = start_trainer(scratch.path(), at + " hold");
      scripted_store::wait_held(scratch.path());
      // The trainer first: it would do the rest of the save of a worker that is gone.
      ::kill(run.process, SIGKILL);
      CHECK(WIFSIGNALED(exit_status_of(run.process)));
      if (worker_too)
        ::kill(run.worker, SIGKILL);
      else
        scripted_store::let_go(scratch.path());
      CHECK(ends(run.worker));
      const std::int64_t left = !worker_too || at == "publish_new after manifest" ? 2 : 1;
      trained next;
      auto ckpt = make_scripted(scratch.path());
      CHECK(ckpt.resume(next.state) == left);
      CHECK(next.is_of(left));
      CHECK(cairn_test::litter(scratch.path() + "/store", true) == "");
      next.update(3);
      auto save = ckpt.save(next.state, 3);
      ckpt.before_update();
      save.wait();
      CHECK(newest(scratch.path() + "/store") == 3);
      CHECK(cairn_test::litter(scratch.path() + "/store", false) == "");
    }
}

TEST_CASE(
    "a trainer that ends in the middle of a save, however it does, does not take the checkpoint with it" *
    not_threaded) {
  for (const char* how : {"forks", "returns", "throws", "exits", "exits quickly"}) {
    CAPTURE(std::string(how));
    const scratch_directory scratch;
    const auto run = start_trainer(scratch.path(), at_manifest, how);
    const std::string way = how;
    const bool waits = way == "forks" || way == "returns";
    if (way == "returns") scripted_store::let_go(scratch.path());
    const int status = exit_status_of(run.process);
    if (way == "throws")
      CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT));
    else
      CHECK(status == 0);
    if (!waits) {
      CHECK(::kill(run.worker, 0) == 0);
      scripted_store::let_go(scratch.path());
    }
    CHECK(ends(run.worker));
    CHECK(newest(scratch.path() + "/store") == 2);
  }
}

TEST_CASE("a trainer that is killed before it confirmed its memory: nothing of that save is committed" *
          not_threaded) {
  const scratch_directory scratch;
  const auto run = start_trainer(scratch.path(), "write before rank hold", "before it confirms");
  scripted_store::wait_held(scratch.path());
  ::kill(run.process, SIGKILL);
  CHECK(WIFSIGNALED(exit_status_of(run.process)));
  scripted_store::let_go(scratch.path());
  CHECK(ends(run.worker));
  CHECK(newest(scratch.path() + "/store") == 1);
  for (const auto& each : std::filesystem::recursive_directory_iterator(scratch.path() + "/store"))
    CHECK(each.path().string().find("step-00000002") == std::string::npos);
}

TEST_CASE(
    "a trainer that is killed while devices copy: what they had not copied is never committed, what they had "
    "is") {
  for (const char* copied : {"none", "some", "all"}) {
    CAPTURE(std::string(copied));
    const scratch_directory scratch;
    const bool all = copied == std::string("all");
    const auto run = start_trainer(scratch.path(), all ? at_manifest : "", copied, "--device-trainer");
    if (all) scripted_store::wait_held(scratch.path());
    ::kill(run.process, SIGKILL);
    CHECK(WIFSIGNALED(exit_status_of(run.process)));
    if (all) scripted_store::let_go(scratch.path());
    CHECK(ends(run.worker));
    CHECK(newest(scratch.path() + "/store") == (all ? 2 : 1));
    for (const auto& each : std::filesystem::recursive_directory_iterator(scratch.path() + "/store"))
      CHECK((all || each.path().string().find("step-00000002") == std::string::npos));
  }
}

TEST_CASE(
    "a run that resumes while a worker of the one before still writes waits for it and takes its "
    "checkpoint" *
    not_threaded) {
  // The third save was not confirmed: its worker gives it up.
  const char* const ends_of_trainers[] = {"killed", "killed", "before it confirms"};
  const char* const lines[] = {"write after rank hold", at_manifest, "write before rank hold"};
  for (int i = 0; i < 3; ++i) {
    CAPTURE(i);
    const int left = i < 2 ? 2 : 1;
    const scratch_directory scratch;
    const auto run = start_trainer(scratch.path(), lines[i], ends_of_trainers[i]);
    scripted_store::wait_held(scratch.path());
    ::kill(run.process, SIGKILL);
    CHECK(WIFSIGNALED(exit_status_of(run.process)));
    earlier_run_events told{.on_waiting = [&] { scripted_store::let_go(scratch.path()); }};
    const auto kinds = told.kinds;
    auto ckpt = make_next(scratch.path() + "/store", told, std::chrono::seconds(60));
    trained next;
    CHECK(ckpt.resume(next.state) == left);
    CHECK(next.is_of(left));
    using event = earlier_run_events::event;
    CHECK(*kinds == std::vector{event::wait_began, event::wait_ended});
    CHECK(ends(run.worker));
  }
}

TEST_CASE("a run that resumes waits for a save, too, that the worker of the one before has not begun" *
          not_threaded) {
  const scratch_directory scratch;
  const auto run = start_trainer(scratch.path(), at_manifest, "killed", "--queuing-trainer");
  scripted_store::wait_held(scratch.path());  // with step 2; step 3 is in its queue
  ::kill(run.process, SIGKILL);
  CHECK(WIFSIGNALED(exit_status_of(run.process)));
  int waits = 0;
  earlier_run_events told{.on_waiting = [&] {
    if (++waits == 2) scripted_store::let_go(scratch.path());
  }};
  const auto kinds = told.kinds;
  auto ckpt = make_next(scratch.path() + "/store", told, std::chrono::seconds(60));
  trained next;
  CHECK(ckpt.resume(next.state) == 3);
  CHECK(next.is_of(3));
  using event = earlier_run_events::event;
  CHECK(*kinds == std::vector{event::wait_began, event::wait_began, event::wait_ended, event::wait_ended});
  CHECK(ends(run.worker));
  CHECK(ckpt.list() == std::vector<std::int64_t>{1, 2, 3});
  CHECK(cairn_test::litter(scratch.path() + "/store", false) == "");
}

TEST_CASE(
    "a worker of the run before that does not end in time can not commit behind the back of the run that "
    "resumes, however far it is" *
    not_threaded) {
  for (const char* line : {"create before rank hold", "create after rank hold", "write after rank hold",
                           "finish after rank hold", "put_new after record hold", at_manifest}) {
    CAPTURE(std::string(line));
    const scratch_directory scratch;
    const auto run = start_trainer(scratch.path(), line);
    scripted_store::wait_held(scratch.path());
    ::kill(run.process, SIGKILL);
    CHECK(WIFSIGNALED(exit_status_of(run.process)));
    earlier_run_events told;
    auto ckpt = make_next(scratch.path() + "/store", told, std::chrono::milliseconds(20));
    trained next;
    CHECK(ckpt.resume(next.state) == 1);
    CHECK(next.is_of(1));
    using event = earlier_run_events::event;
    CHECK(*told.kinds == std::vector{event::wait_began, event::fenced});
    CHECK(newest(scratch.path() + "/store", {}) == 1);  // a second run takes nothing back
    scripted_store::let_go(scratch.path());
    CHECK(ends(run.worker));
    CHECK(ckpt.list() == std::vector<std::int64_t>{1});
    next.update(2);
    ckpt.save(next.state, 2).wait();
    CHECK(newest(scratch.path() + "/store") == 2);
  }
}

TEST_CASE("programs that are no workers are refused with a sentence" * not_threaded) {
  const ::pid_t child = ::fork();
  if (child == 0) {
    ::execl("/proc/self/exe", "trainer", "--forgets", nullptr);
    ::_exit(127);
  }
  const int status = exit_status_of(child);
  CHECK(status == 0);

  CHECK(error_thrown_by([] { cairn::process_executor(cairn::worker_program{"/no/such/program"}); }) ==
        cairn::error_id::usage_no_worker);
  CHECK(error_thrown_by([] { cairn::process_executor({.worker = {.nice = 99}}); }) ==
        cairn::error_id::usage_bad_option);
  const scratch_directory scratch;
  trained run;
  run.update(1);
  auto ckpt = make(scratch.path(), cairn::process_executor(cairn::worker_program{"/bin/true"}));
  auto save = ckpt.save(run.state, 1);
  CHECK_THROWS_AS(save.wait(), cairn::usage_error);
  CHECK(id_of(save.failure()) == cairn::error_id::usage_no_worker);
}

TEST_CASE("a program whose file is removed or replaced while it runs goes on saving" * not_threaded) {
  const scratch_directory scratch;
  const auto copy = scratch.path() + "/program";
  std::filesystem::copy_file("/proc/self/exe", copy);
  const ::pid_t child = ::fork();
  if (child == 0) {
    ::execl(copy.c_str(), "trainer", "--without-its-file", scratch.path().c_str(), nullptr);
    ::_exit(127);
  }
  const int status = exit_status_of(child);
  CHECK(status == 0);
  CHECK(newest(scratch.path() + "/store") == 3);
}

TEST_CASE("what a program prints to a stream that is closed is written into no checkpoint" * not_threaded) {
  for (const char* closed : {"1", "2", "01", "12", "012"}) {
    const scratch_directory scratch;
    const ::pid_t child = ::fork();
    if (child == 0) {
      ::execl("/proc/self/exe", "trainer", "--without-streams", scratch.path().c_str(), closed, nullptr);
      ::_exit(127);
    }
    const int status = exit_status_of(child);
    CHECK_MESSAGE(status == 0, std::string(closed));
  }
}

TEST_CASE(
    "a worker program that goes, or speaks otherwise, fails its save with a reason, and the next save "
    "works" *
    not_threaded) {
  const scratch_directory scratch;
  const auto path = scratch.path() + "/worker";
  const auto script = [&](const std::string& text) {
    std::ofstream(path + ".new") << "#!/bin/sh\n" << text;
    std::filesystem::permissions(path + ".new", std::filesystem::perms::owner_all);
    std::filesystem::rename(path + ".new", path);
  };
  const auto worker = [&] {
    std::filesystem::remove(path);
    std::filesystem::create_symlink(cairn_test::program("helper_worker"), path);
  };
  script("exit 3");
  trained run;
  auto ckpt = cairn::checkpointer{cairn::file_store{scratch.path() + "/store"}, cairn::shared_stager{},
                                  cairn::process_executor(cairn::worker_program{path}),
                                  cairn::checkpointer_options{.max_consecutive_failures = 0, .quiet = true}};
  std::int64_t step = 0;
  std::string last_text;
  const auto failure = [&] {
    run.update(++step);
    auto save = ckpt.save(run.state, step);
    CHECK_THROWS_AS(save.wait(), cairn::error);
    last_text = text_of(save.failure());
    return id_of(save.failure());
  };
  CHECK(failure() == cairn::error_id::usage_no_worker);
  // Bytes that are no message, and the head of one that never comes whole.
  script("head -c 4000 /dev/zero >&3; exec sleep 100");
  CHECK(failure() == cairn::error_id::peer_bad_message);
  script("printf 'CNRW\\143\\000\\002\\000' >&3; head -c 24 /dev/zero >&3; exec sleep 100");
  CHECK(failure() == cairn::error_id::peer_bad_message);
  CHECK(last_text.find("another version") != std::string::npos);
  script("printf 'CNRW' >&3");
  CHECK(failure() == cairn::error_id::usage_no_worker);
  std::filesystem::remove(path);
  CHECK(failure() == cairn::error_id::usage_no_worker);
  worker();
  run.update(++step);
  ckpt.save(run.state, step).wait();
  CHECK(newest(scratch.path() + "/store") == step);
}

TEST_CASE("a worker program of its own serves the writers that it names, and says which where another comes" *
          not_threaded) {
  const cairn::worker_program program{cairn_test::program("helper_worker")};
  const scratch_directory scratch;
  trained run;
  run.update(7);
  {
    auto ckpt = make(scratch.path() + "/store", cairn::process_executor(program));
    ckpt.prepare(run.state);
    ckpt.save(run.state, 7).wait();
    CHECK(proc_file(workers().at(0), "cmdline").find("cairn-worker") == 0);
    ckpt.close();
  }
  CHECK(newest(scratch.path() + "/store") == 7);
  cairn::checkpointer other{scripted_store{cairn::file_store{scratch.path() + "/store"}, scratch.path()},
                            cairn::shared_stager{}, cairn::process_executor(program),
                            cairn::checkpointer_options{.quiet = true}};
  auto save = other.save(run.state, 8);
  CHECK_THROWS_AS(save.wait(), cairn::usage_error);
  CHECK(text_of(save.failure()).find("file_store") != std::string::npos);
  CHECK(newest(scratch.path() + "/store") == 7);
}

TEST_CASE("a worker refuses bytes that are no message or no job, and goes on" * not_threaded) {
  using namespace cairn::detail;
  worker_process worker;
  const auto until = cairn::deadline::in(std::chrono::minutes(1));
  worker.start("/proc/self/exe", {this_program().build, {}}, until);
  const std::vector<std::byte> garbage(1000, std::byte{0x5a});
  worker.link().send(frame_kind::job, garbage, until);
  auto answer = worker.link().receive(until);
  REQUIRE(answer.has_value());
  CHECK(answer->kind == frame_kind::refused);
  worker.link().send(frame_kind::written, {}, until);
  answer = worker.link().receive(until);
  REQUIRE(answer.has_value());
  CHECK(answer->kind == frame_kind::refused);
  const auto id = worker.id();
  worker.end(until);
  CHECK(ends(id));

  CHECK(error_thrown_by([&] {
          worker_process stranger;
          stranger.start("/proc/self/exe", {this_program().build + 1, {}}, until);
        }) == cairn::error_id::usage_no_worker);

  int pair[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
  {
    // A trainer of another version: the worker reports it and ends.
    const ::pid_t child = ::fork();
    if (child == 0) {
      ::dup2(pair[1], worker_socket);
      ::execl("/proc/self/exe", "cairn-worker", worker_argument, nullptr);
      ::_exit(127);
    }
    worker_link link{file_descriptor(pair[0])};
    const frame_header other{.version = 99};
    REQUIRE(::write(pair[0], &other, sizeof other) == sizeof other);
    answer = link.receive(until);
    REQUIRE(answer.has_value());
    CHECK(answer->kind == frame_kind::refused);
    cairn::wire_reader in(answer->bytes);
    const auto why = text_of(decode_failure(in));
    const auto said = "another version (expected " + std::to_string(worker_protocol) + ", got 99)";
    CHECK_MESSAGE(why.find(said) != std::string::npos, why);
    CHECK(exit_status_of(child) == 0);
    ::close(pair[1]);
  }
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
  worker_link reader{file_descriptor(pair[0])};
  file_descriptor writer(pair[1]);
  const auto received = [&](frame_header header, std::size_t bytes) {
    const auto raw = std::as_bytes(std::span(&header, 1));
    REQUIRE(::write(writer.get(), raw.data(), raw.size()) == static_cast<ssize_t>(raw.size()));
    REQUIRE(::write(writer.get(), garbage.data(), bytes) == static_cast<ssize_t>(bytes));
    return error_thrown_by([&] { static_cast<void>(reader.receive(until)); });
  };
  CHECK(received({.magic = 1}, 0) == cairn::error_id::peer_bad_message);
  CHECK(received({.version = 99}, 0) == cairn::error_id::peer_bad_message);
  CHECK(received({.bytes = std::uint64_t{1} << 40}, 0) == cairn::error_id::peer_bad_message);
  CHECK(received({.descriptors = 100}, 0) == cairn::error_id::peer_bad_message);
  CHECK(received({.kind = static_cast<frame_kind>(77)}, 0) == cairn::error_id::peer_bad_message);
  CHECK(received({.bytes = 10, .digest = 1}, 10) == cairn::error_id::peer_bad_message);
  writer.close();
  CHECK(error_thrown_by([&] { static_cast<void>(reader.receive(until)); }) == cairn::error_id::peer_lost);
}

TEST_CASE("memory that cannot be had is an error before anything is copied" * not_threaded) {
  cairn::shared_memory memory;
  CHECK(error_thrown_by([&] { static_cast<void>(memory.allocate(std::uint64_t{1} << 50)); }) ==
        cairn::error_id::storage_out_of_memory);
  cairn_test::await_still_threads();
  const ::pid_t child = ::fork();
  if (child == 0) {
    rlimit small{1 << 20, 1 << 20};
    ::setrlimit(RLIMIT_FSIZE, &small);
    try {
      cairn::shared_memory limited;
      static_cast<void>(limited.allocate(64 << 20));
    } catch (const cairn::storage_error& e) {
      std::_Exit(e.id() == cairn::error_id::storage_limit ? 0 : 1);
    }
    std::_Exit(2);
  }
  const int status = exit_status_of(child);
  CHECK(status == 0);

  // In the process's whole life: the save that finds no memory fails, and the next one, which finds some,
  // does not.
  const scratch_directory scratch;
  const auto save = [&] {
    trained run;
    auto ckpt = make(scratch.path(), cairn::process_executor{});
    rlimit before{};
    ::getrlimit(RLIMIT_FSIZE, &before);
    const rlimit small{64 << 10, before.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &small);
    run.update(1);
    const auto failed = ckpt.save(run.state, 1);
    ::setrlimit(RLIMIT_FSIZE, &before);
    CHECK(failed.failed());
    CHECK(id_of(failed.failure()) == cairn::error_id::storage_limit);
    run.update(2);
    ckpt.save(run.state, 2).wait();
  };
  save();
  CHECK(newest(scratch.path()) == 2);
}

TEST_CASE("a worker that could not map an image maps it for the next save" * not_threaded) {
  const scratch_directory scratch;
  std::vector<float> little(1'000), much(std::size_t{64} << 20);
  cairn::state_dict small, large;
  small.tensor("weights", little, {1'000});
  large.tensor("weights", much, {64 << 20});
  auto ckpt = make(scratch.path(), cairn::process_executor{});
  const auto worker_of = [&](const cairn::state_dict& state, std::int64_t step) {
    const auto save = ckpt.save(state, step);
    save.wait();
    return save.report().writing.process;
  };
  const auto worker = worker_of(small, 1);
  rlimit before{};
  REQUIRE(::prlimit(static_cast<::pid_t>(worker), RLIMIT_AS, nullptr, &before) == 0);
  std::uint64_t pages = 0;
  std::ifstream("/proc/" + std::to_string(worker) + "/statm") >> pages;
  REQUIRE(pages > 0);
  const rlimit full{pages * 4096 + (std::uint64_t{32} << 20), before.rlim_max};
  REQUIRE(::prlimit(static_cast<::pid_t>(worker), RLIMIT_AS, &full, nullptr) == 0);
  CHECK(error_thrown_by([&] { worker_of(large, 2); }) == cairn::error_id::storage_out_of_memory);
  REQUIRE(::prlimit(static_cast<::pid_t>(worker), RLIMIT_AS, &before, nullptr) == 0);
  CHECK(worker_of(large, 3) == worker);
}

TEST_CASE("the pages of a buffer are there before it is copied to" * not_threaded) {
  const auto faults = [] {
    rusage used{};
    ::getrusage(RUSAGE_THREAD, &used);
    return used.ru_minflt;
  };
  constexpr long pages = 4096;
  cairn::shared_memory memory;
  const auto block = memory.allocate(std::uint64_t{pages} * 4096);
  const auto before = faults();
  for (std::size_t page = 0; page < pages; ++page) block.bytes()[page * 4096] = std::byte{1};
  CHECK(faults() - before < pages / 2);  // else one for each; a sanitizer has some of its own
}

TEST_CASE("a full /dev/shm hinders nobody: what is shared has no name, and no place there" * not_threaded) {
  const scratch_directory scratch;
  const ::pid_t child = ::fork();
  if (child == 0) {
    ::execl("/proc/self/exe", "trainer", "--without-shm", scratch.path().c_str(), nullptr);
    ::_exit(127);
  }
  check_good_or_skipped(child, "this user may not mount a small /dev/shm of its own");
}

TEST_CASE("a full control group is an error of the save, and kills neither trainer nor worker" *
          not_threaded) {
  const cairn_test::memory_group group;
  if (!group.made()) {
    MESSAGE("no control group of memory can be made here: it needs a writable /sys/fs/cgroup");
    return;
  }
  const scratch_directory scratch;
  cairn_test::await_still_threads();
  const ::pid_t child = ::fork();
  if (child == 0) {
    if (!group.enter()) ::_exit(77);
    ::execl("/proc/self/exe", "trainer", "--in-a-group", scratch.path().c_str(), group.folder().c_str(),
            group.second() ? "2" : "1", nullptr);
    ::_exit(127);
  }
  check_good_or_skipped(child, "this user may make a control group of memory, but not enter it");
}

TEST_CASE(
    "a checkpointer may be built by a thread that ends, beside another one, and in a program that forks" *
    not_threaded) {
  const scratch_directory scratch;
  trained one;
  trained two;
  std::optional<decltype(make(std::string(), cairn::process_executor{}))> first;
  std::thread([&] { first.emplace(make(scratch.path() + "/one", cairn::process_executor{})); }).join();
  auto second = make(scratch.path() + "/two", cairn::process_executor{});
  one.update(1), two.update(2);
  auto a = first->save(one.state, 1);
  auto b = second.save(two.state, 2);
  a.wait(), b.wait();
  cairn_test::await_still_threads();
  const ::pid_t child = ::fork();
  if (child == 0) {
    try {
      static_cast<void>(first->save(one.state, 9));
    } catch (const cairn::usage_error& e) {
      std::_Exit(e.id() == cairn::error_id::usage_wrong_process ? 0 : 1);
    }
    std::_Exit(2);
  }
  const int status = exit_status_of(child);
  CHECK(status == 0);
  one.update(3), two.update(4);
  a = first->save(one.state, 3);
  b = second.save(two.state, 4);
  a.wait(), b.wait();
  CHECK(workers().size() == 2);
  first.reset();
  CHECK(workers().size() == 1);
  CHECK(newest(scratch.path() + "/one") == 3);
  CHECK(newest(scratch.path() + "/two") == 4);
}

TEST_CASE("report and trace tell what trainer and worker did, on one clock" * not_threaded) {
  const scratch_directory scratch;
  const auto path = scratch.path() + "/trace.json";
  std::vector<float> weights(1'000'000, 1.0f);
  cairn::state_dict state;
  state.tensor("weights", weights, {1'000'000});
  cairn::trace_file trace{path, 2};
  auto ckpt = make(scratch.path() + "/store", cairn::process_executor{}, cairn::overlapped{}, trace);
  static_cast<void>(ckpt.resume(state));
  ckpt.save(state, 1).wait();
  trace.step(1);
  auto save = ckpt.save(state, 2);
  ckpt.before_update();
  save.wait();
  trace.step(2);
  const auto report = save.report();
  CHECK(report.copying.process == ::getpid());
  CHECK(report.copying.bytes >= 4'000'000);
  CHECK(report.copying.seconds > 0);
  CHECK(report.copying.cpu_seconds > 0);
  CHECK(report.writing.process == workers().at(0));
  CHECK(report.writing.bytes == report.copying.bytes);
  CHECK(report.writing.seconds > 0);
  CHECK(report.writing.seconds <= report.written_seconds);
  CHECK(report.writing.cpu_seconds > 0);
  CHECK(save.bytes_written() == report.bytes);
  const auto command = cairn_test::trace_reader() + R"( -c '
import sys, trace_events
trainer, worker = int(sys.argv[2]), int(sys.argv[3])
events = trace_events.read(sys.argv[1])
assert {each["pid"] for each in events} == {trainer, worker}
def find(name, process):
    found = [each for each in events if each["name"] == name and each["pid"] == process and each["ph"] == "X"]
    assert found, (name, process)
    return found[-1]["ts"], found[-1]["ts"] + found[-1]["dur"]
whole, job = find("save step 2", trainer), find("save step 2", worker)
assert whole[0] <= job[0] and job[1] <= whole[1]
for name in ["plan", "stage", "copy and hash", "before_update"]:
    begin, end = find(name, trainer)
    assert whole[0] <= begin <= end <= whole[1], name
for name in ["write", "sync", "record", "commit"]:
    begin, end = find(name, worker)
    assert job[0] <= begin <= end <= job[1] + 1, name
assert find("write", worker)[0] >= find("stage", trainer)[0]
step = find("step 2", trainer)
assert step[0] <= whole[0] and whole[1] <= step[1]
names = {each["args"]["name"].split(" (")[0]: each["pid"] for each in events if each["name"] == "process_name"}
assert names == {"rank 2 trainer": trainer, "rank 2 worker": worker}, names
counters = {(each["name"], each["pid"]) for each in events if each["ph"] == "C"}
for counter in [("copied MB/s", trainer), ("written MB/s", worker), ("cores in use", trainer), ("cores in use", worker)]:
    assert counter in counters, counters' )" +
                       path + " " + std::to_string(::getpid()) + " " + std::to_string(report.writing.process);
  CHECK(std::system(command.c_str()) == 0);
}

TEST_CASE("a thousand saves leave memory, descriptors, threads and processes where they were" *
          not_threaded) {
  bool by_process = false;
  SUBCASE("by a worker process") {
    by_process = true;
  }
  SUBCASE("by threads") {}
  // In memory, so that no device is waited for. A sanitizer keeps freed memory for a while; let it not be
  // much in the worker, whose memory is looked at from outside.
  const scratch_directory scratch("/dev/shm");
  const char* options = std::getenv("ASAN_OPTIONS");
  const std::string before = options != nullptr ? options : "";
  ::setenv("ASAN_OPTIONS", (before + ":quarantine_size_mb=1:thread_local_quarantine_size_kb=64").c_str(), 1);
  std::vector<float> weights(40'000, 1.0f);  // what is copied while training goes on
  cairn::state_dict state;
  state.tensor("weights", weights, {40'000});
  std::string blob = "loader";
  state.bytes("blob", blob);
  const auto children_before = children();
  {
    cairn::any_checkpointer ckpt;
    if (by_process)
      ckpt = make(scratch.path(), cairn::process_executor{}, cairn::overlapped{}, cairn::keep_last{1});
    else
      ckpt = cairn::checkpointer{cairn::file_store{scratch.path()}, cairn::overlapped{}, cairn::keep_last{1},
                                 cairn::checkpointer_options{.quiet = true}};
    static_cast<void>(ckpt.resume(state));
    std::vector<::pid_t> worker;
    const auto now = [&] {
      std::vector<long> all{files_of(::getpid()), status_of(::getpid(), "Threads"), allocated_kib()};
      for (const auto each : worker)
        all.insert(all.end(), {files_of(each), status_of(each, "Threads"), status_of(each, "VmRSS")});
      return all;
    };
    std::vector<long> there;
    std::vector<long> kept;
    for (std::int64_t step = 1; step <= 1000; ++step) {
      auto save = ckpt.save(state, step);
      ckpt.before_update();
      save.wait();
      if (step != 500) continue;
      worker = workers();
      REQUIRE(worker.size() == (by_process ? 1 : 0));
      there = now();
    }
    CHECK(workers() == worker);
    const std::vector<long> slack{0, 0, 256, 0, 0, 4096};
    const bool stayed = eventually([&] {
      kept = now();
      for (std::size_t i = 0; i < kept.size(); ++i)
        if (kept[i] > there[i] + slack[i]) return false;
      return true;
    });
    for (std::size_t i = 0; i < kept.size(); ++i) {
      CAPTURE(i);
      CHECK_MESSAGE(stayed, there[i], " became ", kept[i]);
    }
    CHECK(ckpt.list() == std::vector<std::int64_t>{1000});
  }
  CHECK(children() == children_before);
  ::setenv("ASAN_OPTIONS", before.c_str(), 1);
}

/// Called by main() before anything else.
void cairn_test_before_main(int argc, char** argv) {
  const std::string role = argc > 1 ? argv[1] : "";
  if (role == "--forgets") {
    try {
      cairn::process_executor executor;
    } catch (const cairn::usage_error& e) {
      std::_Exit(e.id() == cairn::error_id::usage_no_worker && workers().empty() ? 0 : 1);
    }
    std::_Exit(1);
  }
  if (role == cairn::detail::worker_argument && std::getenv("CAIRN_TEST_SIGNALS_TO_WORKERS") != nullptr)
    for (const int signal : {SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGTERM}) ::raise(signal);
  cairn::worker_main(argc, argv);
  if (role == "--limited-trainer") std::exit(limited_trainer(argv[2]));
  if (role == "--trainer") std::exit(trainer(argv[2], argv[3], argv[4]));
  if (role == "--forking-trainer") std::exit(forking_trainer(argv[2], argv[3], argv[4]));
  if (role == "--queuing-trainer") std::exit(queuing_trainer(argv[2], argv[3]));
  if (role == "--device-trainer") std::_Exit(device_trainer(argv[2], argv[3], argv[4]));
  if (role == "--without-its-file") std::_Exit(saves_without_its_file(argv[2]));
  if (role == "--without-streams") std::_Exit(saves_without_streams(argv[2], argv[3]));
  if (role == "--without-shm") std::_Exit(saves_without_shm(argv[2]));
  if (role == "--in-a-group") std::_Exit(saves_in_a_group(argv[2], {argv[3], argv[4] == std::string("2")}));
}
