// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/concepts/byte_store.hpp>
#include <cairn/manage/import_safetensors.hpp>
#include <cairn/model/chunk_progression.hpp>
#include <cairn/model/chunk_set.hpp>
#include <cairn/model/image_backing.hpp>
#include <cairn/model/image_control.hpp>
#include <cairn/model/image_layout.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/record.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/model/stored_items.hpp>
#include <cairn/plan/glob.hpp>
#include <cairn/storage/commit/checkpoint_catalog.hpp>
#include <cairn/storage/foreign/foreign_checkpoint.hpp>
#include <cairn/storage/foreign/foreign_reader.hpp>
#include <cairn/storage/safetensors_writer.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/parallel.hpp>
#include <cairn/system/shared.hpp>

#include <sys/random.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Thrown by what reads when the user has said that the import is to end.
struct import_stopped {};

/// What all parts of an import have in common.
struct import_work {
  const any_store& source;
  const import_options& options;
  std::uint64_t all = 0;
  std::atomic<std::uint64_t> done{0};
  std::mutex progress;
  void took(std::uint64_t bytes) {
    const auto now = done += bytes;
    if (!options.progress) return;
    const std::lock_guard lock(progress);
    options.progress(std::min(now, all), all);
  }
};

/// The image of one part, whose bytes lie in a file of the source and are read when the writer asks for them.
class imported_image final : public image_backing {
 public:
  imported_image(import_work& work, std::string key, std::shared_ptr<const image_layout> layout,
                 std::vector<std::uint64_t> offsets)
      : work_(work), key_(std::move(key)), layout_(std::move(layout)), offsets_(std::move(offsets)) {}

  void gather(std::uint64_t begin, std::span<std::byte> out) const override {
    if (work_.options.stop && work_.options.stop()) throw import_stopped{};
    const auto end = begin + out.size();
    std::memset(out.data(), 0, out.size());
    for (const auto& s : layout_->segments) {
      const auto first = std::max(begin, s.begin);
      const auto last = std::min<std::uint64_t>(end, s.begin + s.header.size());
      if (first < last)
        std::memcpy(out.data() + (first - begin), s.header.data() + (first - s.begin),
                    static_cast<std::size_t>(last - first));
    }
    std::vector<read_range> ranges;
    std::uint64_t bytes = 0;
    const auto& items = layout_->items;  // in image order
    auto at = std::partition_point(items.begin(), items.end(),
                                   [&](const item_placement& i) { return i.begin + i.bytes <= begin; });
    for (; at != items.end() && at->begin < end; ++at) {
      const auto first = std::max(begin, at->begin);
      const auto last = std::min(end, at->begin + at->bytes);
      if (first >= last) continue;
      ranges.push_back(
          {key_, offsets_[at->item] + (first - at->begin),
           out.subspan(static_cast<std::size_t>(first - begin), static_cast<std::size_t>(last - first))});
      bytes += last - first;
    }
    if (ranges.empty()) return;
    work_.source.read(ranges);
    work_.took(bytes);
  }
  [[nodiscard]] std::exception_ptr failure() const noexcept override { return nullptr; }

 private:
  import_work& work_;
  const std::string key_;
  const std::shared_ptr<const image_layout> layout_;
  const std::vector<std::uint64_t> offsets_;  ///< in the file, of each item of the plan
};

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
  std::vector<std::size_t> chosen;  // places, in the order of the files
  for (std::size_t p = 0; p < from.places().size(); ++p)
    if (is_wanted(wanted, items[from.item_of(p)].name)) chosen.push_back(p);
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
    if (!is_wanted(wanted, items[i].name)) continue;
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

/// Writes one part; streams it through the writer's buffers.
inline void write_part(safetensors_writer_base& writer, const save_context& context, import_work& work,
                       const foreign_file& file, const save_plan& plan, std::vector<std::uint64_t> offsets) {
  std::vector<std::uint64_t> sizes;
  for (const auto& i : plan.items) sizes.push_back(i.bytes);
  const auto layout = detail::make_shared<image_layout>(writer.layout(plan, sizes, context.rank));
  const auto control = detail::make_shared<image_control>();
  std::vector<std::uint64_t> digests(static_cast<std::size_t>(layout->blocks));
  const staged_image image(layout, control, {}, digests, false,
                           detail::make_shared<imported_image>(work, file.key, layout, std::move(offsets)));
  control->advance(layout->bytes);
  (void)writer.write(context, image, deadline::never());
}

}  // namespace detail

CAIRN_BODY import_report import_safetensors(foreign_reader from, any_store target,
                                            const import_options& options) {
  const auto checkpoint = from.open(0, from.fetch(0));
  auto selected = detail::select_items(checkpoint, options.items);
  if (selected.stored.items.empty())
    fail(error_id::usage_unknown_name, "no tensor of these safetensors files is to be imported");
  if (detail::contains(checkpoint_catalog(target).list(), options.step))
    fail(error_id::storage_already_committed, "there is a checkpoint of this step already",
         {.file = std::string(target.describe()), .got = "step " + std::to_string(options.step)});
  safetensors_writer_base writer(target);
  save_context context;
  if (::getrandom(&context.run, sizeof context.run, 0) != static_cast<ssize_t>(sizeof context.run))
    fail(error_id::storage_io, "the system gives no random numbers");
  context.step = options.step;
  context.attempt = attempt_of(context.run, options.step, 1);
  context.world_size = selected.stored.world_size;
  digest_stream plan_digest;
  plan_digest.put("cairn.import.1").put(context.run.high).put(context.run.low);
  context.plan_digest = plan_digest.value();
  writer.check_space({selected.bytes, 3 * selected.plans.size()});

  const auto& source = from.store();
  detail::import_work work{source, options, selected.bytes, {}, {}};
  import_report report;
  report.tensors = selected.stored.items.size();
  report.bytes = selected.bytes;
  const auto of_part = [&](std::size_t part) {
    auto own = context;
    own.rank = static_cast<std::int32_t>(part);
    return own;
  };
  constexpr std::size_t at_once = 4;
  try {
    detail::parallel_for(selected.plans.size(), at_once, [&](std::size_t part, std::size_t) {
      detail::write_part(writer, of_part(part), work, checkpoint.files()[selected.files[part]],
                         selected.plans[part], std::move(selected.offsets[part]));
    });
    if (options.stop && options.stop()) throw detail::import_stopped{};
    writer.commit(context, selected.stored, deadline::never());
  } catch (const detail::import_stopped&) {
    report.complete = false;
  } catch (...) {
    for (auto part = selected.plans.size(); part-- > 0;)
      writer.abort(of_part(part), std::current_exception());
    throw;
  }
  if (!report.complete) {
    const auto why = make_failure(error_id::storage_aborted, "the import was ended by its caller");
    for (auto part = selected.plans.size(); part-- > 0;) writer.abort(of_part(part), why);
  }
  report.files = selected.plans.size();
  return report;
}

}  // namespace v1
}  // namespace cairn
