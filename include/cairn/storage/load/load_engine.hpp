// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/concepts/device_access.hpp>
#include <cairn/concepts/storage.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/storage/load/load_work.hpp>
#include <cairn/storage/load/stage_time.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/large_buffer.hpp>
#include <cairn/system/list_view.hpp>
#include <cairn/system/vector.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

class reads_in_flight;

/// What two engines did, one after the other.
inline void add(load_stages& to, const load_stages& more) noexcept {
  to.bytes_cached += more.bytes_cached, to.bytes_direct += more.bytes_direct;
  to.requests += more.requests, to.hedges += more.hedges;
  to.read_seconds += more.read_seconds, to.read_cpu_seconds += more.read_cpu_seconds;
  to.verify_seconds += more.verify_seconds, to.verify_cpu_seconds += more.verify_cpu_seconds;
  to.deliver_seconds += more.deliver_seconds, to.deliver_cpu_seconds += more.deliver_cpu_seconds;
  to.populate_cpu_seconds += more.populate_cpu_seconds;
  to.latency_seconds = std::max(to.latency_seconds, more.latency_seconds);
  to.reads_in_flight = std::max(to.reads_in_flight, more.reads_in_flight);
}

/// Reads what is wanted, in whole blocks that are verified before anything is delivered from them. What goes
/// to devices is read into buffers of a device_load, so that the next blocks are read while it is copied. A
/// block that goes to one place without change, where the store reads as quickly as into a buffer (as far
/// from a multiple of its io_alignment() as in the file, or anywhere where the store has it in memory), is read
/// straight there and verified there. Blocks are read in order, neighbours together; those that are in memory one at a
/// time, so that they are verified while a processor's own cache has them.
///
/// A pipeline without a barrier: each of several threads takes the next 2 MiB, reads, verifies, casts and delivers
/// them, and takes the next, so that some wait for the device while others compute, and what was read stays in
/// the cache of the core that goes on with it. There are more threads than cores, so that the device has requests
/// while all cores verify; see reads_in_flight for how many. One use.
class load_engine {
 public:
  /// Gets each block when it was verified, from any thread.
  using block_sink = std::function<void(block_place, std::span<const std::byte>)>;

  load_engine(const any_store& store, const load_work& work, std::uint64_t memory_budget, deadline until,
              device_load* devices = nullptr);
  /// Reads with what `reads` has open, of the same store.
  void read_with(const any_store::read_session& reads) {
    reads_ = reads;
    helper_cpu_before_ = reads_.figures().helper_cpu;
  }
  /// Reads what the store has, not what memory has of it.
  void read_stored() noexcept { stored_ = true; }
  /// Takes buffers from `memory`, which outlives run(), and leaves them there for the next engine.
  void use(large_buffer& memory) noexcept { memory_ = &memory; }
  /// Every read goes through this gate, where there is one; it outlives run().
  void pass(const read_gate& gate) noexcept { gate_ = gate ? &gate : nullptr; }
  /// The bytes read. @throws corrupt_error naming item, file and offset of the first block that is wrong
  /// among those read; the store's errors; timeout_error.
  std::uint64_t run();
  /// The same for these blocks alone, ordered as the items are, of each item ascending.
  std::uint64_t run(list_view<const block_place> blocks, block_sink sink = {});
  /// What it did so far, with the bytes of other engines that read with the same session.
  [[nodiscard]] load_stages stages() const;

 private:
  std::uint64_t read_blocks();

