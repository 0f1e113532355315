// SPDX-License-Identifier: Apache-2.0
#pragma once
// Trainers with a worker process, and ways in which they end. A test's main() runs them as processes of their own.
#include "device_double.hpp"
#include "memory_group.hpp"
#include "processes.hpp"
#include "scripted_store.hpp"
#include "still_threads.hpp"

#include <cairn/cairn.hpp>
#include <cairn/cuda/basic_copy_engine.hpp>
#include <cairn/cuda/basic_pinned.hpp>
#include <cairn/execute/process_executor.hpp>
#include <cairn/stage/shared_memory.hpp>
#include <cairn/stage/shared_stager.hpp>

#include <doctest/doctest.h>

#include <fcntl.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace cairn_test {

/// A small training state; update(step) gives each step its own values.
struct trained {
  std::vector<float> weights = std::vector<float>(300'000);
  std::vector<double> moments = std::vector<double>(50'000);
  std::string blob = "loader";
  std::int64_t seen = 0;
  cairn::state_dict state;
  trained() {
    state.tensor("weights", weights, {300, 1000});
    state.tensor("moments", moments, {50'000});
    state.bytes("blob", blob);
    state.value("seen", seen);
  }
  void update(std::int64_t step) {
    std::iota(weights.begin(), weights.end(), static_cast<float>(step));
    std::iota(moments.begin(), moments.end(), static_cast<double>(step) * 0.5);
    blob = "loader at " + std::to_string(step);
    seen = step;
  }
  [[nodiscard]] bool is_of(std::int64_t step) const {
    trained other;
    other.update(step);
    return weights == other.weights && moments == other.moments && blob == other.blob && seen == step;
  }
};

template <class... Policies>
auto make(const std::string& directory, Policies... policies) {
  return cairn::checkpointer{cairn::file_store{directory}, cairn::shared_stager{}, std::move(policies)...,
                             cairn::checkpointer_options{.quiet = true}};
}
inline auto make_scripted(const std::string& directory) {
  return cairn::checkpointer{scripted_store{cairn::file_store{directory + "/store"}, directory},
                             cairn::shared_stager{}, cairn::process_executor{}, cairn::overlapped{},
                             cairn::checkpointer_options{.quiet = true}};
}
/// Writes a mebibyte, and then a byte each second.
inline auto make_limited(const std::string& directory) {
  return cairn::checkpointer{cairn::file_store{directory}, cairn::shared_stager{},
                             cairn::process_executor{{.bytes_per_second = 1}}, cairn::overlapped{},
                             cairn::checkpointer_options{.timeout = std::chrono::minutes(1), .quiet = true}};
}
/// Records the warnings of a run.
struct recorded_warnings {
  using cairn_role = cairn::role::observer;
  std::shared_ptr<std::string> texts = std::make_shared<std::string>();
  void observe(const cairn::observation& o) noexcept {
    if (o.kind == cairn::observation::event::warning) *texts += o.text;
  }
};
/// A checkpointer that begins a save while earlier ones are under way, up to three at once.
inline auto make_queuing(const std::string& directory) {
  return cairn::checkpointer{scripted_store{cairn::file_store{directory + "/store"}, directory},
                             cairn::shared_stager{cairn::buffered_stager_options{.depth = 3}},
                             cairn::process_executor{}, cairn::overlapped{},
                             cairn::checkpointer_options{.when_busy = cairn::busy_policy::queue,
                                                         .handover_timeout = std::chrono::minutes(5),
                                                         .quiet = true}};
}
/// Records the events about saves of earlier runs.
struct earlier_run_events {
  using cairn_role = cairn::role::observer;
  using event = cairn::observation::event;
  std::shared_ptr<std::vector<event>> kinds = std::make_shared<std::vector<event>>();
  std::function<void()> on_waiting = {};
  void observe(const cairn::observation& o) noexcept {
    if (o.kind < event::wait_began) return;
    kinds->push_back(o.kind);
    if (o.kind == event::wait_began && on_waiting) on_waiting();
  }
};
inline auto make_next(const std::string& store, earlier_run_events told, std::chrono::nanoseconds timeout) {
  return cairn::checkpointer{cairn::file_store{store}, std::move(told),
                             cairn::checkpointer_options{.earlier_run_timeout = timeout, .quiet = true}};
}
inline std::int64_t newest(const std::string& store,
                           std::chrono::nanoseconds timeout = std::chrono::seconds(60)) {
  trained got;
  auto reader = make_next(store, {}, timeout);
  const auto step = reader.resume(got.state);
  if (!step) return -1;
  REQUIRE(got.is_of(*step));
  return *step;
}
inline cairn::error_id id_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const cairn::error& e) {
    return e.id();
  }
}
inline std::string text_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& e) {
    return e.what();
  }
}
template <class Call>
cairn::error_id error_thrown_by(Call&& call) {
  try {
    call();
  } catch (const cairn::error& e) {
    return e.id();
  }
  FAIL("nothing was thrown");
  return {};
}

