// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/concepts/byte_store.hpp>
#include <cairn/concepts/device_access.hpp>
#include <cairn/concepts/read_exchange.hpp>
#include <cairn/concepts/storage.hpp>
#include <cairn/model/item.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/state_dict.hpp>
#include <cairn/model/stored_items.hpp>
#include <cairn/storage/foreign/foreign_checkpoint.hpp>
#include <cairn/storage/foreign/foreign_listing.hpp>
#include <cairn/storage/foreign/foreign_reader.hpp>
#include <cairn/storage/load/byte_box.hpp>
#include <cairn/storage/load/load_engine.hpp>
#include <cairn/storage/load/load_work.hpp>
#include <cairn/storage/load/shared_reads.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/parallel.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// A planned read with its place.
struct foreign_want {
  const foreign_checkpoint::place* place = nullptr;
  const stored_item* item = nullptr;
  load_want want;
};

[[nodiscard]] inline load_file file_of(const foreign_checkpoint& checkpoint, std::uint32_t file) {
  const auto& f = checkpoint.files()[file];
  return {f.key, f.bytes, static_cast<std::int32_t>(file), 0};
}

[[nodiscard]] inline load_item item_of(const foreign_checkpoint::place& place, const stored_item& item,
                                       std::size_t file) {
  load_item made;
  made.file = static_cast<std::uint32_t>(file);
  made.offset = place.offset;
  made.bytes = place.bytes;
  made.name = item.name;
  made.kind = item.kind;
  made.type = item.type;
  made.box = place.box;
  return made;
}

/// Sorts reads by file and offset, and joins those of one place.
[[nodiscard]] inline load_work gather_work(const foreign_checkpoint& checkpoint,
                                           std::vector<foreign_want>& wants) {
  detail::sort(wants, [](const foreign_want& a, const foreign_want& b) {
    return std::tuple(a.place->file, a.place->offset, a.place) <
           std::tuple(b.place->file, b.place->offset, b.place);
  });
  load_work work;
  work.wants.reserve(wants.size());
  const foreign_checkpoint::place* last = nullptr;
  for (const auto& w : wants) {
    const bool same_file = last != nullptr && last->file == w.place->file;
    if (!same_file) work.files.push_back(file_of(checkpoint, w.place->file));
    if (last != w.place) {
      work.items.push_back(item_of(*w.place, *w.item, work.files.size() - 1));
      work.items.back().first_want = work.wants.size();
    }
    ++work.items.back().wants;
    work.wants.push_back(w.want);
    last = w.place;
  }
  return work;
}

}  // namespace detail

CAIRN_BODY std::vector<std::byte> foreign_reader::fetch(std::int64_t step) {
  if (step != 0)
    fail(error_id::storage_not_committed,
         "safetensors files that cairn did not write are one checkpoint, of step 0",
         {.file = std::string(store_.describe()), .expected = "0", .got = std::to_string(step)});
  if (listing_) return detail::read_headers(store_, *listing_);
  std::vector<detail::foreign_name> names;
  for (auto& key : store_.keys("", 1))
    if (detail::is_foreign_name(key)) names.push_back({key, key});
  const auto listing = detail::choose_files(std::move(names), store_.describe());
  if (listing.index.name.empty()) detail::require_all_parts(listing, std::string(store_.describe()));
  return detail::read_headers(store_, listing);
}

CAIRN_BODY foreign_reader::checkpoint_type foreign_reader::open(std::int64_t step,
                                                                std::span<const std::byte> headers) {
  if (step != 0)
    fail(error_id::corrupt_identity, "safetensors files are a checkpoint of step 0",
         {.expected = "0", .got = std::to_string(step)});
  return checkpoint_type(headers);
}

CAIRN_BODY std::uint64_t foreign_reader::read(checkpoint_type& checkpoint, const state_dict&,
                                              const load_plan& plan, const target_resolver& resolver,
                                              read_options options, deadline until) {
  const auto work = find_work(checkpoint, plan, resolver, options.devices);
  const std::vector<bool> all(work.files.size(), true);
  check_headers(checkpoint, work, until, all, false);
  detail::load_engine engine(store_, work, options.memory_budget, until, options.devices);
  const auto bytes = engine.run();
  check_files(checkpoint, work, until, all);
  if (options.stages != nullptr) detail::add(*options.stages, engine.stages());
  return bytes;
}

CAIRN_BODY std::uint64_t foreign_reader::read_shared(checkpoint_type& checkpoint, const state_dict&,
                                                     const load_plan& plan, const target_resolver& resolver,
                                                     read_options options, read_exchange& exchange,
                                                     deadline until) {
  const auto share = options.memory_budget / 4;
  detail::owned<detail::load_work> work;
  detail::owned<detail::shared_blocks> blocks;
  std::vector<bool> read_here;
  exchange.run(
      [&]() -> shared_read_list {
        work = detail::make_owned<detail::load_work>(find_work(checkpoint, plan, resolver, options.devices));
        blocks = detail::make_owned<detail::shared_blocks>(store_, *work, exchange.wants(), exchange.rank(),
                                                           share, until, options.devices);
        auto reads = blocks->find_shared_reads();
        read_here = blocks->files_of(reads);
        check_headers(checkpoint, *work, until, read_here, false);
        return {std::move(reads), &*blocks};
      },
      share, until);
  blocks->read_alone();
  check_files(checkpoint, *work, until, read_here);
  if (options.stages != nullptr) detail::add(*options.stages, blocks->stages());
  return blocks->bytes_read();
}

