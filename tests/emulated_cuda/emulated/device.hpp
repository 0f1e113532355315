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
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

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

/// GPUs that threads of this program are: two, or as many as $EMULATED_CUDA_DEVICES says. Every stream is a
/// thread, so that what is not waited for is not there; memory of the devices can be reached by those threads
/// alone where the processor has protection keys, is filled with 0xff, and has ends that AddressSanitizer
/// knows. Each device gets its primary context by the first call that uses it, and keeps it.
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
  int device = 0;
  std::deque<operation> work;
  bool busy = false;
  bool destroyed = false;
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
  std::thread::id captured_by;
};
struct event {
  int device = 0;
  std::shared_ptr<bool> last;  ///< of the last record; true once it is reached
};

inline thread_local bool on_the_device = false;  ///< this thread is a stream
inline thread_local int current_device = 0;
inline thread_local bool in_the_driver = false;  ///< whose calls make no context, and keep no error
inline thread_local cudaError_t last_error = cudaSuccess;
inline thread_local cudaStreamCaptureMode thread_capture_mode = cudaStreamCaptureModeGlobal;

class devices {
 public:
  static devices& get() {
    static devices& all = *new devices;  // their threads may outlive main()
    return all;
  }
  [[nodiscard]] int count() const { return static_cast<int>(defaults_.size()); }

  /// Runs a call of the runtime: one at a time, refused once a device has failed. Keeps its error, and makes
  /// a context on the current device.
  template <class Work>
  cudaError_t call(Work&& work) {
    std::unique_lock lock(mutex_);
    cudaError_t status = broken_;
    if (on_the_device) status = cudaErrorNotPermitted;
    if (::getpid() != process_) status = cudaErrorNotSupported;  // after fork()
    if (status == cudaSuccess && !in_the_driver) contexts_.insert(current_device);
    if (status == cudaSuccess) status = work(lock);
    if (status != cudaSuccess && !in_the_driver) last_error = status;
    return status;
  }
  /// A call that CUDA calls potentially unsafe: it invalidates captures in other threads.
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
  cudaError_t use(int number) {
    if (number < 0 || number >= count()) return last_error = cudaErrorInvalidDevice;
    current_device = number;
    return call([](auto&) { return cudaSuccess; });
  }
  bool has_context(int number) {
    const std::lock_guard lock(mutex_);
    return contexts_.contains(number);
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
    if (s == nullptr || s == legacy) return defaults_[static_cast<std::size_t>(current_device)];
    return streams_.contains(s) ? s : nullptr;
  }
  stream* make_stream() {
    auto* made = new stream;
    made->device = current_device;
    start(made);
    return made;
  }
  void destroy(stream* s) {
    s->destroyed = true;
    streams_.erase(s);
    changed_.notify_all();
  }
  /// Work that is put into a stream that is captured becomes a part of a graph, and no graph is ever
  /// launched. Where the stream's queue is full, the caller waits until there is room.
  cudaError_t put(std::unique_lock<std::mutex>& lock, stream* s, operation o) {
    if (s->capture == cudaStreamCaptureStatusInvalidated) return cudaErrorStreamCaptureInvalidated;
    if (s->capture == cudaStreamCaptureStatusActive) {
      if (o.awaited == nullptr && o.reached == nullptr) return cudaSuccess;
      s->capture = cudaStreamCaptureStatusInvalidated;  // joins of captures are not emulated
      return cudaErrorStreamCaptureUnsupported;
    }
    changed_.wait(lock, [&] { return s->work.size() < queue_entries || broken_ != cudaSuccess; });
    s->work.push_back(std::move(o));
    changed_.notify_all();
    return cudaSuccess;
  }
  cudaError_t wait(std::unique_lock<std::mutex>& lock, stream* s) {
    const auto reached = std::make_shared<bool>(false);
    if (const auto status = put(lock, s, {{}, nullptr, reached}); status != cudaSuccess) return status;
    changed_.wait(lock, [&] { return *reached || broken_ != cudaSuccess; });
    return broken_;
  }
  /// For all streams of a device.
  cudaError_t wait_for_all(std::unique_lock<std::mutex>& lock, int device) {
    changed_.wait(lock, [&] {
      return broken_ != cudaSuccess || std::all_of(all_.begin(), all_.end(), [&](auto* s) {
               return s->device != device || (s->work.empty() && !s->busy);
             });
    });
    return broken_;
  }

