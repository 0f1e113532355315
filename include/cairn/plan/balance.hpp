// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/metadata.hpp>
#include <cairn/plan/summary.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

/// How default_planner divides replicated data among the ranks that hold it.
struct default_planner_options {
  /// Replicated boxes of this many bytes and more are split among their holders; smaller ones are written by
  /// one holder each. The ranks' loads then differ by less than this.
  std::uint64_t split_above_bytes = std::uint64_t{1} << 20;
  /// Splitting makes no piece smaller than about this.
  std::uint64_t least_piece_bytes = std::uint64_t{256} << 10;
};

/// Who writes what: pieces in the order of a summary's items and boxes.
struct write_assignment {
  std::vector<std::uint32_t> first_box;    ///< of each item, counted over all items; one more at the end
  std::vector<std::uint32_t> first_piece;  ///< of each box; one more at the end
  std::vector<stored_chunk> pieces;

  /// The pieces of box `box` of item `item`.
  [[nodiscard]] std::span<const stored_chunk> pieces_of(std::size_t item, std::size_t box) const noexcept {
    const auto b = first_box[item] + box;
    return {pieces.data() + first_piece[b], pieces.data() + first_piece[b + 1]};
  }
  [[nodiscard]] std::span<const stored_chunk> pieces_of(std::size_t item) const noexcept {
    return {pieces.data() + first_piece[first_box[item]], pieces.data() + first_piece[first_box[item + 1]]};
  }
};

namespace detail {

/// Cuts of a box: pieces are [at[i], at[i + 1]) of `dimension`, in units that fill whole bytes.
struct split_grain {
  int dimension = -1;
  std::int64_t unit = 1;  ///< rows that stay together
  std::int64_t units = 1;
  std::uint64_t unit_bytes = 0;
};

/// The first dimension whose rows are small against a piece, so that pieces stay contiguous where possible;
/// else the one with the smallest rows.
[[nodiscard]] inline split_grain grain_of(dtype type, const chunk& box, std::uint64_t bytes,
                                          std::uint64_t piece) {
  split_grain best;
  for (int d = 0; d < box.sizes.rank(); ++d) {
    const std::int64_t unit = d + 1 == box.sizes.rank() ? granule_of(type) : 1;
    const std::int64_t units = box.sizes[d] / unit;
    if (units < 2) continue;
    const split_grain g{d, unit, units, bytes / static_cast<std::uint64_t>(units)};
    if (best.dimension < 0 || g.unit_bytes < best.unit_bytes) best = g;
    if (g.unit_bytes <= piece / 8) return g;
  }
  return best;
}

class balancer {
 public:
  balancer(const plan_summary& summary, int world_size, const default_planner_options& options)
      : summary_(summary), options_(options), load_(static_cast<std::size_t>(world_size)) {}

  [[nodiscard]] write_assignment assign() {
    number_boxes();
    place_fixed();
    std::sort(shared_.begin(), shared_.end(), [](const shared_box& a, const shared_box& b) {
      return a.bytes != b.bytes ? a.bytes > b.bytes : a.box < b.box;
    });
    for (const auto& s : shared_) place_shared(s);
    return collect();
  }

 private:
  struct shared_box {
    std::uint64_t bytes;
    std::uint32_t item;
    std::uint32_t box;  ///< among all boxes
  };
  struct placed {
    std::uint32_t box;  ///< among all boxes
    stored_chunk piece;
  };

  void number_boxes() {
    std::size_t boxes = 0;
    first_box_.reserve(summary_.items.size() + 1);
    for (const auto& i : summary_.items) {
      first_box_.push_back(static_cast<std::uint32_t>(boxes));
      boxes += i.boxes.empty() ? 1 : i.boxes.size();
    }
    first_box_.push_back(static_cast<std::uint32_t>(boxes));
    placed_.reserve(boxes);
  }

  void place(std::uint32_t box, const chunk& what, std::int32_t rank, std::uint64_t bytes) {
    placed_.push_back({box, {what, rank}});
    load_[static_cast<std::size_t>(rank)] += bytes;
  }
  template <class Visit>
  static void each_rank(const rank_runs& runs, Visit&& visit) {
    for (const auto& r : runs)
      for (std::int32_t k = 0; k < r.count; ++k) visit(r.first + k, r.bytes);
  }

  /// What only one rank can write; the rest waits in shared_.
  void place_fixed() {
    for (std::size_t n = 0; n < summary_.items.size(); ++n) {
      const auto& i = summary_.items[n];
      const auto box = first_box_[n];
      if (i.boxes.empty()) {  // a tensor without elements: one rank writes that it is there
        if (i.per_rank)
          each_rank(i.without,
                    [&](std::int32_t rank, std::uint64_t) { place(box, whole(i.global), rank, 0); });
        else
          place(box, whole(i.global), i.without.front().first, 0);
        continue;
      }
      for (std::size_t k = 0; k < i.boxes.size(); ++k) {
        const auto& b = i.boxes[k];
        const auto at = box + static_cast<std::uint32_t>(k);
        const auto size = i.kind == item_kind::bytes ? b.holders[0].bytes : bytes_of(i.type, b.box.volume());
        if (i.per_rank)
          each_rank(b.holders, [&](std::int32_t rank, std::uint64_t own) {
            place(at, b.box, rank, i.kind == item_kind::bytes ? own : size);
          });
        else if (b.holders.size() == 1 && b.holders[0].count == 1)
          place(at, b.box, b.holders[0].first, size);
        else
          shared_.push_back({size, static_cast<std::uint32_t>(n), at});
      }
    }
  }

