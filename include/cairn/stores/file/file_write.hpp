// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/stores/file/part_file.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/vector.hpp>

#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What an object writer of basic_file_store does: an unfinished file, written with large direct requests in parallel.
///
/// The file is open twice: once for direct requests, which cover whole aligned blocks, and once buffered for
/// what is left at the edges of parts. A block is written through one of the two only, unless a direct
/// request is refused.
template <FileSystem F>
class file_write {
 public:
  file_write(std::shared_ptr<file_tree<F>> tree, std::string_view key, std::uint64_t size_hint)
      : tree_(std::move(tree)), part_(tree_, key) {
    if (size_hint == 0) return;
    const file_size_signal_blocked guard;
    const int r = uninterrupted([&] { return tree_->fs.allocate(part_.file(), size_hint); });
    if (r == 0)
      allocated_ = size_hint;
    else if (r != -EOPNOTSUPP && r != -ENOSYS && r != -EINVAL)
      tree_->fail_at(-r, "reserving the space (fallocate)", part_.path(), part_.directory(), -1, size_hint);
  }
  file_write(file_write&&) noexcept = default;
  file_write& operator=(file_write&& other) noexcept {
    if (this != &other) {
      direct_ = std::move(other.direct_);
      part_ = std::move(other.part_);
      memory_alignment_ = other.memory_alignment_;
      allocated_ = other.allocated_;
      written_ = other.written_;
      end_ = other.end_;
      helper_cpu_ = other.helper_cpu_;
      refused_ = std::move(other.refused_);
      tried_direct_ = other.tried_direct_;
      state_ = other.state_;
      tree_ = std::move(other.tree_);  // last: the handles live from it
    }
    return *this;
  }
  ~file_write() = default;

  void write(std::span<const write_range> parts) {
    must_be_open("write");
    state_ = state::broken;  // until all of it has worked
    std::uint64_t end = end_;
    std::uint64_t sum = written_;
    vector<request> requests;
    for (const auto& part : parts) {
      std::uint64_t part_end = 0;
      if (__builtin_add_overflow(part.offset, std::uint64_t{part.bytes.size()}, &part_end) ||
          part_end > static_cast<std::uint64_t>(INT64_MAX))
        fail(error_id::usage_overflow, "a range ends beyond the largest possible file",
             {.file = part_.key()});
      end = std::max(end, part_end);
      sum += part.bytes.size();
      cut(part, requests);
    }
    const bool direct = detail::any_of(requests, [](const request& r) { return r.direct; });
    if (direct) open_direct();
    helper_cpu_ += tree_->pool.run(requests.size(), tree_->options.writes_in_flight, [&](std::size_t i) {
      const file_size_signal_blocked guard;
      perform(requests[i]);
    });
    end_ = end;
    written_ = sum;
    state_ = state::open;
  }

  /// CPU time of threads that helped to write, in nanoseconds; for reports, not part of the concept.
  [[nodiscard]] std::int64_t helper_cpu() const noexcept { return helper_cpu_; }
  /// The open file whose lock tells others that the writer of the unfinished object lives: it does as long as
  /// any process has this descriptor or a copy of it. Not part of the concept either.
  [[nodiscard]] int lock_descriptor() const noexcept { return part_.file(); }

  void finish() {
    must_be_open("finish");
    state_ = state::broken;
    if (written_ != end_)
      fail(error_id::usage_incomplete_object,
           "each byte of an object must be written once before it is finished",
           {.file = part_.key(),
            .expected = std::to_string(end_) + " bytes",
            .got = std::to_string(written_) + " bytes"});
    const file_size_signal_blocked guard;
    if (allocated_ > end_) {
      const int r = uninterrupted([&] { return tree_->fs.truncate(part_.file(), end_); });
      if (r != 0) tree_->fail_at(-r, "ftruncate", part_.path(), part_.directory());
    }
    if (!part_.publish([&] { return direct_.close(); }))
      fail(error_id::storage_exists, "an object of this key exists already; it was not touched",
           {.file = tree_->path_of(part_.key())});
    state_ = state::finished;
  }

 protected:
  file_write(std::shared_ptr<file_tree<F>> tree, part_file<F> part)
      : tree_(std::move(tree)), part_(std::move(part)) {}

