// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/concepts/read_exchange.hpp>
#include <cairn/concepts/storage.hpp>
#include <cairn/storage/commit/checkpoint_catalog.hpp>
#include <cairn/storage/load/load_engine.hpp>
#include <cairn/storage/load/record_reading.hpp>
#include <cairn/storage/load/shared_reads.hpp>
#include <cairn/storage/load/shared_records.hpp>
#include <cairn/storage/load/stored_checkpoint.hpp>
#include <cairn/storage/safetensors_check.hpp>

#include <algorithm>
#include <array>
#include <atomic>
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

/// Reads what safetensors_writer wrote, over a store of any type; a StorageReader. Copies share the store.
///
/// Data is read in whole blocks of 1 MiB that are verified first; a block that goes to one contiguous place
/// of host memory without a cast, aligned as in the file, is read straight there and verified there: where
/// that fails, read() throws, and the destination holds the damaged block. Data files must have the exact
/// size that the writer recorded.
class safetensors_reader {
 public:
  using checkpoint_type = stored_checkpoint;

  explicit safetensors_reader(any_store store) : store_(std::move(store)) {}
  template <ByteStore Store>
  explicit safetensors_reader(std::shared_ptr<Store> store)
      : safetensors_reader(any_store(std::move(store))) {}

  /// What it reads from.
  [[nodiscard]] const any_store& store() const noexcept { return store_; }

  [[nodiscard]] std::vector<std::int64_t> list() { return checkpoint_catalog(store_).list(); }

  [[nodiscard]] std::vector<std::byte> fetch(std::int64_t step) {
    const auto key = manifest_key(step);
    auto bytes = store_.read_all(key, detail::max_manifest_bytes);
    if (!bytes || detail::step_objects(store_).is_ghost(step, *bytes))
      fail(error_id::storage_not_committed,
           "there is no committed checkpoint of step " + std::to_string(step) + " in " +
               std::string(store_.describe()) + ", " + steps_there(),
           {.file = key});
    return std::move(*bytes);
  }

  [[nodiscard]] checkpoint_type open(std::int64_t step, std::span<const std::byte> manifest_bytes) {
    const auto key = manifest_key(step);
    auto m = open_manifest({manifest_bytes.begin(), manifest_bytes.end()}, key);
    if (m.step != step)
      fail(error_id::corrupt_identity, "this is the manifest of another step",
           {.file = key, .expected = std::to_string(step), .got = std::to_string(m.step)});
    const bool all_known =
        std::all_of(m.codecs.begin(), m.codecs.end(), [&](auto c) { return store_.decodes(c); });
    for (std::size_t i = 0; !all_known && i < m.content.items.size(); ++i)
      if (const auto& item = std::as_const(m.content.items)[i]; !store_.decodes(item.codec))
        fail(error_id::corrupt_unsupported_feature,
             "an item is compressed with a codec that this reader does not have; open the checkpoint with "
             "compressed_storage and that codec",
             {.item = item.name, .file = key, .got = "codec " + std::to_string(item.codec)});
    return checkpoint_type(std::move(m));
  }

  /// See TellsRuns.
  [[nodiscard]] run_id run_of(std::int64_t step) { return open(step, fetch(step)).manifest().run; }

  std::uint64_t read(checkpoint_type& checkpoint, const state_dict& state, const load_plan& plan,
                     const target_resolver& resolver, read_options options, deadline until) {
    const auto bytes = fetch_records(checkpoint, ranks_of(checkpoint, plan), until);
    const auto work = find_work(checkpoint, state, plan, resolver, options.devices);
    check_files(work, until, std::vector<bool>(work.files.size(), true));
    detail::load_engine engine(store_, work, options.memory_budget, until, options.devices);
    return bytes + engine.run();
  }

  /// See SharingReader. What several ranks want, one of them reads, in stripes in turn, and sends to the
  /// others; records, too.
  std::uint64_t read_shared(checkpoint_type& checkpoint, const state_dict& state, const load_plan& plan,
                            const target_resolver& resolver, read_options options, read_exchange& exchange,
                            deadline until) {
    const auto share = options.memory_budget / 4;
    std::uint64_t bytes = exchange_records(checkpoint, plan, share, exchange, until);
    std::optional<detail::load_work> work;
    std::optional<detail::shared_blocks> blocks;
    exchange.run(
        [&]() -> shared_units {
          work.emplace(find_work(checkpoint, state, plan, resolver, options.devices));
          blocks.emplace(store_, *work, exchange.wants(), exchange.rank(), share, until, options.devices);
          auto units = blocks->find_units();
          check_files(*work, until, blocks->files_of(units));
          return {std::move(units), &*blocks};
        },
        share, until);
    blocks->read_alone();
    return bytes + blocks->bytes_read();
  }

  /// Reads the records of all ranks that were not read yet: afterwards checkpoint.find() and record_of() tell
  /// where each chunk lies, and its digest. Gives the bytes read. @throws corrupt_error, storage_error,
  /// timeout_error
  std::uint64_t load_records(checkpoint_type& checkpoint, deadline until) {
    std::vector<std::int32_t> ranks(checkpoint.manifest().records.size());
    for (std::size_t r = 0; r < ranks.size(); ++r) ranks[r] = static_cast<std::int32_t>(r);
    return fetch_records(checkpoint, std::move(ranks), until);
  }

