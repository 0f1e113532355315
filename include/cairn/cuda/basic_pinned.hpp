// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/memory.hpp>
#include <cairn/cuda/device_runtime.hpp>

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace cuda {

/// What to do if the device refuses to pin a buffer.
enum class unpinned : std::uint8_t {
  refuse,  ///< an error that names the limit
  accept,  ///< use it as it is, and say so once on stderr: copies are slower and are no longer asynchronous
};

/// Options of basic_pinned.
struct pinned_options {
  /// What happens where the device does not pin a buffer.
  unpinned when_refused = unpinned::refuse;
};

namespace detail {

/// Sets whether children of fork() get these pages (MADV_DONTFORK, see madvise(2)). If a child shares
/// private pages, the parent's next write replaces them by copies, before Linux 5.12 even pinned ones,
/// while the device still uses the old pages.
inline void inherit_pages(std::span<std::byte> bytes, bool yes) noexcept {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<std::uintptr_t>(bytes.data()) + page - 1) / page * page;
  const auto end = reinterpret_cast<std::uintptr_t>(bytes.data() + bytes.size()) / page * page;
  if (begin < end)
    (void)::madvise(reinterpret_cast<void*>(begin), end - begin, yes ? MADV_DOFORK : MADV_DONTFORK);
}

}  // namespace detail

/// A Memory that pins the blocks of another Memory for all devices when it allocates them, and unpins
/// them before they are freed. Whichever thread allocates, it does so on the device that was current when
/// this was constructed, or, if the program has no context there, on a device where it has one: no
/// context is made on a device that the program does not use. A child of fork() does not have private
/// pages while they are pinned.
template <Memory M, DeviceRuntime R>
class basic_pinned {
 public:
  /// Movable.
  class block_type {
   public:
    block_type(block_type&& other) noexcept
        : inner_(std::move(other.inner_)), pinned_on_(std::exchange(other.pinned_on_, -1)) {}
    block_type& operator=(block_type&& other) noexcept {
      std::swap(inner_, other.inner_);
      std::swap(pinned_on_, other.pinned_on_);
      return *this;
    }
    ~block_type() {
      if (pinned_on_ < 0) return;
      const relaxed_capture_mode<R> guard;
      const device_in_use<R> use(pinned_on_, std::nothrow);
      (void)R::unpin(inner_.bytes().data());
      if constexpr (!M::shareable) detail::inherit_pages(inner_.bytes(), true);
    }
    [[nodiscard]] std::span<std::byte> bytes() const noexcept { return inner_.bytes(); }
    /// False where the device refused and unpinned::accept was chosen.
    [[nodiscard]] bool is_pinned() const noexcept { return pinned_on_ >= 0; }
    /// See Memory; where the other memory is shareable.
    [[nodiscard]] auto shared(std::uint64_t digests_offset) const
      requires M::shareable
    {
      return inner_.shared(digests_offset);
    }

   private:
    friend class basic_pinned;
    explicit block_type(typename M::block_type inner) : inner_(std::move(inner)) {}
    typename M::block_type inner_;
    int pinned_on_ = -1;  ///< the device that was in use
  };
  static constexpr memory_space space = memory_space::pinned;
  static constexpr bool shareable = M::shareable;

  basic_pinned() : basic_pinned(pinned_options{}) {}
  /// @throws storage_error (storage_device) where there is no device.
  explicit basic_pinned(pinned_options options, M memory = M())
      : memory_(std::move(memory)), options_(options) {
    check_call<R>(R::current_device(device_), "cudaGetDevice (asking for the current device)", -1);
  }

  /// See Memory. Pinning costs about as much as touching the pages. @throws storage_error: also
  /// storage_limit, where the device refuses.
  [[nodiscard]] block_type allocate(std::uint64_t bytes) {
    const int device = device_with_context<R>(device_);
    block_type block(memory_for(device, bytes));
    const relaxed_capture_mode<R> guard;
    const device_in_use<R> use(device);
    const auto whole = block.bytes();
    const int status = R::pin(whole.data(), whole.size());
    if (status == R::success)
      block.pinned_on_ = device;
    else
      refused(status, whole.size());
    if constexpr (!M::shareable)
      if (block.is_pinned()) detail::inherit_pages(whole, false);
    return block;
  }
  [[nodiscard]] std::shared_ptr<image_control> make_control(block_type& block) {
    return memory_.make_control(block.inner_);
  }

 private:
  /// Copies run at the full rate of the bus if the pages are on the NUMA node of the device.
  [[nodiscard]] typename M::block_type memory_for(int device, std::uint64_t bytes) {
    if constexpr (NodeMemory<M>) {
      int node = -1;
      if (R::host_node(device, node) != R::success) node = -1;
      return memory_.allocate(bytes, node);
    } else {
      return memory_.allocate(bytes);
    }
  }
  void refused(int status, std::uint64_t bytes) {
    const std::string sentence = "a buffer of " + std::to_string(bytes) + " bytes could not be pinned (" +
                                 R::name_of(status) + ": " + R::text_of(status) + ")";
    if (options_.when_refused == unpinned::refuse)
      fail(error_id::storage_limit,
           sentence +
               "; free memory of this machine, raise the memory limit of the container, or choose "
               "cuda::unpinned::accept",
           {.expected = std::to_string(bytes) + " pinned bytes", .got = R::name_of(status)});
    if (!std::exchange(warned_, true))
      std::fprintf(stderr, "cairn: %s; it is used unpinned, which is slower\n", sentence.c_str());
  }

  M memory_;
  pinned_options options_;
  int device_ = 0;
  bool warned_ = false;
};

}  // namespace cuda
}  // namespace v1
}  // namespace cairn
