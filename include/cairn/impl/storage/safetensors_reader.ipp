// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/concepts/byte_store.hpp>
#include <cairn/concepts/device_access.hpp>
#include <cairn/concepts/read_exchange.hpp>
#include <cairn/concepts/storage.hpp>
#include <cairn/model/chunk_progression.hpp>
#include <cairn/model/item.hpp>
#include <cairn/model/known_blocks.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/record.hpp>
#include <cairn/model/state_dict.hpp>
#include <cairn/model/stored_items.hpp>
#include <cairn/storage/commit/checkpoint_catalog.hpp>
#include <cairn/storage/commit/step_objects.hpp>
#include <cairn/storage/commit/store_look.hpp>
#include <cairn/storage/load/block_comparison.hpp>
#include <cairn/storage/load/byte_box.hpp>
#include <cairn/storage/load/load_engine.hpp>
#include <cairn/storage/load/load_work.hpp>
#include <cairn/storage/load/planned_want.hpp>
#include <cairn/storage/load/record_reading.hpp>
#include <cairn/storage/load/shared_reads.hpp>
#include <cairn/storage/load/shared_records.hpp>
#include <cairn/storage/load/stored_checkpoint.hpp>
#include <cairn/storage/load/stored_record.hpp>
#include <cairn/storage/manifest/manifest.hpp>
#include <cairn/storage/manifest/manifest_format.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/storage/safetensors/safetensors_header.hpp>
#include <cairn/storage/safetensors_check.hpp>
#include <cairn/storage/safetensors_reader.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/callback.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/function_ref.hpp>
#include <cairn/system/list_view.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/parallel.hpp>
#include <cairn/system/sorted_map.hpp>
#include <cairn/system/vector.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

CAIRN_BODY void safetensors_reader::expect_reads() noexcept {
  store_.innermost().open_connections();
}

CAIRN_BODY std::vector<std::int64_t> safetensors_reader::list() {
  return checkpoint_catalog(store_).list();
}

CAIRN_BODY std::vector<std::int64_t> safetensors_reader::list_from(std::int64_t step) {
  return checkpoint_catalog(store_).list_from(step);
}

CAIRN_BODY std::vector<std::byte> safetensors_reader::fetch(std::int64_t step) {
  const auto key = manifest_key(step);
  const detail::step_objects objects(store_);
  auto bytes = objects.read_manifest(key);
  if (!bytes || objects.is_late_manifest(step, *bytes))
    fail(error_id::storage_not_committed,
         "there is no committed checkpoint of step " + std::to_string(step) + " in " +
             std::string(store_.describe()) + ", " + steps_there(),
         {.file = key});
  return std::move(*bytes);
}

CAIRN_BODY safetensors_reader::checkpoint_type safetensors_reader::open(
    std::int64_t step, std::span<const std::byte> manifest_bytes) {
  const auto key = manifest_key(step);
  auto m = open_manifest({manifest_bytes.begin(), manifest_bytes.end()}, key);
  if (m.step != step)
    fail(error_id::corrupt_identity, "this is the manifest of another step",
         {.file = key, .expected = std::to_string(step), .got = std::to_string(m.step)});
  const bool all_known = detail::all_of(m.codecs, [&](auto c) { return store_.decodes(c); });
  for (std::size_t i = 0; !all_known && i < m.content.items.size(); ++i)
    if (const auto& item = std::as_const(m.content.items)[i]; !store_.decodes(item.codec))
      fail(error_id::corrupt_unsupported_feature,
           "an item is compressed with a codec that this reader does not have; open the checkpoint with "
           "compressed_storage and that codec",
           {.item = item.name, .file = key, .got = "codec " + std::to_string(item.codec)});
  return checkpoint_type(std::move(m));
}

CAIRN_BODY run_id safetensors_reader::run_of(std::int64_t step) {
  return open(step, fetch(step)).manifest().run;
}

