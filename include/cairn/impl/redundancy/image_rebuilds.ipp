// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/redundancy/image_rebuilds.hpp>
#include <cairn/redundancy/kept_piece.hpp>
#include <cairn/redundancy/strip_reader.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/file_descriptor.hpp>
#include <cairn/system/wire.hpp>
#include <cairn/tiers/held_record.hpp>
#include <cairn/tiers/tier_directory.hpp>
#include <cairn/tiers/tier_files.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

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
      fail_system(code,
                  "there is no room in the local tier for an image that is rebuilt; nothing was given up: "
                  "make room there and start again, or remove the local tiers to go on from the store: " +
                      path_);
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

/// The set of a rank that is lost, and what is left of it, as far as records tell.
struct set_that_is_left {
  redundancy_set members;
  set_survivors survivors;
  std::int32_t lost = 0;  // the member that is wanted
};
/// @throws peer_error where no piece is left that says what the set was; usage_error (usage_bad_option)
[[nodiscard]] inline set_that_is_left set_left(const surveyed_save& all, const any_redundancy& by,
                                               std::int32_t rank) {
  const auto of = std::find_if(all.pieces.begin(), all.pieces.end(), [&](const surveyed_piece& p) {
    return std::find(p.ranks.begin(), p.ranks.end(), rank) != p.ranks.end();
  });
  if (of == all.pieces.end())
    fail(error_id::peer_lost,
         "the image of rank " + std::to_string(rank) +
             " is lost, and no rank that is left keeps a piece of it",
         {.rank = rank});
  set_that_is_left found;
  for (std::size_t i = 0; i < of->ranks.size(); ++i)
    found.members.push_back({.rank = of->ranks[i], .bytes = of->bytes[i]});
  for (std::size_t i = 0; i < of->ranks.size(); ++i) {
    const auto member = of->ranks[i];
    if (member == rank) found.lost = static_cast<std::int32_t>(i);
    found.survivors.images.push_back(
        std::any_of(all.images.begin(), all.images.end(), [&](const auto& s) { return s.rank == member; }));
    const auto piece = std::find_if(all.pieces.begin(), all.pieces.end(), [&](const surveyed_piece& p) {
      return p.rank == member && p.made_of == of->made_of && p.ranks == of->ranks;
    });
    found.survivors.pieces.push_back(piece != all.pieces.end());
    if (piece != all.pieces.end() &&
        piece->made_by != fingerprint_of(by, found.members, static_cast<std::int32_t>(i)))
      fail(error_id::usage_bad_option,
           "the pieces of a save were made by another redundancy than the one that is given: give the one "
           "that the job had",
           {.rank = member});
  }
  found.survivors.images[static_cast<std::size_t>(found.lost)] = false;
  return found;
}

[[nodiscard]] inline bool names_save(const held_name& name, const surveyed_save& save) {
  return name.run == save.run && name.attempt == save.attempt && name.step == save.step &&
         name.world_size == save.world_size && name.plan_digest == save.plan_digest;
}

