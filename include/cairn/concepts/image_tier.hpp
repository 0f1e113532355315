// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_reader.hpp>
#include <cairn/concepts/any_stager.hpp>
#include <cairn/concepts/any_writer.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/concepts/surveyed_tier.hpp>
#include <cairn/model/image_layout.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/model/record.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/callback.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

class tier_files;

/// A save that a tier holds of all its ranks.
struct held_step {
  /// The step that was saved.
  std::int64_t step = 0;
  /// The run that saved it.
  run_id run;
  std::uint64_t attempt = 0;    ///< see save_context::attempt
  std::int32_t world_size = 1;  ///< the number of ranks that saved it
  /// See tier_base::runs of the run that saved it; nothing where it had neither resumed nor loaded.
  std::optional<std::vector<run_id>> runs = std::nullopt;
  friend bool operator==(const held_step&, const held_step&) = default;
};

namespace detail {
/// Brings saves of one step, of some that ascend by step, into the order in which their runs went on from one another.
/// `held(save)`: as a held_step.
template <class Saves, class Held>
void order_by_runs(Saves& saves, const Held& held) {
  const auto known = [&](const held_step& own) {  // the later a run, the more of the others
    std::size_t count = 0;
    for (const auto& each : saves) {
      const held_step& other = held(each);
      count += other.step == own.step && !(other.run == own.run) && own.runs &&
               detail::contains(*own.runs, other.run);
    }
    return count;
  };
  for (std::size_t i = 1; i < saves.size(); ++i)
    for (auto j = i; j > 0 && held(saves[j - 1]).step == held(saves[j]).step &&
                     known(held(saves[j - 1])) > known(held(saves[j]));
         --j)
      std::swap(saves[j - 1], saves[j]);
}
/// Whether a save was left by one of `others`: a later one, of the same run or of one that went on from it, of an earlier
/// step. The job had gone back before it; what was left is given up only once that save is held, and may still be there.
template <class Others, class Held>
[[nodiscard]] bool is_left_behind(const held_step& which, const Others& others, const Held& held) {
  return detail::any_of(others, [&](const auto& each) {
    const held_step& later = held(each);
    if (later.step >= which.step) return false;
    if (later.run == which.run)
      return save_count_of(later.run, later.step, later.attempt) >
             save_count_of(which.run, which.step, which.attempt);
    return later.runs && detail::contains(*later.runs, which.run);
  });
}
}  // namespace detail

/// What a run goes on from.
struct tier_base {
  /// The checkpoint that it resumed or loaded last; nothing where there was none.
  std::optional<std::int64_t> step;
  /// The runs whose saves it knows of: those that led to that checkpoint, those of which the tier held any, and the one that
  /// saved the newest of the store. What another run commits is newer than this one.
  std::vector<run_id> runs;
  /// The saves that this run had begun by then; see save_count_of. A rank may hold the next one before rank 0 tells.
  std::uint64_t saves = 0;
  /// The store has a save that goes on from it.
  bool is_stored = false;
};

/// The image of one rank as a tier holds it, for who copies it elsewhere. As long as it or a copy of it lives, or `pin`, the
/// tier leaves the image as it is, and has one image less for saves.
struct held_image {
  std::span<const std::byte> bytes;              ///< all of it, not verified; see image_layout
  std::vector<std::uint64_t> digests;            ///< of its blocks, in the order of image_layout::items
  std::vector<std::byte> description;            ///< the tier's record of it: files, items and digests
  std::vector<std::byte> plan;                   ///< the manifest of its plan, which all ranks have in common
  std::shared_ptr<const void> memory = nullptr;  ///< keeps `bytes`
  /// Keeps what the tier has of it where nobody needs `bytes` any more, which a tier on a disk reads into memory. Null: `memory` does.
  std::shared_ptr<const void> pin = nullptr;
};

/// The rank that opens a tier.
struct tier_user {
  /// The run that saves from now on.
  run_id run;
  std::int32_t rank = 0;
  /// The number of ranks of the run.
  std::int32_t world_size = 1;
  /// The name of the job's storage, by which a tier knows what is of another job.
  std::string job;
};

/// Keeps images of saves on this host after they were staged, so that a run that is started again finds them:
/// what cairn::checkpointer does with an argument of the role tier. A class derives from it and names the type
/// of its stager as `stager_type`; see Tier.
///
/// A save is *held* by a rank when its image, with all digests, survives the end of every process. It is held
/// when all ranks of its run hold it. A tier may give up what it holds only where a newer save is held by all
/// ranks, so that there is always one once there was one.
///
/// One thread calls it, but for image(), and for writer(), which a thread beside training calls. After open() it is used until
/// the checkpointer ends.
class image_tier {
 public:
  image_tier() = default;
  virtual ~image_tier() = default;

  /// What it is and where, for messages: "a local tier in /dev/shm/run (memory)". Any thread, after open().
  [[nodiscard]] virtual std::string describe() const = 0;
  /// The stager whose images the tier holds. Called once, before open().
  [[nodiscard]] virtual any_stager stager() = 0;
  /// Opens the tier for one rank: rank 0 first, the others after it has returned there.
  /// @throws usage_error (usage_bad_option) where a tier cannot be, for what another job left there, and while
  /// another process is this rank; storage_error (storage_not_shared) on a rank that sees another tier than
  /// rank 0 does.
  virtual void open(const tier_user& user) = 0;
  /// The memory that this rank has yet to allocate before it holds images of this layout, in bytes.
  [[nodiscard]] virtual std::uint64_t missing(const image_layout& layout) = 0;
  /// Called by rank 0, with what all ranks have to allocate together. @throws storage_error (storage_no_space,
  /// storage_limit, storage_out_of_memory) naming what is short.
  virtual void check_room(std::uint64_t bytes) = 0;
  /// Called by rank 0 before each save of this plan is held: somebody may have removed what was kept. @throws storage_error
  virtual void keep_plan(std::uint64_t plan_digest, const metadata& stored) = 0;
  /// A StorageWriter whose write() waits until the image is released and then holds it; the rest of it does
  /// nothing.
  [[nodiscard]] virtual any_writer writer() = 0;

