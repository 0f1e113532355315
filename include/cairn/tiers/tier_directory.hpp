// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/image_tier.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/function_ref.hpp>
#include <cairn/system/unforked_file.hpp>
#include <cairn/tiers/held_record.hpp>
#include <cairn/tiers/tier_files.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Throws why a file of a tier could not be opened or read: a limit, memory and permission as they are, and anything else,
/// such as an I/O error of the disk, as damage of this file, since another host may have what it held.
[[noreturn]] void fail_unreadable(int code, const std::string& what, const std::string& path);
/// A whole small file of a tier; nothing if there is none. @throws storage_error, corrupt_error
[[nodiscard]] std::optional<std::vector<std::byte>> tier_file(const std::string& path);
/// Whether a directory is of a tmpfs: what lies there ends with its host, and need not be made durable.
[[nodiscard]] bool lies_in_memory(const std::string& directory) noexcept;
/// Asks whether a file of so many bytes fits the memory that this process may use, where the directory lies in it: a control
/// group would kill the process instead of refusing. @throws storage_error
void check_memory(const std::string& directory, std::uint64_t bytes);

/// The directory of a local tier as one rank sees it: whose it is, its locks, and the small files beside the images.
/// Any thread, after open().
///
/// What is in the directory:
///   job               the name of the job's storage; what is of another job is refused
///   run-<run>         a rank of that run opened this directory first, whose number it has: rank 0, unless it is spread
///   lock              locked for each choice of an image, and while an image becomes held
///   rank-00003.lock   locked as long as a process is this rank, and names the run of the last one that was
///   slot-00003.1      an image, and behind it its digests; locked as long as a process has it mapped to write it
///   plan.<digest>     the manifest of saves of this plan, without their records
///   plan.<digest>.2   the same once more, as all saves of the plan need it
///   new-00003         a record that is being written
///   held.<...>        a record: the image that it names is held
///   piece-00003.1     what a rank keeps of the images of others, see redundancy_engine
///   kept.<...>        a record: the piece that it names is kept
/// An image is held from the rename of its record on, and no more from the removal of its record on, which comes
/// before its bytes change. On a disk that rename is durable before the lock is free: a choice of another rank counts
/// on it.
class tier_directory {
 public:
  /// @throws usage_error (usage_bad_option)
  tier_directory(std::string directory, std::shared_ptr<tier_files> files);

  /// While it lives, no other rank chooses an image, and none becomes held.
  class exclusion {
   public:
    /// @throws timeout_error (timeout_staging)
    exclusion(const tier_directory& of, deadline until);
    exclusion(const exclusion&) = delete;
    exclusion& operator=(const exclusion&) = delete;
    ~exclusion();

   private:
    int file_;
  };

  /// Other ranks may see other places; see spread_tier. Before open().
  void spread() noexcept { spread_ = true; }
  [[nodiscard]] bool is_spread() const noexcept { return spread_; }
  /// The first rank of this run that opened this place. After open().
  [[nodiscard]] std::int32_t first_rank() const noexcept { return first_rank_; }
  [[nodiscard]] bool first_here() const noexcept { return first_rank_ == user_.rank; }
  /// Whether no process of this run is, or was, this rank here: one that was killed left what others may need.
  [[nodiscard]] bool is_elsewhere(std::int32_t rank) const;
  /// Removes what ranks left here that are elsewhere now. @throws storage_error
  void remove_of_others() const;
  /// See image_tier::open.
  void open(const tier_user& user);
  /// Takes this rank's place again where somebody has removed its files, or the whole directory, such as systemd-logind when the
  /// user logs out: nothing is held then. One thread at a time. @throws what open() throws
  void come_back();
  [[nodiscard]] const tier_user& user() const noexcept { return user_; }
  [[nodiscard]] const std::string& path() const noexcept { return directory_; }
  [[nodiscard]] std::string path(const std::string& name) const { return directory_ + "/" + name; }
  [[nodiscard]] tier_files& files() const noexcept { return *files_; }
  [[nodiscard]] const std::shared_ptr<tier_files>& shared_files() const noexcept { return files_; }
  /// Whether it lies on a disk, so that images are written there; else they lie in memory, which is a tmpfs. After
  /// open().
  [[nodiscard]] bool on_disk() const noexcept { return on_disk_; }

  /// The names of all files. @throws storage_error
  [[nodiscard]] std::vector<std::string> names() const;
  /// All records that are there, of all ranks. A rank that is alone lists them once. @throws storage_error
  [[nodiscard]] std::vector<held_name> held_names() const;
  /// Writes a record, which has no name yet. One thread at a time.
  void put_record(const held_name& name, const held_record& content) const;
  /// Gives the record that was put its name: its image is held.
  void publish_record(const held_name& name) const;
  /// Removes a record, so that its image is held no more.
  void remove_record(const held_name& name) const;
  /// Removes the records of the pieces that are kept and of which this is true.
  void remove_pieces(function_ref<bool(const held_name&)> which) const;
  /// See image_tier::keep_plan. `most`: so many of the last plans stay, though nothing is held of them yet.
  void keep_plan(std::uint64_t plan_digest, const metadata& stored, std::size_t most);
  /// See image_tier::check_room.
  void check_room(std::uint64_t bytes) const;
  /// Removes all that this rank has, and what ranks have that this run has not.
  void end() noexcept;

 private:
  // True where it was not there.
  bool make() const;
  void look_at_place();
  void check_job() const;
  void take_rank();
  // Of a rank that opens this place first.
  void take_over(const std::string& mark);
  void put_durably(const std::string& temporary, const std::string& name,
                   std::span<const std::byte> bytes) const;
  // On a disk, for files that were put, and for names.
  void sync_file(const std::string& path) const;
  void sync_names() const;
  void sync_parent() const;

  const std::string directory_;
  const std::shared_ptr<tier_files> files_;
  tier_user user_;
  bool on_disk_ = false;
  bool spread_ = false;
  std::int32_t first_rank_ = 0;
  std::unique_ptr<unforked_file> alive_;   // the lock of this rank
  std::unique_ptr<unforked_file> choice_;  // the lock of choices
  mutable std::mutex mutex_;
  mutable std::optional<std::vector<held_name>> known_;  // by a rank that is alone: nobody else changes them
  std::vector<std::uint64_t> plans_;                     // the last that were kept, of the thread of training
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/tiers/tier_directory.ipp>
#endif
