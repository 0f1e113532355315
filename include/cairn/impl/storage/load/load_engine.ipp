// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/concepts/byte_store.hpp>
#include <cairn/concepts/device_access.hpp>
#include <cairn/concepts/storage.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/save_journal.hpp>
#include <cairn/model/tensor_view.hpp>
#include <cairn/storage/load/byte_box.hpp>
#include <cairn/storage/load/load_delivery.hpp>
#include <cairn/storage/load/load_engine.hpp>
#include <cairn/storage/load/load_work.hpp>
#include <cairn/storage/load/reads_in_flight.hpp>
#include <cairn/storage/load/stage_time.hpp>
#include <cairn/storage/manifest/corrupt.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/background_thread.hpp>
#include <cairn/system/clocks.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/large_buffer.hpp>
#include <cairn/system/list_view.hpp>
#include <cairn/system/parallel.hpp>
#include <cairn/system/populate.hpp>
#include <cairn/system/shared_calls.hpp>
#include <cairn/system/streaming_copy.hpp>
#include <cairn/system/vector.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY load_engine::load_engine(const any_store& store, const load_work& work,
                                    std::uint64_t memory_budget, deadline until, device_load* devices)
    : store_(store), reads_(store_.begin_reads()), work_(work), until_(until) {
  if (detail::any_of(work.wants, [](const auto& w) { return w.on_device(); })) {
    devices_ = devices;
    memory_budget = std::min(memory_budget, devices->memory()) / 2;  // half for reading, half for copying
  }
  // A store with an alignment of MiBs means it for writes only.
  const std::uint64_t likes = store_.io_alignment();
  alignment_ = likes <= max_alignment ? std::max<std::uint64_t>(likes, 1) : 1;
  std::uint64_t threads = load_threads();
  std::uint64_t batch = std::clamp(max_local_bytes / threads, digest_block_bytes, max_batch);
  const auto at_once = store_.reads_at_once();
  if (at_once != 0) {
    threads = std::max<std::uint64_t>(threads, at_once);
    batch = max_distant_batch;
  }
  threads_ = std::clamp<std::uint64_t>(memory_budget / digest_block_bytes, 1, threads);
  max_batch_bytes_ = std::max<std::uint64_t>(memory_budget / threads_, digest_block_bytes) /
                     digest_block_bytes * digest_block_bytes;
  batch_bytes_ = std::min(max_batch_bytes_, batch);
  // A store that says how many it wants is taken at its word.
  max_threads_ = at_once != 0 ? threads_
                              : std::clamp<std::uint64_t>(memory_budget / batch_bytes_, threads_,
                                                          std::max(threads_, max_in_flight));
}

CAIRN_BODY std::uint64_t load_engine::run() {
  find_blocks();
  return read_blocks();
}

CAIRN_BODY std::uint64_t load_engine::run(list_view<const block_place> blocks, block_sink sink) {
  sink_ = std::move(sink);
  for (const auto& b : blocks) add_block(b.item, b.block, true);
  return read_blocks();
}

CAIRN_BODY std::uint64_t load_engine::read_blocks() {
  if (blocks_.empty()) return 0;
  std::uint64_t total = 0;
  for (const auto& b : blocks_) total += end_of(b) - begin_of(b);
  if (const auto wanted = std::min(store_.read_bytes(total), max_batch_bytes_); wanted != 0)
    batch_bytes_ = (wanted + digest_block_bytes - 1) / digest_block_bytes * digest_block_bytes;
  find_batches();
  const auto steps = batches_.size() - 1;
  threads_ = std::min<std::uint64_t>(threads_, steps);
  // What a gate or the decoding of a frame takes would look like latency.
  const bool shows_latency = gate_ == nullptr && !store_.is_layered();
  // More begin only where there is enough to do for them.
  const auto max_reads = shows_latency ? std::min<std::uint64_t>(max_threads_, steps / 4) : threads_;
  reads_in_flight wanted(static_cast<std::size_t>(threads_), static_cast<std::size_t>(max_reads));
  // Room for the bytes that alignment adds before and behind the blocks of a batch.
  const auto room =
      static_cast<std::size_t>((std::max(batch_bytes_, max_used_) + 4 * alignment_ + page - 1) / page * page);
  const bool own_memory = buffered_ && devices_ == nullptr;
  const auto max_readers = wanted.is_open() ? max_threads_ : threads_;
  if (const auto bytes = room * static_cast<std::size_t>(max_readers); own_memory && memory_->size() < bytes)
    *memory_ = large_buffer(bytes);

  vector<background_thread> others;
  others.reserve(static_cast<std::size_t>(max_readers));
  shared_calls* all = nullptr;
  const auto take_step = [&](std::size_t i, std::size_t thread) {
    if (until_.passed())
      fail(error_id::timeout_load, "the checkpoint was not read in time",
           {.file = work_.files[item_of(blocks_[batches_[i]]).file].key});
    // No buffer is needed where every block goes straight to its place.
    std::optional<held_buffer> held;
    if (buffered_ && !own_memory) held.emplace(*devices_, room, until_);
    auto* const own = held ? held->data() : own_memory ? memory_->data() + thread * room : nullptr;
    if (thread == 0) {
      if (i == 0 && wanted.is_open()) measure_latency(own, wanted);
      wanted.large_took(large_nanoseconds_.load(std::memory_order_relaxed),
                        large_reads_.load(std::memory_order_relaxed));
      for (bool more = true; more && others.size() + 1 < wanted.count();) {
        background_thread one;
        more = one.start("cairn load", [all, number = others.size() + 1] { all->take_part(number); });
        if (more) others.push_back(std::move(one));
      }
    }
    read_batch(batches_[i], batches_[i + 1], own, held ? &*held : nullptr,
               own != nullptr ? own + room : nullptr);
  };
  shared_calls calls(steps, take_step);
  all = &calls;
  calls.take_part(0);  // begins with the first step, and starts the others
  used_threads_ = static_cast<std::uint32_t>(others.size() + 1);
  latency_ = wanted.latency();
  others.clear();
  calls.throw_failure();
  return bytes_.load();
}