  /// What is held, ascending by step; of one step the newest last. Called by rank 0, and by others before end().
  /// `damaged` gets a sentence
  /// for each record that is there and cannot be read. @throws storage_error
  [[nodiscard]] virtual std::vector<held_step> held(std::vector<std::string>& damaged) = 0;
  /// Saves of which this tier has pieces, and lacks images that were on other hosts: a job without the redundancy that made the
  /// pieces cannot have them. Ascending by step. Called by rank 0. @throws storage_error
  [[nodiscard]] virtual std::vector<held_step> left_by_redundancy() { return {}; }
  /// A reader of this save alone. @throws corrupt_error, storage_error
  [[nodiscard]] virtual any_reader reader(const held_step& which) = 0;
  /// Whether a checkpoint of the store, whose manifest this is, is this save, and not another one of its step. Called by rank
  /// 0. Where a tier does not tell, the store is to get the save.
  [[nodiscard]] virtual bool is_stored_as(const held_step& which, std::span<const std::byte> manifest) {
    static_cast<void>(which), static_cast<void>(manifest);
    return false;
  }
  /// This rank's image of a save; nothing where it is held no more. Any thread. @throws corrupt_error, storage_error
  [[nodiscard]] virtual std::optional<held_image> image(const held_step& which) = 0;
  /// Calls `call`, which must not throw and is quick, for each save that this rank holds from now on, in the thread
  /// that holds it. Before open().
  virtual void when_held(detail::callback<void(const held_step&)> call) = 0;
  /// Gives up what the tier holds of a save, on all ranks. Called by rank 0. @throws storage_error
  virtual void withdraw(const held_step& which) = 0;
  /// The saves to come go on from here: tells base.runs with those that are held from now on, and gives up all saves after
  /// base.step that were there (base.saves) once all ranks hold one of those to come, or the store has it (base.is_stored):
  /// a save that fails costs nothing that was held. Called by rank 0, before its first save after each load, and
  /// again where that one is stored and not held; other ranks may hold theirs already, which stay.
  /// @throws storage_error
  virtual void go_on_from(const tier_base& base) = 0;
  /// The job has ended in order: removes all that this rank has in the tier.
  virtual void end() noexcept = 0;

 protected:
  image_tier(image_tier&&) noexcept = default;
  image_tier& operator=(image_tier&&) noexcept = default;
};

/// An image of this rank that a tier does not give up as long as `pin` or a copy of it lives.
struct pinned_save {
  std::shared_ptr<const void> pin;  ///< keeps the image
  std::uint64_t plan_digest = 0;    ///< see save_context::plan_digest
};

/// An image_tier in several places: each host has one of its own, which the ranks of that host alone see. What
/// cairn::checkpointer needs beside an argument of the role redundancy, by which what is lost with a place can be made
/// again from what is in the others.
///
/// No rank sees what all of them hold: it is told by held_by_all(). A save that this rank holds is given up where all hold a
/// newer one, else the newest of those that nobody has pinned; a save whose piece this rank keeps goes last.
///
/// Any thread calls these after open().
class spread_tier : public image_tier, public surveyed_tier {
 public:
  /// Ranks may see different places. The first rank that opens a place does there what rank 0 does in a tier that is in one.
  /// A rank has two images more: of the save that is redundant, and of the one whose pieces are made. Before open().
  virtual void spread() = 0;
  /// Where this rank keeps pieces; the records of what it holds lie there, too.
  [[nodiscard]] virtual std::string directory() const = 0;
  /// By what files of directory() are changed, pieces as well. Null: as `tier_files` does.
  [[nodiscard]] virtual std::shared_ptr<tier_files> files() const { return nullptr; }
  /// The first rank of this run that opened the place of this one.
  [[nodiscard]] virtual std::int32_t first_rank() const = 0;
  /// Keeps this rank's image of a save; nothing where it is held no more. @throws storage_error, timeout_error
  [[nodiscard]] virtual std::optional<pinned_save> pin(const held_step& which) = 0;
  /// All ranks hold this save, and its plan is in each place.
  virtual void held_by_all(const held_step& which) noexcept = 0;
  /// All ranks keep their pieces of a save of this run: what ranks left here that are elsewhere now is needed no more.
  virtual void redundant() noexcept = 0;
  /// Whether anything is held here, by any rank. @throws storage_error
  [[nodiscard]] virtual bool holds_any() = 0;

 protected:
  spread_tier() = default;
  spread_tier(spread_tier&&) noexcept = default;
  spread_tier& operator=(spread_tier&&) noexcept = default;
};

/// A class that plays the role tier: derived from image_tier, with the type of its stager.
///
/// - `stager_type`: the Stager that stager() returns.
template <class T>
concept Tier =
    std::derived_from<T, image_tier> && std::move_constructible<T> && Stager<typename T::stager_type>;

}  // namespace v1
}  // namespace cairn
