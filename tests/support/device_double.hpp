// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/cuda/gather.hpp>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <span>
#include <thread>
#include <vector>

namespace cairn_test {

/// Devices that are threads of this program: streams and events mean what CUDA's mean, and everything happens
/// as late and as disorderly as they allow. Memory of a device is memory of the host, so that a sanitizer
/// sees who touches what without order. Two devices, of which each gets a context by the first call that uses
/// it, as with CUDA. A model of cairn::cuda::DeviceRuntime with one state for the program: `reset` begins
/// each test.
class device_double {
 protected:
  struct stream;
  struct event;

 public:
  using stream_type = stream*;
  using event_type = event*;
  static constexpr int success = 0;
  static constexpr int not_ready = 600;
  static constexpr int invalid_value = 1;
  static constexpr int invalid_handle = 400;
  static constexpr int out_of_memory = 2;
  static constexpr int illegal_address = 700;  ///< sticky
  static constexpr int unsupported = 801;
  static constexpr int capture_unsupported = 900;
  static constexpr int global_capture = 0;
  static constexpr int relaxed_capture = 2;
  static constexpr int devices = 2;

  // --- What a test does -----------------------------------------------------------------------------------

  /// Resets all state, after the streams have done what they still have.
  static void reset(std::uint32_t seed) {
    auto& w = world();
    synchronize();
    const std::lock_guard lock(w.mutex);
    w.random.seed(seed);
    w.calls = 0, w.fail_at = 0, w.fail_on = false, w.broken = 0, w.held = false, w.kernels_held = false;
    w.let_through = no_limit;
    w.pinned_on.clear();
    w.contexts.clear();
    w.loaded.clear();
    current() = 0;
    w.pins = w.pinned_bytes = w.max_pinned = 0;
    w.no_memory = w.no_words = w.no_pins = false;
    w.kernels = 0, w.copies = 0, w.words = 0;
    for (auto& s : w.streams) s->capturing = s->capture_broken = false;
  }
  /// Lets devices have no memory left; lets drivers be unable to write words.
  static void out_of_device_memory(bool yes) {
    const std::lock_guard lock(world().mutex);
    world().no_memory = yes;
  }
  static void no_stream_writes(bool yes) {
    const std::lock_guard lock(world().mutex);
    world().no_words = yes;
  }
  static void refuse_pins(bool yes) {
    const std::lock_guard lock(world().mutex);
    world().no_pins = yes;
  }
  /// The numbers of kernels that gathered and of copies that were put into streams, since reset.
  static std::uint64_t kernels_launched() {
    const std::lock_guard lock(world().mutex);
    return world().kernels;
  }
  static std::uint64_t copies_made() {
    const std::lock_guard lock(world().mutex);
    return world().copies;
  }
  /// The number of words that were put into streams since reset.
  static std::uint64_t words_told() {
    const std::lock_guard lock(world().mutex);
    return world().words;
  }
  static std::size_t device_allocations() {
    const std::lock_guard lock(world().mutex);
    return world().given.size();
  }
  /// From now on work that is put into a stream is refused and invalidates the capture; so are calls that
  /// CUDA calls unsafe, of any thread whose mode is not relaxed.
  static void begin_capture(stream_type s) {
    const std::lock_guard lock(world().mutex);
    s->capturing = true, s->capture_broken = false;
  }
  /// False if the capture was invalidated.
  static bool end_capture(stream_type s) {
    const std::lock_guard lock(world().mutex);
    s->capturing = false;
    return !s->capture_broken;
  }
  /// The k-th call from now on fails (0: none); a sticky error ends all work and fails all further calls.
  static void fail(std::uint64_t k, int status) {
    auto& w = world();
    const std::lock_guard lock(w.mutex);
    w.calls = 0, w.fail_at = k, w.fail_with = status, w.fail_on = false;
  }
  /// All calls fail from now on, until fail(0, 0).
  static void fail_all(int status) {
    fail(1, status);
    const std::lock_guard lock(world().mutex);
    world().fail_on = true;
  }
  static std::uint64_t calls() {
    const std::lock_guard lock(world().mutex);
    return world().calls;
  }
  /// Copies stay in their streams until they are released.
  static void hold_copies(bool hold) {
    const std::lock_guard lock(world().mutex);
    world().held = hold;
    world().let_through = no_limit;
    world().changed.notify_all();
  }
  /// Lets so many more copies run, words among them; the rest stays.
  static void hold_copies_after(std::uint64_t more) {
    const std::lock_guard lock(world().mutex);
    world().let_through = more;
  }
  /// Kernels do not begin until they are released.
  static void hold_kernels(bool hold) {
    const std::lock_guard lock(world().mutex);
    world().kernels_held = hold;
    world().changed.notify_all();
  }
  /// The number of copies that wait in streams.
  static std::size_t copies_waiting() {
    auto& w = world();
    const std::lock_guard lock(w.mutex);
    std::size_t n = 0;
    for (const auto& s : w.streams)
      n += static_cast<std::size_t>(
          std::count_if(s->work.begin(), s->work.end(), [](const auto& o) { return o.copy; }));
    return n;
  }
  /// A kernel: runs on the device, in the order of the stream.
  static void launch(stream_type s, std::function<void()> kernel) {
    auto& w = world();
    const std::lock_guard lock(w.mutex);
    (void)w.put(s, {std::move(kernel), nullptr, nullptr, false});
  }
  /// Waits until all streams are empty.
  static void synchronize() {
    auto& w = world();
    std::unique_lock lock(w.mutex);
    w.changed.wait(lock, [&] { return w.idle(); });
  }
  static std::size_t pinned_ranges() {
    const std::lock_guard lock(world().mutex);
    return world().pinned.size();
  }
  /// The most bytes that were pinned at once since reset.
  static std::uint64_t max_pinned_bytes() {
    const std::lock_guard lock(world().mutex);
    return world().max_pinned;
  }
  /// How often memory was pinned since reset.
  static std::uint64_t pins_made() {
    const std::lock_guard lock(world().mutex);
    return world().pins;
  }
  /// On which devices memory was pinned since reset.
  static std::set<int> pinned_on() {
    const std::lock_guard lock(world().mutex);
    return world().pinned_on;
  }
  /// The devices on which this process has a context since reset.
  static std::set<int> contexts() {
    const std::lock_guard lock(world().mutex);
    return world().contexts;
  }
  /// The number of slow calls of this thread: those that make streams, allocate or pin memory, or load
  /// kernels.
  static int slow_calls() { return slow(); }
  static std::size_t live_events() {
    const std::lock_guard lock(world().mutex);
    return world().live_events;
  }
  /// Memory of a device.
  class memory {
   public:
    memory(int device, std::uint64_t bytes) : bytes_(bytes) {
      const std::lock_guard lock(world().mutex);
      world().allocated[bytes_.data()] = {bytes_.size(), device};
      world().contexts.insert(device);
    }
    ~memory() {
      const std::lock_guard lock(world().mutex);
      world().allocated.erase(bytes_.data());
      if (second_ != nullptr) world().allocated.erase(second_);
    }
    memory(const memory&) = delete;
    memory& operator=(const memory&) = delete;
    [[nodiscard]] std::span<std::byte> bytes() noexcept { return bytes_; }
    /// From now on these are two allocations that touch.
    void split(std::uint64_t first_bytes) {
      const std::lock_guard lock(world().mutex);
      auto& first = world().allocated[bytes_.data()];
      second_ = bytes_.data() + first_bytes;
      world().allocated[second_] = {first.first - first_bytes, first.second};
      first.first = first_bytes;
    }

