// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::links
#pragma once
#include <cairn/comm/socket/socket_job.hpp>
#include <cairn/comm/socket/socket_world.hpp>
#include <cairn/links/link_frame.hpp>
#include <cairn/links/link_key.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/owned.hpp>

#include <optional>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Collective: the ranks of a job find each other. @throws see socket_communicator
[[nodiscard]] owned<socket_world> meet(const socket_job& job, const socket_options& options);

/// The numeric addresses of a host, IPv4 first; none where nobody knows it, or not by the deadline.
[[nodiscard]] std::vector<std::string> addresses_of(const std::string& host, deadline until);

/// What the file of a job says.
struct job_file {
  link_key key;
  link_address rank_0;
};
/// Writes the file of a job, durably, in one step, for this user alone. Its directory is made where it is missing.
/// @throws usage_error (usage_bad_option) where others may write or read there; storage_error
void write_job_file(const std::string& path, const job_file& what);
/// Nothing where it is not there yet, or not whole. Asks the server of a shared file system, not a cache.
/// @throws usage_error (usage_bad_option) where it is another user's, or others may read it
[[nodiscard]] std::optional<job_file> read_job_file(const std::string& path);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_LINKS)
#include <cairn/impl/comm/socket/socket_rendezvous.ipp>
#endif