// --- Trainers that are processes of their own

/// Saves step 1 and lets it commit, saves step 2 while its worker does what `line` says, prints the worker's
/// process number, and ends as `end` says when the worker is held, or waits to be killed.
inline int trainer(const std::string& directory, const std::string& line, const std::string& end) {
  const bool confirms = end != "before it confirms";
  trained run;
  auto ckpt = cairn::checkpointer{scripted_store{cairn::file_store{directory + "/store"}, directory},
                                  cairn::shared_stager{}, cairn::process_executor{}, cairn::overlapped{},
                                  cairn::checkpointer_options{.quiet = true}};
  static_cast<void>(ckpt.resume(run.state));
  run.update(1);
  ckpt.save(run.state, 1).wait();
  run.update(2);
  scripted_store::write(directory, line);
  const auto save = ckpt.save(run.state, 2);
  if (confirms) {
    ckpt.before_update();
    run.update(3);
  }
  std::printf("%d\n", static_cast<int>(workers().at(0)));
  std::fflush(stdout);
  if (end == "killed" || !confirms)
    for (;;) ::pause();
  scripted_store::wait_held(directory);
  if (end == "forks") {
    // The child has the parent's checkpointer and exits as any program does.
    await_still_threads();
    const ::pid_t child = ::fork();
    if (child == 0) std::exit(7);
    int status = 0;
    if (::waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 7) ::_exit(1);
    scripted_store::let_go(directory);
    save.wait();
    return 0;
  }
  if (end == "throws") throw std::runtime_error("nobody catches this");
  if (end == "exits") std::exit(0);
  if (end == "exits quickly") ::_exit(0);
  return 0;  // waits in the destructor
}

/// Saves step 1 with a worker that is not to write it soon, prints the worker's process number, and waits to be
/// killed.
inline int limited_trainer(const std::string& directory) {
  trained run;
  auto ckpt = make_limited(directory + "/store");
  run.update(1);
  static_cast<void>(ckpt.save(run.state, 1));
  ckpt.before_update();
  std::printf("%d\n", static_cast<int>(workers().at(0)));
  std::fflush(stdout);
  for (;;) ::pause();
}

/// Starts a child that lives until it is killed, as the data loaders of a framework do: by fork(), or by a
/// system call that the handlers of fork() do not see. Returns when the child runs.
inline ::pid_t leave_child(bool handled) {
  int ready[2];
  if (::pipe2(ready, O_CLOEXEC) != 0) return -1;
  await_still_threads();
  const auto child =
      handled ? ::fork() : static_cast<::pid_t>(::syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, 0));
  if (child == 0) {
    ::alarm(1200);
    for (const int each : {0, 1, 2}) ::close(each);
    static_cast<void>(!::write(ready[1], "r", 1));
    for (;;) ::pause();
  }
  char c = 0;
  const bool runs = ::read(ready[0], &c, 1) == 1;
  for (const int each : ready) ::close(each);
  return runs ? child : -1;
}

/// Forks children that outlive it, saves, prints the worker's process number, and ends as `end` says or waits
/// to be killed. Its stderr is the pipe "errors", and the file "children" has the numbers of its children.
inline int forking_trainer(const std::string& directory, const std::string& line, const std::string& end) {
  ::close(STDERR_FILENO);
  if (::open((directory + "/errors").c_str(), O_WRONLY) != STDERR_FILENO) return 2;
  const auto before = files_by_number(::getpid());
  {
    trained run;
    auto ckpt = make_scripted(directory);
    run.update(1);
    const auto first = ckpt.save(run.state, 1);
    ckpt.before_update();
    first.wait();
    const auto handled = leave_child(true);
    std::ofstream(directory + "/children") << handled << ' ' << leave_child(false) << '\n';
    for (const auto& [number, target] : files_by_number(handled))
      if (!before.contains(number) && (target.starts_with("socket:") || target.find("memfd:") != target.npos))
        return 3;
    if (proc_file(handled, "maps").find("memfd:") != std::string::npos) return 4;
    if (!line.empty()) scripted_store::write(directory, line);
    if (end != "closed") {
      run.update(2);
      static_cast<void>(ckpt.save(run.state, 2));
      if (end == "killed") ckpt.before_update();
    }
    std::printf("%d\n", static_cast<int>(workers().at(0)));
    std::fflush(stdout);
    if (end != "closed")
      for (;;) ::pause();
    ckpt.close();
  }
  return workers().empty() ? 0 : 1;
}

