// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/store_reads.hpp>
#include <cairn/stores/file/posix_file_system.hpp>
#include <cairn/system/owned.hpp>

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

/// What basic_file_store::begin_reads gives; see ReadSession. Each keeps up to two descriptors for a file, and files
/// open for at most an eighth of the descriptors that the process may have, not less than 4 files and not more than 256;
/// what its threads read at once is open in any case. Where descriptors are short it gives back all but those, and
/// tries for an eighth of a second before that is an error.
template <FileSystem F>
class file_read_session {
 public:
  using store_type = basic_file_store<F>;

  explicit file_read_session(detail::owned<file_reader<F>> reader) noexcept;
  file_read_session(file_read_session&& other) noexcept;
  file_read_session& operator=(file_read_session&& other) noexcept;
  ~file_read_session();

  void read(std::span<const read_range> ranges);
  [[nodiscard]] bool is_cached(std::string_view key, std::uint64_t offset, std::uint64_t bytes);
  [[nodiscard]] bool copy(std::string_view key, std::uint64_t offset, std::span<std::byte> destination,
                          std::uint64_t* digest);
  [[nodiscard]] read_figures figures() const noexcept;

 private:
  detail::owned<file_reader<F>> reader_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
