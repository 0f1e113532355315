// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/comm/nccl/nccl_calls.hpp>
#include <cairn/cuda/basic_pinned.hpp>
#include <cairn/cuda/drain.hpp>
#include <cairn/cuda/owned_event.hpp>
#include <cairn/stage/heap_memory.hpp>
#include <cairn/system/background_thread.hpp>
#include <cairn/system/deadline.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace cuda {
namespace detail {

/// What a transfer uses on a device: a communicator of NCCL, a stream, and two buffers on either side of the
/// bus.
template <NcclRuntime R>
struct nccl_parts {
  int device = 0;
  bool has_stream = false;
  bool has_comm = false;
  typename R::stream_type stream{};
  typename R::nccl_type comm{};
  std::array<std::byte*, 2> buffers{};
  std::array<std::optional<typename basic_pinned<heap_memory, R>::block_type>, 2> pages;
  std::array<std::optional<owned_event<R>>, 2> reached;

  nccl_parts() = default;
  nccl_parts(const nccl_parts&) = delete;
  nccl_parts& operator=(const nccl_parts&) = delete;
  /// Gives nothing back: see give_back.
  ~nccl_parts() = default;

  /// Ends what is under way and gives all of it back; false if the device never said that it is done, in
  /// which case memory that it may write is kept for ever.
  [[nodiscard]] bool give_back() noexcept {
    const relaxed_capture_mode<R> guard;
    // A thread of its own: which device it uses matters to nobody else. A device that takes no call any more
    // is left like one that does.
    (void)R::use_device(device);
    if (std::exchange(has_comm, false)) (void)R::abort(comm);
    if (has_stream && !drain<R>(stream, device, deadline::in(drain_limit))) return false;
    for (auto& event : reached) event.reset();
    if (std::exchange(has_stream, false)) (void)R::destroy_stream(stream);
    for (auto*& buffer : buffers)
      if (buffer != nullptr) (void)R::deallocate(std::exchange(buffer, nullptr));
    for (auto& each : pages) each.reset();
    return true;
  }

 private:
  static constexpr auto drain_limit = std::chrono::minutes(1);
};

/// Gives parts back in a thread of its own, since NCCL's abort may wait, and never returns in some versions.
/// Waits for that until the deadline; later the thread goes on alone. False: it did, or memory is kept.
template <NcclRuntime R>
bool give_back_aside(std::unique_ptr<nccl_parts<R>> parts, deadline until) noexcept {
  if (parts == nullptr) return true;
  try {
    const auto good = std::make_shared<std::atomic<bool>>(false);
    cairn::detail::background_thread aside;
    if (aside.start("cairn nccl", [good, all = parts.get()] {
          if (!all->give_back()) return;
          delete all;
          good->store(true);
        })) {
      (void)parts.release();
      return aside.join(until) && good->load();
    }
    (void)parts.release();
    return false;
  } catch (...) {
    (void)parts.release();
    return false;
  }
}

/// The transfers of a rank by NCCL, one at a time, in pieces: while the device sends one, the host fills the
/// next. No call of it waits, but for abort(). What fails throws, names the call, and leaves the pipeline to be
/// aborted.
template <NcclRuntime R>
class nccl_pipeline {
 public:
  /// Begins to open the communicator. @throws peer_error (peer_failed)
  nccl_pipeline(int device, std::uint64_t buffer_bytes, int size, const typename R::nccl_id& id, int rank,
                std::chrono::nanoseconds abort_timeout)
      : parts_(std::make_unique<nccl_parts<R>>()),
        buffer_bytes_(buffer_bytes),
        abort_timeout_(abort_timeout),
        rank_(rank) {
    try {
      auto& p = *parts_;
      p.device = device;
      const relaxed_capture_mode<R> guard;
      const device_in_use<R> use(device);
      check(R::make_stream(p.stream), "cudaStreamCreateWithPriority (making a stream)");
      p.has_stream = true;
      for (std::size_t i = 0; i < p.buffers.size(); ++i) {
        p.pages[i].emplace(basic_pinned<heap_memory, R>().allocate(buffer_bytes));
        // Not ncclMemAlloc, which rounds up to as much as 512 MiB each: pieces from one rank to another gain
        // nothing.
        check(R::allocate(p.buffers[i], buffer_bytes), "cudaMalloc");
        p.reached[i].emplace(device);
      }
      const int status = R::open(p.comm, size, id, rank);
      p.has_comm = status == R::success || status == R::in_progress;
      if (!p.has_comm) check(status, "ncclCommInitRankConfig");
    } catch (...) {
      abort(deadline::in(abort_timeout_));
      throw;
    }
  }
  nccl_pipeline(const nccl_pipeline&) = delete;
  nccl_pipeline& operator=(const nccl_pipeline&) = delete;
  ~nccl_pipeline() { abort(deadline::in(abort_timeout_)); }

  /// Whether the communicator is open. @throws peer_error (peer_failed)
  [[nodiscard]] bool opened() {
    const relaxed_capture_mode<R> guard;
    const device_in_use<R> use(parts_->device);
    if (is_in_progress("ncclCommInitRankConfig")) return false;
    for (auto* buffer : parts_->buffers) {
      void* handle = nullptr;  // what is registered ends with the communicator
      (void)R::register_buffer(parts_->comm, buffer, buffer_bytes_, handle);
    }
    return true;
  }

