// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store_model.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/stores/file/directory_watch.hpp>
#include <cairn/stores/file/file_object_writer.hpp>
#include <cairn/stores/file/file_read_session.hpp>
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

class any_storage;
class any_store;

namespace detail {
template <FileSystem F>
struct file_tree;
template <ByteStore Store>
any_storage default_storage_over(Store store);
template <ByteStore Store>
any_storage storage_of_one_rank_over(Store store, any_storage (*make)(any_store));
}  // namespace detail

/// A ByteStore that keeps objects as files below one directory. It makes the directory when it creates
/// the first object; the directory above must exist (see file_store_options::root).
///
/// - An object that finish(), put_new() or publish_new() has acknowledged survives a power loss: its data
///   is fsynced, the file is closed without an error, renamed without replacing (renameat2(2) with
///   RENAME_NOREPLACE, or link(2)), and the directory and the entries of all directories above it are
///   fsynced.
/// - An unfinished object is the file `<key>.<16 hexadecimal digits>.part`, which is locked (F_OFD_SETLK,
///   see fcntl(2)) as long as its writer lives; a forked child that holds the descriptor counts as alive.
///   Where the file system has no locks, leftovers() lists the files of live writers too. The writer of a file
///   that this user may not read counts as living; another error while a lock is asked for is thrown.
/// - If the last fsync, that of the directory, fails, the call throws; the object is then complete under
///   its key, but a power loss may still remove it.
/// - Large requests bypass the page cache (O_DIRECT, see open(2)) where the file system allows it, except for
///   what a session of reads finds there. No data is read through a mapping. No symbolic link below the root
///   is followed.
/// - A file that would grow beyond `ulimit -f` causes storage_limit: SIGXFSZ is blocked on the thread
///   during the calls.
/// - Copies share root, options and threads. The threads (at most the larger of the two in_flight options
///   less one) start when they are first needed and end with the last copy or object writer. Not to be
///   used in the child of a fork.
/// - Several threads may call all functions at once. No call has a deadline of its own: it ends when its
///   system call does.
///
/// With another file system F and cairn::compiled, the source file that names the store also includes
/// <cairn/stores/basic_file_store.hpp>: the library has only the bodies for posix_file_system.
template <FileSystem F = posix_file_system>
class basic_file_store {
 public:
  using cairn_role = role::store;
  using object_writer = detail::file_object_writer<F>;
  using shared_writer = detail::shared_file_writer<F>;
  using read_session = detail::file_read_session<F>;

  /// `root`: a directory that exists or can be made, see file_store_options::root. A relative path is
  /// resolved now, against the working directory.
  /// @throws usage_bad_option
  explicit basic_file_store(std::string root, file_store_options options = {}, F file_system = {});

  /// See Portable: root and options. Only for a file system without state, such as posix_file_system.
  [[nodiscard]] std::vector<std::byte> description() const
    requires std::is_empty_v<F>;
  [[nodiscard]] static basic_file_store from_description(std::span<const std::byte> bytes)
    requires std::is_empty_v<F>;

  [[nodiscard]] object_writer create(std::string_view key, std::uint64_t size_hint);

  /// See SharedStore. The writer that began the file holds its lock, and its destructor removes an
  /// unfinished file. Writers of other hosts do not find the file: several writers may write into one
  /// page, which is only correct where they share a page cache.
  [[nodiscard]] shared_writer share(std::string_view key, std::uint64_t tag);
  [[nodiscard]] std::optional<shared_writer> join(std::string_view key, std::uint64_t tag);

  [[nodiscard]] std::size_t io_alignment() const noexcept;
  /// Shorter ranges work too, but are slower.
  [[nodiscard]] std::size_t min_write_bytes() const noexcept;

  /// Asks the device, not the page cache, for large ranges.
  void read(std::span<const read_range> ranges);

  /// See OffersReadSessions. What the page cache has comes from there.
  [[nodiscard]] read_session begin_reads();

