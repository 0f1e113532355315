// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include "names.hpp"

#if defined(__SANITIZE_ADDRESS__)
#define EMULATED_CUDA_POISONS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMULATED_CUDA_POISONS 1
#endif
#endif
#ifdef EMULATED_CUDA_POISONS
#include <sanitizer/asan_interface.h>
#endif

/// A GPU that threads of this program are. Every stream is a thread, so that what is not waited for is not
/// there; memory of the device can be reached by those threads alone where the processor has protection keys,
/// is filled with 0xff, and has ends that AddressSanitizer knows.
namespace emulated_cuda {

/// tests/gpu.sh finds it in programs, and refuses them.
[[gnu::used, gnu::retain]] inline constexpr char device_name[] = "emulated CUDA device";

/// One thing that a stream does.
struct operation {
  std::function<cudaError_t()> run;     ///< an error is sticky
  std::shared_ptr<const bool> awaited;  ///< may begin once it is true
  std::shared_ptr<bool> reached;
};

struct stream {
  std::deque<operation> work;
  bool busy = false;
  bool destroyed = false;
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
  std::thread::id captured_by;
};
struct event {
  std::shared_ptr<bool> last;  ///< of the last record; true once it is reached
};

inline thread_local bool on_the_device = false;  ///< this thread is a stream
inline thread_local cudaError_t last_error = cudaSuccess;
inline thread_local cudaStreamCaptureMode thread_capture_mode = cudaStreamCaptureModeGlobal;

class device {
 public:
  static device& get() {
    static device& one = *new device;  // its threads may outlive main()
    return one;
  }

  /// Runs a call as all of them run: one at a time, refused once the device has failed, its error kept.
  template <class Work>
  cudaError_t call(Work&& work) {
    std::unique_lock lock(mutex_);
    cudaError_t status = broken_;
    if (on_the_device) status = cudaErrorNotPermitted;
    if (::getpid() != process_) status = cudaErrorNotSupported;  // after fork()
    if (status == cudaSuccess) status = work(lock);
    if (status != cudaSuccess) last_error = status;
    return status;
  }
  /// A call that CUDA calls potentially unsafe: it spoils captures that it must not run beside.
  template <class Work>
  cudaError_t unsafe_call(Work&& work) {
    return call([&](std::unique_lock<std::mutex>& lock) {
      bool spoilt = false;
      for (stream* s : streams_) {
        if (s->capture != cudaStreamCaptureStatusActive ||
            thread_capture_mode == cudaStreamCaptureModeRelaxed)
          continue;
        const bool own = s->captured_by == std::this_thread::get_id();
        if (own ? s->capture_mode == cudaStreamCaptureModeRelaxed
                : s->capture_mode != cudaStreamCaptureModeGlobal ||
                      thread_capture_mode != cudaStreamCaptureModeGlobal)
          continue;
        s->capture = cudaStreamCaptureStatusInvalidated;
        spoilt = true;
      }
      return spoilt ? cudaErrorStreamCaptureUnsupported : work(lock);
    });
  }
  cudaError_t last(bool forget) {
    const std::lock_guard lock(mutex_);
    const auto status = broken_ != cudaSuccess ? broken_ : last_error;
    if (forget) last_error = cudaSuccess;
    return status;
  }

  // --- Everything below is called by what call() runs
  // -------------------------------------------------------

  /// Null where there is none.
  stream* find(stream* s) {
    if (s == nullptr || s == legacy) return &default_;
    return streams_.contains(s) ? s : nullptr;
  }
  stream* make_stream() {
    auto* made = new stream;
    start(made);
    return made;
  }
  void destroy(stream* s) {
    s->destroyed = true;
    streams_.erase(s);
    changed_.notify_all();
  }
  /// What is put into a stream that is captured becomes a part of a graph, and no graph is ever launched.
  cudaError_t put(stream* s, operation o) {
    if (s->capture == cudaStreamCaptureStatusInvalidated) return cudaErrorStreamCaptureInvalidated;
    if (s->capture == cudaStreamCaptureStatusActive) {
      if (o.awaited == nullptr && o.reached == nullptr) return cudaSuccess;
      s->capture = cudaStreamCaptureStatusInvalidated;  // joins of captures are not emulated
      return cudaErrorStreamCaptureUnsupported;
    }
    s->work.push_back(std::move(o));
    changed_.notify_all();
    return cudaSuccess;
  }
  cudaError_t wait(std::unique_lock<std::mutex>& lock, stream* s) {
    const auto reached = std::make_shared<bool>(false);
    if (const auto status = put(s, {{}, nullptr, reached}); status != cudaSuccess) return status;
    changed_.wait(lock, [&] { return *reached || broken_ != cudaSuccess; });
    return broken_;
  }
  cudaError_t wait_for_all(std::unique_lock<std::mutex>& lock) {
    changed_.wait(lock, [&] {
      return broken_ != cudaSuccess ||
             std::all_of(all_.begin(), all_.end(), [](auto* s) { return s->work.empty() && !s->busy; });
    });
    return broken_;
  }

