// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "../paths.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <stdexcept>
#include <string>

extern char** environ;

namespace cairn_test {

/// moto's S3, an implementation that shares nothing with ours, in a process of its own with one bucket,
/// `checkpoints`; ends with this object.
class moto_server {
 public:
  moto_server() {
    int in[2];
    int out[2];
    if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    ::posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    auto program = python();
    auto script = source_dir() + "/tests/support/moto_server.py";
    char* const arguments[] = {program.data(), script.data(), nullptr};
    const int error = ::posix_spawnp(&process_, program.c_str(), &actions, nullptr, arguments, environ);
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(in[0]);
    ::close(out[1]);
    input_ = in[1];
    char text[32] = {};
    std::size_t n = 0;
    while (error == 0 && n + 1 < sizeof text) {
      const auto got = ::read(out[0], text + n, sizeof text - 1 - n);
      if (got <= 0) break;
      n += static_cast<std::size_t>(got);
      if (text[n - 1] == '\n') break;
    }
    ::close(out[0]);
    if (std::sscanf(text, "%d", &port_) != 1)
      throw std::runtime_error("moto does not start: is it installed?");
  }
  moto_server(const moto_server&) = delete;
  moto_server& operator=(const moto_server&) = delete;
  ~moto_server() {
    ::close(input_);
    if (process_ > 0) ::waitpid(process_, nullptr, 0);
  }
  [[nodiscard]] std::string endpoint() const { return "http://127.0.0.1:" + std::to_string(port_); }

  /// The server of the whole program, started at the first call.
  static moto_server& shared() {
    static moto_server server;
    return server;
  }

 private:
  ::pid_t process_ = 0;
  int input_ = -1;
  int port_ = 0;
};

}  // namespace cairn_test
