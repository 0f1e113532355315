// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/redundancy/place_sources.hpp>
#include <cairn/redundancy/surviving_set.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/file_descriptor.hpp>
#include <cairn/system/populate.hpp>
#include <cairn/system/shared.hpp>
#include <cairn/system/wire.hpp>
#include <cairn/tiers/held_record.hpp>
#include <cairn/tiers/tier_directory.hpp>
#include <cairn/tiers/tier_files.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Some bytes, and behind them those of a file in memory, which are mapped.
class mapped_message {
 public:
  mapped_message(const file_descriptor& file, std::uint64_t begin, std::uint64_t bytes,
                 std::span<const std::byte> head) {
    const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    const auto past = begin % page;
    const auto before = past >= head.size() ? 0 : (head.size() - past + page - 1) / page * page;
    const auto mapped = static_cast<std::size_t>(past + bytes);
    bytes_ = before + mapped;
    void* const at = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return;
    memory_ = static_cast<std::byte*>(at);
    // Private: the head takes the place of what lies before the bytes in their first page.
    if (::mmap(memory_ + before, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file.get(),
               static_cast<off_t>(begin - past)) == MAP_FAILED ||
        !populate_source(memory_ + before, mapped))
      return;
    message_ = memory_ + before + past - head.size();
    std::copy(head.begin(), head.end(), message_);
  }
  mapped_message(const mapped_message&) = delete;
  mapped_message& operator=(const mapped_message&) = delete;
  ~mapped_message() {
    if (memory_ != nullptr) ::munmap(memory_, bytes_);
  }
  /// Null where the file could not be mapped.
  [[nodiscard]] const std::byte* message() const noexcept { return message_; }

 private:
  std::byte* memory_ = nullptr;
  std::size_t bytes_ = 0;
  std::byte* message_ = nullptr;
};

/// Reads images and pieces of one directory.
class directory_sources final : public rebuild_sources {
 public:
  directory_sources(std::string directory, const surveyed_save& all)
      : directory_(std::move(directory)), in_memory_(lies_in_memory(directory_)) {
    for (const auto& each : names_in_tier(directory_)) {
      if (const auto held = parse_held_name(each); held && names_save(*held, all))
        names_.try_emplace({held->rank, rebuild_range::kind::image}, *held);
      if (const auto kept = parse_kept_name(each); kept && names_save(*kept, all)) {
        names_.try_emplace({kept->rank, rebuild_range::kind::piece}, *kept);
        names_.try_emplace({kept->rank, rebuild_range::kind::record}, *kept);
      }
    }
  }
  [[nodiscard]] std::uint64_t bytes(const rebuild_range& from) override {
    const auto name = names_.find({from.rank, from.what});
    if (name == names_.end()) return 0;
    if (from.what == rebuild_range::kind::record) {
      record_ = {};
      try {
        if (const auto bytes = tier_file(directory_ + "/" + kept_record_name(name->second)))
          record_ = wire_writer().put(kept_record_name(name->second)).raw(*bytes).take();
      } catch (const corrupt_error&) {
      }
      return record_.size();
    }
    const auto* const file = open(name->first, name->second);
    struct stat s {};  // first: who asks may be wrong about how long it is
    if (file == nullptr || ::fstat(file->get(), &s) != 0 ||
        from.begin > static_cast<std::uint64_t>(s.st_size) ||
        from.bytes > static_cast<std::uint64_t>(s.st_size) - from.begin)
      return 0;
    return from.bytes;
  }
  [[nodiscard]] bool read(const rebuild_range& from, std::span<std::byte> out) override {
    const auto name = names_.find({from.rank, from.what});
    if (name == names_.end() || out.empty()) return false;
    if (from.what == rebuild_range::kind::record) {
      if (bytes(from) != out.size()) return false;
      std::copy(record_.begin(), record_.end(), out.begin());
      return true;
    }
    const auto* const file = open(name->first, name->second);
    // A file that cannot be read has lost them.
    return file != nullptr && read_exactly(file->get(), from.begin, out) == 0;
  }

  [[nodiscard]] lent_message lend(const rebuild_range& from, std::span<const std::byte> head) override {
    // A disk may fail when it is read.
    if (!in_memory_ || from.what == rebuild_range::kind::record || bytes(from) == 0) return {};
    const auto name = names_.find({from.rank, from.what});
    const auto made =
        detail::make_shared<mapped_message>(*open(name->first, name->second), from.begin, from.bytes, head);
    if (made->message() == nullptr) return {};
    return {{made, made->message()}, head.size() + static_cast<std::size_t>(from.bytes)};
  }

 private:
  using key = std::pair<std::int32_t, rebuild_range::kind>;
  /// Null where it is not there, or cannot be opened. @throws storage_error for a limit of this process
  [[nodiscard]] const file_descriptor* open(const key& which, const held_name& of) {
    auto& file = open_[which];
    if (file.open()) return &file;
    const auto path = directory_ + "/" +
                      (which.second == rebuild_range::kind::piece ? piece_name(of.rank, of.slot)
                                                                  : slot_name(of.rank, of.slot));
    file = file_descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (file.open()) return &file;
    if (errno != ENOENT) try {
        fail_unreadable(errno, "what this host keeps for others could not be opened", path);
      } catch (const corrupt_error&) {
      }
    return nullptr;
  }
  std::string directory_;
  const bool in_memory_;
  std::map<key, held_name> names_;
  std::map<key, file_descriptor> open_;
  std::vector<std::byte> record_;
};

CAIRN_BODY std::unique_ptr<rebuild_sources> sources_in(std::string directory, const surveyed_save& all) {
  return std::make_unique<directory_sources>(std::move(directory), all);
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
