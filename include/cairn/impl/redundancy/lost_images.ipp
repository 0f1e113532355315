// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/save_context.hpp>
#include <cairn/redundancy/kept_piece.hpp>
#include <cairn/redundancy/lost_images.hpp>
#include <cairn/redundancy/strip_reader.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/file_descriptor.hpp>
#include <cairn/tiers/held_store.hpp>
#include <cairn/tiers/tier_directory.hpp>
#include <cairn/tiers/tier_files.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

/// All that the tiers of some hosts have of one save: by the rank that keeps it.
struct surviving_parts {
  struct place {
    std::string directory;
    held_name name;
  };
  std::map<std::int32_t, place> images;
  std::map<std::int32_t, place> pieces;
};
/// Steps ascend; those of one run as they were saved.
using save_key = std::tuple<std::int64_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t,
                            std::uint64_t, std::int32_t>;
[[nodiscard]] inline save_key key_of_save(const held_name& n) {
  return {n.step,    n.run.high,    n.run.low,   save_count_of(n.run, n.step, n.attempt),
          n.attempt, n.plan_digest, n.world_size};
}
[[nodiscard]] inline std::map<save_key, surviving_parts> parts_of_saves(
    std::span<const std::string> directories) {
  std::map<save_key, surviving_parts> found;
  for (const auto& directory : directories)
    for (const auto& each : names_in_tier(directory)) {
      if (const auto held = parse_held_name(each))
        found[key_of_save(*held)].images.try_emplace(held->rank, surviving_parts::place{directory, *held});
      else if (const auto kept = parse_kept_name(each))
        found[key_of_save(*kept)].pieces.try_emplace(kept->rank, surviving_parts::place{directory, *kept});
    }
  return found;
}
[[nodiscard]] inline std::optional<kept_piece> read_kept(const surviving_parts::place& at,
                                                         std::vector<std::string>& damaged) {
  const auto path = at.directory + "/" + kept_record_name(at.name);
  try {
    if (const auto bytes = tier_file(path)) return decode_kept(*bytes, at.name, path);
  } catch (const corrupt_error& e) {
    damaged.push_back(e.what());
  }
  return std::nullopt;
}

/// The set of a rank that is lost, with what is left of it.
struct surviving_set {
  std::vector<image_head> heads;
  redundancy_set members;
  std::vector<member_tables> tables;
  set_survivors survivors;
  std::int32_t lost = 0;  // the member that is wanted
};
/// @throws peer_error where no piece is left that says what the set was
[[nodiscard]] inline surviving_set set_of(const surviving_parts& parts,
                                          const std::map<std::int32_t, kept_piece>& kept,
                                          const any_redundancy& by, std::int32_t rank) {
  surviving_set found;
  for (const auto& [keeper, piece] : kept) {
    const auto own = std::find_if(piece.heads.begin(), piece.heads.end(),
                                  [&](const image_head& head) { return head.name.rank == rank; });
    if (own == piece.heads.end()) continue;
    found.heads = piece.heads;
    found.members = piece.set();
    found.lost = static_cast<std::int32_t>(own - piece.heads.begin());
    break;
  }
  if (found.heads.empty())
    fail(error_id::peer_lost,
         "the image of rank " + std::to_string(rank) +
             " is lost, and no rank that is left keeps a piece of it",
         {.rank = rank});
  for (std::size_t i = 0; i < found.heads.size(); ++i) {
    const auto member = found.heads[i].name.rank;
    found.survivors.images.push_back(parts.images.contains(member));
    found.tables.push_back({.image = found.heads[i].blocks, .piece = {}});
    const auto piece = kept.find(member);
    bool usable = piece != kept.end() && piece->second.heads == found.heads;
    if (usable) {
      if (piece->second.made_by != fingerprint_of(by, found.members, static_cast<std::int32_t>(i)))
        fail(error_id::usage_bad_option,
             "the pieces of a save were made by another redundancy than the one that is given: give the one "
             "that the job had",
             {.rank = member, .file = parts.pieces.at(member).directory});
      found.tables.back().piece = piece->second.blocks;
    }
    found.survivors.pieces.push_back(usable);
  }
  return found;
}
[[nodiscard]] inline std::map<std::int32_t, kept_piece> all_kept(const surviving_parts& parts,
                                                                 std::vector<std::string>& damaged) {
  std::map<std::int32_t, kept_piece> kept;
  for (const auto& [rank, place] : parts.pieces)
    if (auto piece = read_kept(place, damaged)) kept.emplace(rank, std::move(*piece));
  return kept;
}

/// Gives a tier both files of a plan, where it has not got them.
inline void rebuild_plan(std::span<const std::string> directories, std::uint64_t digest,
                         const std::string& into, tier_files& files) {
  std::exception_ptr none;
  for (const auto& directory : directories) try {
      const auto plan = plan_in_tier(directory, digest);
      for (const auto& name : {plan_name(digest), second_plan_name(digest)}) {
        if (::access((into + "/" + name).c_str(), F_OK) == 0) continue;
        put_durably(files, into, "new-plan-rebuilt", name, plan.bytes, !lies_in_memory(into));
      }
      return;
    } catch (const corrupt_error&) {
      none = std::current_exception();
    }
  if (none) std::rethrow_exception(none);
}

