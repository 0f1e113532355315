// SPDX-License-Identifier: Apache-2.0
// links: cairn::links
//
// Rank 1 of a job of two, as a process: prints the address of its link in hexadecimal, offers 8 MiB as "image" of
// generation 1, and ends with its input.
//   helper_link_peer KEY ADDRESS_OF_RANK_0    both in hexadecimal
#include <cairn/links/tls_link.hpp>
#include <support/link_peers.hpp>

#include <cstdio>
#include <exception>
#include <span>
#include <utility>
#include <vector>

int main(int argc, char** argv) try {
  using namespace cairn_test;
  if (argc != 3) return 2;
  cairn::tls_link_port port({.address = "127.0.0.1"});
  const std::vector<std::vector<std::byte>> addresses{from_hexadecimal(argv[2]), port.address()};
  const auto mine = hexadecimal(port.address());
  cairn::tls_link link(std::move(port), key_of(from_hexadecimal(argv[1])), 1, addresses);
  const auto image = image_of_peer();
  const std::span<const std::byte> parts[] = {image};
  link.offer({"image", 1}, parts);
  std::printf("%s\n", mine.c_str());
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
} catch (const std::exception& e) {
  std::fprintf(stderr, "helper_link_peer: %s\n", e.what());
  return 1;
}
