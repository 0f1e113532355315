// SPDX-License-Identifier: Apache-2.0
#pragma once
// Kernels: ordinary functions that a stream's thread calls once for each thread of each block. launches.py
// makes an emulated_cuda::launch of each `kernel<<<grid, block, shared, stream>>>(arguments)`.
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "device.hpp"

#ifdef EMULATED_CUDA_POISONS
#include <sanitizer/common_interface_defs.h>
#endif

#define __global__
#define __device__
#define __host__
#define __shared__ static thread_local
#define __grid_constant__
#define __launch_bounds__(...)

// A GPU loads and stores them as one, and traps where they are not aligned. Copies that are not trivial are
// what compilers check for it under -fsanitize=alignment.
struct uint2 {
  uint2() = default;
  uint2(const uint2& other) { *this = other; }
  uint2& operator=(const uint2& other) {
    x = other.x, y = other.y;
    return *this;
  }
  alignas(8) unsigned x = 0;
  unsigned y = 0;
};
struct uint4 {
  uint4() = default;
  uint4(const uint4& other) { *this = other; }
  uint4& operator=(const uint4& other) {
    x = other.x, y = other.y, z = other.z, w = other.w;
    return *this;
  }
  alignas(16) unsigned x = 0;
  unsigned y = 0, z = 0, w = 0;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned a, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
inline constinit thread_local dim3 threadIdx{0, 0, 0}, blockIdx{0, 0, 0}, blockDim{1}, gridDim{1};

inline unsigned long long atomicAdd(unsigned long long* to, unsigned long long value) {
  return __atomic_fetch_add(to, value, __ATOMIC_RELAXED);
}

namespace emulated_cuda {

/// Saves the registers on this stack and switches to another one.
#if defined(__x86_64__)
[[gnu::naked, gnu::noinline]] inline void switch_stacks(void**, void*) {
  asm volatile(
      "pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
      "movq %rsp, (%rdi)\n movq %rsi, %rsp\n"
      "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n retq\n");
}
#else
#error "the emulation of CUDA knows how to switch stacks on x86-64 alone"
#endif

/// The threads of one block after the other on one thread of the CPU. A kernel without __syncthreads() is a
/// loop; with it, each thread has a stack of its own from there on. Who goes on first after a barrier changes
/// from one to the next, so that results which depend on that differ.
class block {
 public:
  static block& here() {
    static thread_local block one;
    return one;
  }
  void run(unsigned threads, const std::function<void()>& thread) {
    count_ = threads, begun_ = ended_ = 0, thread_ = &thread;
    begin_threads();
    while (ended_ < count_) go_on();
  }
  /// __syncthreads().
  void barrier() {
    const auto self = threadIdx;
    arrived_.push_back(current_);
    go_on();
    threadIdx = self;
  }

 private:
  static constexpr std::size_t stack_bytes = 256 << 10;
  struct fiber {
    void* saved = nullptr;
    std::byte* stack = nullptr;  ///< null: the thread's own
    std::size_t bytes = 0;
    void* sanitizer = nullptr;
  };

