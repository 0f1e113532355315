// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace cairn {
inline namespace v1 {

/// What a store does where its directory does not exist.
enum class root_directory : std::uint8_t {
  must_exist,    ///< throws, so that the mount point of a missing disk is not taken for an empty store
  make,          ///< makes it; the directory above must exist
  make_parents,  ///< makes it and all directories above it
};

/// Options of a file_store. Sizes are in bytes.
struct file_store_options {
  bool direct_io = true;               ///< O_DIRECT for large requests, where the file system allows it
  std::size_t write_bytes = 8u << 20;  ///< length of one write request; a multiple of io_alignment()
  std::size_t writes_in_flight = 4;    ///< write requests at once, over one call of write()
  std::size_t read_bytes = 2u << 20;   ///< length of one read request
  std::size_t reads_in_flight = 4;     ///< read requests at once, over one call of read()
  /// Permission bits of all files, whatever the umask: 0600 and any of 0177. Without it: 0666
  /// less the umask.
  std::optional<unsigned> file_mode = {};
  /// Permission bits of all directories that the store makes, also of the root and its parents, whatever the
  /// umask: 0700 and any of 03077. Without it: 0777 less the umask. An inherited set-group-ID bit
  /// stays. A crash directly after mkdir(2) leaves a directory with the bits that the umask allows.
  std::optional<unsigned> directory_mode = {};
  /// What the first write does where the store's directory does not exist.
  root_directory root = root_directory::make;
  /// Says that only one job at a time writes there, so that self_test() accepts what is unsafe between two jobs.
  bool single_writer = false;
  /// Writes go through the page cache and stay there, so that a load on this host needs no device: for a job that is
  /// often restarted on its host, with room for a checkpoint beside what training reads. A save takes longer.
  bool keep_cached = false;
};

namespace detail {
/// The alignment of direct requests and their memory: the page size, and at least 4096 bytes.
[[nodiscard]] std::size_t file_block() noexcept;
/// Returns the root if it and the options are valid. @throws usage_bad_option otherwise
[[nodiscard]] std::string checked_root(std::string root, const file_store_options& options);
}  // namespace detail

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/stores/file/options.ipp>
#endif
