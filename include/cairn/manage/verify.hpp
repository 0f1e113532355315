// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/manage/removed_step.hpp>
#include <cairn/manage/verify_report.hpp>
#include <cairn/model/checkpoint_lease.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/storage/commit/commit_parts.hpp>
#include <cairn/storage/commit/record_collection.hpp>
#include <cairn/storage/load/load_engine.hpp>
#include <cairn/storage/load/load_work.hpp>
#include <cairn/storage/load/planned_want.hpp>
#include <cairn/storage/load/record_reading.hpp>
#include <cairn/storage/load/stored_checkpoint.hpp>
#include <cairn/storage/load/stored_record.hpp>
#include <cairn/storage/manifest/manifest.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/storage/safetensors/safetensors_layout.hpp>
#include <cairn/storage/safetensors_check.hpp>
#include <cairn/storage/safetensors_reader.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/large_buffer.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/parallel.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

namespace detail {

/// Looks for damage in all parts of one checkpoint. One use.
class verification {
 public:
  /// `manifest_digest`: of the manifest that lies in the store; none where it does not lie there yet.
  verification(const any_store& store, stored_checkpoint& checkpoint, const verify_options& options,
               std::optional<std::uint64_t> manifest_digest)
      : store_(store), checkpoint_(checkpoint), options_(options), manifest_digest_(manifest_digest) {
    threads_ = load_threads();
    threads_ = std::max<std::uint64_t>(threads_, store_.reads_at_once());
    threads_ = std::clamp<std::uint64_t>(options_.memory_bytes / digest_block_bytes, 1, threads_);
    batch_ = std::clamp<std::uint64_t>(options_.memory_bytes / threads_, digest_block_bytes, max_batch) /
             digest_block_bytes * digest_block_bytes;
    const auto& m = checkpoint_.manifest();
    for (const auto& r : m.records)
      if (!m.placement.shared() || r.rank == m.placement.first_of(r.rank)) all_ += r.data_bytes;
  }

  verify_report run() {
    const auto world = static_cast<std::int32_t>(checkpoint_.manifest().records.size());
    const auto sharers = std::max(checkpoint_.manifest().placement.ranks_per_file, 1);
    const auto group = std::max(ranks_at_once / sharers, 1) * sharers;
    for (std::int32_t first = 0; first < world && !stopped(); first += group) {
      const auto last = std::min(world, first + group);
      first_ = first, last_ = last;
      read_records(first, last);
      check_complete(first, last);
      find_files(first, last);
      check_files();
      check_blocks();
      for (auto rank = first; rank < last; ++rank) checkpoint_.add_record(rank, nullptr);
      names_.clear();
    }
    // What is read of a step while it goes away may be damaged in other ways, too, and after the first look.
    if (report_.damages != 0) require_there();
    report_.bytes = bytes_.load();
    report_.complete = !stopped();
    return report_;
  }

 private:
  static constexpr std::int32_t ranks_at_once = 256;
  static constexpr std::uint64_t max_batch = std::uint64_t{8} << 20;

  struct file_state {
    load_file file;
    bool readable = true;
  };
  struct placed_item {
    const record_item* stored;
    std::size_t file;
  };
  struct block_ref {
    std::size_t item;
    std::uint64_t block;
  };
  struct named_chunk {
    std::int32_t rank;
    std::uint32_t item;
    item_key key;
    std::uint64_t chunk;
  };
  struct batch {
    std::size_t file;
    std::uint64_t begin, end;  ///< of the file
    std::vector<block_ref> blocks;
  };

  [[nodiscard]] bool stopped() {
    if (!stopped_.load(std::memory_order_relaxed) && options_.stop && options_.stop()) stopped_ = true;
    return stopped_.load(std::memory_order_relaxed);
  }
  void report(damage d) {
    const std::lock_guard lock(mutex_);
    ++report_.damages;
    report_.unreadable += d.unreadable;
    if (options_.found) options_.found(d);
  }
  void require_there() const {
    if (manifest_digest_) require_committed(store_, checkpoint_.manifest().step, *manifest_digest_);
  }
  /// Before something is told that is missing: one look, which the other threads wait for. @throws storage_error
  /// (storage_not_committed) where the step was removed
  void require_there_once() {
    const std::lock_guard lock(there_mutex_);
    if (there_) return;
    require_there();
    there_ = true;
  }
  /// The error that is being handled; rethrows those after which nothing else can be read either.
  [[nodiscard]] damage describe(const error& e, const std::string& file, std::int32_t rank) {
    if (e.kind() != error_kind::corrupt && e.kind() != error_kind::storage) throw;
    if (e.id() == error_id::storage_unavailable || e.id() == error_id::storage_out_of_memory) throw;
    if (e.id() == error_id::storage_not_committed) throw;  // of require_there_once()
    const bool absent = e.id() == error_id::storage_not_found;
    if (absent || e.id() == error_id::corrupt_missing_file) require_there_once();
    const auto& f = e.fields();
    damage d{e.message(), f.item, f.file.empty() ? file : f.file, f.offset, 0, rank};
    d.unreadable = e.kind() == error_kind::storage && !absent;
    return d;
  }

