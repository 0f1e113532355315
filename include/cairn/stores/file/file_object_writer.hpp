// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/byte_store.hpp>
#include <cairn/stores/file/posix_file_system.hpp>
#include <cairn/system/owned.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace cairn {
inline namespace v1 {
namespace detail {

template <FileSystem F>
class file_write;
template <FileSystem F>
class shared_file_write;

/// What basic_file_store::create gives; see ObjectWriter.
template <FileSystem F>
class file_object_writer {
 public:
  explicit file_object_writer(detail::owned<file_write<F>> write) noexcept;
  file_object_writer(file_object_writer&& other) noexcept;
  file_object_writer& operator=(file_object_writer&& other) noexcept;
  ~file_object_writer();

  void write(std::span<const write_range> parts);
  void finish();
  /// CPU time of threads that helped to write, in nanoseconds; for reports, not part of the concept.
  [[nodiscard]] std::int64_t helper_cpu() const noexcept;
  /// The open file whose lock tells others that the writer of the unfinished object lives: it does as long as
  /// any process has this descriptor or a copy of it. Not part of the concept either.
  [[nodiscard]] int lock_descriptor() const noexcept;

 private:
  detail::owned<file_write<F>> write_;
};

/// What basic_file_store::share and join give; see SharedObjectWriter. What is put goes through the page
/// cache, where all processes of the host see it.
template <FileSystem F>
class shared_file_writer {
 public:
  explicit shared_file_writer(detail::owned<shared_file_write<F>> write) noexcept;
  shared_file_writer(shared_file_writer&& other) noexcept;
  shared_file_writer& operator=(shared_file_writer&& other) noexcept;
  ~shared_file_writer();

  void write(std::span<const write_range> parts);
  void put(std::uint64_t offset, std::span<const std::byte> bytes);
  [[nodiscard]] bool read(std::uint64_t offset, std::span<std::byte> destination);
  void sync();
  void finish(std::uint64_t bytes);
  [[nodiscard]] std::int64_t helper_cpu() const noexcept;

 private:
  detail::owned<shared_file_write<F>> write_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
