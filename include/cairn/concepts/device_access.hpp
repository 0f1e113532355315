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

/// Bytes that go from memory of a device_load to memory of a device.
struct device_run {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::uint64_t bytes = 0;
};

/// One load into memory of devices: buffers that readers fill, and copies from them that run beside the
/// reading of the next. Nothing that the CPU reads or writes is done to a device's memory by anybody else.
///
/// - `check(target, item)`: throws usage_error where the target cannot be written; before the first put for
///   its device, by one thread at a time.
/// - `memory()`: the most bytes of buffers that exist at once.
/// - `acquire(bytes, until)`: a buffer of at least so many bytes, whose earlier copies are done. A thread
///   holds one at a time. Throws storage_error, timeout_error (timeout_load).
/// - `put(buffer, device, item, runs)`: copies from a buffer that the thread holds; returns before they are
///   done. `item` names it in errors.
/// - `give(buffer)`: nothing more is put from it; it is used again when its copies are done. Also where the
///   thread could not do all of it.
/// - `finish(until)`: waits until everything is copied. Throws what failed, naming call, device and item.
///
/// Any thread calls acquire, put and give. The destructor waits for copies that are under way, whether or not
/// the load succeeded: afterwards nobody touches the targets.
class device_load {
 public:
  /// Memory of the host from which bytes go to a device.
  struct buffer {
    std::size_t index = 0;
    std::span<std::byte> bytes;
  };
  virtual ~device_load() = default;
  virtual void check(const tensor_view& target, std::string_view item) = 0;
  [[nodiscard]] virtual std::uint64_t memory() const noexcept = 0;
  [[nodiscard]] virtual buffer acquire(std::uint64_t bytes, deadline until) = 0;
  virtual void put(const buffer& from, int device, std::string_view item,
                   std::span<const device_run> runs) = 0;
  virtual void give(const buffer& done) noexcept = 0;
  virtual void finish(deadline until) = 0;
};

/// One look at memory of devices, by one thread.
///
/// - `read(from, first, last, to, item, until)`: bytes [first, last) of the packed view are at `to`, in
///   memory of the host, when it returns. `item` names it in errors. Throws usage_error, storage_error,
///   timeout_error (timeout_staging).
class device_read {
 public:
  virtual ~device_read() = default;
  virtual void read(const tensor_view& from, std::uint64_t first, std::uint64_t last, std::byte* to,
                    std::string_view item, deadline until) = 0;
};

/// What loads and checked{} do with memory that the CPU cannot address. A stager that copies from devices
/// brings one along (`device_memory()`); without such a stager it is a policy of the checkpointer, of the
/// role role::devices.
///
/// - `begin_load(budget)`: a load with at most so many bytes of buffers. What the devices had been given to
///   do by then is done before anything is copied.
/// - `begin_read()`: a look at what is there once that is done.
class device_access {
 public:
  virtual ~device_access() = default;
  [[nodiscard]] virtual std::unique_ptr<device_load> begin_load(std::uint64_t budget) = 0;
  [[nodiscard]] virtual std::unique_ptr<device_read> begin_read() = 0;
};

namespace detail {

/// A buffer of a load, given back at the end.
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