  void read_records(std::int32_t first, std::int32_t last) {
    std::vector<detail::owned<stored_record>> records(static_cast<std::size_t>(last - first));
    parallel_for(records.size(), static_cast<std::size_t>(threads_), [&](std::size_t i, std::size_t) {
      if (stopped()) return;
      const auto rank = first + static_cast<std::int32_t>(i);
      const auto& named = checkpoint_.manifest().records[static_cast<std::size_t>(rank)];
      const auto key = checkpoint_.record_key_of(rank);
      try {
        std::vector<std::byte> content;
        records[i] = read_stored_record(store_, checkpoint_.manifest(), named, key, content);
        bytes_ += content.size();
      } catch (const error& e) {
        auto d = describe(e, key, rank);
        d.what += "; what this rank wrote cannot be checked without its record";
        report(std::move(d));
      }
    });
    for (std::size_t i = 0; i < records.size(); ++i) {
      report_.files += records[i] != nullptr;
      checkpoint_.add_record(first + static_cast<std::int32_t>(i), std::move(records[i]));
    }
  }
  /// Every chunk that the manifest names must be in its rank's record.
  void check_complete(std::int32_t first, std::int32_t last) {
    const auto& items = checkpoint_.metadata().items;
    for (std::size_t i = 0; i < items.size() && !stopped(); ++i) {
      try {
        const auto& item = items[i];
        item.chunks.of_ranks(first, last, [&](std::uint64_t, const stored_chunk& c) {
          if (checkpoint_.has_record(c.rank)) (void)checkpoint_.find(item, c);
        });
      } catch (const error& e) {
        // A part of the manifest itself is looked at only once.
        if (first == 0 || e.fields().rank >= 0)
          report(describe(e, manifest_key(checkpoint_.manifest().step), e.fields().rank));
      }
    }
  }
  void find_files(std::int32_t first, std::int32_t last) {
    files_.clear(), items_.clear();
    const auto& place = checkpoint_.manifest().placement;
    for (auto rank = first; rank < last; ++rank) {
      if (!checkpoint_.has_record(rank)) continue;
      const auto& r = checkpoint_.record_of(rank).content();
      const auto begin = files_.size();
      for (std::uint32_t f = 0; f < r.files.size(); ++f)
        files_.push_back({file_of(checkpoint_, rank, f), true});
      std::vector<const record_item*> order;
      for (const auto& i : r.items) order.push_back(&i);
      detail::sort(order, [](const auto* a, const auto* b) {
        return std::tie(a->file, a->offset) < std::tie(b->file, b->offset);
      });
      for (const auto* i : order) items_.push_back({i, begin + i->file});
      if (rank == place.first_of(rank)) report_.files += r.files.size();
    }
  }
  [[nodiscard]] bool has_all_records(std::int32_t rank) const {
    const auto& m = checkpoint_.manifest();
    const auto first = m.placement.first_of(rank);
    for (auto r = first; r < first + sharers_of(m.placement, rank, m.content.world_size); ++r)
      if (!checkpoint_.has_record(r)) return false;
    return true;
  }
  void check_files() {
    const bool shared = checkpoint_.manifest().placement.shared();
    parallel_for(files_.size(), static_cast<std::size_t>(threads_), [&](std::size_t i, std::size_t) {
      auto& [file, readable] = files_[i];
      // One of those who share it is enough.
      if (stopped() || file.rank != checkpoint_.manifest().placement.first_of(file.rank)) return;
      try {
        const auto size = store_.size(file.key);
        if (!size) {
          require_there_once();
          readable = false;
          report({"a data file of the checkpoint is not there", {}, file.key, -1, 0, file.rank});
          return;
        }
        if (*size != file.bytes)
          report({"a data file has another size than when it was written: " + std::to_string(*size) +
                      " bytes instead of " + std::to_string(file.bytes),
                  {},
                  file.key,
                  static_cast<std::int64_t>(std::min(*size, file.bytes)),
                  0,
                  file.rank});
        else if (!shared || has_all_records(file.rank))
          check_header_of(file, shared);
      } catch (const error& e) {
        report(describe(e, file.key, file.rank));
      }
    });
  }
  void check_header_of(const load_file& file, bool shared) {
    std::vector<std::byte> header(std::min<std::size_t>(8, static_cast<std::size_t>(file.bytes)));
    const auto read = [&] {
      const read_range range{file.key, 0, header};
      store_.read({&range, 1});
    };
    read();
    header.resize(static_cast<std::size_t>(safetensors_header_bytes(header, file.bytes, file.key)));
    read();
    if (shared)
      check_shared_header(header, checkpoint_, file);
    else
      check_header(header, checkpoint_, file);
    count(header.size());
  }
  void count(std::uint64_t bytes) {
    const auto done = bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    if (options_.progress) options_.progress(std::min(done, all_), all_);
  }

