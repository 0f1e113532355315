// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/links/link_key.hpp>
#include <cairn/links/tls_link.hpp>
#include <cairn/system/file_descriptor.hpp>
#include <support/own_server.hpp>

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// Peers of tls_links for tests: those of a job, strangers, proxies between, and processes.
namespace cairn_test {

inline std::string hexadecimal(std::span<const std::byte> bytes) {
  std::string text;
  for (const auto each : bytes)
    for (const int shift : {4, 0}) text += "0123456789abcdef"[std::to_integer<unsigned>(each) >> shift & 15];
  return text;
}
inline std::vector<std::byte> from_hexadecimal(std::string_view text) {
  const auto digit = [](char c) { return static_cast<unsigned>(c <= '9' ? c - '0' : c - 'a' + 10); };
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2)
    bytes.push_back(static_cast<std::byte>(digit(text[i]) << 4 | digit(text[i + 1])));
  return bytes;
}
inline cairn::link_key key_of(const std::vector<std::byte>& bytes) {
  std::array<std::byte, 32> all{};
  std::copy_n(bytes.begin(), std::min(bytes.size(), all.size()), all.begin());
  return cairn::link_key(all);
}
/// What helper_link_peer offers.
inline std::vector<std::byte> image_of_peer() {
  std::vector<std::byte> image(std::size_t{8} << 20);
  for (std::size_t i = 0; i < image.size(); i += 8) std::memcpy(image.data() + i, &i, 8);
  return image;
}

/// The links of a job, all in this process, over the loopback.
struct tls_job {
  explicit tls_job(int size, const cairn::tls_link_options& options = {.address = "127.0.0.1"}) {
    std::vector<cairn::tls_link_port> made;
    for (int rank = 0; rank < size; ++rank) {
      made.emplace_back(options);
      addresses.push_back(made.back().address());
      ports.push_back(made.back().port());
    }
    for (int rank = 0; rank < size; ++rank)
      links.emplace_back(
          cairn::tls_link(std::move(made[static_cast<std::size_t>(rank)]), key, rank, addresses));
  }
  cairn::tls_link& at(int rank) { return *links[static_cast<std::size_t>(rank)]; }
  void lose(int rank) { links[static_cast<std::size_t>(rank)].reset(); }

  cairn::link_key key = cairn::link_key::random();
  std::vector<std::vector<std::byte>> addresses;
  std::vector<std::uint16_t> ports;
  std::vector<std::optional<cairn::tls_link>> links;
};

/// helper_link_peer, as rank 1 of a job of two. Killed where it still lives.
class peer_process {
 public:
  peer_process(std::string path, const cairn::link_key& key,
               const std::vector<std::byte>& address_of_rank_0) {
    int in[2], out[2];
    if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    in_ = cairn::detail::file_descriptor(in[1]);
    const cairn::detail::file_descriptor its_in(in[0]), its_out(out[1]), mine(out[0]);
    std::string secret = hexadecimal(key.bytes()), address = hexadecimal(address_of_rank_0);
    char* const arguments[] = {path.data(), secret.data(), address.data(), nullptr};
    posix_spawn_file_actions_t files;
    ::posix_spawn_file_actions_init(&files);
    ::posix_spawn_file_actions_adddup2(&files, its_in.get(), 0);
    ::posix_spawn_file_actions_adddup2(&files, its_out.get(), 1);
    const int error = ::posix_spawn(&child_, path.c_str(), &files, nullptr, arguments, environ);
    ::posix_spawn_file_actions_destroy(&files);
    if (error != 0) throw std::runtime_error("helper_link_peer does not start");
    std::string line;
    for (char c = 0; c != '\n';) {
      if (::read(mine.get(), &c, 1) != 1) throw std::runtime_error("helper_link_peer says nothing");
      if (c != '\n') line += c;
    }
    address_ = from_hexadecimal(line);
  }
  peer_process(const peer_process&) = delete;
  peer_process& operator=(const peer_process&) = delete;
  ~peer_process() { signal(SIGKILL), wait(); }
  [[nodiscard]] const std::vector<std::byte>& address() const { return address_; }
  void signal(int which) const {
    if (child_ > 0) ::kill(child_, which);
  }
  /// Waits for its end.
  void wait() {
    if (child_ > 0) ::waitpid(child_, nullptr, 0);
    child_ = 0;
  }

 private:
  cairn::detail::file_descriptor in_;
  ::pid_t child_ = 0;
  std::vector<std::byte> address_;
};

}  // namespace cairn_test
