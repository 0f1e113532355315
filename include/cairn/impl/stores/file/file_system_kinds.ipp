// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/stores/file/file_system_kinds.hpp>
#include <cairn/system/process_limits.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY std::string name_of_file_system(std::uint64_t type) {
  constexpr std::pair<std::uint64_t, const char*> names[] = {
      {0xEF53, "ext4"},        {0x58465342, "xfs"},     {0x9123683E, "btrfs"},  {0x01021994, "tmpfs"},
      {0x794C7630, "overlay"}, {0x6969, "nfs"},         {0x65735546, "fuse"},   {0xFF534D42, "cifs"},
      {0xFE534D42, "smb3"},    {0x0BD00BD0, "lustre"},  {0x47504653, "gpfs"},   {0x2FC12FC1, "zfs"},
      {0x00C36400, "ceph"},    {0x19830326, "beegfs"},  {0xF2F52010, "f2fs"},   {0x01021997, "9p"},
      {0x4D44, "vfat"},        {0x9FA0, "proc"},        {0x62656572, "sysfs"},  {0x1CD1, "devpts"},
      {0x27E0EB, "cgroup"},    {0x63677270, "cgroup2"}, {0x64626720, "debugfs"}};
  for (const auto& [known, name] : names)
    if (known == type) return name;
  char text[32];
  std::snprintf(text, sizeof text, "type 0x%llx", static_cast<unsigned long long>(type));
  return text;
}

CAIRN_BODY void look_up_mount(std::uint64_t mount, file_system_kind& kind) {
  const auto text = kernel_file("/proc/self/mountinfo", 16u << 20).value_or("");
  std::string_view rest(text);
  while (!rest.empty()) {
    auto line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    const auto word = [&] {
      const auto w = line.substr(0, line.find(' '));
      line.remove_prefix(std::min(line.size(), w.size() + 1));
      return w;
    };
    // 36 35 98:0 /root /directory options ... - type source superoptions
    if (word() != std::to_string(mount)) continue;
    word(), word(), word();
    const std::string directory(word());
    const std::string options(word());
    const auto dash = line.starts_with("- ") ? 0 : line.find(" - ");
    if (dash == std::string_view::npos) return;
    line.remove_prefix(line.starts_with("- ") ? 2 : dash + 3);
    kind.name = word();
    const std::string source(word());
    const std::string own(word());
    kind.mounted = source + " on " + directory + " (" + options + "; " + own + ")";
    kind.options = options + "," + own;
    return;
  }
}

CAIRN_BODY bool is_mounted_with(const file_system_kind& kind, std::string_view option) {
  return ("," + kind.options + ",").find("," + std::string(option) + ",") != std::string::npos;
}

CAIRN_BODY file_system_support support_of(std::string_view name) {
  constexpr std::string_view tried[] = {"ext4", "tmpfs", "nfs4"};
  constexpr std::string_view documented[] = {"ext2",   "ext3", "xfs", "btrfs",  "overlay", "nfs",     "ceph",
                                             "lustre", "gpfs", "zfs", "beegfs", "f2fs",    "bcachefs"};
  constexpr std::string_view no_files[] = {"proc",    "sysfs",      "devpts",  "cgroup",   "cgroup2",
                                           "debugfs", "securityfs", "tracefs", "configfs", "mqueue"};
  const auto in = [&](const auto& list) {
    return std::find(std::begin(list), std::end(list), name) != std::end(list);
  };
  return in(tried)        ? file_system_support::tried
         : in(documented) ? file_system_support::documented
         : in(no_files)   ? file_system_support::no_files
                          : file_system_support::unknown;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
