// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/tensor_view.hpp>
#include <cairn/system/deadline.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

namespace cairn {
inline namespace v1 {

/// One copy from a buffer of a device_load to device memory.
struct device_run {
  std::byte* to = nullptr;          ///< in device memory
  const std::byte* from = nullptr;  ///< in the buffer
  std::uint64_t bytes = 0;
};

/// One load into device memory: buffers that readers fill, and copies from them that run while readers
/// fill the next ones. A load accesses device memory only through this class.
///
/// - `check(target, item)`: throws usage_error where the target cannot be written. One thread at a time
///   calls it, before the first put for the device.
/// - `memory()`: the most bytes of buffers that exist at once.
/// - `acquire(bytes, until)`: returns a buffer of at least so many bytes, whose earlier copies are done.
///   A thread holds one at a time. Throws storage_error, timeout_error (timeout_load).
/// - `put(buffer, device, item, runs)`: starts copies from a buffer that the thread holds, and returns
///   before they are done. `item` is its name in errors.
/// - `give(buffer)`: gives the buffer back, which is used again when its copies are done. Called also
///   where the thread could not put everything.
/// - `finish(until)`: waits until everything is copied. Throws what failed, naming call, device and item.
///
/// Any thread calls acquire, put and give. The destructor waits for copies that are under way, whether or not
/// the load succeeded; nothing writes the targets afterwards.
class device_load {
 public:
  /// Host memory from which bytes are copied to a device.
  struct buffer {
    std::size_t index = 0;  ///< the load's number for it; readers leave it as it is
    std::span<std::byte> bytes;
  };
  virtual ~device_load() = default;
  virtual void check(const tensor_view& target, std::string_view item) = 0;
  /// The most bytes of buffers that exist at once.
  [[nodiscard]] virtual std::uint64_t memory() const noexcept = 0;
  /// Returns a buffer of at least `bytes` bytes whose earlier copies are done. Any thread.
  [[nodiscard]] virtual buffer acquire(std::uint64_t bytes, deadline until) = 0;
  virtual void put(const buffer& from, int device, std::string_view item,
                   std::span<const device_run> runs) = 0;
  /// Gives a buffer back, which is used again when its copies are done. Any thread.
  virtual void give(const buffer& done) noexcept = 0;
  virtual void finish(deadline until) = 0;
};

/// Reads device memory, by one thread.
///
/// - `read(from, first, last, to, item, until)`: copies bytes [first, last) of the packed view to `to`,
///   in host memory, and returns when they are there. `item` is its name in errors. Throws usage_error,
///   storage_error, timeout_error (timeout_staging).
class device_read {
 public:
  virtual ~device_read() = default;
  virtual void read(const tensor_view& from, std::uint64_t first, std::uint64_t last, std::byte* to,
                    std::string_view item, deadline until) = 0;
};

/// Gives loads and checked{} access to memory that the CPU cannot address. A stager that copies from devices
/// provides one (`device_memory()`); without such a stager it is a policy of the checkpointer, with the
/// role role::devices.
///
/// - `begin_load(budget)`: begins a load with at most so many bytes of buffers. Its copies begin after
///   the work that was enqueued on the devices before.
/// - `begin_read()`: begins reads, which see memory as it is after the work that was enqueued before.
class device_access {
 public:
  virtual ~device_access() = default;
  /// Begins a load with at most `budget` bytes of buffers.
  [[nodiscard]] virtual std::unique_ptr<device_load> begin_load(std::uint64_t budget) = 0;
  /// Begins reads of device memory by one thread.
  [[nodiscard]] virtual std::unique_ptr<device_read> begin_read() = 0;
};

namespace detail {

/// Holds a buffer of a load; its destructor gives the buffer back.
class held_buffer {
 public:
  held_buffer(device_load& load, std::uint64_t bytes, deadline until)
      : load_(load), buffer_(load.acquire(bytes, until)) {}
  held_buffer(const held_buffer&) = delete;
  held_buffer& operator=(const held_buffer&) = delete;
  ~held_buffer() { load_.give(buffer_); }
  [[nodiscard]] std::byte* data() const noexcept { return buffer_.bytes.data(); }
  void put(int device, std::string_view item, std::span<const device_run> runs) {
    load_.put(buffer_, device, item, runs);
  }

 private:
  device_load& load_;
  device_load::buffer buffer_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