  void check_blocks() {
    std::vector<batch> batches;
    for (std::size_t i = 0; i < items_.size(); ++i) {
      const auto& [stored, file] = items_[i];
      const auto blocks = block_count(stored->bytes);
      if (!files_[file].readable) {
        if (stored->bytes != 0) lost(i);
        continue;
      }
      for (std::uint64_t b = 0; b < blocks; ++b) {
        const auto begin = stored->offset + b * digest_block_bytes;
        const auto end = std::min(begin + digest_block_bytes, stored->offset + stored->bytes);
        // Neighbours in one read, with the little that may lie between them.
        if (batches.empty() || batches.back().file != file || begin < batches.back().end ||
            end - batches.back().begin > batch_ || begin - batches.back().end > 4096)
          batches.push_back({file, begin, begin, {}});
        batches.back().end = end;
        batches.back().blocks.push_back({i, b});
      }
    }
    const auto threads = std::min<std::size_t>(static_cast<std::size_t>(threads_), batches.size());
    std::vector<large_buffer> buffers(threads);
    parallel_for(batches.size(), threads, [&](std::size_t i, std::size_t thread) {
      if (stopped()) return;
      auto& buffer = buffers[thread];
      if (buffer.size() == 0) buffer = large_buffer(static_cast<std::size_t>(batch_));
      check_batch(batches[i], {buffer.data(), buffer.size()});
    });
  }
  void check_batch(const batch& b, std::span<std::byte> buffer) {
    const auto& key = files_[b.file].file.key;
    const auto bytes = buffer.first(static_cast<std::size_t>(b.end - b.begin));
    bool whole = true;
    try {
      const read_range range{key, b.begin, bytes};
      store_.read({&range, 1});
    } catch (const error& e) {
      static_cast<void>(describe(e, key, -1));  // block by block, it shows which are lost
      whole = false;
    }
    damage last;  // grows while blocks of one item that follow each other are damaged alike; no bytes: none
    std::size_t last_item = 0;
    std::uint64_t last_end = 0;  // in the file as it was before it was compressed
    const auto flush = [&] {
      if (last.bytes != 0) report(std::exchange(last, {}));
    };
    for (const auto& ref : b.blocks) {
      const auto& stored = *items_[ref.item].stored;
      const auto at = stored.offset + ref.block * digest_block_bytes;
      const auto length = std::min(digest_block_bytes, stored.offset + stored.bytes - at);
      const auto block =
          bytes.subspan(static_cast<std::size_t>(at - b.begin), static_cast<std::size_t>(length));
      auto found = check_block(b, ref, block, whole);
      if (!found) continue;
      found->bytes = length;
      // Of a compressed file only who read it knows where its bytes are.
      if (found->file != compressed_key(key)) found->offset = static_cast<std::int64_t>(at);
      const bool next =
          last.bytes != 0 && last_item == ref.item && last_end == at && last.file == found->file;
      last_item = ref.item, last_end = at + length;
      if (next && last.what == found->what) {
        last.bytes += found->bytes;
        continue;
      }
      flush();
      last = std::move(*found);
    }
    flush();
    count(b.end - b.begin);
  }
  [[nodiscard]] std::optional<damage> check_block(const batch& b, const block_ref& ref,
                                                  std::span<std::byte> block, bool was_read) {
    const auto& [stored, index] = items_[ref.item];
    const auto& file = files_[index].file;
    std::optional<damage> found;
    try {
      if (!was_read) {
        const read_range range{file.key, stored->offset + ref.block * digest_block_bytes, block};
        store_.read({&range, 1});
      }
    } catch (const error& e) {
      found = describe(e, files_[b.file].file.key, file.rank);
    }
    const auto expected = checkpoint_.record_of(file.rank)
                              .content()
                              .blocks[static_cast<std::size_t>(stored->first_block + ref.block)];
    if (!found && digest(block) != expected)
      found = damage{"damaged: the bytes are not what was written", {}, file.key, -1, 0, file.rank};
    if (found) found->item = name_of_item(file.rank, stored->key);
    return found;
  }
  void lost(std::size_t i) {
    const auto& [stored, index] = items_[i];
    const auto& file = files_[index].file;
    report({"lost with its file", name_of_item(file.rank, stored->key), file.key,
            static_cast<std::int64_t>(stored->offset), stored->bytes, file.rank});
  }
  /// Records know items by digests; the manifest knows their names.
  [[nodiscard]] std::string name_of_item(std::int32_t rank, const item_key& key) {
    const std::lock_guard lock(names_mutex_);
    if (names_.empty()) find_names();
    const std::tuple wanted(rank, key.name, key.box);
    const auto found = std::partition_point(names_.begin(), names_.end(), [&](const named_chunk& n) {
      return std::tuple(n.rank, n.key.name, n.key.box) < wanted;
    });
    if (found == names_.end() || std::tuple(found->rank, found->key.name, found->key.box) != wanted)
      return "of another name than the manifest knows";
    const auto& item = checkpoint_.metadata().items[found->item];
    auto name = item.name;
    if (item.per_rank) name += " of rank " + std::to_string(rank);
    if (item.chunks.size() > 1 && !item.per_rank)
      name += " (" + to_string(item.chunks[found->chunk].box) + ")";
    return name;
  }
  /// Those of the ranks that are being looked at.
  void find_names() {
    const auto& items = checkpoint_.metadata().items;
    for (std::uint32_t i = 0; i < items.size(); ++i) try {
        const auto& item = items[i];
        item.chunks.of_ranks(first_, last_, [&](std::uint64_t number, const stored_chunk& c) {
          names_.push_back({c.rank, i, key_of(file_key(item.name, item.per_rank, c.rank), c.box), number});
        });
      } catch (const corrupt_error&) {  // told by check_complete()
      }
    detail::sort(names_, [](const named_chunk& a, const named_chunk& b) {
      return std::tie(a.rank, a.key.name, a.key.box) < std::tie(b.rank, b.key.name, b.key.box);
    });
  }