   private:
    std::vector<std::byte> bytes_;
    const std::byte* second_ = nullptr;
  };

  // --- DeviceRuntime ---------------------------------------------------------------------------------------

  static const char* name_of(int status) noexcept {
    return status == illegal_address ? "cudaErrorIllegalAddress"
           : status == out_of_memory ? "cudaErrorMemoryAllocation"
                                     : "cudaErrorInvalidValue";
  }
  static const char* text_of(int status) noexcept {
    return status == illegal_address ? "an illegal memory access was encountered"
           : status == out_of_memory ? "out of memory"
                                     : "invalid argument";
  }
  static int current_device(int& device) noexcept {
    return contextless_call([&](state&) {
      device = current();
      return success;
    });
  }
  static int use_device(int device) noexcept {
    return contextless_call([&](state& w) {
      if (device < 0 || device >= devices) return invalid_value;
      current() = device;
      w.contexts.insert(device);
      return success;
    });
  }
  static int device_count(int& count) noexcept {
    return contextless_call([&](state&) {
      count = devices;
      return success;
    });
  }
  static int has_context(int device, bool& yes) noexcept {
    return contextless_call([&](state& w) {
      yes = w.contexts.contains(device);
      return success;
    });
  }
  static int host_node(int device, int& node) noexcept {
    node = 40 + device;
    return success;
  }
  static stream_type default_stream() noexcept { return nullptr; }
  static int make_stream(stream_type& s) noexcept {
    return slow_call([&](state& w) {
      w.streams.push_back(std::make_unique<stream>());
      s = w.streams.back().get();
      s->device = current();
      return success;
    });
  }
  static int destroy_stream(stream_type s) noexcept {
    const std::lock_guard lock(world().mutex);
    world().contexts.insert(current());
    s->destroyed = true;  // its work is done all the same
    return success;
  }
  static int make_event(event_type& e) noexcept {
    return call([&](state& w) {
      e = new event{current(), {}};
      ++w.live_events;
      return success;
    });
  }
  static int destroy_event(event_type e) noexcept {
    const std::lock_guard lock(world().mutex);
    world().contexts.insert(current());
    --world().live_events;
    delete e;
    return success;
  }
  static int record(event_type e, stream_type s) noexcept {
    return call([&](state& w) {
      if (e->device != w.device_of(s)) return invalid_handle;
      e->last = std::make_shared<bool>(false);
      return w.put(s, {{}, nullptr, e->last, false});
    });
  }
  static int query(event_type e) noexcept {
    return unsafe_call([&](state&) { return e->last == nullptr || *e->last ? success : not_ready; });
  }
  static int wait(stream_type s, event_type e) noexcept {
    return call([&](state& w) {
      return e->last == nullptr ? success : w.put(s, {{}, e->last, nullptr, false});
    });
  }
  static int copy_to_host(std::byte* to, const std::byte* from, std::uint64_t bytes, stream_type s) noexcept {
    return copy_rows_to_host(to, from, bytes, bytes, 1, s);
  }
  static int copy_rows_to_host(std::byte* to, const std::byte* from, std::uint64_t pitch, std::uint64_t width,
                               std::uint64_t rows, stream_type s) noexcept {
    return call([&](state& w) { return w.copy(to, width, from, pitch, width, rows, s, false); });
  }
  static int copy_ranges_to_host(std::span<const cairn::cuda::range_copy> parts, stream_type s) noexcept {
    return call([&](state& w) {
      for (const auto& part : parts)
        if (const int status = w.copy(part.to, part.bytes, part.from, part.bytes, part.bytes, 1, s, false);
            status != success)
          return status;
      return success;
    });
  }
  static int copy_to_device(std::byte* to, const std::byte* from, std::uint64_t bytes,
                            stream_type s) noexcept {
    return copy_rows_to_device(to, bytes, from, bytes, bytes, 1, s);
  }
  static int copy_rows_to_device(std::byte* to, std::uint64_t to_pitch, const std::byte* from,
                                 std::uint64_t from_pitch, std::uint64_t width, std::uint64_t rows,
                                 stream_type s) noexcept {
    return call([&](state& w) { return w.copy(to, to_pitch, from, from_pitch, width, rows, s, true); });
  }
  static int copy_ranges_to_device(std::span<const cairn::cuda::range_copy> parts, stream_type s) noexcept {
    return call([&](state& w) {
      for (const auto& part : parts)
        if (const int status = w.copy(part.to, part.bytes, part.from, part.bytes, part.bytes, 1, s, true);
            status != success)
          return status;
      return success;
    });
  }
  static int pin(std::byte* data, std::uint64_t bytes) noexcept {
    return slow_call([&](state& w) {
      if (w.no_pins) return out_of_memory;
      if (!w.pinned.emplace(data, bytes).second) return invalid_value;
      ++w.pins;
      w.pinned_on.insert(current());
      w.pinned_bytes += bytes;
      w.max_pinned = std::max(w.max_pinned, w.pinned_bytes);
      return success;
    });
  }
  static int unpin(std::byte* data) noexcept {
    auto& w = world();
    const std::lock_guard lock(w.mutex);
    w.contexts.insert(current());
    const auto at = w.pinned.find(data);
    if (at == w.pinned.end()) return invalid_value;
    w.pinned_bytes -= std::min(w.pinned_bytes, at->second);
    w.pinned.erase(at);
    return success;
  }
  static int device_of(const std::byte* data, int& device) noexcept {
    return call([&](state& w) {
      device = w.holder(data, 1);
      return success;
    });
  }
  static int allocate(std::byte*& data, std::uint64_t bytes) noexcept {
    return slow_call([&](state& w) {
      if (w.no_memory) return out_of_memory;
      auto made = std::make_unique<memory_block>(bytes);
      data = made->begin();
      w.allocated[data] = {bytes, current()};
      w.given[data] = std::move(made);
      return success;
    });
  }
  static int deallocate(std::byte* data) noexcept {
    auto& w = world();
    std::unique_lock lock(w.mutex);
    w.contexts.insert(current());
    w.changed.wait(lock, [&] { return w.idle(); });  // as cudaFree does
    w.allocated.erase(data);
    return w.given.erase(data) == 1 ? success : invalid_value;
  }
  /// Devices see pinned memory elsewhere than the host does.
  static int device_address(std::byte* host, std::byte*& there) noexcept {
    return call([&](state& w) {
      if (!w.is_pinned(host, 1)) return invalid_value;
      there = reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(host) ^ elsewhere);
      return success;
    });
  }
  static bool is_lost(int status) noexcept { return status == illegal_address; }
  static int write_word(std::byte* there, std::uint32_t value, stream_type s) noexcept {
    return call([&](state& w) {
      if (w.no_words) return unsupported;
      auto* const word =
          reinterpret_cast<std::atomic<std::uint32_t>*>(reinterpret_cast<std::uintptr_t>(there) ^ elsewhere);
      if (!w.is_pinned(reinterpret_cast<const std::byte*>(word), sizeof *word)) return invalid_value;
      ++w.words;
      return w.put(s, {[=] { word->store(value, std::memory_order_release); }, nullptr, nullptr, true});
    });
  }
  static int capturing(stream_type s, bool& yes) noexcept {
    return call([&](state& w) {
      yes = w.of(s).capturing;
      return success;
    });
  }
  static int exchange_capture_mode(int& mode) noexcept {
    std::swap(mode, capture_mode());
    return success;
  }
  static int load_kernels() noexcept {
    return call([&](state& w) {
      if (w.loaded.insert(current()).second) ++slow();
      return success;
    });
  }
  /// The work of the kernel, done by the host, late.
  static int gather(std::span<const cairn::cuda::gather_range> parts,
                    std::span<const cairn::cuda::gather_box> boxes, std::byte* staging,
                    stream_type s) noexcept {
    return call([&](state& w) {
      ++w.kernels;
      if (w.loaded.insert(current()).second) ++slow();
      for (const auto& p : parts) {
        const bool boxed = p.box != p.no_box;
        if (p.bytes == 0 || p.bytes > cairn::cuda::gather_tile_bytes) return invalid_value;
        if (w.holder(staging + p.to, p.bytes) != w.device_of(s)) return invalid_value;
        if (p.from == nullptr) continue;
        if (boxed && p.box >= boxes.size()) return invalid_value;
        if (!boxed && w.holder(p.from, p.bytes) != w.device_of(s)) return invalid_value;
        // Whole units must be aligned on both sides, wherever they lie.
        const auto from = reinterpret_cast<std::uintptr_t>(p.from);
        if ((p.to | (boxed ? p.first : from)) % p.width != 0) return invalid_value;
        for (std::uint32_t at = 0; boxed && at + p.width <= p.bytes; at += p.width) {
          const auto* unit = cairn::cuda::gather_source(boxes[p.box], p.from, p.first + at);
          if (reinterpret_cast<std::uintptr_t>(unit) % p.width != 0) return invalid_value;
          if (w.holder(unit, p.width) != w.device_of(s)) return invalid_value;
        }
      }
      return w.put(s, {[staging, p = std::vector(parts.begin(), parts.end()),
                        b = std::vector(boxes.begin(), boxes.end())] {
                         for (const auto& part : p) gather(part, b, staging + part.to);
                       },
                       nullptr, nullptr, true});
    });
  }