CAIRN_BODY void load_engine::measure_latency(std::byte* bounce, reads_in_flight& wanted) {
  constexpr auto bytes = reads_in_flight::small_bytes;
  constexpr auto requests = static_cast<std::size_t>(reads_in_flight::small_requests);
  stage_watch watch;
  // Far from each other: what follows a read comes from memory where the system reads ahead.
  for (std::size_t i = 0; i < requests; ++i) {
    const auto& p = blocks_[batches_[i * (batches_.size() - 1) / requests]];
    const auto from = extent_of(p);
    const auto begin = item_of(p).offset + begin_of(p);
    const std::string_view key = file_of(p).key;
    if (from.end - from.begin < bytes) continue;
    if (!stored_ && reads_.is_cached(key, from.begin, from.end - from.begin)) continue;
    auto* const to = (p.direct != nullptr ? p.direct : bounce + p.at) - (begin - from.begin);
    const read_range range{key, from.begin, {to, static_cast<std::size_t>(bytes)}};
    const auto before = steady_now();
    read_ranges({&range, 1}, stored_, watch);
    wanted.small_took(steady_now() - before);
    bytes_.fetch_add(bytes, std::memory_order_relaxed);
  }
}

CAIRN_BODY load_engine::extent load_engine::extent_of(const needed_block& p) const noexcept {
  const auto begin = item_of(p).offset + begin_of(p);
  const auto end = item_of(p).offset + end_of(p);
  if (p.direct != nullptr) return {begin, end};
  return {begin - begin % alignment_, std::max(end, std::min(file_of(p).bytes, align_up(end)))};
}

CAIRN_BODY void load_engine::find_blocks() {
  for (std::uint32_t i = 0; i < work_.items.size(); ++i) {
    const auto& item = work_.items[i];
    std::uint64_t first = 0;
    std::uint64_t last = block_count(item.bytes);
    if (item.wants != 0) {
      first = UINT64_MAX, last = 0;
      for (std::size_t k = 0; k < item.wants; ++k) {
        const auto& box = work_.wants[item.first_want + k].box;
        first = std::min(first, box.position(0) / digest_block_bytes);
        last = std::max(last, box.position(box.bytes() - 1) / digest_block_bytes + 1);
      }
    }
    for (auto b = first; b < last; ++b) add_block(i, b, item.wants == 0);
  }
}

CAIRN_BODY void load_engine::add_block(std::uint32_t i, std::uint64_t block, bool wanted) {
  const auto& item = work_.items[i];
  needed_block p;
  p.item = i, p.block = block;
  for (std::size_t k = 0; k < item.wants; ++k) {
    const auto& w = work_.wants[item.first_want + k];
    const auto from = w.box.before(begin_of(p));
    const auto to = w.box.before(end_of(p));
    wanted |= from != to;
    p.scratch += scratch_for(w, to - from);
    if (!w.on_device() && w.cast == nullptr && to - from == end_of(p) - begin_of(p) &&
        from / w.target_run == (to - 1) / w.target_run) {
      std::byte* place = nullptr;
      for_each_run(w.target, from, to, [&](std::byte* data, std::uint64_t, std::uint64_t) { place = data; });
      // Elsewhere the store would copy what it read before it is verified, and from memory by then.
      const bool quick =
          (reinterpret_cast<std::uintptr_t>(place) - (item.offset + begin_of(p))) % alignment_ == 0;
      if (p.direct != nullptr || (p.whole != nullptr && !quick)) continue;
      p.whole = place;
      p.direct = quick ? place : nullptr;
      p.want = static_cast<std::uint32_t>(k);
    }
  }
  // A block that also goes to a device is read into memory from which the device copies.
  if (p.whole != nullptr && devices_ != nullptr)
    for (std::size_t k = 0; k < item.wants; ++k)
      if (work_.wants[item.first_want + k].on_device()) {
        p.whole = p.direct = nullptr;
        p.want = no_want;
      }
  if (wanted) blocks_.push_back(p);
}