CAIRN_BODY std::uint64_t safetensors_reader::read(checkpoint_type& checkpoint, const state_dict& state,
                                                  const load_plan& plan, const target_resolver& resolver,
                                                  read_options options, deadline until) {
  const auto ranks = ranks_of(checkpoint, plan);
  std::uint64_t bytes = 0;
  file_sizes sizes;
  detail::look_together(store_, {[&] { bytes = fetch_records(checkpoint, ranks, until); },
                                 [&] { sizes = early_sizes(checkpoint, ranks, until); }});
  auto work = find_work(checkpoint, plan);
  check_files(work, until, std::vector<bool>(work.files.size(), true), sizes);
  // Only now: destinations may be allocated by what the checkpoint claims, and these files have the bytes.
  find_targets(work, checkpoint, state, plan, resolver, options);
  detail::owned<detail::block_comparison> known;
  if (options.blocks != nullptr) {
    known = detail::make_owned<detail::block_comparison>(work, plan, *options.blocks, until);
    known->begin();
  }
  std::uint64_t read = 0;
  if (known == nullptr || options.blocks->what != block_pass::action::remember) {
    detail::load_engine engine(store_, work, options.memory_budget, until, options.devices);
    const bool some = known != nullptr && options.blocks->what == block_pass::action::compare;
    read = some ? engine.run(known->blocks()) : engine.run();
    if (options.stages != nullptr) detail::add(*options.stages, engine.stages());
  }
  if (known != nullptr) known->finish();
  return bytes + read;
}

CAIRN_BODY std::uint64_t safetensors_reader::read_shared(checkpoint_type& checkpoint, const state_dict& state,
                                                         const load_plan& plan,
                                                         const target_resolver& resolver,
                                                         read_options options, read_exchange& exchange,
                                                         deadline until) {
  const auto share = options.memory_budget / 4;
  std::uint64_t bytes = 0;
  std::exception_ptr failure;
  try {
    bytes = exchange_records(checkpoint, plan, share, exchange, until);
  } catch (...) {
    failure = std::current_exception();  // of the last window, perhaps: the others begin with the blocks
  }
  detail::owned<detail::load_work> work;
  detail::owned<detail::shared_blocks> blocks;
  detail::owned<detail::block_comparison> known;
  std::vector<shared_read> reads;
  const bool some = options.blocks != nullptr && options.blocks->what == block_pass::action::compare;
  const auto find_reads = [&] {
    if (failure != nullptr) std::rethrow_exception(failure);
    std::vector<std::int32_t> for_others;  // those of which somebody wants something
    if (holders_ != nullptr)
      for (std::int32_t r = 0; r < static_cast<std::int32_t>(holders_->of.size()); ++r)
        if (detail::contains(holders_->of[static_cast<std::size_t>(r)], exchange.rank()) &&
            checkpoint.has_record(r))
          for_others.push_back(r);
    work = detail::make_owned<detail::load_work>(find_work(checkpoint, plan, for_others));
    if (some) check_files(*work, until, std::vector<bool>(work->files.size(), true));
    find_targets(*work, checkpoint, state, plan, resolver, options);
    if (options.blocks != nullptr)
      known = detail::make_owned<detail::block_comparison>(*work, plan, *options.blocks, until);
    blocks = detail::make_owned<detail::shared_blocks>(store_, *work, exchange.wants(), exchange.rank(),
                                                       share, until, options.devices, holders_.get());
    reads = blocks->find_shared_reads();
  };
  std::vector<std::uint64_t> lacked;  // by any rank: a block that one lacks goes to all that want it
  if (some)
    lacked = exchange.unite(
        [&] {
          find_reads();
          return blocks->lack(reads, known->blocks());
        },
        until);
  exchange.run(
      [&]() -> shared_read_list {
        if (some) {
          known->add(blocks->leave_lacked(reads, lacked));
        } else {
          find_reads();
          check_files(*work, until, blocks->files_of(reads));
        }
        if (known != nullptr) known->begin();
        return {std::move(reads), &*blocks};
      },
      share, until);
  blocks->read_alone();
  if (known != nullptr) known->finish();
  if (options.stages != nullptr) detail::add(*options.stages, blocks->stages());
  return bytes + blocks->bytes_read();
}

CAIRN_BODY std::uint64_t safetensors_reader::load_records(checkpoint_type& checkpoint, deadline until) {
  std::vector<std::int32_t> ranks(checkpoint.manifest().records.size());
  for (std::size_t r = 0; r < ranks.size(); ++r) ranks[r] = static_cast<std::int32_t>(r);
  return fetch_records(checkpoint, std::move(ranks), until);
}