  event* make_event() { return *events_.insert(new event{current_device, nullptr}).first; }
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
    // Place it as near to the end of the pages as its alignment allows.
    std::byte* const data = begin + (room - bytes) / alignment * alignment;
#ifdef EMULATED_CUDA_POISONS
    __asan_poison_memory_region(begin, static_cast<std::size_t>(data - begin));
    __asan_poison_memory_region(data + bytes, static_cast<std::size_t>(begin + room - data) - bytes);
#endif
    allocated_[data] = {bytes, current_device};
    return data;
  }
  bool free(void* data) {
    const auto at = allocated_.find(static_cast<std::byte*>(data));
    if (at == allocated_.end()) return false;
    // Addresses are never used again.
    const auto begin = reinterpret_cast<std::uintptr_t>(data) / page * page;
    const auto end = (reinterpret_cast<std::uintptr_t>(data) + at->second.bytes + page - 1) / page * page;
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
    if (next != pinned_.begin() && std::prev(next)->first + std::prev(next)->second.bytes > begin)
      return false;
    pinned_[begin] = {bytes, current_device};
    return true;
  }
  bool unpin(void* data) { return pinned_.erase(static_cast<std::byte*>(data)) == 1; }
  bool holds(const void* data, std::size_t bytes) const { return within(allocated_, data, bytes) != nullptr; }
  bool pinned(const void* data, std::size_t bytes) const { return within(pinned_, data, bytes) != nullptr; }
  /// Of memory of a device; -1 for other memory.
  int device_of(const void* data) const {
    const auto* const found = within(allocated_, data, 0);
    return found != nullptr ? found->device : -1;
  }
  /// Whether a kernel on this device may use this address; called by a stream's thread while it works.
  bool reaches_now(const void* data, int device) {
    const std::lock_guard lock(mutex_);
    return data == nullptr || device_of(data) == device || pinned(data, 0);
  }
  bool holds_now(const void* data, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    return holds(data, bytes);
  }

  static inline stream* const legacy = reinterpret_cast<stream*>(1);

 private:
  struct range {
    std::size_t bytes;
    int device;
  };
  using ranges = std::map<const std::byte*, range>;
  static constexpr std::size_t queue_entries = 1024;
  static constexpr std::size_t page = 4096;
  static constexpr std::size_t alignment = 256;

  devices() : key_(::pkey_alloc(0, PKEY_DISABLE_ACCESS)) {
    const char* const wanted = std::getenv("EMULATED_CUDA_DEVICES");
    const int count = wanted != nullptr ? std::atoi(wanted) : 2;
    for (int number = 0; number < count; ++number) {
      defaults_.push_back(new stream);
      defaults_.back()->device = number;
      start(defaults_.back()), streams_.erase(defaults_.back());
    }
  }

  static const range* within(const ranges& all, const void* data, std::size_t bytes) {
    auto at = all.upper_bound(static_cast<const std::byte*>(data));
    if (at == all.begin()) return nullptr;
    --at;
    return static_cast<const std::byte*>(data) + bytes <= at->first + at->second.bytes ? &at->second
                                                                                       : nullptr;
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
  std::set<stream*> streams_;  ///< not destroyed yet
  std::set<stream*> all_;      ///< also those that are destroyed and not yet through
  std::set<event*> events_;
  std::vector<stream*> defaults_;  ///< of each device
  std::set<int> contexts_;
  ranges allocated_;
  ranges pinned_;
  cudaError_t broken_ = cudaSuccess;
  unsigned started_ = 0;
  int key_;
  pid_t process_ = ::getpid();
};

}  // namespace emulated_cuda