  /// Reads every file of the checkpoint: headers, which must be what the records say, and all blocks.
  std::uint64_t verify(checkpoint_type& checkpoint, deadline until) {
    return verify(checkpoint, until, read_gate());
  }
  /// See GatedReader; for the data files, which are nearly all of it.
  std::uint64_t verify(checkpoint_type& checkpoint, deadline until, const read_gate& gate) {
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
    return bytes + engine.run();
  }

 private:
  /// For messages: the newest few.
  [[nodiscard]] std::string steps_there() {
    const auto steps = list();
    if (steps.empty()) return "nor of any other";
    constexpr std::size_t most = 8;
    std::string text = steps.size() > most ? "which has ... " : "which has ";
    for (auto i = steps.size() > most ? steps.size() - most : 0; i < steps.size(); ++i)
      text += std::to_string(steps[i]) + (i + 1 == steps.size() ? "" : ", ");
    return text;
  }
  static void throw_if_late(deadline until, const std::string& key) {
    if (until.passed()) fail(error_id::timeout_load, "the checkpoint was not read in time", {.file = key});
  }
  std::uint64_t fetch_records(checkpoint_type& checkpoint, std::vector<std::int32_t> ranks, deadline until,
                              const detail::record_sink& sink = {}) {
    std::erase_if(ranks, [&](auto r) { return checkpoint.has_record(r); });
    std::vector<std::unique_ptr<stored_record>> records(ranks.size());
    std::atomic<std::uint64_t> bytes{0};
    detail::parallel_for(ranks.size(), detail::load_threads(), [&](std::size_t i, std::size_t) {
      const auto& named = checkpoint.manifest().records[static_cast<std::size_t>(ranks[i])];
      const auto key = checkpoint.record_key_of(named.rank);
      throw_if_late(until, key);
      const auto content = detail::read_record(store_, checkpoint.manifest(), named, key);
      if (!content)
        fail(error_id::corrupt_missing_file, "a record that the manifest names is not there", {.file = key});
      records[i] = std::make_unique<stored_record>(named, *content, key);
      bytes += content->size();
      if (sink) sink(ranks[i], *content);
    });
    for (std::size_t i = 0; i < ranks.size(); ++i) checkpoint.add_record(ranks[i], std::move(records[i]));
    return bytes;
  }
  [[nodiscard]] static std::vector<std::int32_t> ranks_of(const checkpoint_type& checkpoint,
                                                          const load_plan& plan) {
    std::vector<std::int32_t> ranks;
    for (const auto& item : plan.items) ranks.push_back(checkpoint.chunk_of(item).rank);
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    return ranks;
  }
  /// The records that a plan needs, each read by one of the ranks that need it.
  std::uint64_t exchange_records(checkpoint_type& checkpoint, const load_plan& plan, std::uint64_t budget,
                                 read_exchange& exchange, deadline until) {
    detail::shared_records records(checkpoint, exchange.wants(), exchange.rank(),
                                   [&](std::vector<std::int32_t> ranks, const detail::record_sink& sink) {
                                     return fetch_records(checkpoint, std::move(ranks), until, sink);
                                   });
    exchange.run(
        [&] {
          return shared_units{records.find_units(ranks_of(checkpoint, plan)), &records};
        },
        budget, until);
    return records.bytes_read();
  }
  /// What a plan wants of which files; gives bytes items their size. @pre the records are there.
  [[nodiscard]] static detail::load_work find_work(const checkpoint_type& checkpoint, const state_dict& state,
                                                   const load_plan& plan, const target_resolver& resolver,
                                                   device_load* devices) {
    std::vector<detail::planned_want> wants;
    wants.reserve(plan.items.size());
    for (const auto& item : plan.items) {
      auto planned = detail::place_want(checkpoint, item);
      const auto& stored = checkpoint.metadata().items[item.stored];
      if (stored.kind == item_kind::bytes) detail::resize_for(state, item, planned.bytes);
      if (planned.box.bytes() == 0) continue;
      const auto target = resolver(item);
      planned.want =
          detail::make_want(planned.box, stored.type, target.view, target.cast, stored.name, devices);
      wants.push_back(std::move(planned));
    }
    return detail::gather_work(checkpoint, wants);
  }
  /// Before the first byte is read.
  void check_files(const detail::load_work& work, deadline until, const std::vector<bool>& wanted) {
    detail::parallel_for(work.files.size(), detail::load_threads(), [&](std::size_t i, std::size_t) {
      if (!wanted[i]) return;
      const auto& file = work.files[i];
      throw_if_late(until, file.key);
      const auto size = store_.size(file.key);
      if (!size)
        fail(error_id::corrupt_missing_file, "a data file of the checkpoint is not there",
             {.file = file.key});
      if (*size != file.bytes)
        fail(error_id::corrupt_size_mismatch, "a data file has another size than when it was written",
             {.file = file.key,
              .expected = std::to_string(file.bytes) + " bytes",
              .got = std::to_string(*size) + " bytes"});
    });
  }
  std::uint64_t check_header(const checkpoint_type& checkpoint, const detail::load_file& file) {
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
      detail::check_header(header, checkpoint.record_of(file.rank), file);
    return length;
  }

  any_store store_;
};

}  // namespace v1
}  // namespace cairn