  enum class state : std::uint8_t { open, broken, finished };
  struct request {
    const std::byte* from;
    std::uint64_t offset;
    std::size_t bytes;
    bool direct;
  };
  static constexpr std::size_t least_direct = 64u << 10;  // below, the page cache is quicker than the device

  void must_be_open(const char* call) const {
    if (state_ == state::open && tree_) return;
    fail(error_id::usage_closed,
         std::string(call) + "() after finish() or after an error: begin a new object",
         {.file = part_.key()});
  }

  /// Whole blocks become direct requests, what is left at the edges buffered ones.
  void cut(const write_range& part, vector<request>& out) const {
    const auto block = tree_->io_alignment;
    const auto add = [&](std::uint64_t from, std::uint64_t to, bool direct) {
      const auto step = tree_->options.write_bytes;
      while (from < to) {
        // Ends at multiples of the step, so that requests stay aligned whatever the part begins with.
        const auto end = std::min(to, (from / step + 1) * step);
        out.push_back(
            {part.bytes.data() + (from - part.offset), from, static_cast<std::size_t>(end - from), direct});
        from = end;
      }
    };
    const auto begin = part.offset;
    const auto end = begin + part.bytes.size();
    const auto first = (begin + block - 1) / block * block;
    const auto last = end / block * block;
    if (!tree_->options.direct_io || tree_->options.keep_cached || first >= last ||
        last - first < least_direct)
      return add(begin, end, false);
    add(begin, first, false);
    add(first, last, true);
    add(last, end, false);
  }

  void open_direct() {
    if (std::exchange(tried_direct_, true)) return;
    auto& fs = tree_->fs;
    const int r = uninterrupted(
        [&] { return fs.open_at(part_.directory().get(), part_.name().c_str(), O_WRONLY | O_DIRECT, 0); });
    if (r == -EINVAL || r == -EOPNOTSUPP) return;
    if (r < 0) tree_->fail_at(-r, "open for direct I/O", part_.path(), part_.directory());
    direct_ = file_handle<F>(fs, r);
    direct_alignment needs;
    const auto block = tree_->io_alignment;
    if (fs.direct(r, needs) != 0 || needs.offset == 0 || block % needs.offset != 0 || needs.memory == 0 ||
        block % needs.memory != 0)
      static_cast<void>(direct_.close());
    memory_alignment_ = needs.memory;
  }

  void perform(const request& r) {
    if (r.direct && direct_ && !refused_->load(std::memory_order_relaxed)) {
      if (reinterpret_cast<std::uintptr_t>(r.from) % memory_alignment_ == 0) {
        send(r.from, r.offset, r.bytes);
        return;
      }
      const auto bounce = tree_->bounces.take();
      for (std::size_t done = 0; done < r.bytes;) {
        const auto n = std::min(tree_->bounces.size(), r.bytes - done);
        std::memcpy(bounce.data(), r.from + done, n);
        send(bounce.data(), r.offset + done, n);
        done += n;
      }
      return;
    }
    check(write_fully(tree_->fs, part_.file(), r.from, r.bytes, r.offset), r.offset, r.bytes);
    if constexpr (CachingFileSystem<F>)
      if (tree_->options.keep_cached) write_back(r);
  }
  void write_back(const request& r) {
    const int error =
        -uninterrupted([&] { return tree_->fs.start_writing_back(part_.file(), r.offset, r.bytes); });
    // Where it cannot be done the fsync at the end does all of it; and that tells of a full disk.
    if (error <= 0 || error == ENOSYS || error == EINVAL || error == ESPIPE || error == EOPNOTSUPP ||
        error == ENOSPC)
      return;
    tree_->fail_at(error, "sync_file_range", part_.path(), part_.directory(),
                   static_cast<std::int64_t>(r.offset), r.bytes);
  }

