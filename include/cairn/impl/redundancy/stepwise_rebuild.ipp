// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/redundancy/kept_piece.hpp>
#include <cairn/redundancy/new_slot.hpp>
#include <cairn/redundancy/stepwise_rebuild.hpp>
#include <cairn/redundancy/strip_reader.hpp>
#include <cairn/redundancy/surviving_set.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/wire.hpp>
#include <cairn/tiers/held_record.hpp>
#include <cairn/tiers/tier_directory.hpp>
#include <cairn/tiers/tier_files.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// See image_rebuild. First it asks for the records of the pieces of the set; then for blocks, a window at a time. What is
/// made is verified by the digests of the image, which no wrong source passes. Where it is not what it was, whole blocks of
/// each source are asked for, by whose digests they are verified, and what was to be made of a wrong one is made of others.
class stepwise_rebuild final : public image_rebuild {
 public:
  stepwise_rebuild(any_redundancy by, std::string directory, const surveyed_save& all, std::int32_t lost,
                   std::shared_ptr<tier_files> files)
      : by_(std::move(by)),
        directory_(std::move(directory)),
        files_(std::move(files)),
        all_(all),
        set_(set_left(all, by_, lost)) {}

  [[nodiscard]] std::vector<rebuild_range> next(std::uint64_t bytes) override {
    if (slot_ == nullptr) {
      if (!asked_.empty()) return {};
      window w;
      for (std::size_t i = 0; i < set_.members.size(); ++i)
        if (set_.survivors.pieces[i])
          w.ranges.push_back({.rank = set_.members[i].rank, .what = rebuild_range::kind::record});
      asked_.push_back(std::move(w));
      return asked_.back().ranges;
    }
    if (!again_.empty()) {
      asked_.push_back(std::move(again_.front()));
      again_.pop_front();
      return asked_.back().ranges;
    }
    const auto& table = own_table();
    if (block_ == table.blocks()) return {};
    window w{.first = block_, .end = block_, .ranges = {}, .made_of = made_of_};
    // The window grows by whole parts until it asks for as much as is wanted.
    do {
      w.end = part_end(w.end);
      w.ranges = ranges_of(made_of_->strips, table.begin(w.first), table.end(w.end - 1), extent::exact);
      std::uint64_t total = 0;
      for (const auto& each : w.ranges) total += each.bytes;
      const auto parts = (table.end(w.end - 1) - table.begin(w.first)) / digest_block_bytes + 1;
      if (total + total / parts > bytes) break;
    } while (w.end < table.blocks());
    block_ = w.end;
    asked_.push_back(std::move(w));
    return asked_.back().ranges;
  }

  [[nodiscard]] std::shared_ptr<std::byte[]> place() override {
    if (slot_ == nullptr || asked_.empty() || asked_.back().ranges.size() != 1) return nullptr;
    const auto& w = asked_.back();
    const auto begin = own_table().begin(w.first), bytes = own_table().end(w.end - 1) - begin;
    for (const auto& strip : w.made_of->strips)
      if (strip.begin <= begin && begin + bytes <= strip.begin + strip.bytes)
        if (strip.sources.size() == 1 && strip.factors[0] == 1 && w.ranges[0].bytes == bytes)
          if (auto* const there = slot_->at(begin, bytes)) return {slot_, there};
    return nullptr;
  }
  void take(std::span<const std::span<const std::byte>> parts) override {
    const auto w = std::move(asked_.front());
    asked_.pop_front();
    if (slot_ == nullptr) return learn(w.ranges, parts);
    for (auto block = w.first; block < w.end;) {
      const auto end = part_end(block);
      if (make(w, parts, block, end))
        made_ += end - block;
      else if (auto whole = with_whole_blocks(w.made_of, block, end); has_all(w, whole))
        make_of_others(w, parts, block, end);
      else
        again_.push_back(std::move(whole));
      block = end;
    }
  }
  [[nodiscard]] bool is_whole() const override { return slot_ != nullptr && made_ == own_table().blocks(); }

