// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/comm/socket/socket_frame.hpp>
#include <cairn/comm/socket/socket_members.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/shared.hpp>

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

inline std::string name_of_host() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "?";
  return name.data();
}

CAIRN_BODY socket_members::socket_members(const socket_world_options& told, link_address own_address)
    : options(told),
      own(std::move(own_address)),
      host(name_of_host()),
      peers(static_cast<std::size_t>(told.size)),
      flags(detail::make_shared<gone_flags>(told.size)) {
  peer(options.rank).place = {host, own};
}

CAIRN_BODY std::string socket_members::who(int rank) const {
  const auto& place = peers[static_cast<std::size_t>(rank)].place;
  std::string text = "rank " + std::to_string(rank);
  if (!place.host.empty()) text += " on " + place.host;
  if (!place.from.hosts.empty()) text += " (" + place.from.hosts.front() + ")";
  return text;
}

CAIRN_BODY std::vector<std::byte> socket_members::hello(std::uint64_t wanted) const {
  return encode(socket_hello{wanted, options.rank, options.size, options.job, host, own});
}

/// @pre the mutex is locked
CAIRN_BODY void socket_members::mark_gone(int rank, bool left, std::string why) {
  auto& p = peer(rank);
  if (!p.gone) {
    p.gone = true;
    p.left = left;
    p.gone_at = deadline::clock::now();
    p.why = std::move(why);
    flags->each[static_cast<std::size_t>(rank)].store(true, std::memory_order_release);
  }
  changed.notify();
}

CAIRN_BODY void socket_members::lose(int rank, const std::string& why) {
  const std::lock_guard lock(mutex);
  mark_gone(rank, false, who(rank) + why);
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