  event* make_event() { return *events_.insert(new event).first; }
  event* find(event* e) { return events_.contains(e) ? e : nullptr; }
  void destroy(event* e) {
    events_.erase(e);
    delete e;
  }

  void* allocate(std::size_t bytes) {
    const std::size_t room = (bytes + page - 1) / page * page;
    void* const mapped =
        ::mmap(nullptr, room + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) return nullptr;
    std::byte* const begin = static_cast<std::byte*>(mapped) + page;
    ::mprotect(begin, room, PROT_READ | PROT_WRITE);
    std::memset(begin, 0xff, std::min<std::size_t>(room, std::size_t{64} << 20));
    if (key_ >= 0) ::pkey_mprotect(begin, room, PROT_READ | PROT_WRITE, key_);
    // As near to its end as its alignment allows.
    std::byte* const data = begin + (room - bytes) / alignment * alignment;
#ifdef EMULATED_CUDA_POISONS
    __asan_poison_memory_region(begin, static_cast<std::size_t>(data - begin));
    __asan_poison_memory_region(data + bytes, static_cast<std::size_t>(begin + room - data) - bytes);
#endif
    allocated_[data] = bytes;
    return data;
  }
  bool free(void* data) {
    const auto at = allocated_.find(static_cast<std::byte*>(data));
    if (at == allocated_.end()) return false;
    // Its addresses are never given again.
    const auto begin = reinterpret_cast<std::uintptr_t>(data) / page * page;
    const auto end = (reinterpret_cast<std::uintptr_t>(data) + at->second + page - 1) / page * page;
#ifdef EMULATED_CUDA_POISONS
    __asan_unpoison_memory_region(reinterpret_cast<void*>(begin), end - begin);
#endif
    ::mmap(reinterpret_cast<void*>(begin), end - begin, PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    allocated_.erase(at);
    return true;
  }
  bool pin(void* data, std::size_t bytes) {
    auto* const begin = static_cast<std::byte*>(data);
    const auto next = pinned_.lower_bound(begin);
    if (next != pinned_.end() && next->first < begin + bytes) return false;
    if (next != pinned_.begin() && std::prev(next)->first + std::prev(next)->second > begin) return false;
    pinned_[begin] = bytes;
    return true;
  }
  bool unpin(void* data) { return pinned_.erase(static_cast<std::byte*>(data)) == 1; }
  bool holds(const void* data, std::size_t bytes) const { return within(allocated_, data, bytes); }
  bool pinned(const void* data, std::size_t bytes) const { return within(pinned_, data, bytes); }
  /// Whether a kernel may be given this address.
  bool reaches(const void* data) const { return data == nullptr || holds(data, 0) || pinned(data, 0); }
  /// The same, for a stream's thread while it does something.
  bool reaches_now(const void* data) {
    const std::lock_guard lock(mutex_);
    return reaches(data);
  }
  bool holds_now(const void* data, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    return holds(data, bytes);
  }

  static inline stream* const legacy = reinterpret_cast<stream*>(1);

 private:
  using ranges = std::map<const std::byte*, std::size_t>;
  static constexpr std::size_t page = 4096;
  static constexpr std::size_t alignment = 256;

  device() : key_(::pkey_alloc(0, PKEY_DISABLE_ACCESS)) { start(&default_), streams_.erase(&default_); }

  static bool within(const ranges& all, const void* data, std::size_t bytes) {
    auto at = all.upper_bound(static_cast<const std::byte*>(data));
    if (at == all.begin()) return false;
    --at;
    return static_cast<const std::byte*>(data) + bytes <= at->first + at->second;
  }
  void start(stream* s) {
    streams_.insert(s), all_.insert(s);
    std::thread([this, s, seed = ++started_] { serve(s, seed); }).detach();
  }
  void serve(stream* s, unsigned seed) {
    on_the_device = true;
    if (key_ >= 0) ::pkey_set(key_, 0);
    std::minstd_rand random(seed);
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return !s->work.empty() || s->destroyed; });
      if (s->work.empty()) break;
      {
        const operation next = std::move(s->work.front());
        s->work.pop_front();
        s->busy = true;
        if (next.awaited != nullptr)
          changed_.wait(lock, [&] { return *next.awaited || broken_ != cudaSuccess; });
        if (next.run && broken_ == cudaSuccess) {
          lock.unlock();
          for (auto turns = random() % 4; turns > 0; --turns) std::this_thread::yield();
          const auto status = next.run();
          lock.lock();
          if (status != cudaSuccess) broken_ = status;
        }
        if (next.reached != nullptr) *next.reached = true;
      }
      s->busy = false;
      changed_.notify_all();
    }
    all_.erase(s);
    delete s;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<stream*> streams_;  ///< that may be named
  std::set<stream*> all_;      ///< also those that are destroyed and not yet through
  std::set<event*> events_;
  stream default_;
  ranges allocated_;
  ranges pinned_;
  cudaError_t broken_ = cudaSuccess;
  unsigned started_ = 0;
  int key_;
  pid_t process_ = ::getpid();
};

}  // namespace emulated_cuda