/// Reads images and pieces of one directory.
class directory_sources final : public rebuild_sources {
 public:
  directory_sources(std::string directory, const surveyed_save& all) : directory_(std::move(directory)) {
    for (const auto& each : names_in_tier(directory_)) {
      if (const auto held = parse_held_name(each); held && names_save(*held, all))
        names_.try_emplace({held->rank, rebuild_range::kind::image}, *held);
      if (const auto kept = parse_kept_name(each); kept && names_save(*kept, all)) {
        names_.try_emplace({kept->rank, rebuild_range::kind::piece}, *kept);
        names_.try_emplace({kept->rank, rebuild_range::kind::record}, *kept);
      }
    }
  }
  [[nodiscard]] std::vector<std::byte> read(const rebuild_range& from) override {
    const auto name = names_.find({from.rank, from.what});
    if (name == names_.end()) return {};
    const auto& of = name->second;
    if (from.what == rebuild_range::kind::record) try {
        const auto bytes = tier_file(directory_ + "/" + kept_record_name(of));
        return bytes ? wire_writer().put(kept_record_name(of)).raw(*bytes).take() : std::vector<std::byte>();
      } catch (const error&) {
        return {};
      }
    auto& file = open_[name->first];
    if (!file.open())
      file = file_descriptor(::open((directory_ + "/" +
                                     (from.what == rebuild_range::kind::piece ? piece_name(of.rank, of.slot)
                                                                              : slot_name(of.rank, of.slot)))
                                        .c_str(),
                                    O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    struct stat s {};  // first: who asks may be wrong about how long it is
    if (!file.open() || ::fstat(file.get(), &s) != 0 || from.begin > static_cast<std::uint64_t>(s.st_size) ||
        from.bytes > static_cast<std::uint64_t>(s.st_size) - from.begin)
      return {};
    std::vector<std::byte> bytes(static_cast<std::size_t>(from.bytes));
    // A file that cannot be read has lost them.
    if (read_exactly(file.get(), from.begin, bytes) != 0) bytes.clear();
    return bytes;
  }

 private:
  using key = std::pair<std::int32_t, rebuild_range::kind>;
  std::string directory_;
  std::map<key, held_name> names_;
  std::map<key, file_descriptor> open_;
};

/// See image_rebuild. First it asks for the records of the pieces of the set; then for blocks, some at a time. Where a
/// source has a wrong block, that block alone is made of others.
class stepwise_rebuild final : public image_rebuild {
 public:
  stepwise_rebuild(any_redundancy by, std::string directory, const surveyed_save& all, std::int32_t lost)
      : by_(std::move(by)), directory_(std::move(directory)), all_(all), set_(set_left(all, by_, lost)) {}

  [[nodiscard]] std::vector<rebuild_range> next(std::uint64_t bytes) override {
    asked_.clear();
    if (slot_ == nullptr) {
      for (std::size_t i = 0; i < set_.members.size(); ++i)
        if (set_.survivors.pieces[i])
          asked_.push_back({.rank = set_.members[i].rank, .what = rebuild_range::kind::record});
      return asked_;
    }
    const auto& table = own_table();
    if (block_ == table.blocks()) return {};
    const auto& from = degraded_ ? left_strips_ : strips_;
    window_end_ = block_;
    // The window grows by whole parts until it asks for as much as is wanted.
    do {
      window_end_ = part_end(window_end_);
      asked_ = ranges_of(from, table.begin(block_), table.end(window_end_ - 1));
      std::uint64_t total = 0;
      for (const auto& each : asked_) total += each.bytes;
      const auto parts = (table.end(window_end_ - 1) - table.begin(block_)) / digest_block_bytes + 1;
      if (degraded_ || total + total / parts > bytes) break;
    } while (window_end_ < table.blocks());
    return asked_;
  }

  void take(std::span<const std::vector<std::byte>> parts) override {
    if (slot_ == nullptr) return learn(parts);
    const auto read = [&](const member_range& from, std::span<std::byte> out) {
      const auto rank = set_.members[static_cast<std::size_t>(from.member)].rank;
      const auto what = from.piece ? rebuild_range::kind::piece : rebuild_range::kind::image;
      for (std::size_t i = 0; i < asked_.size(); ++i) {
        const auto& a = asked_[i];
        if (a.rank != rank || a.what != what || from.begin < a.begin ||
            from.begin - a.begin + out.size() > parts[i].size())
          continue;
        std::memcpy(out.data(), parts[i].data() + (from.begin - a.begin), out.size());
        return true;
      }
      return false;
    };
    strip_reader reader(by_, tables_, read);
    const auto& table = own_table();
    while (block_ < window_end_) {
      const auto end = part_end(block_);
      const auto begin = table.begin(block_);
      const auto part = slot_->bytes().subspan(static_cast<std::size_t>(begin),
                                               static_cast<std::size_t>(table.end(end - 1) - begin));
      if (const auto bad = reader.compute(degraded_ ? left_strips_ : strips_, begin, part)) {
        avoid(*bad);
        return;
      }
      for (; block_ < end; ++block_)
        if (!table.fits(block_, slot_->bytes().subspan(
                                    static_cast<std::size_t>(table.begin(block_)),
                                    static_cast<std::size_t>(table.end(block_) - table.begin(block_)))))
          fail(error_id::corrupt_digest,
               "a block of an image was rebuilt from pieces that are what they were, and is not what it was: "
               "the pieces were made of something else; load an earlier step",
               {.rank = own().rank, .offset = static_cast<std::int64_t>(table.begin(block_))});
      degraded_ = false;
    }
  }

  std::vector<std::string> finish() override {
    if (slot_ == nullptr || block_ != own_table().blocks())
      fail(error_id::corrupt_missing_file,
           "an image could not be rebuilt whole: what is left of its set ends before it does",
           {.rank = own().rank});
    tier_files files;
    auto name = head_.name;
    const auto content = decode_held(head_.record, name, directory_);
    name.slot = slot_->number();
    const bool on_disk = !lies_in_memory(directory_);
    if (on_disk) files.sync(directory_ + "/" + slot_name(name.rank, name.slot), -1);
    put_durably(files, directory_, "new-rebuilt-" + std::to_string(name.rank), to_string(name),
                encode_held(name, content), on_disk);
    slot_->keep();
    return std::move(notes_);
  }

 private:
  [[nodiscard]] const set_member& own() const { return set_.members[static_cast<std::size_t>(set_.lost)]; }
  [[nodiscard]] const block_table& own_table() const { return head_.blocks; }
  /// As many whole blocks as are short enough to be made at once.
  [[nodiscard]] std::size_t part_end(std::size_t block) const {
    const auto& table = own_table();
    auto end = block + 1;
    while (end < table.blocks() && table.end(end) - table.begin(block) <= digest_block_bytes) ++end;
    return end;
  }

  void learn(std::span<const std::vector<std::byte>> parts) {
    std::map<std::int32_t, kept_piece> kept;
    for (std::size_t i = 0; i < asked_.size(); ++i) {
      const auto rank = asked_[i].rank;
      const auto file = "the record of the piece of rank " + std::to_string(rank);
      try {
        wire_reader in(parts[i]);
        const auto name = parse_kept_name(in.get_string());
        if (!name || name->rank != rank || !names_save(*name, all_)) in.fail_here("it is of another save");
        kept.emplace(rank, decode_kept(in.take(in.left()), *name, file));
      } catch (const corrupt_error& e) {
        notes_.push_back(file + " was not used: " + e.what());
      } catch (const wire_error&) {
        notes_.push_back(file + " could not be read");
      }
    }
    const kept_piece* first = nullptr;
    for (const auto& [rank, piece] : kept)
      if (piece.set() == set_.members && first == nullptr) first = &piece;
    if (first == nullptr)
      fail(error_id::peer_lost,
           "the image of rank " + std::to_string(own().rank) +
               " is lost, and no rank that is left keeps a piece of it that can be read",
           {.rank = own().rank});
    head_ = first->heads[static_cast<std::size_t>(set_.lost)];
    for (std::size_t i = 0; i < set_.members.size(); ++i) {
      tables_.push_back({.image = first->heads[i].blocks, .piece = {}});
      const auto piece = kept.find(set_.members[i].rank);
      const bool usable = piece != kept.end() && piece->second.heads == first->heads;
      if (usable) tables_.back().piece = piece->second.blocks;
      set_.survivors.pieces[i] = usable;
    }
    strips_ = by_.rebuilding(set_.members, set_.lost, set_.survivors);
    slot_ = std::make_unique<new_slot>(directory_, own().rank, head_.blocks.bytes());
  }

  /// The whole blocks of all sources of these bytes.
  [[nodiscard]] std::vector<rebuild_range> ranges_of(const std::vector<redundancy_strip>& strips,
                                                     std::uint64_t begin, std::uint64_t end) const {
    std::map<std::pair<std::int32_t, bool>, std::pair<std::uint64_t, std::uint64_t>> wanted;
    for (const auto& strip : strips) {
      const auto first = std::max(strip.begin, begin);
      const auto last = std::min(strip.begin + strip.bytes, end);
      if (first >= last) continue;
      for (const auto& from : strip.sources) {
        const auto& of = tables_[static_cast<std::size_t>(from.member)];
        const auto& table = from.piece ? of.piece : of.image;
        const auto at = from.begin + (first - strip.begin);
        const auto bytes = last - first;
        if (at >= table.bytes() || bytes > table.bytes() - at) continue;  // reading it tells
        const auto low = table.begin(table.block_at(at));
        const auto high = table.end(table.block_at(at + bytes - 1));
        const auto [known, added] = wanted.try_emplace({from.member, from.piece}, low, high);
        if (!added)
          known->second = {std::min(known->second.first, low), std::max(known->second.second, high)};
      }
    }
    std::vector<rebuild_range> ranges;
    for (const auto& [of, range] : wanted)
      ranges.push_back({.rank = set_.members[static_cast<std::size_t>(of.first)].rank,
                        .what = of.second ? rebuild_range::kind::piece : rebuild_range::kind::image,
                        .begin = range.first,
                        .bytes = range.second - range.first});
    return ranges;
  }

  void avoid(const bad_source& bad) {
    notes_.push_back(
        std::string(bad.piece ? "the piece" : "the image") + " of rank " +
        std::to_string(set_.members[static_cast<std::size_t>(bad.member)].rank) +
        (bad.gone ? " could not be read" : " has a wrong block at byte " + std::to_string(bad.begin)) +
        " and was not used for it; another source of step " + std::to_string(all_.step) + " was");
    const auto drop = [&](set_survivors& from) {
      (bad.piece ? from.pieces : from.images)[static_cast<std::size_t>(bad.member)] = false;
    };
    if (!degraded_) left_ = set_.survivors;
    degraded_ = true;
    drop(left_);
    if (bad.gone) {
      drop(set_.survivors);
      strips_ = by_.rebuilding(set_.members, set_.lost, set_.survivors);
    }
    left_strips_ = by_.rebuilding(set_.members, set_.lost, left_);
  }

  const any_redundancy by_;
  const std::string directory_;
  const surveyed_save all_;
  set_that_is_left set_;
  image_head head_;
  std::vector<member_tables> tables_;
  std::vector<redundancy_strip> strips_;
  bool degraded_ = false;  // some sources are not used for the part that is next
  set_survivors left_;
  std::vector<redundancy_strip> left_strips_;
  std::unique_ptr<new_slot> slot_;
  std::size_t block_ = 0;  // that is made next
  std::size_t window_end_ = 0;
  std::vector<rebuild_range> asked_;
  std::vector<std::string> notes_;
};

CAIRN_BODY void redundancy_rebuilder::survey(const std::string& directory, std::vector<surveyed_save>& saves,
                                             std::vector<std::string>& damaged) {
  for (const auto& each : names_in_tier(directory)) {
    const auto name = parse_kept_name(each);
    if (!name) continue;
    try {
      const auto path = directory + "/" + each;
      const auto bytes = tier_file(path);
      if (!bytes) continue;
      const auto kept = decode_kept(*bytes, *name, path);
      auto save = std::find_if(saves.begin(), saves.end(),
                               [&](const surveyed_save& s) { return names_save(*name, s); });
      if (save == saves.end()) {
        surveyed_save made;
        made.run = name->run, made.attempt = name->attempt, made.step = name->step;
        made.world_size = name->world_size, made.plan_digest = name->plan_digest;
        save = saves.insert(saves.end(), std::move(made));
      }
      surveyed_piece piece{.rank = name->rank,
                           .member = kept.member,
                           .made_by = kept.made_by,
                           .made_of = 0,
                           .ranks = {},
                           .bytes = {}};
      digest_stream heads;
      for (const auto& head : kept.heads) {
        const auto encoded = encode_head(head);
        heads.put(digest(encoded));
        piece.ranks.push_back(head.name.rank);
        piece.bytes.push_back(head.blocks.bytes());
        if (head.name.rank == 0 && !save->has_runs)
          if (auto runs = decode_held(head.record, head.name, path).runs)
            save->has_runs = true, save->runs = std::move(*runs);
      }
      piece.made_of = heads.value();
      save->pieces.push_back(std::move(piece));
    } catch (const corrupt_error& e) {
      damaged.push_back("a piece of step " + std::to_string(name->step) + " in the local tier: " + e.what());
    }
  }
}

CAIRN_BODY std::string redundancy_rebuilder::obstacle(const surveyed_save& all, std::int32_t lost) {
  try {
    const auto set = set_left(all, by_, lost);
    static_cast<void>(by_.rebuilding(set.members, set.lost, set.survivors));
  } catch (const error& e) {
    return e.what();
  }
  return {};
}
CAIRN_BODY std::unique_ptr<rebuild_sources> redundancy_rebuilder::sources(const std::string& directory,
                                                                          const surveyed_save& all) {
  return std::make_unique<directory_sources>(directory, all);
}
CAIRN_BODY std::unique_ptr<image_rebuild> redundancy_rebuilder::begin(const std::string& directory,
                                                                      const surveyed_save& all,
                                                                      std::int32_t lost) {
  return std::make_unique<stepwise_rebuild>(by_, directory, all, lost);
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