 protected:
  /// Aligned as memory of devices is.
  class memory_block {
   public:
    explicit memory_block(std::uint64_t bytes)
        : bytes_(static_cast<std::byte*>(std::aligned_alloc(256, (bytes + 255) / 256 * 256))) {}
    [[nodiscard]] std::byte* begin() const noexcept { return bytes_.get(); }

   private:
    struct free_bytes {
      void operator()(std::byte* b) const noexcept { std::free(b); }
    };
    std::unique_ptr<std::byte, free_bytes> bytes_;
  };
  static void gather(const cairn::cuda::gather_range& part, const std::vector<cairn::cuda::gather_box>& boxes,
                     std::byte* to) {
    if (part.from == nullptr) {
      std::memset(to, 0, part.bytes);
      return;
    }
    if (part.box == part.no_box) {
      std::memcpy(to, part.from, part.bytes);
      return;
    }
    for (std::uint32_t at = 0; at < part.bytes;) {
      const auto unit = at + part.width <= part.bytes ? part.width : 1;
      std::memcpy(to + at, cairn::cuda::gather_source(boxes[part.box], part.from, part.first + at), unit);
      at += unit;
    }
  }
  static constexpr std::uint64_t no_limit = ~std::uint64_t{0};
  static constexpr std::uintptr_t elsewhere = std::uintptr_t{1} << 60;
  struct operation {
    std::function<void()> run;
    std::shared_ptr<const bool> awaited;  ///< may begin once it is true
    std::shared_ptr<bool> recorded;
    bool copy = false;
  };
  struct stream {
    int device = 0;
    bool destroyed = false;
    bool busy = false;
    bool capturing = false;
    bool capture_broken = false;
    std::deque<operation> work;
  };
  struct event {
    int device = 0;
    std::shared_ptr<bool> last;  ///< of the last record; true once it is reached
  };
  struct state {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<std::unique_ptr<stream>> streams;
    std::map<const std::byte*, std::pair<std::size_t, int>> allocated;
    std::map<const std::byte*, std::uint64_t> pinned;
    std::set<int> pinned_on;
    std::set<int> contexts;
    std::set<int> loaded;  ///< where kernels are
    std::uint64_t pins = 0;
    std::uint64_t pinned_bytes = 0;
    std::uint64_t max_pinned = 0;
    std::mt19937 random{1};
    std::uint64_t calls = 0;
    std::uint64_t fail_at = 0;
    std::size_t live_events = 0;
    int fail_with = 0;
    bool fail_on = false;
    int broken = 0;
    bool held = false;
    std::uint64_t let_through = no_limit;
    bool kernels_held = false;
    bool no_memory = false;
    bool no_words = false;
    bool no_pins = false;
    std::uint64_t kernels = 0;
    std::uint64_t copies = 0;
    std::uint64_t words = 0;
    std::map<const std::byte*, std::unique_ptr<memory_block>> given;
    bool stopping = false;
    stream defaults[devices];
    std::vector<std::thread> workers;