/// A new file of a tier, mapped, that is removed again unless it is kept.
class new_slot {
 public:
  new_slot(const std::string& directory, std::int32_t rank, std::uint64_t bytes) : bytes_(bytes) {
    for (;; ++number_) {
      path_ = directory + "/" + slot_name(rank, number_);
      file_ =
          file_descriptor(::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
      if (file_.open()) break;
      if (errno != EEXIST) fail_system(errno, "an image of the local tier could not be made: " + path_);
    }
    // All of it before it is mapped: what is not there would be SIGBUS when it is touched.
    int code = allocate_file(file_.get(), bytes);
    if (code == 0 && bytes != 0) {
      mapped_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
      if (mapped_ == MAP_FAILED) mapped_ = nullptr, code = errno;
    }
    if (code != 0) {
      static_cast<void>(::unlink(path_.c_str()));
      fail_system(code, "there is no room in the local tier for an image that is rebuilt: " + path_);
    }
  }
  new_slot(const new_slot&) = delete;
  new_slot& operator=(const new_slot&) = delete;
  ~new_slot() {
    if (mapped_ != nullptr) ::munmap(mapped_, bytes_);
    if (!kept_) static_cast<void>(::unlink(path_.c_str()));
  }
  [[nodiscard]] std::span<std::byte> bytes() const { return {static_cast<std::byte*>(mapped_), bytes_}; }
  [[nodiscard]] std::int32_t number() const { return number_; }
  void keep() { kept_ = true; }

 private:
  std::size_t bytes_;
  std::int32_t number_ = 0;
  std::string path_;
  file_descriptor file_;
  void* mapped_ = nullptr;
  bool kept_ = false;
};

}  // namespace detail

CAIRN_BODY std::vector<surviving_step> find_surviving_steps(std::span<const std::string> directories,
                                                            const any_redundancy& by,
                                                            std::vector<std::string>& damaged) {
  std::vector<surviving_step> steps;
  for (const auto& [key, parts] : detail::parts_of_saves(directories)) {
    const auto& name =
        parts.images.empty() ? parts.pieces.begin()->second.name : parts.images.begin()->second.name;
    surviving_step step{
        .which = {.step = name.step, .run = name.run, .attempt = name.attempt, .world_size = name.world_size},
        .plan_digest = name.plan_digest,
        .lost = {},
        .missing = {}};
    for (std::int32_t rank = 0; rank < name.world_size; ++rank)
      if (!parts.images.contains(rank)) step.lost.push_back(rank);
    if (!step.lost.empty()) {
      const auto kept = detail::all_kept(parts, damaged);
      try {
        for (const auto rank : step.lost) {
          const auto set = detail::set_of(parts, kept, by, rank);
          static_cast<void>(by.rebuilding(set.members, set.lost, set.survivors));
        }
      } catch (const error& e) {
        step.missing = e.what();
      }
    }
    steps.push_back(std::move(step));
  }
  return steps;
}

CAIRN_BODY void rebuild_lost_images(std::span<const std::string> directories, const any_redundancy& by,
                                    const surviving_step& step, const std::string& into,
                                    std::vector<std::string>& notes) {
  const auto saves = detail::parts_of_saves(directories);
  const auto found = std::find_if(saves.begin(), saves.end(), [&](const auto& each) {
    const auto& parts = each.second;
    const auto& name =
        parts.images.empty() ? parts.pieces.begin()->second.name : parts.images.begin()->second.name;
    return name.run == step.which.run && name.attempt == step.which.attempt && name.step == step.which.step &&
           name.world_size == step.which.world_size && name.plan_digest == step.plan_digest;
  });
  if (found == saves.end())
    fail(error_id::storage_not_found, "none of the tiers has anything of the save that is to be rebuilt",
         {.expected = "step " + std::to_string(step.which.step)});
  const auto& parts = found->second;
  tier_files files;
  detail::rebuild_plan(directories, step.plan_digest, into, files);
  const auto kept = detail::all_kept(parts, notes);
  for (const auto rank : step.lost) {
    const auto set = detail::set_of(parts, kept, by, rank);
    const auto& head = set.heads[static_cast<std::size_t>(set.lost)];
    std::map<std::pair<std::int32_t, bool>, detail::file_descriptor> open;
    const auto read = [&](const member_range& from, std::span<std::byte> out) {
      auto& file = open[{from.member, from.piece}];
      if (!file.open()) {
        const auto& places = from.piece ? parts.pieces : parts.images;
        const auto place = places.find(set.members[static_cast<std::size_t>(from.member)].rank);
        if (place == places.end()) return false;
        const auto& [directory, name] = place->second;
        const auto path =
            directory + "/" +
            (from.piece ? detail::piece_name(name.rank, name.slot) : detail::slot_name(name.rank, name.slot));
        file = detail::file_descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
      }
      // A file that is too short, or cannot be read, has lost them.
      return file.open() && detail::read_exactly(file.get(), from.begin, out) == 0;
    };
    detail::new_slot slot(into, rank, head.blocks.bytes());
    const auto report =
        detail::rebuild_image(by, set.members, set.lost, set.survivors, set.tables, read, slot.bytes());
    for (const auto& bad : report.bad)
      notes.push_back(
          std::string(bad.piece ? "the piece" : "the image") + " of rank " +
          std::to_string(set.members[static_cast<std::size_t>(bad.member)].rank) +
          (bad.gone ? " could not be read" : " has a wrong block at byte " + std::to_string(bad.begin)) +
          " and was not used for it; another source of step " + std::to_string(step.which.step) + " was");
    auto name = head.name;
    const auto content = detail::decode_held(head.record, name, into);
    name.slot = slot.number();
    const bool on_disk = !detail::lies_in_memory(into);
    if (on_disk) files.sync(into + "/" + detail::slot_name(rank, name.slot), -1);
    detail::put_durably(files, into, "new-rebuilt-" + std::to_string(rank), detail::to_string(name),
                        detail::encode_held(name, content), on_disk);
    slot.keep();
  }
}

}  // namespace v1
}  // namespace cairn
