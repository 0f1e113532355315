// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::links
#pragma once
#include <cairn/system/compiler.hpp>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace cairn {
inline namespace v1 {

/// How messages between ranks travel.
enum class socket_protection : std::uint8_t {
  encrypted,  ///< TLS 1.3; who does not have the key of the job gets nothing
  plaintext,  ///< whoever reaches a port of the job may read and write everything: for one trusted host, and for tests
};

/// Options of socket_communicator. They may differ between ranks, but for `protection`.
struct socket_options {
  /// How long the constructor waits for the other ranks.
  std::chrono::nanoseconds timeout = std::chrono::minutes(5);
  /// A host that has answered nothing for so long is lost, with its ranks; at least 0.5 s. Below 3 s a switch that fails
  /// over, a virtual machine that is moved, or a network that loses every fifth packet may pass for a lost host; below 1 s
  /// also a process that gets no processor for as long.
  std::chrono::nanoseconds lost_after = std::chrono::seconds(10);
  /// A process that has said nothing for so long, though its host answers, is lost, too: it is stopped, or gets no
  /// processor. 0: never, calls that wait for it end at their deadlines, unless more was sent to it than the sockets hold:
  /// that is lost after `lost_after`. Else at least 0.5 s, and the same on all ranks.
  std::chrono::nanoseconds stopped_after = {};
  /// How long either end of a new connection may take to prove that it is of this job.
  std::chrono::nanoseconds handshake_timeout = std::chrono::seconds(5);
  /// The same on all ranks.
  socket_protection protection = socket_protection::encrypted;
  /// The numeric IPv4 or IPv6 address to listen at; empty: all addresses of this host, or with `plaintext` those at
  /// which rank 0 is looked for, if they are of this host.
  std::string address = {};
  /// The first of `ports` ports of which a rank other than 0 takes a free one, for firewalls; 0: one that the system
  /// chooses.
  std::uint16_t first_port = 0;
  std::uint16_t ports = 1;  ///< see first_port; at least as many as ranks on a host
};

/// Which rank of which job this process is, and where the ranks of the job meet. Fields may be changed before use.
struct socket_job {
  std::string name;  ///< the same on all ranks, and no other job's: 1 to 64 of A-Z a-z 0-9 . _ -
  int rank = 0;      ///< of this process
  int size = 1;      ///< how many ranks there are
  /// The host of rank 0: a name or a numeric address. Empty where they meet by a file.
  std::string host = {};
  /// The first of `ports` ports of which rank 0 takes a free one; the others ask at all of them.
  std::uint16_t port = 0;
  std::uint16_t ports = 1;  ///< see port
  /// Or: a file that rank 0 writes and the others read, in a directory of mode 0700 that all see.
  std::string file = {};
  /// The secret of the job, at least 32 characters, such as `openssl rand -hex 32` prints. Empty: that of the
  /// environment's CAIRN_JOB_KEY, or of the file that CAIRN_JOB_KEY_FILE names. Not needed with a file, in which
  /// rank 0 puts a new one.
  std::string key = {};
  /// What else ranks of one job have in common, beside the name: at most 512 bytes.
  std::string run = {};

  /// The ranks meet at an address of rank 0, "host:port" or "[IPv6]:port". @throws usage_error (usage_bad_option)
  [[nodiscard]] static socket_job at(std::string_view name, int rank, int size, std::string_view rank_0);
  /// The ranks meet by a file, whose name is that of the job. Its directory is made where it is missing.
  [[nodiscard]] static socket_job in_file(std::string_view path, int rank, int size);
  /// What torchrun says in the environment of its workers: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT,
  /// TORCHELASTIC_RUN_ID. MASTER_PORT belongs to torchrun's own store. Rank 0 therefore takes one of 16 ports
  /// between 20000 and 32000 that name, run and MASTER_PORT give on all ranks alike.
  /// @throws usage_error (usage_bad_option) where the environment is not torchrun's
  [[nodiscard]] static socket_job torchrun(std::string_view name = "cairn");
  /// What srun says in the environment of a task: SLURM_PROCID, SLURM_NTASKS, the first host of
  /// SLURM_STEP_NODELIST or SLURM_JOB_NODELIST, SLURM_JOB_ID and SLURM_STEP_ID, of which ports come as with
  /// torchrun(). @throws usage_error (usage_bad_option) where the environment is not srun's
  [[nodiscard]] static socket_job slurm(std::string_view name = "cairn");
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_LINKS)
#include <cairn/impl/comm/socket/socket_job.ipp>
#endif