  void place_shared(const shared_box& s) {
    const auto& item = summary_.items[s.item];
    const auto& b = item.boxes[s.box - first_box_[s.item]];
    if (item.kind == item_kind::tensor && s.bytes >= options_.split_above_bytes && s.bytes > 0) {
      const auto piece = std::max<std::uint64_t>(options_.least_piece_bytes, 1);
      const auto grain = grain_of(item.type, b.box, s.bytes, std::min(piece, s.bytes / 2));
      if (grain.dimension >= 0 && split(s, b, grain, piece)) return;
    }
    std::int32_t least = -1;
    std::uint64_t least_bytes = 0;
    each_rank(b.holders, [&](std::int32_t rank, std::uint64_t own) {
      if (least >= 0 && load_[static_cast<std::size_t>(rank)] >= load_[static_cast<std::size_t>(least)])
        return;
      least = rank;
      least_bytes = item.kind == item_kind::bytes ? own : s.bytes;
    });
    place(s.box, b.box, least, least_bytes);
  }

  /// Raises the loads of the holders with the least to one level, as water would.
  bool split(const shared_box& s, const summary_box& b, const split_grain& grain, std::uint64_t piece) {
    holders_.clear();
    each_rank(b.holders, [&](std::int32_t rank, std::uint64_t) {
      holders_.push_back({load_[static_cast<std::size_t>(rank)], rank});
    });
    const auto most_pieces = static_cast<std::size_t>(
        std::min<std::uint64_t>(s.bytes / piece, static_cast<std::uint64_t>(grain.units)));
    std::size_t count = std::min(holders_.size(), most_pieces);
    if (count < 2) return false;
    std::partial_sort(holders_.begin(), holders_.begin() + static_cast<std::ptrdiff_t>(count),
                      holders_.end());
    std::uint64_t below = 0;
    for (std::size_t k = 0; k < count; ++k) below += holders_[k].first;
    // The holder with the highest load leaves until the level lies a piece above everybody who stays.
    while (count > 1 && (below + s.bytes) / count < holders_[count - 1].first + piece)
      below -= holders_[--count].first;
    if (count < 2) return false;
    const auto level = (below + s.bytes) / count;
    // Pieces in the order of ranks: neighbours in the tensor are then neighbours in rank.
    std::sort(holders_.begin(), holders_.begin() + static_cast<std::ptrdiff_t>(count),
              [](const auto& a, const auto& c) { return a.second < c.second; });
    std::int64_t at = 0;
    std::uint64_t wanted = 0;
    for (std::size_t k = 0; k < count; ++k) {
      wanted += level - holders_[k].first;
      std::int64_t end = grain.units;
      if (k + 1 < count)
        end = std::clamp(static_cast<std::int64_t>((wanted + grain.unit_bytes / 2) / grain.unit_bytes), at,
                         grain.units);
      if (end == at) continue;
      chunk part = b.box;
      part.offsets.set(grain.dimension, b.box.offsets[grain.dimension] + at * grain.unit);
      part.sizes.set(grain.dimension, (end - at) * grain.unit);
      place(s.box, part, holders_[k].second, grain.unit_bytes * static_cast<std::uint64_t>(end - at));
      at = end;
    }
    return true;
  }

  [[nodiscard]] write_assignment collect() {
    write_assignment out;
    const auto boxes = first_box_.back();
    out.first_box = std::move(first_box_);
    out.first_piece.assign(boxes + 1, 0);
    for (const auto& p : placed_) ++out.first_piece[p.box + 1];
    for (std::size_t b = 0; b < boxes; ++b) out.first_piece[b + 1] += out.first_piece[b];
    out.pieces.resize(placed_.size());
    auto next = out.first_piece;
    for (auto& p : placed_) out.pieces[next[p.box]++] = p.piece;
    return out;
  }

  const plan_summary& summary_;
  const default_planner_options& options_;
  std::vector<std::uint64_t> load_;
  std::vector<std::uint32_t> first_box_;
  std::vector<shared_box> shared_;
  std::vector<placed> placed_;
  std::vector<std::pair<std::uint64_t, std::int32_t>> holders_;
};

}  // namespace detail

/// Gives each box to ranks that hold it, levelling the bytes that ranks write: what has one holder first,
/// then replicas in descending size. Depends on nothing but its arguments, so every rank comes to the same
/// result. O(boxes x log + replicated boxes x holders).
/// @pre validate(summary, world_size) did not throw.
[[nodiscard]] inline write_assignment assign_writes(const plan_summary& summary, int world_size,
                                                    const default_planner_options& options) {
  return detail::balancer(summary, world_size, options).assign();
}

/// What a checkpoint that is written so will hold.
[[nodiscard]] inline metadata metadata_of(const plan_summary& summary, const write_assignment& assignment,
                                          int world_size) {
  cairn::metadata out;
  out.world_size = world_size;
  out.items.reserve(summary.items.size());
  for (std::size_t n = 0; n < summary.items.size(); ++n) {
    const auto& i = summary.items[n];
    const auto pieces = assignment.pieces_of(n);
    out.items.push_back(stored_item{i.name, i.kind, i.type, i.global, i.per_rank, chunk_set::from(pieces)});
  }
  return out;
}

}  // namespace v1
}  // namespace cairn
