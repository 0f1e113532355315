// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::interprocess
#pragma once
#include <cairn/execute/main_program.hpp>
#include <cairn/execute/worker_link.hpp>
#include <cairn/execute/worker_process.hpp>
#include <cairn/execute/worker_settings.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/backoff.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/file_descriptor.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/unforked_file.hpp>
#include <cairn/system/wire.hpp>

#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Whether a variable ("NAME=VALUE") is how MPI, a batch system or torchrun tells a process which rank of
/// which job it is.
[[nodiscard]] inline bool is_of_launcher(std::string_view variable) noexcept {
  static constexpr std::array<std::string_view, 18> beginnings{
      "OMPI_", "PMIX_",  "PMI_", "PMI2_",  "PRTE_", "ORTE_", "MPI_",  "MPIR_", "I_MPI_",
      "HYDI_", "HYDRA_", "MV2_", "SLURM_", "FLUX_", "PALS_", "ALPS_", "JSM_",  "TORCHELASTIC_"};
  static constexpr std::array<std::string_view, 10> names{
      "RANK",      "WORLD_SIZE", "LOCAL_RANK",      "LOCAL_WORLD_SIZE", "GROUP_RANK",
      "ROLE_RANK", "ROLE_NAME",  "ROLE_WORLD_SIZE", "MASTER_ADDR",      "MASTER_PORT"};
  const auto name = variable.substr(0, variable.find('='));
  return detail::contains(names, name) ||
         detail::any_of(beginnings, [&](auto each) { return name.starts_with(each); });
}

/// The environment of this process without what launchers say to the processes that they start: a worker
/// that believes to be a rank joins a job that it is not part of.
[[nodiscard]] inline std::vector<char*> environment_without_launchers() {
  std::vector<char*> kept;
  for (char** each = environ; each != nullptr && *each != nullptr; ++each)
    if (!is_of_launcher(*each)) kept.push_back(*each);
  kept.push_back(nullptr);
  return kept;
}

CAIRN_BODY worker_process::~worker_process() {
  end(deadline::in(std::chrono::seconds(5)));
}

CAIRN_BODY void worker_process::start(const std::string& program, const worker_hello& hello, deadline until) {
  end(deadline::in(std::chrono::nanoseconds(0)));
  worker_link link;
  {
    auto theirs = connect(link);
    spawn(program, theirs->get());
  }
  link_ = std::move(link);
  try {
    wire_writer out;
    encode(out, hello);
    link_.send(frame_kind::hello, out.view(), until);
    const auto answer = link_.receive(until);
    if (!answer)
      fail(error_id::timeout_peer, "a worker did not say in time that it is ready", {.file = program});
    if (answer->kind == frame_kind::refused) {
      wire_reader in(answer->bytes);
      std::rethrow_exception(decode_failure(in));
    }
    if (answer->kind != frame_kind::ready)
      fail(error_id::peer_bad_message, "a worker sent another message before it was ready",
           {.file = program});
  } catch (const peer_error& e) {
    const auto how = kill_and_describe();
    if (e.id() != error_id::peer_lost) throw;
    fail(error_id::usage_no_worker,
         "the program that was started as a worker is not a worker, or could not run",
         {.file = program, .got = how});
  } catch (...) {
    static_cast<void>(kill_and_describe());
    throw;
  }
}

CAIRN_BODY std::string worker_process::kill_and_describe() noexcept {
  link_.close();
  if (id_ <= 0) return {};
  // It may be on its way out already, with a status that says more than that it was killed here.
  auto status = reap(deadline::in(std::chrono::milliseconds(200)));
  if (!status) {
    ::kill(id_, SIGKILL);
    status = reap(deadline::in(std::chrono::seconds(10)));
  }
  id_ = 0;
  if (!status) return "it does not end although it was killed";
  if (*status < 0) return "it ended";
  if (WIFSIGNALED(*status)) return "it was ended by signal " + std::to_string(WTERMSIG(*status));
  return "it ended with status " + std::to_string(WEXITSTATUS(*status));
}

CAIRN_BODY void worker_process::end(deadline until) noexcept {
  link_.close();
  if (id_ > 0) static_cast<void>(reap(until));
  id_ = 0;
}

CAIRN_BODY detail::owned<unforked_file> worker_process::connect(worker_link& link) {
  const fork_pause pause;
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
    fail_system(errno, "a socket for a worker could not be made");
  file_descriptor ours(pair[0]);
  file_descriptor theirs(pair[1]);
  link = worker_link(std::move(ours), pause);
  return detail::make_owned<unforked_file>(std::move(theirs), pause);
}

CAIRN_BODY void worker_process::spawn(const std::string& program, int socket) {
  ::posix_spawn_file_actions_t actions;
  ::posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawnattr_init(&attributes);
  // Duplicate the socket first: the next actions may replace its number.
  ::posix_spawn_file_actions_adddup2(&actions, socket, worker_socket);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  // Not the trainer's stdout: who reads that to its end would wait for the worker, too.
  ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  ::posix_spawn_file_actions_addclosefrom_np(&actions, worker_socket + 1);
  // Blocked until it ignores them: one that comes while it is started must not end it.
  sigset_t blocked;
  sigset_t all;
  sigemptyset(&blocked);
  sigfillset(&all);
  for (const int each : signals_not_for_workers) sigaddset(&blocked, each);
  ::posix_spawnattr_setsigmask(&attributes, &blocked);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  // A process group of its own: a signal to the trainer's, as Ctrl-C sends it, is not for it. Not a
  // session: where the kernel shares the processor out by sessions (sched_autogroup_enabled), a few threads
  // of the worker would weigh as much as all of training, and niceness would mean nothing.
  ::posix_spawnattr_setpgroup(&attributes, 0);
  ::posix_spawnattr_setflags(&attributes, static_cast<short>(POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
                                                             POSIX_SPAWN_SETPGROUP));
  auto environment = environment_without_launchers();
  char name[] = "cairn-worker";
  char argument[32];
  std::strcpy(argument, worker_argument);
  char* const arguments[] = {name, argument, nullptr};
  const int code = ::posix_spawn(&id_, program.c_str(), &actions, &attributes, arguments, environment.data());
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  if (code != 0) {
    id_ = 0;
    fail(code == EAGAIN || code == ENOMEM ? error_id::storage_limit : error_id::usage_no_worker,
         "a worker could not be started", {.file = program, .got = std::generic_category().message(code)});
  }
}

CAIRN_BODY std::optional<int> worker_process::reap(deadline until) noexcept {
  for (backoff polling(std::chrono::microseconds(50), std::chrono::microseconds(5000));;) {
    int status = 0;
    const auto got = ::waitpid(id_, &status, WNOHANG);
    if (got == id_) return status;
    if (got < 0 && errno != EINTR) return -1;
    if (!polling.wait(until)) return {};
  }
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
