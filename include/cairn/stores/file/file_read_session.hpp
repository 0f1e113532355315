// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/store_reads.hpp>
#include <cairn/stores/file/posix_file_system.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace cairn {
inline namespace v1 {

template <FileSystem F>
class basic_file_store;

namespace detail {

template <FileSystem F>
class file_reader;

/// What basic_file_store::begin_reads gives; see ReadSession. Keeps at most 256 files open, and no more than an
/// eighth of the descriptors that the process may have.
template <FileSystem F>
class file_read_session {
 public:
  using store_type = basic_file_store<F>;

  explicit file_read_session(std::unique_ptr<file_reader<F>> reader) noexcept;
  file_read_session(file_read_session&& other) noexcept;
  file_read_session& operator=(file_read_session&& other) noexcept;
  ~file_read_session();

  void read(std::span<const read_range> ranges);
  [[nodiscard]] bool is_cached(std::string_view key, std::uint64_t offset, std::uint64_t bytes);
  [[nodiscard]] read_figures figures() const noexcept;

 private:
  std::unique_ptr<file_reader<F>> reader_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
