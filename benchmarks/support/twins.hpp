// SPDX-License-Identifier: Apache-2.0
#pragma once
// What somebody would write by hand for one job, without a library: the yardsticks of the benchmarks.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace cairn_bench {

inline constexpr std::uint64_t mebibyte = std::uint64_t{1} << 20;

/// Anonymous memory, every page touched.
class warm_memory {
 public:
  explicit warm_memory(std::uint64_t bytes) : bytes_(bytes) {
    void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::runtime_error("no memory for a benchmark");
    data_ = static_cast<std::byte*>(p);
    ::madvise(data_, bytes, MADV_HUGEPAGE);
    for (std::uint64_t i = 0; i < bytes; i += 4096) data_[i] = static_cast<std::byte>(i >> 12);
  }
  warm_memory(const warm_memory&) = delete;
  warm_memory& operator=(const warm_memory&) = delete;
  ~warm_memory() { ::munmap(data_, bytes_); }
  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::uint64_t size() const noexcept { return bytes_; }
  /// Bytes that look like trained weights to nobody in particular: not compressible, made quickly.
  void fill(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    for (std::uint64_t i = 0; i + 8 <= bytes_; i += 8) {
      const std::uint64_t x = random();
      std::memcpy(data_ + i, &x, 8);
    }
  }

 private:
  std::uint64_t bytes_;
  std::byte* data_;
};

/// Sizes of `count` tensors of fp32 that add up to `total`, from small to large, in a fixed random order.
inline std::vector<std::int64_t> tensor_sizes(std::uint64_t total, int count, std::uint64_t seed = 7) {
  std::mt19937_64 random(seed);
  std::vector<double> weights;
  double sum = 0;
  for (int i = 0; i < count; ++i) {
    weights.push_back(0.05 + static_cast<double>(random() % 1000) / 1000.0);
    sum += weights.back();
  }
  std::vector<std::int64_t> elements;
  auto left = static_cast<std::int64_t>(total / 4);
  for (int i = 0; i < count; ++i) {
    const auto n = i + 1 == count
                       ? left
                       : std::min(left, static_cast<std::int64_t>(weights[static_cast<std::size_t>(i)] / sum *
                                                                  static_cast<double>(total / 4)));
    elements.push_back(n);
    left -= n;
  }
  return elements;
}

/// Runs body(begin, end) on `threads` threads over [0, size) in pieces taken in turn.
inline void in_parallel(int threads, std::uint64_t size, std::uint64_t piece,
                        const std::function<void(std::uint64_t, std::uint64_t)>& body) {
  std::atomic<std::uint64_t> next{0};
  std::vector<std::thread> team;
  for (int t = 0; t < threads; ++t)
    team.emplace_back([&] {
      for (;;) {
        const auto begin = next.fetch_add(piece);
        if (begin >= size) return;
        body(begin, std::min(size, begin + piece));
      }
    });
  for (auto& t : team) t.join();
}

inline void check_io(bool good, const char* what) {
  if (!good) throw std::runtime_error(std::string(what) + ": " + std::strerror(errno));
}

/// O_DIRECT, `in_flight` requests at once, one fdatasync. `data` is aligned to 4096, `size` a multiple of it.
inline void write_direct(const std::string& path, const std::byte* data, std::uint64_t size,
                         int in_flight = 4, std::uint64_t request = 8 * mebibyte) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0644);
  check_io(fd >= 0, "open with O_DIRECT");
  if (::fallocate(fd, 0, 0, static_cast<off_t>(size)) != 0) check_io(errno == EOPNOTSUPP, "fallocate");
  in_parallel(in_flight, size, request, [&](std::uint64_t begin, std::uint64_t end) {
    while (begin < end) {
      const auto n = ::pwrite(fd, data + begin, end - begin, static_cast<off_t>(begin));
      check_io(n > 0, "pwrite");
      begin += static_cast<std::uint64_t>(n);
    }
  });
  check_io(::fdatasync(fd) == 0, "fdatasync");
  check_io(::close(fd) == 0, "close");
}

/// write() of everything and one fdatasync: what most programs do.
inline void write_plainly(const std::string& path, const std::byte* data, std::uint64_t size) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  check_io(fd >= 0, "open");
  for (std::uint64_t at = 0; at < size;) {
    const auto n = ::write(fd, data + at, std::min<std::uint64_t>(size - at, 32 * mebibyte));
    check_io(n > 0, "write");
    at += static_cast<std::uint64_t>(n);
  }
  check_io(::fdatasync(fd) == 0, "fdatasync");
  check_io(::close(fd) == 0, "close");
}