    state() {
      for (int d = 0; d < devices; ++d) defaults[d].device = d;
      for (int i = 0; i < 2; ++i) workers.emplace_back([this] { work(); });
    }
    ~state() {
      {
        const std::lock_guard lock(mutex);
        stopping = true;
      }
      changed.notify_all();
      for (auto& worker : workers) worker.join();
    }
    stream& of(stream_type s) { return s != nullptr ? *s : defaults[current()]; }
    int device_of(stream_type s) { return of(s).device; }
    int put(stream_type s, operation o) {
      if (of(s).capturing) {
        of(s).capture_broken = true;
        return capture_unsupported;
      }
      of(s).work.push_back(std::move(o));
      changed.notify_all();
      return success;
    }
    [[nodiscard]] int holder(const std::byte* data, std::uint64_t bytes) const {
      auto at = allocated.upper_bound(data);
      if (at == allocated.begin()) return -1;
      --at;
      return data + bytes <= at->first + at->second.first ? at->second.second : -1;
    }
    [[nodiscard]] bool is_pinned(const std::byte* data, std::uint64_t bytes) const {
      auto at = pinned.upper_bound(data);
      if (at == pinned.begin()) return false;
      --at;
      return data + bytes <= at->first + at->second;
    }
    int copy(std::byte* to, std::uint64_t to_pitch, const std::byte* from, std::uint64_t from_pitch,
             std::uint64_t width, std::uint64_t rows, stream_type s, bool to_device) {
      if (width == 0 || rows == 0 || from_pitch < width || to_pitch < width) return invalid_value;
      const auto to_reach = (rows - 1) * to_pitch + width;
      const auto from_reach = (rows - 1) * from_pitch + width;
      const bool good = to_device ? holder(to, to_reach) == device_of(s) && is_pinned(from, from_reach)
                                  : holder(from, from_reach) == device_of(s) && is_pinned(to, to_reach);
      if (!good || current() != device_of(s)) return invalid_value;
      ++copies;
      return put(s, {[=] {
                       for (std::uint64_t r = 0; r < rows; ++r)
                         std::memcpy(to + r * to_pitch, from + r * from_pitch, width);
                     },
                     nullptr, nullptr, true});
    }
    template <class Visit>
    void each(Visit&& visit) {
      for (auto& d : defaults) visit(d);
      for (auto& s : streams) visit(*s);
    }
    bool busy() {
      bool any = false;
      each([&](stream& s) { any = any || s.busy; });
      return any;
    }
    bool idle() {
      bool all = true;
      each([&](stream& s) { all = all && s.work.empty() && !s.busy; });
      return all;
    }
    void work() {
      std::unique_lock lock(mutex);
      for (;;) {
        std::vector<stream*> ready;
        each([&](stream& s) {
          if (s.busy || s.work.empty()) return;
          const auto& next = s.work.front();
          if (next.awaited != nullptr && !*next.awaited) return;
          if (next.copy ? held || let_through == 0 : next.run && kernels_held) return;
          ready.push_back(&s);
        });
        if (ready.empty()) {
          if (stopping) return;
          changed.wait(lock);
          continue;
        }
        auto& s = *ready[random() % ready.size()];
        auto next = std::move(s.work.front());
        s.work.pop_front();
        if (next.copy && let_through != no_limit) --let_through;
        s.busy = true;
        const auto idle_turns = random() % 4;
        lock.unlock();
        for (std::uint32_t i = 0; i < idle_turns; ++i) std::this_thread::yield();
        if (next.run) next.run();
        next.run = nullptr;
        lock.lock();
        if (next.recorded != nullptr) *next.recorded = true;
        s.busy = false;
        changed.notify_all();
      }
    }
  };