CAIRN_BODY std::uint64_t safetensors_reader::verify(checkpoint_type& checkpoint, deadline until,
                                                    const read_gate& gate) {
  std::atomic<std::uint64_t> bytes = load_records(checkpoint, until);
  checkpoint.check_complete();
  const auto work = detail::all_work(checkpoint);
  check_files(work, until, std::vector<bool>(work.files.size(), true));
  detail::parallel_for(work.files.size(), detail::load_threads(), [&](std::size_t i, std::size_t) {
    throw_if_late(until, work.files[i].key);
    bytes += check_header(checkpoint, work.files[i]);
  });
  detail::load_engine engine(store_, work, read_options{}.memory_budget, until);
  engine.pass(gate);
  engine.read_stored();
  return bytes + engine.run();
}

CAIRN_BODY std::string safetensors_reader::steps_there() {
  const auto steps = list();
  if (steps.empty()) return "nor of any other";
  constexpr std::size_t max_named = 8;
  std::string text = steps.size() > max_named ? "which has ... " : "which has ";
  for (auto i = steps.size() > max_named ? steps.size() - max_named : 0; i < steps.size(); ++i)
    text += std::to_string(steps[i]) + (i + 1 == steps.size() ? "" : ", ");
  return text;
}

CAIRN_BODY void safetensors_reader::throw_if_late(deadline until, const std::string& key) {
  if (until.passed()) fail(error_id::timeout_load, "the checkpoint was not read in time", {.file = key});
}

CAIRN_BODY std::uint64_t safetensors_reader::fetch_records(
    checkpoint_type& checkpoint, std::vector<std::int32_t> ranks, deadline until,
    detail::callback<void(std::int32_t, std::span<const std::byte>)> sink) {
  detail::erase_if(ranks, [&](auto r) { return checkpoint.has_record(r); });
  detail::vector<detail::owned<stored_record>> records(ranks.size());
  std::atomic<std::uint64_t> bytes{0};
  detail::parallel_for(ranks.size(), detail::load_threads(), [&](std::size_t i, std::size_t) {
    const auto& named = checkpoint.manifest().records[static_cast<std::size_t>(ranks[i])];
    const auto key = checkpoint.record_key_of(named.rank);
    throw_if_late(until, key);
    std::vector<std::byte> content;
    records[i] = detail::read_stored_record(store_, checkpoint.manifest(), named, key, content);
    bytes += content.size();
    if (sink) sink(ranks[i], content);
  });
  for (std::size_t i = 0; i < ranks.size(); ++i) checkpoint.add_record(ranks[i], std::move(records[i]));
  return bytes;
}

CAIRN_BODY std::vector<std::int32_t> safetensors_reader::ranks_of(const checkpoint_type& checkpoint,
                                                                  const load_plan& plan) {
  std::vector<std::int32_t> ranks;
  for (const auto& item : plan.items) ranks.push_back(checkpoint.chunk_of(item).rank);
  detail::sort(ranks);
  detail::erase_repeated(ranks);
  return ranks;
}

CAIRN_BODY std::uint64_t safetensors_reader::exchange_records(checkpoint_type& checkpoint,
                                                              const load_plan& plan, std::uint64_t budget,
                                                              read_exchange& exchange, deadline until) {
  detail::shared_records records(
      checkpoint, exchange.wants(), exchange.rank(),
      [&](std::vector<std::int32_t> ranks, const detail::record_sink& sink) {
        return fetch_records(checkpoint, std::move(ranks), until, sink);
      },
      holders_.get());
  exchange.run(
      [&] {
        return shared_read_list{records.find_shared_reads(ranks_of(checkpoint, plan)), &records};
      },
      budget, until);
  return records.bytes_read();
}

CAIRN_BODY detail::load_work safetensors_reader::find_work(const checkpoint_type& checkpoint,
                                                           const load_plan& plan,
                                                           const std::vector<std::int32_t>& for_others) {
  detail::vector<detail::planned_want> wants;
  wants.reserve(plan.items.size());
  for (std::uint32_t i = 0; i < plan.items.size(); ++i) {
    auto planned = detail::place_want(checkpoint, plan.items[i]);
    planned.want.planned = i;
    if (planned.want.box.bytes() != 0) wants.push_back(std::move(planned));
  }
  detail::add_for_others(checkpoint, for_others, wants);
  return detail::gather_work(checkpoint, wants);
}