  void put_new(std::string_view key, std::span<const std::byte> bytes);

  [[nodiscard]] bool publish_new(std::string_view key, std::span<const std::byte> bytes);

  [[nodiscard]] std::optional<std::vector<std::byte>> read_all(std::string_view key, std::uint64_t cap);

  [[nodiscard]] std::optional<std::uint64_t> size(std::string_view key);

  /// See IdentifiesObjects: what stat(2) says of the file; what is written within one tick of the system's clock (some
  /// milliseconds) may look the same.
  [[nodiscard]] std::optional<object_identity> identify(std::string_view key);

  [[nodiscard]] std::vector<listed_object> list(std::string_view prefix);

  /// See ListsKeys.
  [[nodiscard]] std::vector<std::string> keys(std::string_view prefix, std::size_t parts);

  /// See LinksObjects: a hard link; where the file system refuses one, a file that shares the blocks of the other one
  /// (FICLONE), else a copy. Hard links share owner, times and permission bits. See LinksUntil: a copy ends at the
  /// deadline; a link, like every other call of the system, ends when the file system ends it.
  void link(std::string_view from, std::string_view to, deadline until = deadline::never());

  /// See WatchesChanges: by inotify(7), which tells nothing of what other hosts write.
  [[nodiscard]] std::unique_ptr<change_watch> watch(std::string_view prefix)
    requires std::is_empty_v<F>
  {
    return detail::watch_directory(root(), prefix);
  }

  /// Removes also the directories above the file that become empty, except the root.
  void remove(std::string_view key);

  /// See ConditionalRemove. Holds the file open while it compares and removes it, so that another file
  /// that is put under its name has another inode number. It compares the inode number directly before it
  /// removes the file.
  [[nodiscard]] bool remove_if(std::string_view key, std::span<const std::byte> bytes);

  [[nodiscard]] std::vector<std::string> leftovers(std::string_view prefix);

  /// See TracksWriters.
  [[nodiscard]] std::vector<std::string> live_writers(std::string_view prefix);
  /// See TracksWriters: an object writer keeps its finished file locked until it is destroyed. False where
  /// the file system has no locks, or none that work between hosts.
  [[nodiscard]] bool writer_lives(std::string_view key);

  /// Removes a file that leftovers() listed. @throws storage_bad_key for other keys; storage_exists if
  /// its writer lives.
  void discard(std::string_view key);

  /// See DirectoryStore.
  void make_directory(std::string_view directory);
  [[nodiscard]] bool adopt_directory(std::string_view directory);
  void make_name_durable(std::string_view key);

  /// See DurabilityHints. The note is the sticky bit of the file, which Linux ignores for files (see
  /// inode(7)), so that permissions do not change. On a file system that does not store the bit, nobody
  /// sees a note.
  void note_durable(std::string_view key) noexcept;
  [[nodiscard]] bool is_noted_durable(std::string_view key);

  [[nodiscard]] std::optional<space_left> free_space();
  /// See IdentifiesRoot: the device and the number of the directory, and when it was made.
  [[nodiscard]] std::optional<std::string> root_identity();

  /// See SelfTestingStore: tests whether a rename never replaces, others see locks and fsync works, and
  /// reports the kind of file system. Makes the directory where the options allow it.
  [[nodiscard]] store_test_report self_test();

  /// For example "directory /data/checkpoints (ext4)"; the kind of file system is known after self_test().
  /// Makes no system call.
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
extern template class detail::file_read_session<posix_file_system>;
extern template class basic_file_store<posix_file_system>;
extern template std::shared_ptr<detail::store_face> detail::face_of(std::shared_ptr<file_store> store);
extern template any_storage detail::default_storage_over(file_store store);
extern template any_storage detail::storage_of_one_rank_over(file_store store,
                                                             any_storage (*make)(any_store));
#endif

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/stores/file_store.ipp>
#endif
