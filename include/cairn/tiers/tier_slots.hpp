// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::interprocess
#pragma once
#include <cairn/concepts/image_tier.hpp>
#include <cairn/model/image_control.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/stage/shared_memory.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/shared_event.hpp>
#include <cairn/system/unforked_file.hpp>
#include <cairn/tiers/held_record.hpp>
#include <cairn/tiers/tier_files.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// The images of one rank in the directory of a local tier, and the records that say what they hold. Any thread,
/// after open().
///
/// What is in the directory:
///   job               the name of the job's storage; what is of another job is refused
///   run-<run>         rank 0 of that run sees this directory
///   lock              locked for each choice of an image, and while an image becomes held
///   rank-00003.lock   locked as long as a process is this rank
///   slot-00003.1      an image, and behind it its digests; locked as long as a process has it mapped to write it
///   plan.<digest>     the manifest of saves of this plan, without their records
///   new-00003         a record that is being written
///   held.<...>        a record: the image that it names is held
/// An image is held from the rename of its record on, and no more from the removal of its record on, which comes
/// before its bytes change.
class tier_slots : public std::enable_shared_from_this<tier_slots> {
 public:
  /// @throws usage_error (usage_bad_option)
  tier_slots(std::string directory, int keep, std::shared_ptr<tier_files> files);

  /// The right to one image, until its save neither fills nor writes it any more.
  class lease {
   public:
    lease(std::shared_ptr<tier_slots> owner, std::size_t slot) noexcept
        : owner_(std::move(owner)), slot_(slot) {}
    lease(lease&& other) noexcept = default;
    lease& operator=(lease&&) = delete;
    ~lease();
    /// Where the memory lies; the same as long as this lives.
    [[nodiscard]] shared_block& block() noexcept { return *block_; }
    [[nodiscard]] const shared_block& block() const noexcept { return *block_; }

   private:
    friend tier_slots;
    std::shared_ptr<tier_slots> owner_;  // null in one that was moved from
    std::size_t slot_;
    std::optional<shared_block> block_;
  };

  /// See image_tier.
  void open(const tier_user& user);
  [[nodiscard]] std::uint64_t missing(std::uint64_t bytes);
  void check_room(std::uint64_t bytes) const;
  void keep_plan(std::uint64_t plan_digest, const metadata& stored);
  void end() noexcept;

  /// Waits for an image of at least so many bytes; what it held is given up. @throws timeout_error
  /// (timeout_staging), storage_error
  [[nodiscard]] lease acquire(std::uint64_t bytes, deadline until);
  /// Allocates all images.
  void reserve(std::uint64_t bytes, deadline until);
  /// The image of a save is complete, with its digests: from here on it is held. @throws storage_error,
  /// timeout_error (timeout_staging)
  void hold(const save_context& c, const staged_image& image, deadline until);

  [[nodiscard]] int depth() const noexcept { return depth_; }
  [[nodiscard]] const std::string& directory() const noexcept { return directory_; }
  /// All records that are there, of all ranks. @throws storage_error
  [[nodiscard]] std::vector<held_name> held_names() const;
  /// Removes a record, so that its image is held no more.
  void remove(const held_name& name) const { files_->remove(path(to_string(name))); }
  [[nodiscard]] std::string path(const std::string& name) const { return directory_ + "/" + name; }

 private:
  struct slot {
    std::int32_t number = 0;
    std::shared_ptr<shared_segment> memory = nullptr;  // null: none
    bool in_use = false;
  };
  class exclusion;

  void make_directory() const;
  void check_job(const tier_user& user) const;
  void adopt();
  [[nodiscard]] bool linked(const slot& s) const noexcept;
  [[nodiscard]] std::optional<std::size_t> take(std::uint64_t bytes, deadline until);
  void remove_of_lost_ranks(const std::vector<held_name>& names, std::uint64_t newest_complete,
                            const std::vector<std::uint64_t>& generations) const;
  [[nodiscard]] std::shared_ptr<shared_segment> allocate(std::int32_t number, std::uint64_t bytes) const;
  void give_back(std::size_t index) noexcept;
  [[nodiscard]] std::vector<std::string> names() const;

  const std::string directory_;
  const int depth_;
  const std::shared_ptr<tier_files> files_;
  tier_user user_;
  std::unique_ptr<unforked_file> alive_;   // the lock of this rank
  std::unique_ptr<unforked_file> choice_;  // the lock of choices
  std::mutex mutex_;
  shared_event returned_;
  std::vector<slot> slots_;  // only grows
  bool others_have_some_ = false;
  std::vector<std::uint64_t> plans_;  // the last that were kept, of the thread of training
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_INTERPROCESS)
#include <cairn/impl/tiers/tier_slots.ipp>
#endif