  /// Begins a transfer; the bytes are there until it is over or aborted. @pre no other one is under way.
  void begin_send(int peer, std::span<const std::byte> bytes) noexcept {
    begin(peer, bytes.size());
    from_ = bytes.data(), to_ = nullptr;
  }
  void begin_receive(int peer, std::span<std::byte> bytes) noexcept {
    begin(peer, bytes.size());
    to_ = bytes.data(), from_ = nullptr;
  }
  [[nodiscard]] bool over() const noexcept { return finished_ == pieces_; }
  /// Goes on with the transfer as far as it can without waiting; whether anything happened.
  /// @throws peer_error (peer_failed)
  bool advance() {
    const relaxed_capture_mode<R> guard;
    const device_in_use<R> use(parts_->device);
    if (launching_) {
      if (is_in_progress(call())) return false;
      launched();
      return true;
    }
    if (issued_ > finished_) {
      const auto half = finished_ % 2;
      const int status = R::query(parts_->reached[half]->get());
      if (status == R::success) {
        // An operation that NCCL gave up is over, too.
        (void)is_in_progress(call());
        if (to_ != nullptr)
          std::memcpy(to_ + finished_ * buffer_bytes_, parts_->pages[half]->bytes().data(),
                      piece_size(finished_));
        ++finished_;
        return true;
      }
      if (status != R::not_ready) check(status, "cudaEventQuery (a copy of a message)");
      (void)is_in_progress(call());
    }
    if (issued_ == pieces_ || issued_ - finished_ == 2) return false;
    issue();
    return true;
  }
  [[nodiscard]] const char* call() const noexcept { return to_ != nullptr ? "ncclRecv" : "ncclSend"; }
  [[nodiscard]] int peer() const noexcept { return peer_; }

  /// Ends everything. False: the device did not answer by the deadline, or NCCL did not; what they may still
  /// use is kept. Afterwards only the destructor is called.
  bool abort(deadline until) noexcept { return give_back_aside<R>(std::move(parts_), until); }

 private:
  void begin(int peer, std::uint64_t bytes) noexcept {
    peer_ = peer, bytes_ = bytes;
    pieces_ = (bytes + buffer_bytes_ - 1) / buffer_bytes_;
    issued_ = finished_ = 0;
    launching_ = false;
  }
  [[nodiscard]] std::size_t piece_size(std::uint64_t index) const noexcept {
    return static_cast<std::size_t>(std::min(buffer_bytes_, bytes_ - index * buffer_bytes_));
  }
  void issue() {
    auto& p = *parts_;
    const auto half = issued_ % 2;
    const auto bytes = piece_size(issued_);
    int status = R::success;
    if (from_ != nullptr) {
      std::memcpy(p.pages[half]->bytes().data(), from_ + issued_ * buffer_bytes_, bytes);
      check(R::copy_to_device(p.buffers[half], p.pages[half]->bytes().data(), bytes, p.stream),
            "cudaMemcpyAsync (copying a message)");
      status = R::send(p.comm, p.buffers[half], bytes, peer_, p.stream);
    } else {
      status = R::receive(p.comm, p.buffers[half], bytes, peer_, p.stream);
    }
    if (status != R::in_progress) check(status, call());
    launching_ = true;
    if (!is_in_progress(call())) launched();
  }
  /// The operation is in the stream: what comes after it may be put there.
  void launched() {
    auto& p = *parts_;
    const auto half = issued_ % 2;
    launching_ = false;
    if (to_ != nullptr)
      check(R::copy_to_host(p.pages[half]->bytes().data(), p.buffers[half], piece_size(issued_), p.stream),
            "cudaMemcpyAsync (copying a message)");
    check(R::record(p.reached[half]->get(), p.stream), "cudaEventRecord (recording an event)");
    ++issued_;
  }
  /// Whether NCCL has not yet done what it was told; throws what it met.
  [[nodiscard]] bool is_in_progress(const char* what) {
    int now = R::success;
    check(R::state(parts_->comm, now), "ncclCommGetAsyncError");
    if (now == R::in_progress) return true;
    check(now, what);
    return false;
  }
  void check(int status, const char* what) const {
    if (status == R::success) return;
    std::string words(what);
    words.append(" failed on rank ").append(std::to_string(rank_));
    if (peer_ >= 0) words.append(" with rank ").append(std::to_string(peer_));
    words.append(": ").append(R::text_of(status));
    const std::string more = parts_ != nullptr && parts_->has_comm ? R::last_error(parts_->comm) : "";
    if (!more.empty()) words.append(" (").append(more).append(")");
    fail(error_id::peer_failed, words,
         {.rank = peer_ >= 0 ? peer_ : rank_,
          .got = std::string(R::name_of(status)) + " (" + std::to_string(status) + ")"});
  }

  std::unique_ptr<nccl_parts<R>> parts_;
  std::uint64_t buffer_bytes_;
  std::chrono::nanoseconds abort_timeout_;
  int rank_;
  int peer_ = -1;
  const std::byte* from_ = nullptr;
  std::byte* to_ = nullptr;
  std::uint64_t bytes_ = 0;
  std::uint64_t pieces_ = 0;
  std::uint64_t issued_ = 0;
  std::uint64_t finished_ = 0;
  bool launching_ = false;
};

}  // namespace detail
}  // namespace cuda
}  // namespace v1
}  // namespace cairn
