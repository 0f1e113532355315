// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store_model.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/stores/file/file_object_writer.hpp>
#include <cairn/stores/file/options.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace cairn {
inline namespace v1 {

namespace detail {
template <FileSystem F>
struct file_tree;
}

/// Objects as files below one directory; a ByteStore. The directory is made when the first object is created,
/// in one that is there.
///
/// - What finish(), put_new() and publish_new() acknowledge survives a power loss: data fsynced once, close
///   checked, renamed without replacing (or linked), directory fsynced, and the entries of all directories
///   above it too.
/// - An unfinished object is `<key>.<16 hexadecimal digits>.part`, locked as long as its writer lives (also a
///   forked child that still holds the descriptor counts as alive). Where the file system has no locks,
///   leftovers() lists those of live writers too.
/// - After an error of the last fsync, that of the directory, the object is whole and stands under its key,
///   but a power loss may still take it away: the call throws.
/// - Large requests go past the page cache (O_DIRECT); where the file system refuses, the page cache is used.
///   No file is ever mapped. No symbolic link below the root is followed.
/// - A file that would grow beyond `ulimit -f` is storage_limit: SIGXFSZ is blocked on the thread during the
///   calls.
/// - Copies share root, options and threads. The threads (at most the larger of the two in_flight options
///   less one) begin when first needed and end with the last copy or object writer. Not to be used in the
///   child of a fork.
/// - All functions may be called by several threads at once. No wait here has a deadline of its own: a call
///   ends when the system call does.
///
/// With a file system of one's own, and cairn::compiled, the file that names it includes
/// <cairn/stores/basic_file_store.hpp>, too: the library has the bodies for the system's own alone.
template <FileSystem F = posix_file_system>
class basic_file_store {
 public:
  using cairn_role = role::store;
  using object_writer = detail::file_object_writer<F>;
  using shared_writer = detail::shared_file_writer<F>;

  /// `root`: a directory that exists or can be made, see file_store_options::root; relative to the working
  /// directory of now.
  /// @throws usage_bad_option
  explicit basic_file_store(std::string root, file_store_options options = {}, F file_system = {});

  /// See Portable: root and options. Where the file system is the system's own.
  [[nodiscard]] std::vector<std::byte> description() const
    requires std::is_empty_v<F>;
  [[nodiscard]] static basic_file_store from_description(std::span<const std::byte> bytes)
    requires std::is_empty_v<F>;

  [[nodiscard]] object_writer create(std::string_view key, std::uint64_t size_hint);

  /// See SharedStore. Who began the file holds its lock; it is removed with that writer. Writers of other
  /// hosts do not find it: bytes of one block come from several writers, which only one host puts together
  /// rightly.
  [[nodiscard]] shared_writer share(std::string_view key, std::uint64_t tag);
  [[nodiscard]] std::optional<shared_writer> join(std::string_view key, std::uint64_t tag);

  [[nodiscard]] std::size_t io_alignment() const noexcept;
  /// Shorter parts are right too, but do not use the device well.
  [[nodiscard]] std::size_t min_write_bytes() const noexcept;

  void read(std::span<const read_range> ranges);

  void put_new(std::string_view key, std::span<const std::byte> bytes);

  [[nodiscard]] bool publish_new(std::string_view key, std::span<const std::byte> bytes);

  [[nodiscard]] std::optional<std::vector<std::byte>> read_all(std::string_view key, std::uint64_t cap);

  [[nodiscard]] std::optional<std::uint64_t> size(std::string_view key);

  [[nodiscard]] std::vector<listed_object> list(std::string_view prefix);

  /// See ListsKeys.
  [[nodiscard]] std::vector<std::string> keys(std::string_view prefix, std::size_t parts);

  /// Also removes the directories above it that are empty then, except the root.
  void remove(std::string_view key);

  /// See ConditionalRemove. The file is held open while it is compared and removed, so that one which another
  /// puts under its name has another inode; between the last look at that and the removal nothing is waited
  /// for.
  [[nodiscard]] bool remove_if(std::string_view key, std::span<const std::byte> bytes);

  [[nodiscard]] std::vector<std::string> leftovers(std::string_view prefix);

  /// The keys of unfinished objects whose writers live: those that leftovers() leaves out. Beside ByteStore,
  /// like writer_lives().
  [[nodiscard]] std::vector<std::string> live_writers(std::string_view prefix);
  /// Whether the object writer that finished an object still exists: it keeps its file locked. False where
  /// the file system has no locks, or none that reach the writer's host.
  [[nodiscard]] bool writer_lives(std::string_view key);

  /// Removes what leftovers() listed. @throws storage_bad_key for other keys; storage_exists if its writer
  /// lives.
  void discard(std::string_view key);

  /// See DirectoryStore.
  void make_directory(std::string_view directory);
  [[nodiscard]] bool adopt_directory(std::string_view directory);
  void make_name_durable(std::string_view key);

  /// See DurabilityHints. The note is the sticky bit of the file, which means nothing else for a file on Linux:
  /// who may read and write it stays as it was. Where a file system does not keep it, no note is seen.
  void note_durable(std::string_view key) noexcept;
  [[nodiscard]] bool is_noted_durable(std::string_view key);

  [[nodiscard]] std::optional<space_left> free_space();

  /// See SelfTestingStore: whether names are given once, locks are seen, fsync works, and what file system it
  /// is. The directory is made where the options let it be.
  [[nodiscard]] store_proof prove();

  /// With the kind of file system, once prove() has seen it: "directory /data/checkpoints (ext4)". No call of
  /// the system.
  [[nodiscard]] std::string describe() const;

  [[nodiscard]] const std::string& root() const noexcept;
  [[nodiscard]] const file_store_options& options() const noexcept;

 private:
  std::shared_ptr<detail::file_tree<F>> tree_;
};

/// Objects as files below a directory: `file_store{"checkpoints"}`.
using file_store = basic_file_store<>;

#if defined(CAIRN_COMPILED)
extern template class detail::file_object_writer<posix_file_system>;
extern template class detail::shared_file_writer<posix_file_system>;
extern template class basic_file_store<posix_file_system>;
extern template std::shared_ptr<detail::store_face> detail::face_of(std::shared_ptr<file_store> store);
#endif

static_assert(DurabilityHints<file_store> && SharedStore<file_store> && SelfTestingStore<file_store> &&
              ConditionalRemove<file_store>);

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/stores/file_store.ipp>
#endif