  /// A direct write; the buffered way goes on where the file system refuses, or stops between two blocks.
  void send(const std::byte* from, std::uint64_t offset, std::size_t bytes) {
    std::size_t done = 0;
    if (!refused_->load(std::memory_order_relaxed)) {
      for (int idle = 0; done < bytes && idle < max_interruptions;) {
        const auto n = tree_->fs.pwrite(direct_.get(), from + done, bytes - done, offset + done);
        if (n > 0 && static_cast<std::uint64_t>(n) <= bytes - done) {
          done += static_cast<std::size_t>(n);
          if (done % tree_->io_alignment != 0) break;
          idle = 0;
        } else if (n == -EINVAL) {
          refused_->store(true, std::memory_order_relaxed);
          break;
        } else if (n == 0 || n == -EINTR) {
          ++idle;
        } else {
          check({done, n < 0 ? static_cast<int>(-n) : EIO}, offset, bytes);
        }
      }
    }
    if (done == bytes) return;
    auto rest = write_fully(tree_->fs, part_.file(), from + done, bytes - done, offset + done);
    rest.done += done;
    check(rest, offset, bytes);
  }

  void check(const transfer& t, std::uint64_t offset, std::size_t bytes) {
    if (t.error != 0)
      tree_->fail_at(t.error, "pwrite", part_.path(), part_.directory(),
                     static_cast<std::int64_t>(offset + t.done), bytes - t.done);
  }

  std::shared_ptr<file_tree<F>> tree_;
  part_file<F> part_;
  file_handle<F> direct_;
  std::uint64_t memory_alignment_ = 1;
  std::uint64_t allocated_ = 0;
  std::uint64_t written_ = 0;
  std::uint64_t end_ = 0;
  std::int64_t helper_cpu_ = 0;
  std::unique_ptr<std::atomic<bool>> refused_ = std::make_unique<std::atomic<bool>>(false);
  bool tried_direct_ = false;
  state state_ = state::open;
};

/// What a shared writer of basic_file_store does; see SharedObjectWriter. What is put goes through the page
/// cache, where all processes of the host see it.
template <FileSystem F>
class shared_file_write : private file_write<F> {
  using base = file_write<F>;
  using state = typename base::state;

 public:
  shared_file_write(std::shared_ptr<file_tree<F>> tree, part_file<F> part, bool began)
      : base(std::move(tree), std::move(part)), began_(began) {}

  using base::helper_cpu;
  using base::write;
  void put(std::uint64_t offset, std::span<const std::byte> bytes) {
    base::must_be_open("put");
    if (offset > static_cast<std::uint64_t>(INT64_MAX) - bytes.size())
      fail(error_id::usage_overflow, "a range ends beyond the largest possible file",
           {.file = this->part_.key()});
    this->state_ = state::broken;
    const file_size_signal_blocked guard;
    base::check(write_fully(this->tree_->fs, this->part_.file(), bytes.data(), bytes.size(), offset), offset,
                bytes.size());
    this->state_ = state::open;
  }
  [[nodiscard]] bool read(std::uint64_t offset, std::span<std::byte> destination) {
    base::must_be_open("read");
    const auto t =
        read_fully(this->tree_->fs, this->part_.file(), destination.data(), destination.size(), offset);
    if (t.error != 0)
      fail_io(t.error, "pread", this->part_.path(), static_cast<std::int64_t>(offset + t.done));
    return t.done == destination.size();
  }
  void sync() {
    base::must_be_open("sync");
    this->state_ = state::broken;
    if (const int r = this->tree_->fs.sync(this->part_.file()); r != 0)
      this->tree_->fail_at(-r, "fsync", this->part_.path(), this->part_.directory());
    this->state_ = state::open;
  }
  void finish(std::uint64_t bytes) {
    base::must_be_open("finish");
    this->state_ = state::broken;
    if (!began_)
      fail(error_id::usage_closed, "an object is finished by the writer that began it",
           {.file = this->part_.key()});
    const file_size_signal_blocked guard;
    auto& fs = this->tree_->fs;
    if (const int r = uninterrupted([&] { return fs.truncate(this->part_.file(), bytes); }); r != 0)
      this->tree_->fail_at(-r, "ftruncate", this->part_.path(), this->part_.directory());
    if (!this->part_.publish([&] { return this->direct_.close(); }))
      fail(error_id::storage_exists, "an object of this key exists already; it was not touched",
           {.file = this->tree_->path_of(this->part_.key())});
    this->state_ = state::finished;
  }

 private:
  bool began_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
