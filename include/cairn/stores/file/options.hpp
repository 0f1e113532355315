// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace cairn {
inline namespace v1 {

/// What becomes of a store's own directory where it is not there.
enum class root_directory : std::uint8_t {
  must_exist,    ///< an error: what keeps a disk that is not mounted from being taken for an empty one
  make,          ///< it is made, in a directory that is there
  make_parents,  ///< it is made, and all directories above it
};

/// How a file_store works. Sizes in bytes.
struct file_store_options {
  bool direct_io = true;               ///< O_DIRECT for large requests, where the file system can
  std::size_t write_bytes = 8u << 20;  ///< length of one write request; a multiple of the part alignment
  std::size_t writes_in_flight = 4;    ///< write requests at once, over one call of write()
  std::size_t read_bytes = 2u << 20;   ///< length of one read request
  std::size_t reads_in_flight = 4;     ///< read requests at once, over one call of read()
  /// Permission bits of all files, exactly these whatever the umask: 0600 and any of 0177. Left out: 0666
  /// less the umask, as other programs do it.
  std::optional<unsigned> file_mode = {};
  /// Permission bits of all directories that are made, the root and its parents among them, exactly these
  /// whatever the umask: 0700 and any of 03077. Left out: 0777 less the umask. A set-group-id bit that a
  /// directory inherits stays. A crash in the instant after mkdir leaves what the umask allows of them.
  std::optional<unsigned> directory_mode = {};
  /// What becomes of the store's directory where it is not there, once something is to be written.
  root_directory root = root_directory::make;
  /// One job alone writes there, one at a time: what prove() finds unsafe between two jobs is accepted.
  bool single_writer = false;
};

namespace detail {
/// What requests and their memory are aligned to: a page of the system, and at least 4096 bytes.
[[nodiscard]] std::size_t file_block() noexcept;
/// The name of the root, where it and the options can be used. @throws usage_bad_option where not
[[nodiscard]] std::string checked_root(std::string root, const file_store_options& options);
}  // namespace detail

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/stores/file/options.ipp>
#endif