/// Saves step 3 while its worker does with step 2 what `line` says, prints the worker's process number, and
/// waits to be killed.
inline int queuing_trainer(const std::string& directory, const std::string& line) {
  trained run;
  auto ckpt = make_queuing(directory);
  run.update(1);
  ckpt.save(run.state, 1).wait();
  scripted_store::write(directory, line);
  for (const std::int64_t step : {2, 3}) {
    run.update(step);
    static_cast<void>(ckpt.save(run.state, step));
    ckpt.before_update();
  }
  run.update(4);
  std::printf("%d\n", static_cast<int>(workers().at(0)));
  std::fflush(stdout);
  for (;;) ::pause();
}

/// As trainer(), from the memory of two devices. When it prints the number, they have copied all of step 2, some
/// of it, or none of it, and copy no more.
inline int device_trainer(const std::string& directory, const std::string& line, const std::string& copied) {
  using gpu = device_double;
  gpu::reset(1);
  trained run;
  gpu::memory weights(0, run.weights.size() * sizeof(float));
  gpu::memory moments(1, run.moments.size() * sizeof(double));
  gpu::stream_type streams[2];
  cairn::cuda::basic_copy_engine_options<gpu> options;
  options.batch_bytes = 64 << 10;
  for (int d = 0; d < 2; ++d) {
    const cairn::cuda::device_in_use<gpu> use(d);
    if (gpu::make_stream(streams[d]) != gpu::success) return 1;
    options.compute.push_back({d, streams[d]});
  }
  const auto update = [&](std::int64_t step) {
    run.update(step);
    gpu::launch(streams[0], [&, w = run.weights] {
      std::ranges::copy(std::as_bytes(std::span(w)), weights.bytes().begin());
    });
    gpu::launch(streams[1], [&, m = run.moments] {
      std::ranges::copy(std::as_bytes(std::span(m)), moments.bytes().begin());
    });
  };
  cairn::state_dict state;
  const auto add = [&](const char* name, gpu::memory& on, int device, cairn::dtype type,
                       const cairn::extents& shape) {
    auto view = cairn::contiguous_view(on.bytes().data(), type, shape);
    view.space = cairn::memory_space::device, view.device = device;
    state.tensor(name, view);
  };
  add("weights", weights, 0, cairn::dtype::f32, {300, 1000});
  add("moments", moments, 1, cairn::dtype::f64, {50'000});
  state.bytes("blob", run.blob);
  state.value("seen", run.seen);
  using engine = cairn::cuda::basic_copy_engine<gpu>;
  cairn::checkpointer ckpt{
      scripted_store{cairn::file_store{directory + "/store"}, directory},
      cairn::buffered_stager<cairn::cuda::basic_pinned<cairn::shared_memory, gpu>, engine>({},
                                                                                           engine(options)),
      cairn::process_executor{}, cairn::overlapped{}, cairn::checkpointer_options{.quiet = true}};
  update(1);
  ckpt.save(state, 1).wait();
  update(2);
  if (copied == "none") gpu::hold_copies(true);
  if (copied == "some") gpu::hold_copies_after(9);
  if (!line.empty()) scripted_store::write(directory, line);
  const auto save = ckpt.save(state, 2);
  for (int d = 0; d < 2; ++d) ckpt.before_update(streams[d], d);
  update(3);
  // A stream has waited for the copies, and nothing for the worker.
  save.wait_handed_over();
  if (copied == "all") save.wait_released();
  if (save.released() != (copied == "all")) return 1;
  std::printf("%d\n", static_cast<int>(workers().at(0)));
  std::fflush(stdout);
  for (;;) ::pause();
}

/// A trainer and its worker.
struct started {
  ::pid_t process = 0;
  ::pid_t worker = 0;
};
/// The calls of a worker to its store in a save, in their order.
inline constexpr const char* steps_of_a_worker[] = {
    "size before manifest",        "create before rank",        "create after rank",
    "write before rank",           "write after rank",          "finish before rank",
    "finish after rank",           "put_new before record",     "put_new after record",
    "read before record",          "read after record",         "list before step",
    "publish_new before manifest", "publish_new after manifest"};
inline constexpr const char* at_manifest = "publish_new before manifest hold";
/// Starts this program again in the given role, and waits until it has printed its worker's number.
inline started start_trainer(const std::string& directory, const std::string& line = at_manifest,
                             const char* end = "killed", const char* role = "--trainer", int terminal = -1) {
  int out[2];
  REQUIRE(::pipe2(out, O_CLOEXEC) == 0);
  started s;
  await_still_threads();
  s.process = ::fork();
  if (s.process == 0) {
    if (terminal < 0 || ::setsid() < 0 || ::ioctl(terminal, TIOCSCTTY, 0) != 0) ::setpgid(0, 0);
    ::dup2(out[1], STDOUT_FILENO);
    const rlimit no_core{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_core);
    // Processes that exit in the middle leak what their threads hold.
    const char* options = std::getenv("ASAN_OPTIONS");
    ::setenv("ASAN_OPTIONS", ((options != nullptr ? options : "") + std::string(":detect_leaks=0")).c_str(),
             1);
    ::execl("/proc/self/exe", "trainer", role, directory.c_str(), line.c_str(), end, nullptr);
    ::_exit(127);
  }
  ::close(out[1]);
  std::string number;
  char c = 0;
  while (::read(out[0], &c, 1) == 1 && c != '\n') number += c;
  ::close(out[0]);
  REQUIRE(std::from_chars(number.data(), number.data() + number.size(), s.worker).ec == std::errc());
  return s;
}

/// Saves after the file of this program was removed, and after another file has got its name.
inline int saves_without_its_file(const std::string& directory) {
  char self[4096] = {};
  if (::readlink("/proc/self/exe", self, sizeof self - 1) <= 0 || ::unlink(self) != 0) return 2;
  trained run;
  auto ckpt = make(directory + "/store", cairn::process_executor{});
  run.update(1);
  ckpt.save(run.state, 1).wait();
  std::ofstream(self) << "another program";
  ::kill(workers().at(0), SIGKILL);
  run.update(2);
  try {
    ckpt.save(run.state, 2).wait();
  } catch (const cairn::error&) {  // the worker was killed
  }
  run.update(3);
  ckpt.save(run.state, 3).wait();
  return 0;
}

/// Prints beside its saves with these standard streams closed. Returns 0, or the step that loads otherwise than it was
/// saved.
inline int saves_without_streams(const std::string& directory, const std::string& closed) {
  for (const char stream : closed) ::close(stream - '0');
  trained run;
  auto ckpt = make(directory + "/store", cairn::process_executor{});
  for (int step = 1; step <= 3; ++step) {
    run.update(step);
    // What is printed comes before the worker has read anything.
    const auto stopped = workers();
    for (const auto worker : stopped) ::kill(worker, SIGSTOP);
    const auto save = ckpt.save(run.state, step);
    for (const char stream : closed)
      for (int line = 0; line < 2000; ++line)
        static_cast<void>(!::write(stream - '0', "step 1 loss 0.123456\n", 21));
    for (const auto worker : stopped) ::kill(worker, SIGCONT);
    save.wait();
    trained other;
    ckpt.load(other.state, step);
    if (!other.is_of(step)) return step;
  }
  return 0;
}

/// Saves in a memory control group: a save that needs more than the group has left fails, the next one, which
/// has room, succeeds, and neither process is killed. Returns 0, or the number of the check that failed.
inline int saves_in_a_group(const std::string& directory, const memory_group& group) {
  constexpr std::uint64_t mib = 1 << 20;
  trained run;
  auto ckpt = make(directory, cairn::process_executor{});
  run.update(1);
  ckpt.save(run.state, 1).wait();
  const auto worker = workers();
  run.blob.assign(64 * mib, 'x');
  if (!group.limit_to(group.usage() + 24 * mib)) return 10;
  const auto failed = ckpt.save(run.state, 2);
  if (!failed.failed() || id_of(failed.failure()) != cairn::error_id::storage_limit) return 11;
  if (text_of(failed.failure()).find(group.folder()) == std::string::npos) return 12;
  if (!group.limit_to(std::uint64_t{1} << 50)) return 13;
  run.update(3);
  run.blob.assign(64 * mib, 'y');
  ckpt.save(run.state, 3).wait();
  if (workers() != worker) return 14;
  return ckpt.list() == std::vector<std::int64_t>{1, 3} ? 0 : 15;
}

/// Saves where /dev/shm has one page, and is full. Returns 0, or the number of the check that failed; 77: this
/// machine does not allow it.
inline int saves_without_shm(const std::string& directory) {
  if ((::unshare(CLONE_NEWNS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) ||
      ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("none", "/dev/shm", "tmpfs", 0, "size=4k") != 0)
    return 77;
  if (std::ofstream("/dev/shm/full") << std::string(8192, 'x') << std::flush) return 10;
  trained run;
  auto ckpt = make(directory, cairn::process_executor{}, cairn::overlapped{});
  static_cast<void>(ckpt.resume(run.state));
  run.update(1);
  ckpt.save(run.state, 1).wait();
  trained got;
  ckpt.load(got.state, 1);
  return got.is_of(1) ? 0 : 11;
}

}  // namespace cairn_test