  void begin_threads() {
    while (begun_ < count_) {
      threadIdx.x = begun_++;
      (*thread_)();
      ++ended_;
    }
  }
  /// Switches to a thread that can go on.
  void go_on() {
    if (ready_.empty() && begun_ < count_) {
      if (idle_.empty()) idle_.push_back(make());
      fiber* const fresh = idle_.back();
      idle_.pop_back();
      return switch_to(fresh);
    }
    if (ready_.empty()) {
      if (!arrived_.empty() && ended_ > 0) {
        std::fputs("a thread of a block has ended while others wait in __syncthreads()\n", stderr);
        std::abort();
      }
      ready_.swap(arrived_);
      if (forth_ = !forth_; forth_) std::reverse(ready_.begin(), ready_.end());
    }
    if (ready_.empty()) return switch_to(&own_);
    fiber* const next = ready_.back();
    ready_.pop_back();
    switch_to(next);
  }
  void switch_to(fiber* next) {
    if (next == current_) return;
    fiber* const before = std::exchange(current_, next);
#ifdef EMULATED_CUDA_POISONS
    __sanitizer_start_switch_fiber(&before->sanitizer, next->stack, next->bytes);
#endif
    switch_stacks(&before->saved, next->saved);
#ifdef EMULATED_CUDA_POISONS
    arrive(before);
#endif
  }
#ifdef EMULATED_CUDA_POISONS
  void arrive(fiber* self) {
    const void* stack = nullptr;
    std::size_t bytes = 0;
    __sanitizer_finish_switch_fiber(self->sanitizer, &stack, &bytes);
    if (own_.stack == nullptr && self != &own_)
      own_.stack = static_cast<std::byte*>(const_cast<void*>(stack)), own_.bytes = bytes;
  }
#endif
  [[noreturn]] static void begin_fiber() {
    block& b = here();
#ifdef EMULATED_CUDA_POISONS
    b.arrive(b.current_);
#endif
    for (;;) {
      b.begin_threads();
      b.idle_.push_back(b.current_);
      b.go_on();
    }
  }
  fiber* make() {
    auto* const made = new fiber;
    made->bytes = stack_bytes;
    made->stack = static_cast<std::byte*>(::mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE,
                                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    auto** top = reinterpret_cast<void**>(made->stack + stack_bytes) - 1;  // as a call leaves the stack
    *--top = reinterpret_cast<void*>(&begin_fiber);
    for (int i = 0; i < 6; ++i) *--top = nullptr;
    made->saved = top;
    return made;
  }

  unsigned count_ = 0, begun_ = 0, ended_ = 0;
  const std::function<void()>* thread_ = nullptr;
  bool forth_ = false;
  fiber own_;
  fiber* current_ = &own_;
  std::vector<fiber*> idle_, arrived_, ready_;
};

/// Puts a kernel into a stream.
template <class Kernel, class... Arguments>
cudaError_t put_kernel(stream* to, dim3 grid, dim3 threads, std::size_t shared, Kernel kernel,
                       Arguments... arguments) {
  static_assert((sizeof(Arguments) + ... + 0) <= 32764, "a kernel has parameters of at most 32,764 bytes");
  auto& d = devices::get();
  return d.call([&](auto& lock) {
    stream* const s = d.find(to);
    if (s == nullptr || s->device != current_device) return cudaErrorInvalidResourceHandle;
    if (grid.x == 0 || grid.x > 0x7fffffff || grid.y != 1 || grid.z != 1 || threads.x == 0 ||
        threads.x > 1024 || threads.y != 1 || threads.z != 1 || shared > 48 << 10)
      return cudaErrorInvalidConfiguration;
    return d.put(lock, s,
                 {[=, on = current_device] {
                    const auto reached = [on](const auto& argument) {
                      if constexpr (std::is_pointer_v<std::remove_cvref_t<decltype(argument)>>)
                        return devices::get().reaches_now(argument, on);
                      else
                        return true;
                    };
                    if (!(reached(arguments) && ...)) return cudaErrorIllegalAddress;
                    const std::function<void()> thread = [&] { kernel(arguments...); };
                    gridDim = grid, blockDim = threads;
                    for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x)
                      block::here().run(threads.x, thread);
                    return cudaSuccess;
                  },
                  nullptr, nullptr});
  });
}

/// What `<<<...>>>` becomes; cudaGetLastError() returns its error.
template <class Kernel>
class launch {
 public:
  launch(Kernel kernel, dim3 grid, dim3 threads, std::size_t shared = 0, stream* to = nullptr)
      : kernel_(kernel), grid_(grid), threads_(threads), shared_(shared), to_(to) {}
  template <class... Arguments>
  void operator()(Arguments... arguments) const {
    (void)put_kernel(to_, grid_, threads_, shared_, kernel_, arguments...);
  }

 private:
  Kernel kernel_;
  dim3 grid_, threads_;
  std::size_t shared_;
  stream* to_;
};

}  // namespace emulated_cuda

inline void __syncthreads() {
  emulated_cuda::block::here().barrier();
}

struct cudaLaunchConfig_t {
  dim3 gridDim{0}, blockDim{0};
  std::size_t dynamicSmemBytes = 0;
  emulated_cuda::stream* stream = nullptr;
};
template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  return emulated_cuda::put_kernel<void (*)(Parameters...), Parameters...>(
      config->stream, config->gridDim, config->blockDim, config->dynamicSmemBytes, kernel,
      std::forward<Arguments>(arguments)...);
}
