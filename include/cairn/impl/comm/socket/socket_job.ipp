// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/comm/socket/socket_job.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/error.hpp>

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <system_error>

namespace cairn {
inline namespace v1 {
namespace detail {

/// A whole number of at most `largest`, or -1.
inline std::int64_t number_in(std::string_view text, std::int64_t largest) noexcept {
  std::int64_t number = -1;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
  return failed == std::errc() && end == text.data() + text.size() && number >= 0 && number <= largest
             ? number
             : -1;
}
/// A variable of the environment. @throws usage_error (usage_bad_option) where it is not set
inline std::string of_environment(const char* variable, const char* launcher) {
  const char* const value = std::getenv(variable);
  if (value == nullptr || *value == '\0')
    fail(error_id::usage_bad_option,
         std::string("the environment has no ") + variable + "; start the ranks with " + launcher,
         {.expected = variable});
  return value;
}
inline int number_of_environment(const char* variable, const char* launcher) {
  const auto text = of_environment(variable, launcher);
  const auto number = number_in(text, std::int64_t{1} << 24);
  if (number < 0) fail(error_id::usage_bad_option, std::string(variable) + " is no number", {.got = text});
  return static_cast<int>(number);
}
/// Ports that the ranks of a job agree on without a word. Below those that Linux gives to outgoing connections.
inline void derive_ports(socket_job& job) {
  job.ports = 16;
  job.port = static_cast<std::uint16_t>(20000 + digest(job.name + "\n" + job.run) % 750 * 16);
}
/// The first host of a list as Slurm writes it: "node[07-09,12],login1" begins with node07.
inline std::string first_of_slurm(const std::string& list) {
  const auto bracket = list.find_first_of("[,");
  if (bracket == std::string::npos || list[bracket] == ',') return list.substr(0, bracket);
  const auto close = list.find(']', bracket);
  const auto end = list.find_first_of("-,]", bracket);
  if (close == std::string::npos) return list.substr(0, bracket);
  const auto after = list.find_first_of(",[", close);
  return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1) +
         list.substr(close + 1, after == std::string::npos ? after : after - close - 1);
}

}  // namespace detail

CAIRN_BODY socket_job socket_job::at(std::string_view name, int rank, int size, std::string_view rank_0) {
  const auto colon = rank_0.rfind(':');
  auto host = rank_0.substr(0, colon);
  const auto port = colon == std::string_view::npos ? -1 : detail::number_in(rank_0.substr(colon + 1), 65535);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  if (host.empty() || port < 1)
    fail(error_id::usage_bad_option, "the address of rank 0 is \"host:port\"", {.got = std::string(rank_0)});
  socket_job job{.name = std::string(name), .rank = rank, .size = size, .host = std::string(host)};
  job.port = static_cast<std::uint16_t>(port);
  return job;
}

CAIRN_BODY socket_job socket_job::in_file(std::string_view path, int rank, int size) {
  const auto slash = path.rfind('/');
  socket_job job{.name = std::string(slash == std::string_view::npos ? path : path.substr(slash + 1)),
                 .rank = rank,
                 .size = size};
  job.file = std::string(path);
  return job;
}

CAIRN_BODY socket_job socket_job::torchrun(std::string_view name) {
  const char* const by = "torchrun";
  socket_job job{.name = std::string(name),
                 .rank = detail::number_of_environment("RANK", by),
                 .size = detail::number_of_environment("WORLD_SIZE", by),
                 .host = detail::of_environment("MASTER_ADDR", by)};
  // A plain `torch.distributed.launch` has no id. The port alone tells its runs apart.
  const char* const run = std::getenv("TORCHELASTIC_RUN_ID");
  job.run = std::string(run != nullptr ? run : "").substr(0, 256) + " " + job.host.substr(0, 200) + " " +
            std::to_string(detail::number_of_environment("MASTER_PORT", by));
  detail::derive_ports(job);
  return job;
}

CAIRN_BODY socket_job socket_job::slurm(std::string_view name) {
  const char* const by = "srun";
  const char* const of_step = std::getenv("SLURM_STEP_NODELIST");
  socket_job job{.name = std::string(name),
                 .rank = detail::number_of_environment("SLURM_PROCID", by),
                 .size = detail::number_of_environment("SLURM_NTASKS", by)};
  job.host = detail::first_of_slurm(of_step != nullptr ? std::string(of_step)
                                                       : detail::of_environment("SLURM_JOB_NODELIST", by));
  const char* const step = std::getenv("SLURM_STEP_ID");
  job.run = detail::of_environment("SLURM_JOB_ID", by) + "." + (step != nullptr ? step : "");
  detail::derive_ports(job);
  return job;
}

}  // namespace v1
}  // namespace cairn
