// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/execute/main_program.hpp>
#include <cairn/execute/worker_main.hpp>
#include <cairn/execute/worker_session.hpp>
#include <cairn/execute/worker_settings.hpp>
#include <cairn/system/background_thread.hpp>
#include <cairn/system/process_limits.hpp>

#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What makes a job's writer: a function of this very program, or one of those that it knows by name.
[[nodiscard]] CAIRN_BODY writer_maker maker_for(std::int64_t offset, const std::string& type,
                                                std::span<const known_writer> known) {
  if (offset != 0) {
    const auto address = static_cast<std::uintptr_t>(static_cast<std::int64_t>(anchor_address()) + offset);
    if (!this_program().contains(address))
      fail(error_id::peer_bad_message, "the function that a worker was to call is not in its program");
    return reinterpret_cast<writer_maker>(address);
  }
  std::string names;
  for (const auto& writer : known) {
    if (writer.type == type) return writer.maker;
    names += (names.empty() ? "" : "; ") + std::string(writer.type);
  }
  fail(error_id::usage_no_worker,
       "the worker program does not know this trainer's writer; name it in worker_program_main<...>, and "
       "build both with the same compiler",
       {.expected = type, .got = names});
}

/// Applies settings to all threads that this process has, and so to those that they start from now on.
CAIRN_BODY void apply_to_all_threads(const worker_settings& s) {
  if (!changes_anything(s)) return;
  const std::unique_ptr<DIR, int (*)(DIR*)> tasks(::opendir("/proc/self/task"), ::closedir);
  if (tasks == nullptr) return apply(s);
  while (const auto* task = ::readdir(tasks.get())) {
    const std::string_view name(task->d_name);
    ::pid_t thread = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), thread).ec == std::errc()) apply(s, thread);
  }
}

CAIRN_BODY void serve(worker_session& session, std::span<const known_writer> known) {
  while (auto frame = session.next()) {
    try {
      wire_reader in(frame->bytes);
      if (frame->kind == frame_kind::hello) {
        const auto hello = decode_hello(in);
        if (hello.build != 0 && hello.build != this_program().build)
          fail(error_id::usage_no_worker,
               "the worker was started from another build than the trainer's: the program was replaced while "
               "it ran");
        apply_to_all_threads(hello.settings);
        session.limit_writing(hello.bytes_per_second);
        session.say(frame_kind::ready);
        continue;
      }
      if (frame->kind != frame_kind::job)
        fail(error_id::peer_bad_message, "a worker got a message that is not for workers");
      const auto offset = in.get<std::int64_t>();
      const auto type = in.get_string();
      const auto maker = maker_for(offset, type, known);
      auto request = session.decode(in, std::move(frame->descriptors));
      serve_request(session, request, maker);
    } catch (const wire_error& e) {
      session.say(frame_kind::refused,
                  encode_failure(make_failure(error_id::peer_bad_message,
                                              std::string("a worker got a job that is none: ") + e.what())));
    } catch (...) {
      session.say(frame_kind::refused, encode_failure(std::current_exception()));
    }
    session.ended();
  }
}

/// The life of a worker: it serves until its trainer is gone and what was begun has ended.
[[noreturn]] CAIRN_BODY void live_as_worker(std::span<const known_writer> known) noexcept {
  int type = 0;
  socklen_t length = sizeof type;
  if (::getsockopt(worker_socket, SOL_SOCKET, SO_TYPE, &type, &length) != 0 || type != SOCK_STREAM) {
    std::fprintf(stderr, "cairn: %s is for cairn's own use: a trainer starts its worker with it\n",
                 worker_argument);
    std::_Exit(2);
  }
  ::fcntl(worker_socket, F_SETFD, FD_CLOEXEC);
  for (const int ignored : signals_not_for_workers) std::signal(ignored, SIG_IGN);
  sigset_t none;  // those that came before it ignored them were blocked, and are gone now
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  wait_for_a_turn();
  try {
    worker_session session{worker_link(file_descriptor(worker_socket), peer_process(worker_socket))};
    ask_of_this_process() = [&session](std::uint64_t whom, std::span<const std::byte> asked) {
      return session.ask(whom, asked);
    };
    background_thread listener;
    if (!listener.start("cairn listen", [&] { session.listen(); })) fail_for_threads("to listen");
    try {
      serve(session, known);
    } catch (const std::exception& e) {  // the listener, which ends with the trainer, would be waited for
      std::fprintf(stderr, "cairn: a worker could not serve: %s\n", e.what());
      std::_Exit(1);
    }
    listener.join();  // serve() has returned because it ended
  } catch (const std::exception& e) {
    std::fprintf(stderr, "cairn: a worker could not serve: %s\n", e.what());
    std::_Exit(1);
  }
  std::quick_exit(0);  // the destructors of the trainer's own statics are not this process's business
}

CAIRN_BODY int run_worker_program(int argc, const char* const* argv,
                                  std::span<const known_writer> known) noexcept {
  if (argc == 2 && std::strcmp(argv[1], worker_argument) == 0) live_as_worker(known);
  std::fprintf(stderr, "cairn: this program is a worker that trainers start; it knows these writers:\n");
  for (const auto& writer : known)
    std::fprintf(stderr, "  %.*s\n", static_cast<int>(writer.type.size()), writer.type.data());
  return 2;
}

}  // namespace detail

CAIRN_BODY void worker_main(int argc, const char* const* argv) noexcept {
  detail::worker_main_called.store(true);
  if (argc == 2 && std::strcmp(argv[1], detail::worker_argument) == 0) detail::live_as_worker({});
}

}  // namespace v1
}  // namespace cairn