  any_store store_;
  stored_checkpoint& checkpoint_;
  const verify_options& options_;
  std::optional<std::uint64_t> manifest_digest_;
  std::uint64_t threads_ = 1;
  std::uint64_t batch_ = digest_block_bytes;
  std::uint64_t all_ = 0;
  std::vector<file_state> files_;
  std::vector<placed_item> items_;  ///< by file, then offset
  std::mutex mutex_;                ///< of report_.damages and `found`
  std::mutex there_mutex_;          ///< of there_
  std::mutex names_mutex_;
  std::vector<named_chunk> names_;     ///< by rank, then key; empty: not needed yet
  std::int32_t first_ = 0, last_ = 0;  ///< the ranks that are being looked at
  std::atomic<std::uint64_t> bytes_{0};
  std::atomic<bool> stopped_{false};
  bool there_ = false;  ///< the step was there still when something was missing first
  verify_report report_;
};

}  // namespace detail

/// Reads every byte of a checkpoint and compares all digests: of manifest, records and blocks, and for compressed
/// items (with the reader of a compressed_storage) also of their frames. Headers of data files, which have none,
/// are compared with what manifest and records say: dtypes, shapes and places. It does not
/// stop at the first damage, but calls `options.found` for each with the item, the file and the offset,
/// and goes on to the end. Reads in parallel and changes nothing; it may run while a job trains and while
/// others verify. Holds a lease where it reads the manifest from the store, that has leases, and this process may write
/// there, so that retention keeps the checkpoint. `manifest_bytes`: the manifest; empty: it is read from the store.
/// @throws storage_error: storage_not_committed if there is no such checkpoint, or it was removed while it was read (only
/// where the manifest is read from the store), storage_unavailable where the store no longer answers
inline verify_report verify_checkpoint(safetensors_reader& reader, std::int64_t step,
                                       const verify_options& options = {},
                                       std::span<const std::byte> manifest_bytes = {}) {
  std::optional<stored_checkpoint> checkpoint;
  std::optional<std::uint64_t> manifest_digest;
  checkpoint_lease lease;
  try {
    std::vector<std::byte> fetched;
    if (manifest_bytes.empty()) {
      manifest_bytes = fetched = reader.fetch(step);
      manifest_digest = digest(manifest_bytes);
      lease = detail::lease_to_read(reader.store(), step);
    }
    checkpoint.emplace(reader.open(step, manifest_bytes));
  } catch (const corrupt_error& e) {
    // An item that another build could read is not damaged.
    if (e.id() == error_id::corrupt_unsupported_feature || e.id() == error_id::corrupt_unsupported_version)
      throw;
    const auto& f = e.fields();
    if (options.found) options.found({e.message(), f.item, f.file, f.offset});
    return {.damages = 1};
  }
  return detail::verification(reader.store(), *checkpoint, options, manifest_digest).run();
}

}  // namespace v1
}  // namespace cairn
