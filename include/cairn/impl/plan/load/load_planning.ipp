// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/planner.hpp>
#include <cairn/model/item.hpp>
#include <cairn/plan/glob.hpp>
#include <cairn/plan/load/load_changes.hpp>
#include <cairn/plan/load/load_planning.hpp>
#include <cairn/plan/summary/cover.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/vector.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

CAIRN_BODY std::vector<std::string> unexpected_on_both(const std::vector<std::string>& a,
                                                       const std::vector<std::string>& b) {
  std::vector<std::string> both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return both;
}

CAIRN_BODY void fail_names(error_id id, const std::string& whose, const std::string& what,
                           const std::vector<std::string>& names, int rank) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i == 10) {
      text += ", ...";
      break;
    }
    text.append(i ? ", " : "").append(names[i]);
  }
  const bool one = names.size() == 1;
  fail(id,
       std::to_string(names.size()) + (one ? " item of " : " items of ") + whose + (one ? " is " : " are ") +
           what + ": " + text,
       {.rank = rank, .item = names.front()});
}

namespace detail {

CAIRN_BODY bool find_overlaps(const stored_item& item, const chunk& wanted, vector<chunk_overlap>& overlaps) {
  overlaps.clear();
  if (wanted.empty()) return true;
  item.chunks.overlaps(wanted, [&](std::uint64_t index, const stored_chunk&, const chunk& common) {
    overlaps.push_back({static_cast<std::uint32_t>(index), common});
  });
  if (overlaps.size() == 1) return overlaps[0].box == wanted;
  return tiles(wanted, overlaps.size(), [&](std::size_t i) -> const chunk& { return overlaps[i].box; });
}

CAIRN_BODY load_planning::load_planning(const metadata& stored, const load_request& request)
    : stored_(stored), request_(request), known_(stored.items.size()), matched_(request.only.size()) {}

CAIRN_BODY bool load_planning::wants(std::string_view name) {
  match(name);
  return is_wanted(request_.only, name);
}

CAIRN_BODY void load_planning::add(const state_entry& e, std::uint32_t index, const std::string& stored_name,
                                   dtype stored_type, bool castable) {
  const auto* changes = request_.changes.get();
  auto found = changes != nullptr ? changes->find(stored_.items, e.name) : std::nullopt;
  if (!found) found = stored_.items.index_of(stored_name);
  if (!found) {
    miss(e);
    return;
  }
  const auto at = *found;
  const auto* item = &stored_.items[at];
  known_[at] = true;
  // Stored alike: which of the two it was called matters to nobody, and files of others do not tell.
  const bool both_scalars = item->kind != item_kind::bytes && e.kind != item_kind::bytes &&
                            item->global.rank() == 0 && e.global.rank() == 0;
  if (item->kind != e.kind && !both_scalars) {
    mismatch(e, error_id::plan_kind_mismatch, "the checkpoint holds an item of another kind",
             std::string(name_of(e.kind)), std::string(name_of(item->kind)));
    return;
  }
  if (item->per_rank != e.flags.per_rank) {
    mismatch(e, error_id::plan_kind_mismatch, "an item is per_rank in the checkpoint or the state only",
             e.flags.per_rank ? "per_rank" : "not per_rank", item->per_rank ? "per_rank" : "not per_rank");
    return;
  }
  bool converted = false;
  bool resized = false;
  if (e.kind != item_kind::bytes) {
    converted = item->type != stored_type && changes != nullptr && changes->converts(e.name);
    if (converted)
      castable = item->type == e.type || changes->conversion(e.name, item->type, e.type) != nullptr;
    if (item->type != stored_type && !converted) {
      mismatch(e, error_id::plan_dtype_mismatch,
               "the checkpoint has another dtype; register memory of that dtype, convert it with "
               "cairn::convert{}, or leave the item out with cairn::partial",
               std::string(name_of(stored_type)), std::string(name_of(item->type)));
      return;
    }
    if (!castable) {
      mismatch(e, error_id::plan_no_cast, "there is no conversion from the stored dtype",
               std::string(name_of(e.type)), std::string(name_of(item->type)));
      return;
    }
    resized = !(item->global == e.global);
    if (resized &&
        (changes == nullptr || item->per_rank || !changes->resizes(e.name, item->global, e.global))) {
      mismatch(
          e, error_id::plan_shape_mismatch,
          "the checkpoint has another global shape; give the tensor that shape, change its size with "
          "cairn::pad or cairn::cut, or leave it out with cairn::partial (how it is cut over ranks does not "
          "matter)",
          to_string(e.global), to_string(item->global));
      return;
    }
  }
  const auto before = plan_.items.size();
  const auto stored_index = static_cast<std::uint32_t>(at);
  const bool loaded = item->per_rank               ? add_own(e, index, *item, stored_index)
                      : e.kind == item_kind::bytes ? add_bytes(e, index, *item, stored_index)
                                                   : add_boxes(e, index, *item, stored_index);
  if (!loaded) return;
  for (auto i = before; i < plan_.items.size(); ++i) plan_.items[i].converted = converted;
  auto& report = plan_.report;
  if (item->name != stored_name) report.renamed.push_back(e.name + ": " + item->name);
  if (converted && item->type != e.type)
    report.converted.push_back(e.name + ": " + std::string(name_of(item->type)) + " to " +
                               std::string(name_of(e.type)));
  if (resized)
    report.resized.push_back(e.name + ": " + to_string(item->global) + " to " + to_string(e.global));
}

CAIRN_BODY load_plan load_planning::finish() {
  if (detail::contains(matched_, false)) {
    stored_.items.for_each_name([&](std::size_t, std::string_view name) { match(name); });
    for (std::size_t i = 0; i < matched_.size(); ++i)
      if (!matched_[i]) plan_.report.unmatched.push_back(request_.only[i]);
    detail::sort(plan_.report.unmatched);
  }
  if (detail::contains(known_, false))
    stored_.items.for_each_name([&](std::size_t k, std::string_view name) {
      if (!known_[k] && is_wanted(request_.only, name) &&
          (request_.dropped.empty() || !is_wanted(request_.dropped, name)))
        plan_.report.unexpected.emplace_back(name);
    });
  if (request_.strict && !required_.empty())
    fail_names(error_id::plan_missing_item, "the state",
               "not in the checkpoint (flag them optional, or load with "
               "cairn::partial)",
               required_, request_.rank);
  // With several ranks, a name that this one does not know may belong to another: the group decides together.
  if (request_.strict && request_.world_size == 1 && !plan_.report.unexpected.empty())
    fail_names(error_id::plan_unexpected_item, "the checkpoint",
               "not in the state (load with cairn::partial or cairn::only to "
               "leave them out)",
               plan_.report.unexpected, request_.rank);
  return std::move(plan_);
}

CAIRN_BODY void load_planning::match(std::string_view name) {
  for (std::size_t i = 0; i < matched_.size(); ++i)
    if (!matched_[i] && glob_matches(request_.only[i], name)) matched_[i] = true;
}

CAIRN_BODY void load_planning::miss(const state_entry& e) {
  plan_.report.missing.push_back(e.name);
  if (!e.flags.optional && (request_.may_miss.empty() || !is_wanted(request_.may_miss, e.name)))
    required_.push_back(e.name);
}

CAIRN_BODY void load_planning::mismatch(const state_entry& e, error_id id, const std::string& what,
                                        const std::string& expected, const std::string& got) {
  if (request_.strict)
    fail(id, what, {.rank = request_.rank, .item = e.name, .expected = expected, .got = got});
  plan_.report.mismatched.push_back(e.name + ": " + what + " (expected " + expected + ", got " + got + ")");
}

CAIRN_BODY bool load_planning::add_own(const state_entry& e, std::uint32_t index, const stored_item& item,
                                       std::uint32_t stored) {
  std::optional<std::uint64_t> own;
  item.chunks.of_rank(request_.rank, [&](std::uint64_t at, const stored_chunk&) { own = at; });
  if (!own) {
    miss(e);
    return false;
  }
  const auto box = e.kind == item_kind::bytes ? whole({}) : whole(e.global);
  if (!box.empty()) plan_.items.push_back({stored, static_cast<std::uint32_t>(*own), index, 0, box});
  return true;
}

CAIRN_BODY bool load_planning::add_bytes(const state_entry& e, std::uint32_t index, const stored_item& item,
                                         std::uint32_t stored) {
  if (item.chunks.empty()) {
    mismatch(e, error_id::plan_not_covered, "the checkpoint holds nothing of an item", "its bytes",
             "nothing");
    return false;
  }
  plan_.items.push_back({stored, 0, index, 0, whole({})});
  return true;
}

CAIRN_BODY bool load_planning::add_boxes(const state_entry& e, std::uint32_t index, const stored_item& item,
                                         std::uint32_t stored) {
  const auto before = plan_.items.size();
  const auto fills_before = plan_.fills.size();
  for (std::uint32_t part = 0; part < e.boxes.size(); ++part) {
    auto wanted = e.boxes[part];
    if (!inside(wanted, item.global)) {
      add_fills(index, part, item, stored, wanted);
      const auto there = intersect(wanted, whole(item.global));
      if (!there) continue;
      wanted = *there;
    }
    if (!find_overlaps(item, wanted, overlaps_)) {
      plan_.items.resize(before);
      plan_.fills.resize(fills_before);
      std::vector<chunk> boxes;
      for (const auto& c : item.chunks) boxes.push_back(c.box);
      const auto missing = box_search(boxes).uncovered(wanted);
      if (missing)
        mismatch(e, error_id::plan_not_covered, "the checkpoint lacks a part of a tensor", to_string(wanted),
                 "nothing at " + to_string(*missing));
      else
        mismatch(e, error_id::plan_overlap, "stored chunks of a tensor overlap", "each element once",
                 "some twice in " + to_string(wanted));
      return false;
    }
    for (const auto& p : overlaps_) plan_.items.push_back({stored, p.chunk, index, part, p.box});
  }
  return true;
}

CAIRN_BODY void load_planning::add_fills(std::uint32_t index, std::uint32_t part, const stored_item& item,
                                         std::uint32_t stored, chunk wanted) {
  // Dimension after dimension: what lies behind the stored part of it, and then the rest.
  for (int d = 0; d < item.global.rank() && !wanted.empty(); ++d) {
    const auto end = wanted.offsets[d] + wanted.sizes[d];
    const auto from = std::max(wanted.offsets[d], std::min(item.global[d], end));
    if (from == end) continue;
    auto rest = wanted;
    rest.offsets.set(d, from);
    rest.sizes.set(d, end - from);
    plan_.fills.push_back({stored, static_cast<std::uint32_t>(d), index, part, rest});
    wanted.sizes.set(d, from - wanted.offsets[d]);
  }
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