/// Drops a file from the page cache, so that the next read comes from the device.
inline void make_cold(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  check_io(fd >= 0, "open");
  check_io(::fdatasync(fd) == 0 || errno == EINVAL || errno == EROFS, "fdatasync");
  check_io(::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0, "posix_fadvise");
  ::close(fd);
}

/// A piece of a file and where it goes.
struct read_piece {
  std::uint64_t offset;
  std::uint64_t bytes;
  std::byte* to;
};

/// Parallel pread into the destinations, through the page cache.
inline void read_buffered(const std::string& path, std::span<const read_piece> pieces, int threads = 4) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  check_io(fd >= 0, "open");
  std::vector<read_piece> cut;
  for (auto p : pieces)
    for (std::uint64_t at = 0; at < p.bytes; at += 4 * mebibyte)
      cut.push_back({p.offset + at, std::min(p.bytes - at, 4 * mebibyte), p.to + at});
  in_parallel(threads, cut.size(), 1, [&](std::uint64_t i, std::uint64_t) {
    auto [offset, bytes, to] = cut[i];
    while (bytes > 0) {
      const auto n = ::pread(fd, to, bytes, static_cast<off_t>(offset));
      check_io(n > 0, "pread");
      offset += static_cast<std::uint64_t>(n), bytes -= static_cast<std::uint64_t>(n), to += n;
    }
  });
  ::close(fd);
}

/// Parallel O_DIRECT reads of the whole file in aligned requests, each through a bounce buffer to where its
/// bytes go. `pieces` are sorted by offset.
inline void read_direct(const std::string& path, std::span<const read_piece> pieces, int threads = 4,
                        std::uint64_t request = 8 * mebibyte) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
  check_io(fd >= 0, "open with O_DIRECT");
  const auto size = static_cast<std::uint64_t>(::lseek(fd, 0, SEEK_END));
  static std::vector<std::unique_ptr<warm_memory>> bounces;
  while (bounces.size() < static_cast<std::size_t>(threads))
    bounces.push_back(std::make_unique<warm_memory>(request));
  std::atomic<std::size_t> worker{0};
  std::atomic<std::uint64_t> next{0};
  std::vector<std::thread> team;
  for (int t = 0; t < threads; ++t)
    team.emplace_back([&] {
      std::byte* bounce = bounces[worker.fetch_add(1)]->data();
      for (;;) {
        const auto begin = next.fetch_add(request);
        if (begin >= size) return;
        const auto end = std::min(size, begin + request);
        for (std::uint64_t at = begin; at < end;) {
          const auto n = ::pread(fd, bounce + (at - begin), request - (at - begin), static_cast<off_t>(at));
          check_io(n > 0, "pread");
          at += static_cast<std::uint64_t>(n);
        }
        auto piece =
            std::upper_bound(pieces.begin(), pieces.end(), begin,
                             [](std::uint64_t at, const read_piece& p) { return at < p.offset + p.bytes; });
        for (; piece != pieces.end() && piece->offset < end; ++piece) {
          const auto from = std::max(begin, piece->offset);
          const auto to = std::min(end, piece->offset + piece->bytes);
          std::memcpy(piece->to + (from - piece->offset), bounce + (from - begin), to - from);
        }
      }
    });
  for (auto& t : team) t.join();
  ::close(fd);
}

/// Parallel copy of several pieces, with XXH3 of each block of 1 MiB if wanted, into `digests`.
inline void copy_pieces(std::span<const std::span<const std::byte>> from, std::byte* to, int threads,
                        std::vector<std::uint64_t>* digests) {
  struct block {
    const std::byte* from;
    std::byte* to;
    std::size_t bytes;
  };
  std::vector<block> blocks;
  for (const auto& f : from)
    for (std::size_t at = 0; at < f.size(); at += mebibyte) {
      const auto n = std::min<std::size_t>(f.size() - at, mebibyte);
      blocks.push_back({f.data() + at, to, n});
      to += n;
    }
  if (digests != nullptr) digests->resize(blocks.size());
  in_parallel(threads, blocks.size(), 1, [&](std::uint64_t i, std::uint64_t) {
    const auto& b = blocks[i];
    std::memcpy(b.to, b.from, b.bytes);
    if (digests != nullptr) (*digests)[i] = XXH3_64bits(b.to, b.bytes);
  });
}

}  // namespace cairn_bench