CAIRN_BODY void load_engine::find_batches() {
  batches_.push_back(0);
  std::uint64_t used = 0;    // of the buffer
  std::uint64_t direct = 0;  // bytes that need none
  std::uint64_t scratch = 0;
  extent last{0, 0};  // of the buffered bytes that were read last, and where they are in the buffer
  std::uint64_t last_at = 0;
  const load_file* last_file = nullptr;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    auto& p = blocks_[i];
    const auto wanted = extent_of(p);
    const auto length = wanted.end - wanted.begin;
    if (batches_.back() != i && used + direct + scratch + length + p.scratch > batch_bytes_) {
      batches_.push_back(i);
      used = direct = scratch = 0;
      last_file = nullptr;
    }
    if (p.direct != nullptr) {
      direct += length;
      continue;
    }
    if (last_file != &file_of(p) || wanted.begin < last.begin || wanted.begin > last.end) {
      last_file = &file_of(p);
      last = {wanted.begin, wanted.begin};
      last_at = align_up(used);
    }
    last.end = std::max(last.end, wanted.end);
    used = last_at + (last.end - last.begin);
    buffered_ = true;
    p.at = last_at + (item_of(p).offset + begin_of(p) - last.begin);
    scratch += p.scratch;
    max_used_ = std::max(max_used_, used + scratch);
  }
  if (!blocks_.empty()) batches_.push_back(blocks_.size());
}

CAIRN_BODY void load_engine::read_batch(std::size_t first, std::size_t last, std::byte* bounce,
                                        held_buffer* held, std::byte* scratch) {
  vector<std::pair<const needed_block*, std::byte*>> blocks;  // that are read, and where
  std::vector<read_range> ranges;
  stage_watch watch;
  for (auto i = first; i < last; ++i) {
    const auto& p = blocks_[i];
    const bool is_new = populate(p);
    watch.count_busy(populating_, end_of(p) - begin_of(p));
    std::uint64_t digested = 0;
    // Copies bypass the processor's cache, which has the pages that were just made: read() writes into it.
    if (p.whole != nullptr && !is_new && copy_from_memory(p, watch, digested)) {
      take_block(p, p.whole, held, scratch, watch, digested);
      continue;
    }
    if (p.whole != nullptr && read_cached(p, watch)) {
      take_block(p, p.whole, held, scratch, watch);
      continue;
    }
    const auto begin = item_of(p).offset + begin_of(p);
    auto* place = p.direct != nullptr ? p.direct : bounce + p.at;
    blocks.push_back({&p, place});
    const auto wanted = extent_of(p);
    place -= begin - wanted.begin;
    const std::string_view key = file_of(p).key;
    if (!ranges.empty() && ranges.back().key == key) {
      auto& back = ranges.back();
      const auto back_end = back.offset + back.destination.size();
      if (wanted.begin >= back.offset && wanted.begin <= back_end &&
          back.destination.data() + (wanted.begin - back.offset) == place) {
        const auto end = std::max(wanted.end, back_end);
        back.destination = {back.destination.data(), static_cast<std::size_t>(end - back.offset)};
        continue;
      }
    }
    ranges.push_back({key, wanted.begin, {place, static_cast<std::size_t>(wanted.end - wanted.begin)}});
  }
  if (!ranges.empty()) read_ranges(ranges, stored_, watch);
  for (const auto& [p, at] : blocks) take_block(*p, at, held, scratch, watch);
  streamed_copies_done();
}

CAIRN_BODY bool load_engine::populate(const needed_block& p) noexcept {
  bool is_new = false;
  for (std::size_t k = 0; k < item_of(p).wants; ++k) {
    const auto& w = work_.wants[item_of(p).first_want + k];
    if (w.on_device()) continue;
    for_each_target(w, w.box.before(begin_of(p)), w.box.before(end_of(p)),
                    [&](std::byte* to, std::uint64_t, std::uint64_t bytes) {
                      is_new |= populate_destination(to, static_cast<std::size_t>(bytes / w.from * w.to));
                    });
  }
  return is_new;
}