CAIRN_BODY void foreign_reader::check_unchanged(checkpoint_type& checkpoint, deadline until) {
  detail::load_work work;
  for (std::uint32_t f = 0; f < checkpoint.files().size(); ++f)
    work.files.push_back(detail::file_of(checkpoint, f));
  check_headers(checkpoint, work, until, std::vector<bool>(work.files.size(), true), true);
}

CAIRN_BODY std::uint64_t foreign_reader::verify(checkpoint_type& checkpoint, deadline until,
                                                const read_gate& gate) {
  check_unchanged(checkpoint, until);
  std::uint64_t bytes = 0;
  for (const auto& f : checkpoint.files()) bytes += f.data_begin;
  detail::load_work work;
  std::vector<std::size_t> order(checkpoint.places().size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto& places = checkpoint.places();
  detail::sort(order, [&](std::size_t a, std::size_t b) {
    return std::tuple(places[a].file, places[a].offset, a) < std::tuple(places[b].file, places[b].offset, b);
  });
  for (std::uint32_t f = 0; f < checkpoint.files().size(); ++f)
    work.files.push_back(detail::file_of(checkpoint, f));
  for (const auto i : order)
    work.items.push_back(
        detail::item_of(places[i], checkpoint.metadata().items[checkpoint.item_of(i)], places[i].file));
  detail::load_engine engine(store_, work, read_options{}.memory_budget, until);
  engine.pass(gate);
  engine.read_stored();
  bytes += engine.run();
  check_files(checkpoint, work, until, std::vector<bool>(work.files.size(), true));
  return bytes;
}

CAIRN_BODY detail::load_work foreign_reader::find_work(const checkpoint_type& checkpoint,
                                                       const load_plan& plan, const target_resolver& resolver,
                                                       device_load* devices) {
  std::vector<detail::foreign_want> wants;
  wants.reserve(plan.items.size());
  for (const auto& item : plan.items) {
    const auto& place = checkpoint.place_of(item.stored, item.chunk);
    const auto& stored = checkpoint.metadata().items[item.stored];
    if (item.box.empty()) continue;
    const auto box = detail::byte_box::make(stored.type, place.box, item.box);
    if (!box)
      fail(error_id::plan_out_of_bounds,
           "a load plan wants a box that the stored chunk does not hold as whole bytes",
           {.item = stored.name, .expected = to_string(place.box), .got = to_string(item.box)});
    const auto target = resolver(item);
    wants.push_back({&place, &stored,
                     detail::make_want(*box, stored.type, target.view, target.cast, stored.name, devices)});
  }
  return gather_work(checkpoint, wants);
}

CAIRN_BODY void foreign_reader::check_headers(checkpoint_type& checkpoint, const detail::load_work& work,
                                              deadline until, const std::vector<bool>& wanted, bool again) {
  check_files(checkpoint, work, until, wanted);
  detail::parallel_for(
      work.files.size(), static_cast<std::size_t>(detail::load_threads()), [&](std::size_t i, std::size_t) {
        auto& f = checkpoint.files_[static_cast<std::size_t>(work.files[i].rank)];
        if (!wanted[i] || (f.same_header && !again)) return;
        if (until.passed()) fail(error_id::timeout_load, "the files were not read in time", {.file = f.name});
        const auto now = detail::read_header(store_, {f.name, f.key});
        if (now.file_bytes != f.bytes || digest(now.bytes) != f.header_digest)
          fail(error_id::corrupt_identity, "a safetensors file has another header than when it was opened",
               {.file = f.name});
        f.same_header = true;
      });
}

CAIRN_BODY void foreign_reader::check_files(checkpoint_type& checkpoint, const detail::load_work& work,
                                            deadline until, const std::vector<bool>& wanted) {
  detail::parallel_for(
      work.files.size(), static_cast<std::size_t>(detail::load_threads()), [&](std::size_t i, std::size_t) {
        if (!wanted[i]) return;
        const auto& file = work.files[i];
        if (until.passed())
          fail(error_id::timeout_load, "the checkpoint was not read in time", {.file = file.key});
        const auto now = store_.identify(file.key);
        if (!now) fail(error_id::corrupt_missing_file, "a safetensors file is gone", {.file = file.key});
        if (now->bytes != file.bytes)
          fail(error_id::corrupt_size_mismatch, "a safetensors file has changed its size",
               {.file = file.key,
                .expected = std::to_string(file.bytes) + " bytes",
                .got = std::to_string(now->bytes) + " bytes"});
        auto& version = checkpoint.files_[static_cast<std::size_t>(file.rank)].version;
        if (version.empty()) version = now->version;
        if (now->version != version)
          fail(error_id::corrupt_identity,
               "a safetensors file was replaced or written again while it was read: read it again "
               "when nothing writes it any more",
               {.file = file.key});
        if (now->open_for_writing)
          fail(error_id::corrupt_identity,
               "a process has this safetensors file open for writing, or mapped so, and may be changing it: "
               "read it when nothing writes it any more",
               {.file = file.key});
      });
}

}  // namespace v1
}  // namespace cairn
