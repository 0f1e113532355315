// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::interprocess
#pragma once
#include <cairn/concepts/image_tier.hpp>
#include <cairn/model/image_control.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/stage/shared_memory.hpp>
#include <cairn/system/callback.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/shared_event.hpp>
#include <cairn/tiers/tier_directory.hpp>
#include <cairn/tiers/tier_files.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// The images of one rank in the directory of a local tier. Any thread, after open().
///
/// While nothing waits for it, the image of the next save is chosen and freed as soon as one is held, so that a save
/// finds one ready.
class tier_slots : public std::enable_shared_from_this<tier_slots> {
 public:
  /// @throws usage_error (usage_bad_option)
  tier_slots(std::string directory, int keep, std::shared_ptr<tier_files> files);

  /// Keeps what an image holds from being given up, until it ends.
  class pin {
   public:
    pin(std::shared_ptr<tier_slots> owner, std::size_t slot, std::shared_ptr<shared_segment> memory) noexcept
        : owner_(std::move(owner)), slot_(slot), memory_(std::move(memory)) {}
    pin(const pin&) = delete;
    pin& operator=(const pin&) = delete;
    ~pin();
    /// None on a disk.
    [[nodiscard]] std::span<const std::byte> bytes() const noexcept {
      return memory_ != nullptr ? memory_->bytes() : std::span<std::byte>();
    }

   private:
    std::shared_ptr<tier_slots> owner_;
    std::size_t slot_;
    std::shared_ptr<shared_segment> memory_;
  };
  /// See spread_tier; before open().
  void spread() noexcept {
    directory_.spread();
    depth_ += 2;
  }
  void held_by_all(const held_step& which) noexcept;
  /// Which save of this rank it is; nothing where it is held no more.
  [[nodiscard]] std::optional<held_name> name_of(const held_step& which) const;
  /// Null where this rank does not hold the save any more.
  [[nodiscard]] std::shared_ptr<const pin> pin_image(const held_name& name, deadline until);

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
  /// See surveyed_tier.
  void images_were_added();
  void end() noexcept;

  /// Waits for an image of at least so many bytes; what it held is given up. @throws timeout_error
  /// (timeout_staging), storage_error
  [[nodiscard]] lease acquire(std::uint64_t bytes, deadline until);
  /// Allocates all images.
  void reserve(std::uint64_t bytes, deadline until);
  /// See image_tier.
  void when_held(callback<void(const held_step&)> call) { held_call_ = std::move(call); }
  /// See image_tier.
  void go_on_from(const tier_base& base);
  /// Waits until the image of a save is complete, with its digests, and on a disk writes it: from here on it is held. @throws storage_error,
  /// timeout_error (timeout_staging)
  void hold(const save_context& c, const staged_image& image, deadline until);

  [[nodiscard]] int depth() const noexcept { return depth_; }
  [[nodiscard]] tier_directory& directory() noexcept { return directory_; }
  /// Of the memory that images have; 0: there is none yet.
  [[nodiscard]] std::uint64_t page_bytes();

 private:
  struct slot {
    std::int32_t number = 0;
    std::shared_ptr<shared_segment> memory = nullptr;  // null: none
    bool in_use = false;
    int pins = 0;  // what it holds is being read
  };
  class chosen_slot;

  void adopt();
  [[nodiscard]] std::int32_t slot_of(const staged_image& image, std::int32_t rank);
  [[nodiscard]] bool linked(const slot& s) const noexcept;
  // Both under the lock and the exclusion.
  [[nodiscard]] std::optional<std::size_t> choose(std::uint64_t bytes, bool early);
  void choose_next() noexcept;
  void give_up_left() noexcept;  // under the lock
  [[nodiscard]] std::optional<std::size_t> take(std::uint64_t bytes, deadline until);
  void remove_of_lost_ranks(const std::vector<held_name>& names, std::uint64_t newest_complete,
                            const std::vector<std::uint64_t>& generations) const;
  [[nodiscard]] std::shared_ptr<shared_segment> allocate(std::int32_t number, std::uint64_t bytes) const;
  void give_back(std::size_t index) noexcept;

  tier_directory directory_;
  int depth_;
  std::mutex mutex_;
  shared_event returned_;
  std::vector<slot> slots_;           // only grows
  std::optional<std::size_t> ready_;  // of the next save; in use
  std::uint64_t bytes_ = 0;           // of the last image
  bool others_have_some_ = false;
  std::optional<std::vector<run_id>> runs_;
  // Where other ranks hold saves elsewhere: the newest that all hold, and before the first one what the run goes on from.
  std::uint64_t held_by_all_ = 0;
  std::int64_t base_step_ = -1;
  std::optional<tier_base> base_;  // as long as saves after it may have to go
  callback<void(const held_step&)> held_call_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_INTERPROCESS)
#include <cairn/impl/tiers/tier_slots.ipp>
#endif
