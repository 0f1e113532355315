// SPDX-License-Identifier: Apache-2.0
#pragma once
// What somebody would write by hand for one job: the yardsticks of the benchmarks. Where they digest, they do so by
// cairn's function for XXH3, which is as fast as libxxhash is on the machine: another would make ratios of nothing.
#include <cairn/system/digest.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

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
#include <utility>
#include <vector>

namespace cairn_bench {

inline constexpr std::uint64_t mebibyte = std::uint64_t{1} << 20;

/// Anonymous memory in large pages where the machine has them, every page touched.
class warm_memory {
 public:
  explicit warm_memory(std::uint64_t bytes) : bytes_(bytes), mapped_(bytes + 2 * mebibyte) {
    base_ = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base_ == MAP_FAILED) throw std::runtime_error("no memory for a benchmark");
    const auto past = reinterpret_cast<std::uintptr_t>(base_) % (2 * mebibyte);
    data_ = static_cast<std::byte*>(base_) + (2 * mebibyte - past) % (2 * mebibyte);
    ::madvise(data_, bytes, MADV_HUGEPAGE);
    for (std::uint64_t i = 0; i < bytes; i += 4096) data_[i] = static_cast<std::byte>(i >> 12);
  }
  warm_memory(const warm_memory&) = delete;
  warm_memory& operator=(const warm_memory&) = delete;
  ~warm_memory() { ::munmap(base_, mapped_); }
  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::uint64_t size() const noexcept { return bytes_; }
  /// Gives its pages back: from now on it is new memory, in small pages.
  void forget() const {
    ::madvise(base_, mapped_, MADV_NOHUGEPAGE);
    ::madvise(base_, mapped_, MADV_DONTNEED);
  }
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
  std::uint64_t mapped_;
  void* base_;
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

/// memcpy without reading the destination into the caches first, where the machine can.
inline void copy_streaming(std::byte* to, const std::byte* from, std::size_t bytes) {
#if defined(__SSE2__)
  if (bytes >= 4096) {
    const std::size_t head = (64 - reinterpret_cast<std::uintptr_t>(to) % 64) % 64;
    std::memcpy(to, from, head);
    to += head, from += head, bytes -= head;
    for (; bytes >= 64; to += 64, from += 64, bytes -= 64)
      for (int i = 0; i < 4; ++i)
        _mm_stream_si128(reinterpret_cast<__m128i*>(to) + i,
                         _mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + i));
    _mm_sfence();
  }
#endif
  std::memcpy(to, from, bytes);
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

/// Drops a file from the page cache, so that the next read comes from the device. A file that is gone, such as the lease
/// of a load that ended, has nothing there.
inline void make_cold(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) return;
  check_io(fd >= 0, "open");
  check_io(::fdatasync(fd) == 0 || errno == EINVAL || errno == EROFS, "fdatasync");
  check_io(::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0, "posix_fadvise");
  ::close(fd);
}

/// Has a whole file in the page cache.
inline void make_warm(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  check_io(fd >= 0, "open");
  std::vector<std::byte> buffer(mebibyte);
  ::ssize_t n = 0;
  while ((n = ::read(fd, buffer.data(), buffer.size())) > 0) {
  }
  check_io(n == 0, "read");
  ::close(fd);
}

/// A piece of a file and where it goes.
struct read_piece {
  std::uint64_t offset;
  std::uint64_t bytes;
  std::byte* to;
};
/// What is wanted of one file, by offset.
struct read_file {
  std::string path;
  std::vector<read_piece> pieces;
};