  std::vector<std::string> finish() override {
    if (!is_whole())
      fail(error_id::corrupt_missing_file,
           "an image could not be rebuilt whole: what is left of its set ends before it does",
           {.rank = own().rank});
    auto name = head_.name;
    const auto content = decode_held(head_.record, name, directory_);
    name.slot = slot_->number();
    const bool on_disk = !lies_in_memory(directory_);
    if (on_disk) files_->sync(directory_ + "/" + slot_name(name.rank, name.slot), -1);
    put_durably(*files_, directory_, "new-rebuilt-" + std::to_string(name.rank), to_string(name),
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

  /// What images are made of, where some sources are not used.
  struct sources {
    set_survivors survivors;
    std::vector<redundancy_strip> strips;
  };
  /// Blocks that are asked for.
  struct window {
    std::size_t first = 0;
    std::size_t end = 0;
    std::vector<rebuild_range> ranges;
    std::shared_ptr<const sources> made_of;
  };

  void learn(const std::vector<rebuild_range>& asked, std::span<const std::span<const std::byte>> parts) {
    std::map<std::int32_t, kept_piece> kept;
    for (std::size_t i = 0; i < asked.size(); ++i) {
      const auto rank = asked[i].rank;
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
    made_of_ = without(set_.survivors);
    slot_ = std::make_shared<new_slot>(files_, directory_, own().rank, head_.blocks.bytes());
  }
  /// @throws peer_error (peer_lost)
  [[nodiscard]] std::shared_ptr<const sources> without(const set_survivors& left) const {
    return std::make_shared<const sources>(sources{left, by_.rebuilding(set_.members, set_.lost, left)});
  }
  /// The bytes of a source that a window has; null where it has not got them.
  [[nodiscard]] const std::byte* find(const window& w, std::span<const std::span<const std::byte>> parts,
                                      const member_range& from, std::uint64_t bytes) const {
    const auto rank = set_.members[static_cast<std::size_t>(from.member)].rank;
    const auto what = from.piece ? rebuild_range::kind::piece : rebuild_range::kind::image;
    for (std::size_t i = 0; i < w.ranges.size(); ++i) {
      const auto& r = w.ranges[i];
      if (r.rank == rank && r.what == what && from.begin >= r.begin &&
          from.begin - r.begin + bytes <= parts[i].size())
        return parts[i].data() + (from.begin - r.begin);
    }
    return nullptr;
  }
  /// Makes some blocks, and writes them if they are what they were.
  [[nodiscard]] bool make(const window& w, std::span<const std::span<const std::byte>> parts,
                          std::size_t block, std::size_t end) {
    const auto& table = own_table();
    const auto begin = table.begin(block);
    const auto bytes = static_cast<std::size_t>(table.end(end - 1) - begin);
    const auto& strips = w.made_of->strips;
    auto strip =
        std::upper_bound(strips.begin(), strips.end(), begin,
                         [](std::uint64_t at, const redundancy_strip& s) { return at < s.begin + s.bytes; });
    std::span<const std::byte> made;
    std::vector<const std::byte*> from;
    for (std::size_t at = 0; at < bytes; ++strip) {
      if (strip == strips.end() || begin + at < strip->begin)
        fail(error_id::corrupt_bad_value, "the strips of a Redundancy do not cover what they are to make");
      const auto skipped = begin + at - strip->begin;
      const auto count =
          static_cast<std::size_t>(std::min<std::uint64_t>(bytes - at, strip->bytes - skipped));
      from.clear();
      for (auto each : strip->sources) {
        each.begin += skipped;
        from.push_back(find(w, parts, each, count));
        if (from.back() == nullptr) return false;
      }
      if (from.size() == 1 && strip->factors[0] == 1 && count == bytes) {
        made = {from[0], bytes};  // a copy is the source itself
      } else {
        room_.resize(static_cast<std::size_t>(digest_block_bytes) + 64);
        const auto aligned = (64 - reinterpret_cast<std::uintptr_t>(room_.data()) % 64) % 64;
        const auto out = std::span(room_).subspan(aligned, bytes);
        by_.combine(strip->factors, from, out.subspan(at, count));
        made = out;
      }
      at += count;
    }
    for (auto b = block; b < end; ++b)
      if (!table.fits(b, made.subspan(static_cast<std::size_t>(table.begin(b) - begin),
                                      static_cast<std::size_t>(table.end(b) - table.begin(b)))))
        return false;
    slot_->write(begin, made);
    return true;
  }
  /// Finds the source that is wrong or gone, and asks for what takes its place.
  void make_of_others(const window& w, std::span<const std::span<const std::byte>> parts, std::size_t block,
                      std::size_t end) {
    const auto& table = own_table();
    const auto begin = table.begin(block);
    const auto read = [&](const member_range& from, std::span<std::byte> out) {
      const auto* const there = find(w, parts, from, out.size());
      if (there != nullptr) std::memcpy(out.data(), there, out.size());
      return there != nullptr;
    };
    strip_reader reader(by_, tables_, read);
    std::vector<std::byte> made(static_cast<std::size_t>(table.end(end - 1) - begin));
    const auto bad = reader.compute(w.made_of->strips, begin, made);
    if (!bad)
      fail(error_id::corrupt_digest,
           "a block of an image was rebuilt from pieces that are what they were, and is not what it was: "
           "the pieces were made of something else; load an earlier step",
           {.rank = own().rank, .offset = static_cast<std::int64_t>(begin)});
    const auto drop = [&](set_survivors& from) {
      auto& of = bad->piece ? from.pieces : from.images;
      const bool was = of[static_cast<std::size_t>(bad->member)];
      of[static_cast<std::size_t>(bad->member)] = false;
      return was;
    };
    // What is gone is not asked again; windows that are on their way without it meet it once more.
    const bool first = !bad->gone || drop(set_.survivors);
    if (first)
      notes_.push_back(
          std::string(bad->piece ? "the piece" : "the image") + " of rank " +
          std::to_string(set_.members[static_cast<std::size_t>(bad->member)].rank) +
          (bad->gone ? " could not be read" : " has a wrong block at byte " + std::to_string(bad->begin)) +
          " and was not used for it; another source of step " + std::to_string(all_.step) + " was");
    if (bad->gone && first) made_of_ = without(set_.survivors);
    auto left = w.made_of->survivors;
    drop(left);
    again_.push_back(with_whole_blocks(without(left), block, end));
  }

  /// Asks for what some blocks are made of in such a way that it can be verified.
  [[nodiscard]] window with_whole_blocks(std::shared_ptr<const sources> made_of, std::size_t block,
                                         std::size_t end) const {
    const auto& table = own_table();
    window w{.first = block, .end = end, .ranges = {}, .made_of = std::move(made_of)};
    w.ranges = ranges_of(w.made_of->strips, table.begin(block), table.end(end - 1), extent::whole_blocks);
    return w;
  }
  [[nodiscard]] static bool has_all(const window& w, const window& part) {
    return detail::all_of(part.ranges, [&](const rebuild_range& wanted) {
      return detail::any_of(w.ranges, [&](const rebuild_range& r) {
        return r.rank == wanted.rank && r.what == wanted.what && r.begin <= wanted.begin &&
               wanted.begin + wanted.bytes <= r.begin + r.bytes;
      });
    });
  }

  /// What is asked for of a source: the bytes of which others are made, or the blocks in which they lie, which have
  /// digests. Sources do not begin where blocks do, so that whole blocks are up to twice as many bytes.
  enum class extent { exact, whole_blocks };
  /// Ranges of all sources of these bytes.
  [[nodiscard]] std::vector<rebuild_range> ranges_of(const std::vector<redundancy_strip>& strips,
                                                     std::uint64_t begin, std::uint64_t end,
                                                     extent of_source) const {
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
        const bool exact = of_source == extent::exact;
        const auto low = exact ? at : table.begin(table.block_at(at));
        const auto high = exact ? at + bytes : table.end(table.block_at(at + bytes - 1));
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

  const any_redundancy by_;
  const std::string directory_;
  const std::shared_ptr<tier_files> files_;
  const surveyed_save all_;
  set_that_is_left set_;
  image_head head_;
  std::vector<member_tables> tables_;
  std::shared_ptr<const sources> made_of_;  // what is asked for next
  std::shared_ptr<new_slot> slot_;
  std::size_t block_ = 0;     // that is asked for next
  std::size_t made_ = 0;      // blocks
  std::deque<window> asked_;  // and not taken yet
  std::deque<window> again_;  // to be asked for with other sources
  std::vector<std::byte> room_;
  std::vector<std::string> notes_;
};

CAIRN_BODY std::unique_ptr<image_rebuild> begin_rebuild(any_redundancy by, std::string directory,
                                                        const surveyed_save& all, std::int32_t lost,
                                                        std::shared_ptr<tier_files> files) {
  return std::make_unique<stepwise_rebuild>(std::move(by), std::move(directory), all, lost, std::move(files));
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
