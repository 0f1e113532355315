// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/concepts/byte_store.hpp>
#include <cairn/manage/chosen_names.hpp>
#include <cairn/manage/import_safetensors.hpp>
#include <cairn/manage/streamed_checkpoint.hpp>
#include <cairn/model/chunk_progression.hpp>
#include <cairn/model/chunk_set.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/stored_items.hpp>
#include <cairn/storage/foreign/foreign_checkpoint.hpp>
#include <cairn/storage/foreign/foreign_reader.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What is imported: the items that were chosen, whose chunks have numbers of the files that hold something of them.
struct import_selection {
  metadata stored;
  std::vector<save_plan> plans;                     ///< of each part
  std::vector<std::uint32_t> files;                 ///< of each part, index in foreign_checkpoint::files()
  std::vector<std::vector<std::uint64_t>> offsets;  ///< of the items of each plan
  std::uint64_t bytes = 0;
};

[[nodiscard]] inline import_selection select_items(const foreign_checkpoint& from,
                                                   const std::vector<std::string>& wanted) {
  import_selection s;
  constexpr auto none = UINT32_MAX;
  std::vector<std::uint32_t> part_of(from.files().size(), none);
  const auto& items = from.metadata().items;
  std::vector<bool> takes(items.size());
  chosen_names names(wanted);
  for (std::size_t i = 0; i < items.size(); ++i) takes[i] = names.take(items[i].name);
  names.require_all_used([&](auto tell) {
    for (const auto& item : items) tell(item.name);
  });
  std::vector<std::size_t> chosen;  // places, in the order of the files
  for (std::size_t p = 0; p < from.places().size(); ++p)
    if (takes[from.item_of(p)]) chosen.push_back(p);
  const auto& places = from.places();
  detail::sort(chosen, [&](std::size_t a, std::size_t b) {
    return places[a].file != places[b].file ? places[a].file < places[b].file
                                            : places[a].offset < places[b].offset;
  });
  for (const auto p : chosen) {
    const auto& place = places[p];
    const auto& item = items[from.item_of(p)];
    auto& part = part_of[place.file];
    if (part == none) {
      part = static_cast<std::uint32_t>(s.files.size());
      s.files.push_back(place.file);
      s.plans.emplace_back();
      s.offsets.emplace_back();
    }
    write_item w;
    w.name = item.name, w.kind = item.kind, w.type = item.type, w.global = item.global;
    w.box = place.box, w.bytes = place.bytes;
    s.plans[part].items.push_back(std::move(w));
    s.offsets[part].push_back(place.offset);
    s.bytes += place.bytes;
  }
  s.stored.world_size = static_cast<std::int32_t>(s.files.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!takes[i]) continue;
    auto item = items[i];
    std::vector<stored_chunk> chunks;
    for (auto c : item.chunks) {
      c.rank = static_cast<std::int32_t>(part_of[static_cast<std::size_t>(c.rank)]);
      chunks.push_back(std::move(c));
    }
    item.chunks = chunk_set::from(chunks);
    s.stored.items.push_back(std::move(item));
  }
  return s;
}

}  // namespace detail

CAIRN_BODY import_report import_safetensors(foreign_reader from, any_store target,
                                            const import_options& options) {
  auto checkpoint = from.open(0, from.fetch(0));
  auto selected = detail::select_items(checkpoint, options.items);
  if (selected.stored.items.empty())
    fail(error_id::usage_unknown_name, "no tensor of these safetensors files is to be imported");
  import_report report;
  report.tensors = selected.stored.items.size();
  report.bytes = selected.bytes;
  report.files = selected.plans.size();

  std::atomic<std::uint64_t> done{0};
  std::mutex telling;
  detail::streamed_checkpoint made;
  made.step = options.step;
  made.maker = "cairn.import.1";
  made.stored = std::move(selected.stored);
  made.plans = std::move(selected.plans);
  made.ranks_at_a_time = 4;
  made.stop = options.stop;
  made.commit_timeout = options.timeout;
  made.fetch = [&](std::size_t part, std::span<const detail::streamed_bytes> wanted) {
    std::vector<read_range> ranges;
    std::uint64_t bytes = 0;
    for (const auto& w : wanted) {
      ranges.push_back(
          {checkpoint.files()[selected.files[part]].key, selected.offsets[part][w.item] + w.begin, w.out});
      bytes += w.out.size();
    }
    from.store().read(ranges);
    const auto now = done += bytes;
    if (!options.progress) return;
    const std::lock_guard lock(telling);
    options.progress(std::min(now, report.bytes), report.bytes);
  };
  // What is committed gets digests, and would be taken for one model for ever.
  made.check = [&] { from.check_unchanged(checkpoint, deadline::never()); };
  from.check_unchanged(checkpoint, deadline::never());
  report.complete = detail::write_streamed(target, made);
  return report;
}

}  // namespace v1
}  // namespace cairn