  // What one thread reads at once: it stays in a cache that cores share until it is verified and delivered.
  static constexpr std::uint64_t max_batch = std::uint64_t{2} << 20;
  // Of a device that shows no latency, by all threads: with 32 MiB under way it gave a third less than with 16.
  static constexpr std::uint64_t max_local_bytes = std::uint64_t{16} << 20;
  // Where each request costs a round trip, and the store has no number of its own.
  static constexpr std::uint64_t max_distant_batch = std::uint64_t{8} << 20;
  // Where latency shows.
  static constexpr std::uint64_t max_in_flight = 64;
  static constexpr std::uint64_t page = 4096;
  static constexpr std::uint64_t max_alignment = std::uint64_t{64} << 10;
  /// A block that is to be read.
  struct needed_block {
    std::uint32_t item = 0;
    std::uint32_t want = no_want;  ///< the one that gets it as `whole`
    std::uint64_t block = 0;
    std::byte* whole = nullptr;   ///< where it goes, if it goes to one place as it is
    std::byte* direct = nullptr;  ///< the same, where the store reads as quickly as into a buffer
    std::uint64_t at = 0;         ///< in the buffer of its batch, where not direct
    std::uint64_t scratch = 0;    ///< bytes of the buffer for what is cast for devices
  };
  static constexpr std::uint32_t no_want = UINT32_MAX;
  [[nodiscard]] const load_item& item_of(const needed_block& p) const noexcept { return work_.items[p.item]; }
  [[nodiscard]] const load_file& file_of(const needed_block& p) const noexcept {
    return work_.files[item_of(p).file];
  }
  [[nodiscard]] std::uint64_t begin_of(const needed_block& p) const noexcept {
    return p.block * digest_block_bytes;
  }
  [[nodiscard]] std::uint64_t end_of(const needed_block& p) const noexcept {
    return std::min((p.block + 1) * digest_block_bytes, item_of(p).bytes);
  }
  /// The bytes of the file that are read for a block: through a buffer, whole units of the store, which are
  /// then as aligned in the buffer as in the file.
  struct extent {
    std::uint64_t begin;
    std::uint64_t end;
  };
  [[nodiscard]] extent extent_of(const needed_block& p) const noexcept;
  [[nodiscard]] std::uint64_t align_up(std::uint64_t n) const noexcept {
    return (n + alignment_ - 1) / alignment_ * alignment_;
  }

  void find_blocks();
  /// Adds a block if something of it is wanted, or `wanted` anyway.
  void add_block(std::uint32_t i, std::uint64_t block, bool wanted);
  void find_batches();
  /// `held`: what `bounce` is, if it is one of a device_load. Casts take the end of it, down from `scratch`.
  void read_batch(std::size_t first, std::size_t last, std::byte* bounce, held_buffer* held,
                  std::byte* scratch);
  /// Reads a little of some batches alone, one after another, where it is not in memory.
  void measure_latency(std::byte* bounce, reads_in_flight& wanted);
  /// Gives the memory of the host that a block goes to its pages: whether some were not there.
  bool populate(const needed_block& p) noexcept;
  /// Copies a block that the store has in memory straight to where it goes, with its digest where the block has one:
  /// whether it has it, and can do so.
  [[nodiscard]] bool copy_from_memory(const needed_block& p, stage_watch& watch, std::uint64_t& digested);
  /// The same for those that cannot, or not so small a block: without a digest.
  [[nodiscard]] bool read_cached(const needed_block& p, stage_watch& watch);
  void read_ranges(std::span<const read_range> ranges, bool stored, stage_watch& watch);
  /// Verifies a block that was read, and gives it to all destinations but the one that it was read to. Casts for
  /// devices take the end of their buffer, down from `scratch`. Bytes that are
  /// wrong are read once more, from where they are stored, before the block is called damaged; run() counts both.
  /// `digested`: the digest of these bytes, where it is known.
  void take_block(const needed_block& p, std::byte* at, held_buffer* held, std::byte*& scratch,
                  stage_watch& watch, std::optional<std::uint64_t> digested = {});

  any_store store_;
  any_store::read_session reads_;
  const load_work& work_;
  deadline until_;
  const read_gate* gate_ = nullptr;
  bool stored_ = false;
  block_sink sink_;
  large_buffer own_memory_;
  large_buffer* memory_ = &own_memory_;  ///< buffers of all threads, where none is a device_load's
  std::uint64_t threads_ = 1;            ///< at the beginning
  std::uint64_t max_threads_ = 1;
  std::uint32_t used_threads_ = 0;
  std::int64_t helper_cpu_before_ = 0;  ///< of engines that read with the same session
  std::int64_t latency_ = 0;            ///< nanoseconds of a small read; 0: not measured
  device_load* devices_ = nullptr;      ///< where something goes to a device
  std::uint64_t max_used_ = 0;          ///< of a buffer by one batch
  bool buffered_ = false;               ///< some block is not direct
  std::uint64_t alignment_ = 1;         ///< of offsets and memory that the store reads quickly
  std::uint64_t max_batch_bytes_ = digest_block_bytes;
  std::uint64_t batch_bytes_ = digest_block_bytes;
  vector<needed_block> blocks_;
  std::vector<std::size_t> batches_;  ///< first block of each, and the end
  std::atomic<std::uint64_t> bytes_{0};
  std::atomic<std::uint64_t> large_reads_{0};
  std::atomic<std::int64_t> large_nanoseconds_{0};
  stage_time populating_, reading_, verifying_, delivering_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/load/load_engine.ipp>
#endif
