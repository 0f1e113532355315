// SPDX-License-Identifier: Apache-2.0
#pragma once
// The real file system with a page cache that a test fills: what is cached, what the kernel tells of it, and how a
// read of it ends. Counts the ways that bytes come.
//
//   cached_file_system fs;
//   fs.cache->all = true;
//   cairn::basic_file_store<cached_file_system> store{"root", {}, fs};
//   ... fs.cache->direct_reads
#include <cairn/stores/file/posix_file_system.hpp>

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>

namespace cairn_test {

/// These hold for all files.
struct cache_model {
  static constexpr std::uint64_t page = 4096;

  std::mutex mutex;
  bool all = false;               ///< every page is cached
  std::set<std::uint64_t> pages;  ///< that are, by number
  int unknown = 0;                ///< errno of asking what is cached
  bool says_all = false;          ///< is told that all is cached, whatever is
  int refused = 0;                ///< errno of each read of what is cached
  std::size_t most = SIZE_MAX;    ///< bytes that one such read moves at most
  int interrupted = 0;            ///< so many of them end with EINTR first
  bool flips = false;             ///< each such read changes a bit of what it brings
  int no_direct = 0;              ///< errno of opening with O_DIRECT
  int no_buffered = 0;            ///< errno of opening a file to read it otherwise
  int write_back = 0;             ///< errno of beginning to send on what was written
  int stale = 0;                  ///< so many of the next direct and plain reads end with ESTALE
  int unreadable = 0;             ///< errno of direct and plain reads
  std::size_t max_open = SIZE_MAX;
  bool leases = false;                       ///< what is cached can be mapped, too
  bool unmappable = false;                   ///< but no mapping is to be had
  bool depopulates = false;                  ///< or its bytes are gone once they are asked for
  std::function<void()> while_copying = {};  ///< is called once, while a file is leased

  std::set<int> direct, open_files;
  std::size_t direct_writes = 0, plain_writes = 0, written_back = 0;
  std::size_t leased = 0, mapped = 0, unmapped = 0;
  std::size_t opened_for_data = 0;  ///< files of tensors
  std::size_t not_opened = 0;       ///< tries that ended with no_buffered
  std::size_t asked_in_vain = 0;    ///< reads of what is cached that wanted more than is
  std::size_t opened = 0, asked = 0, cached_reads = 0, direct_reads = 0, plain_reads = 0, most_open = 0;

  [[nodiscard]] bool has(std::uint64_t number) const { return all || pages.contains(number); }
  void add(std::uint64_t offset, std::uint64_t bytes) {
    for (auto p = offset / page; p * page < offset + bytes; ++p) pages.insert(p);
  }
};

/// Copies share the cache.
struct cached_file_system : cairn::posix_file_system {
  using caching_type = cached_file_system;
  std::shared_ptr<cache_model> cache = std::make_shared<cache_model>();