  static int& current() {
    thread_local int device = 0;
    return device;
  }
  static int& slow() {
    thread_local int calls = 0;
    return calls;
  }
  static int& capture_mode() {
    thread_local int mode = global_capture;
    return mode;
  }
  static state& world() {
    static state w;
    return w;
  }
  /// Calls that a thread may not make during any capture, unless its capture mode is relaxed.
  template <class Work>
  static int slow_call(Work&& work) noexcept {
    ++slow();
    return unsafe_call(std::forward<Work>(work));
  }
  template <class Work>
  static int unsafe_call(Work&& work) noexcept {
    return call([&](state& w) {
      if (capture_mode() != relaxed_capture)
        for (auto& s : w.streams)
          if (s->capturing) {
            s->capture_broken = true;
            return capture_unsupported;
          }
      return work(w);
    });
  }
  template <class Work>
  static int call(Work&& work) noexcept {
    return contextless_call([&](state& w) {
      w.contexts.insert(current());
      return work(w);
    });
  }
  template <class Work>
  static int contextless_call(Work&& work) noexcept {
    auto& w = world();
    std::unique_lock lock(w.mutex);
    if (w.broken != 0) {
      // Work that runs ends before a call can report that the device is gone.
      w.changed.wait(lock, [&] { return !w.busy(); });
      return w.broken;
    }
    if (++w.calls == w.fail_at || w.fail_on) {
      if (w.fail_with == illegal_address) {
        w.broken = illegal_address;
        w.each([](stream& s) { s.work.clear(); });
        w.changed.notify_all();
        w.changed.wait(lock, [&] { return w.idle(); });
      }
      return w.fail_with;
    }
    return work(w);
  }
};
static_assert(cairn::cuda::GatheringRuntime<device_double>);

}  // namespace cairn_test