/// A file that is open for reading.
class open_file {
 public:
  open_file(const std::string& path, int flags) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags)) {
    check_io(fd_ >= 0, "open");
    size_ = static_cast<std::uint64_t>(::lseek(fd_, 0, SEEK_END));
  }
  open_file(open_file&& other) noexcept : fd_(std::exchange(other.fd_, -1)), size_(other.size_) {}
  open_file& operator=(open_file&&) = delete;
  ~open_file() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  /// Reads until `most` bytes are there or the file ends.
  void read(std::byte* to, std::uint64_t most, std::uint64_t offset) const {
    const auto wanted = std::min(most, size_ - offset);
    for (std::uint64_t done = 0; done < wanted;) {
      const auto n = ::pread(fd_, to + done, most - done, static_cast<off_t>(offset + done));
      check_io(n > 0, "pread");
      done += static_cast<std::uint64_t>(n);
    }
  }

 private:
  int fd_;
  std::uint64_t size_ = 0;
};

/// Parallel pread into the destinations, through the page cache.
inline void read_buffered(std::span<const read_file> files, int threads = 4) {
  std::vector<open_file> open;
  std::vector<std::pair<std::size_t, read_piece>> cut;
  for (const auto& file : files) {
    open.emplace_back(file.path, 0);
    for (const auto& p : file.pieces)
      for (std::uint64_t at = 0; at < p.bytes; at += 4 * mebibyte)
        cut.push_back({open.size() - 1, {p.offset + at, std::min(p.bytes - at, 4 * mebibyte), p.to + at}});
  }
  in_parallel(threads, cut.size(), 1, [&](std::uint64_t i, std::uint64_t) {
    const auto& [file, piece] = cut[i];
    open[file].read(piece.to, piece.bytes, piece.offset);
  });
}

/// Parallel O_DIRECT reads of the whole files in aligned requests, each through a bounce buffer, which is
/// kept warm between calls, to where its bytes go.
inline void read_direct(std::span<const read_file> files, int threads = 8, std::uint64_t request = mebibyte) {
  static std::vector<std::unique_ptr<warm_memory>> bounces;
  while (bounces.size() < static_cast<std::size_t>(threads))
    bounces.push_back(std::make_unique<warm_memory>(8 * mebibyte));
  std::vector<open_file> open;
  std::vector<std::pair<std::size_t, std::uint64_t>> requests;
  for (const auto& file : files) {
    open.emplace_back(file.path, O_DIRECT);
    for (std::uint64_t at = 0; at < open.back().size(); at += request)
      requests.push_back({open.size() - 1, at});
  }
  std::atomic<std::size_t> next{0};
  std::vector<std::thread> team;
  for (int t = 0; t < threads; ++t)
    team.emplace_back([&, bounce = bounces[static_cast<std::size_t>(t)]->data()] {
      for (std::size_t i = 0; (i = next.fetch_add(1)) < requests.size();) {
        const auto [file, begin] = requests[i];
        const auto end = begin + request;
        open[file].read(bounce, request, begin);
        const auto& pieces = files[file].pieces;
        auto piece =
            std::upper_bound(pieces.begin(), pieces.end(), begin,
                             [](std::uint64_t at, const read_piece& p) { return at < p.offset + p.bytes; });
        for (; piece != pieces.end() && piece->offset < end; ++piece) {
          const auto from = std::max(begin, piece->offset);
          const auto to = std::min(end, piece->offset + piece->bytes);
          copy_streaming(piece->to + (from - piece->offset), bounce + (from - begin), to - from);
        }
      }
    });
  for (auto& t : team) t.join();
}

/// Parallel copy of several pieces, with XXH3 of each block of 1 MiB if wanted, into `digests`. Hashing first
/// brings bytes into the cache that the copy then takes them from.
inline void copy_pieces(std::span<const std::span<const std::byte>> from, std::byte* to, int threads,
                        std::vector<std::uint64_t>* digests) {
  struct block {
    const std::byte* from;
    std::byte* to;
    std::size_t bytes;
  };
  constexpr std::size_t step = 4096;
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
    if (digests == nullptr) return copy_streaming(b.to, b.from, b.bytes);
    cairn::detail::hash_state state;
    for (std::size_t at = 0; at < b.bytes; at += step) {
      const auto n = std::min(step, b.bytes - at);
      state.put(b.from + at, n);
      copy_streaming(b.to + at, b.from + at, n);
    }
    (*digests)[i] = state.value();
  });
}

}  // namespace cairn_bench