CAIRN_BODY bool load_engine::read_cached(const needed_block& p, stage_watch& watch) {
  const auto begin = item_of(p).offset + begin_of(p);
  const auto bytes = end_of(p) - begin_of(p);
  if (stored_ || !reads_.is_cached(file_of(p).key, begin, bytes)) return false;
  const read_range range{file_of(p).key, begin, {p.whole, static_cast<std::size_t>(bytes)}};
  read_ranges({&range, 1}, false, watch);
  return true;
}

CAIRN_BODY bool load_engine::copy_from_memory(const needed_block& p, stage_watch& watch,
                                              std::uint64_t& digested) {
  if (stored_ || gate_ != nullptr) return false;
  const std::span<std::byte> block(p.whole, static_cast<std::size_t>(end_of(p) - begin_of(p)));
  if (!reads_.copy(file_of(p).key, item_of(p).offset + begin_of(p), block,
                   item_of(p).digests != nullptr ? &digested : nullptr))
    return false;
  watch.count_busy(reading_, block.size());
  return true;
}

CAIRN_BODY void load_engine::read_ranges(std::span<const read_range> ranges, bool stored,
                                         stage_watch& watch) {
  std::uint64_t bytes = 0;
  for (const auto& r : ranges) bytes += r.destination.size();
  if (gate_ != nullptr) {
    (*gate_)(bytes);
    watch.skip();
  }
  const auto begin = steady_now();
  stored ? store_.read(ranges) : reads_.read(ranges);
  watch.count(reading_);
  if (bytes <= digest_block_bytes) return;  // such as a block that is in memory
  large_nanoseconds_.fetch_add(steady_now() - begin, std::memory_order_relaxed);
  large_reads_.fetch_add(1, std::memory_order_relaxed);
}

CAIRN_BODY void load_engine::take_block(const needed_block& p, std::byte* at, held_buffer* held,
                                        std::byte*& scratch, stage_watch& watch,
                                        std::optional<std::uint64_t> digested) {
  const auto& item = item_of(p);
  const std::span<std::byte> block(at, static_cast<std::size_t>(end_of(p) - begin_of(p)));
  bytes_.fetch_add(block.size(), std::memory_order_relaxed);
  if (item.digests != nullptr) {
    const auto expected = item.digests[p.block];
    auto got = digested ? *digested : digest(block);
    if (!digested) watch.count_busy(verifying_, block.size());
    if (got != expected) {  // it may be so on its way alone, or in memory
      const read_range range{file_of(p).key, item.offset + begin_of(p), block};
      read_ranges({&range, 1}, true, watch);
      bytes_.fetch_add(block.size(), std::memory_order_relaxed);
      got = digest(block);
      watch.count_busy(verifying_, block.size());
    }
    if (got != expected)
      fail(error_id::corrupt_digest,
           "a block of a data file is damaged: its bytes are not what was written, or memory was changed "
           "while it was copied, which cairn::checked{} finds when it saves",
           {.item = std::string(item.name),
            .file = work_.files[item.file].key,
            .offset = static_cast<std::int64_t>(item.offset + begin_of(p)),
            .expected = digest_text(expected),
            .got = digest_text(got)});
  }
  bool delivered = sink_ != nullptr;
  for (std::size_t k = 0; k < item.wants; ++k) {
    const auto& w = work_.wants[item.first_want + k];
    if (!w.on_device() && k == p.want && at == p.whole) continue;  // it is there
    delivered = true;
    if (w.on_device()) {
      scratch -= scratch_for(w, w.box.before(end_of(p)) - w.box.before(begin_of(p)));
      put_by_device put_run(*held, w, item.name, scratch);
      deliver(w, begin_of(p), block, put_run);
      put_run.flush();
    } else {
      deliver(w, begin_of(p), block, put_by_cpu(w));
    }
  }
  if (sink_) sink_({p.item, p.block}, block);
  if (delivered) watch.count_busy(delivering_, block.size());
}

CAIRN_BODY load_stages load_engine::stages() const {
  const auto from = reads_.figures();
  const auto seconds = [](std::int64_t nanoseconds) { return 1e-9 * static_cast<double>(nanoseconds); };
  load_stages s;
  s.bytes_cached = from.cached, s.bytes_direct = from.direct;
  s.requests = from.requests, s.hedges = from.hedges;
  s.read_seconds = seconds(reading_.wall.load());
  s.read_cpu_seconds = seconds(reading_.cpu.load() + from.helper_cpu - helper_cpu_before_);
  s.verify_seconds = seconds(verifying_.wall.load());
  s.verify_cpu_seconds = seconds(verifying_.cpu.load());
  s.deliver_seconds = seconds(delivering_.wall.load());
  s.deliver_cpu_seconds = seconds(delivering_.cpu.load());
  s.populate_cpu_seconds = seconds(populating_.cpu.load());
  s.latency_seconds = seconds(latency_);
  s.reads_in_flight = used_threads_;
  return s;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