CAIRN_BODY void safetensors_reader::find_targets(detail::load_work& work, const checkpoint_type& checkpoint,
                                                 const state_dict& state, const load_plan& plan,
                                                 const target_resolver& resolver,
                                                 const read_options& options) {
  constexpr auto none = static_cast<std::size_t>(-1);
  std::vector<std::size_t> want_of(plan.items.size(), none);
  for (std::size_t k = 0; k < work.wants.size(); ++k) want_of[work.wants[k].planned] = k;
  for (std::uint32_t i = 0; i < plan.items.size(); ++i) {  // in the order of the plan
    const auto& item = plan.items[i];
    const auto& stored = checkpoint.metadata().items[item.stored];
    if (stored.kind == item_kind::bytes) {
      const auto bytes = want_of[i] == none ? 0 : work.wants[want_of[i]].box.bytes();
      if (options.blocks != nullptr) detail::forget_resized(*options.blocks, state, item, i, bytes);
      detail::resize_for(state, item, bytes);
    }
    if (want_of[i] == none) continue;
    auto& want = work.wants[want_of[i]];
    const auto target = resolver(item);
    want = detail::make_want(want.box, stored.type, target.view, target.cast, stored.name, options.devices);
    want.planned = i;
  }
}

CAIRN_BODY safetensors_reader::file_sizes safetensors_reader::early_sizes(
    const checkpoint_type& checkpoint, const std::vector<std::int32_t>& ranks, deadline until) {
  file_sizes sizes;
  const auto& m = checkpoint.manifest();
  const auto at_once = store_.reads_at_once();
  if (at_once < 2 || m.placement.shared()) return sizes;
  detail::vector<std::string> keys;
  for (const auto r : ranks) {
    const auto files = m.records[static_cast<std::size_t>(r)].files;
    if (files > at_once - keys.size()) return sizes;
    for (std::uint32_t k = 0; k < files; ++k) keys.push_back(checkpoint.file_key_of(r, k));
  }
  detail::vector<std::optional<std::uint64_t>> found(keys.size());
  detail::parallel_for(keys.size(), detail::load_threads(), [&](std::size_t i, std::size_t) {
    throw_if_late(until, keys[i]);
    found[i] = store_.size(keys[i]);
  });
  for (std::size_t i = 0; i < keys.size(); ++i) sizes[keys[i]] = found[i];
  return sizes;
}

CAIRN_BODY void safetensors_reader::check_files(const detail::load_work& work, deadline until,
                                                const std::vector<bool>& wanted, const file_sizes& known) {
  detail::parallel_for(work.files.size(), detail::load_threads(), [&](std::size_t i, std::size_t) {
    if (!wanted[i]) return;
    const auto& file = work.files[i];
    throw_if_late(until, file.key);
    const auto at = known.find(file.key);
    const auto size = at != known.end() ? at->second : store_.size(file.key);
    if (!size)
      fail(error_id::corrupt_missing_file, "a data file of the checkpoint is not there", {.file = file.key});
    if (*size != file.bytes)
      fail(error_id::corrupt_size_mismatch, "a data file has another size than when it was written",
           {.file = file.key,
            .expected = std::to_string(file.bytes) + " bytes",
            .got = std::to_string(*size) + " bytes"});
  });
}

CAIRN_BODY std::uint64_t safetensors_reader::check_header(const checkpoint_type& checkpoint,
                                                          const detail::load_file& file) {
  std::array<std::byte, 8> first{};
  const read_range length_range{file.key, 0, std::span(first).first(std::min<std::size_t>(8, file.bytes))};
  store_.read({&length_range, 1});
  const auto length = safetensors_header_bytes(
      std::span<const std::byte>(first).first(length_range.destination.size()), file.bytes, file.key);
  std::vector<std::byte> header(static_cast<std::size_t>(length));
  const read_range whole_range{file.key, 0, header};
  store_.read({&whole_range, 1});
  if (checkpoint.manifest().placement.shared())
    detail::check_shared_header(header, checkpoint, file);
  else
    detail::check_header(header, checkpoint, file);
  return length;
}

}  // namespace v1
}  // namespace cairn