  [[nodiscard]] int open_at(int directory, const char* name, int flags, unsigned mode) const {
    const std::lock_guard lock(cache->mutex);
    if ((flags & O_DIRECT) != 0 && cache->no_direct != 0) return -cache->no_direct;
    if ((flags & (O_DIRECT | O_DIRECTORY | O_CREAT)) == 0 && cache->no_buffered != 0) {
      ++cache->not_opened;
      return -cache->no_buffered;
    }
    if (cache->open_files.size() >= cache->max_open) return -EMFILE;
    const int file = posix_file_system::open_at(directory, name, flags, mode);
    if (file < 0) return file;
    ++cache->opened;
    cache->opened_for_data += std::string_view(name).ends_with(".safetensors");
    cache->open_files.insert(file);
    cache->most_open = std::max(cache->most_open, cache->open_files.size());
    if ((flags & O_DIRECT) != 0) cache->direct.insert(file);
    return file;
  }
  [[nodiscard]] int close(int file) const {
    const std::lock_guard lock(cache->mutex);
    cache->open_files.erase(file);
    cache->direct.erase(file);
    return posix_file_system::close(file);
  }
  /// A device that takes requests of any alignment past the page cache, also where the real one would not.
  [[nodiscard]] int direct(int, cairn::direct_alignment& out) const {
    out = {512, 512};
    return 0;
  }
  [[nodiscard]] std::int64_t pread(int file, void* to, std::size_t bytes, std::uint64_t offset) const {
    {
      const std::lock_guard lock(cache->mutex);
      ++(cache->direct.contains(file) ? cache->direct_reads : cache->plain_reads);
      if (cache->stale > 0) return --cache->stale, -ESTALE;
      if (cache->unreadable != 0) return -cache->unreadable;
    }
    return posix_file_system::pread(file, to, bytes, offset);
  }
  [[nodiscard]] std::int64_t pwrite(int file, const void* from, std::size_t bytes,
                                    std::uint64_t offset) const {
    {
      const std::lock_guard lock(cache->mutex);
      ++(cache->direct.contains(file) ? cache->direct_writes : cache->plain_writes);
    }
    return posix_file_system::pwrite(file, from, bytes, offset);
  }
  [[nodiscard]] int start_writing_back(int file, std::uint64_t offset, std::uint64_t bytes) const {
    {
      const std::lock_guard lock(cache->mutex);
      cache->written_back += bytes;
      if (cache->write_back != 0) return -cache->write_back;
    }
    return posix_file_system::start_writing_back(file, offset, bytes);
  }
  [[nodiscard]] std::int64_t cached(int, std::uint64_t offset, std::uint64_t bytes) const {
    const std::lock_guard lock(cache->mutex);
    ++cache->asked;
    if (cache->unknown != 0) return -cache->unknown;
    std::int64_t found = 0;
    for (auto p = offset / cache_model::page; p * cache_model::page < offset + bytes; ++p)
      found += cache->says_all || cache->has(p) ? static_cast<std::int64_t>(cache_model::page) : 0;
    return found;
  }
  [[nodiscard]] std::int64_t read_cached(int file, void* to, std::size_t bytes, std::uint64_t offset) const {
    std::uint64_t end = offset;
    bool flips = false;
    {
      const std::lock_guard lock(cache->mutex);
      ++cache->cached_reads;
      if (cache->interrupted > 0) return --cache->interrupted, -EINTR;
      if (cache->refused != 0) return -cache->refused;
      const auto wanted = offset + std::min(bytes, cache->most);
      while (end < wanted && cache->has(end / cache_model::page))
        end = std::min<std::uint64_t>(wanted, (end / cache_model::page + 1) * cache_model::page);
      cache->asked_in_vain += end < wanted;
      flips = cache->flips;
    }
    if (end == offset) return -EAGAIN;
    const auto n = posix_file_system::pread(file, to, static_cast<std::size_t>(end - offset), offset);
    if (flips && n > 0) static_cast<std::byte*>(to)[n / 2] ^= std::byte{1};
    return n;
  }
  [[nodiscard]] int lease(int file) const {
    const std::lock_guard lock(cache->mutex);
    if (!cache->leases) return -EACCES;
    ++cache->leased;
    return posix_file_system::lease(file);
  }
  [[nodiscard]] const std::byte* map(int file, std::uint64_t offset, std::size_t bytes) const {
    const std::lock_guard lock(cache->mutex);
    if (cache->unmappable) return nullptr;
    ++cache->mapped;
    return posix_file_system::map(file, offset, bytes);
  }
  void unmap(const std::byte* at, std::size_t bytes) const {
    const std::lock_guard lock(cache->mutex);
    ++cache->unmapped;
    posix_file_system::unmap(at, bytes);
  }
  [[nodiscard]] bool populate(const std::byte* at, std::size_t bytes) const {
    const std::lock_guard lock(cache->mutex);
    if (cache->while_copying) std::exchange(cache->while_copying, {})();
    return !cache->depopulates && posix_file_system::populate(at, bytes);
  }
};

static_assert(cairn::MappingFileSystem<cached_file_system>);
/// Reads in its own way: no read may go past it.
struct derived_file_system : cairn::posix_file_system {
  [[nodiscard]] std::int64_t pread(int, void*, std::size_t, std::uint64_t) const { return -EIO; }
};
static_assert(cairn::FileSystem<derived_file_system> && !cairn::CachingFileSystem<derived_file_system>);

}  // namespace cairn_test
