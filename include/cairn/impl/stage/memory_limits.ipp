// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/stage/memory_limits.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/process_limits.hpp>

#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY std::optional<std::uint64_t> number_after(std::string_view text, std::string_view key) {
  std::size_t at = 0;
  while (at < text.size()) {
    const auto line = text.substr(at, text.find('\n', at) - at);
    if (line.starts_with(key)) {
      const auto from = line.find_first_not_of(" \t", key.size());
      std::uint64_t value = 0;
      if (from != std::string_view::npos &&
          std::from_chars(line.data() + from, line.data() + line.size(), value).ec == std::errc())
        return value;
    }
    at += line.size() + 1;
  }
  return std::nullopt;
}

CAIRN_BODY void memory_room::take(std::uint64_t left, std::uint64_t limited_to, std::string_view name,
                                  error_id which) {
  if (left < bytes) bytes = left, most = limited_to, limit = name, id = which;
}

CAIRN_BODY void take_cgroup_room(memory_room& room, const std::string& root, std::string_view groups) {
  struct names {
    const char* folder;
    const char* limit;
    const char* used;
    const char* reclaimable[3];
  };
  while (!groups.empty()) {
    const auto line = groups.substr(0, groups.find('\n'));
    groups.remove_prefix(line.size() == groups.size() ? line.size() : line.size() + 1);
    const bool second = line.starts_with("0::");
    // "4:memory:/path", or with the controllers that are mounted together: "4:cpu,memory:/path".
    const auto first_colon = line.find(':');
    const auto second_colon =
        line.find(':', first_colon == std::string_view::npos ? line.size() : first_colon + 1);
    if (second_colon == std::string_view::npos) continue;
    const auto controllers =
        "," + std::string(line.substr(first_colon + 1, second_colon - first_colon - 1)) + ",";
    if (!second && controllers.find(",memory,") == std::string::npos) continue;
    // What the kernel takes back before it refuses memory for this limit. Both lists of files are: what was
    // read twice is on the active one, and a data set that is read again and again would otherwise fill the
    // group. Files of tmpfs (shmem) are on neither, nor is what is locked. memory.low of a group below gives
    // way before a limit counts as reached.
    const names n = second ? names{"",
                                   "/memory.max",
                                   "/memory.current",
                                   {"inactive_file", "active_file", "slab_reclaimable"}}
                           : names{"/memory",
                                   "/memory.limit_in_bytes",
                                   "/memory.usage_in_bytes",
                                   {"total_inactive_file", "total_active_file", nullptr}};
    std::string path(line.substr(second_colon + 1));
    // Inside a container the path may be the host's: its parents end at the root, which is then the
    // container's own.
    for (;;) {
      while (!path.empty() && path.back() == '/') path.pop_back();
      const std::string folder = root + n.folder + path;
      const auto limit = kernel_file(folder + n.limit);
      const auto used = kernel_file(folder + n.used);
      if (limit && used) {
        const auto most = number_after(*limit, "");
        const auto now = number_after(*used, "");
        if (most && now) {
          const auto counts = kernel_file(folder + "/memory.stat").value_or("");
          std::uint64_t busy = *now;
          for (const auto* name : n.reclaimable)
            if (name != nullptr) busy -= std::min(busy, number_after(counts, name).value_or(0));
          room.take(*most - std::min(*most, busy), *most, folder + n.limit, error_id::storage_limit);
        }
      }
      if (path.empty()) break;
      path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
    }
  }
}

CAIRN_BODY memory_room room_for_memory() {
  memory_room room;
  if (const auto info = kernel_file("/proc/meminfo"))
    if (const auto free = number_after(*info, "MemAvailable:"))
      room.take(*free * 1024, number_after(*info, "MemTotal:").value_or(0) * 1024,
                "the machine's free memory (MemAvailable)", error_id::storage_out_of_memory);
  take_cgroup_room(room, "/sys/fs/cgroup", kernel_file("/proc/self/cgroup").value_or(""));
  if (const auto status = kernel_file("/proc/self/status")) {
    const auto take_limit = [&](auto resource, std::string_view key, std::string_view name) {
      rlimit limit{};
      if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
      const auto used = number_after(*status, key).value_or(0) * 1024;
      room.take(limit.rlim_cur - std::min<std::uint64_t>(limit.rlim_cur, used), limit.rlim_cur, name,
                error_id::storage_limit);
    };
    take_limit(RLIMIT_AS, "VmSize:", "RLIMIT_AS (ulimit -v)");
    take_limit(RLIMIT_DATA, "VmData:", "RLIMIT_DATA (ulimit -d)");
  }
  return room;
}

CAIRN_BODY void fail_for_memory(std::uint64_t needed, const memory_room& room) {
  const bool known = !room.limit.empty();
  fail(known ? room.id : error_id::storage_out_of_memory,
       "a buffer for a checkpoint's image cannot be allocated: " + std::to_string(needed) +
           " bytes are needed and " +
           (known ? std::to_string(room.bytes) + " are free; the limit is " + room.limit + " of " +
                        std::to_string(room.most) + " bytes"
                  : std::string("the kernel refused them")) +
           ". Free memory or raise the limit, save less on this rank, or use no_staging",
       {.expected = std::to_string(needed) + " bytes",
        .got = known ? std::to_string(room.bytes) + " bytes" : ""});
}

CAIRN_BODY void fail_for_locked_memory(std::uint64_t needed, int code) {
  const auto locked =
      number_after(kernel_file("/proc/self/status").value_or(""), "VmLck:").value_or(0) * 1024;
  fail(error_id::storage_limit,
       "a buffer for a checkpoint's image cannot be locked in memory: " + std::to_string(needed) +
           " bytes are needed and " + std::to_string(locked) + " bytes are locked already; " +
           limit_text(RLIMIT_MEMLOCK, "RLIMIT_MEMLOCK", "ulimit -l, in kB there") +
           ". Raise it (LimitMEMLOCK of systemd, memlock in limits.conf, --ulimit memlock of a container), "
           "or do "
           "not ask for locked memory: " +
           std::system_category().message(code),
       {.expected = std::to_string(needed) + " bytes", .got = std::to_string(locked) + " bytes locked"});
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
