// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/communicator.hpp>
#include <cairn/concepts/storage.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/rank_set.hpp>
#include <cairn/model/state_dict.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/function_ref.hpp>
#include <cairn/system/sorted_map.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace cairn {
inline namespace v1 {

/// Bytes that several ranks want, one of them reads, and the others get from it.
struct shared_read {
  const rank_set* ranks = nullptr;    ///< all that want them, the reader too, unless there are holders
  const rank_set* holders = nullptr;  ///< who can read them: none of `ranks`; null: any of `ranks`
  std::uint64_t bytes = 0;            ///< that are read
  std::uint64_t before = 0;           ///< bytes of reads for the same ranks that come before it
  std::uint64_t cost = 0;             ///< bytes of memory that this rank needs for it while it is exchanged
  std::uint64_t tie = 0;              ///< orders reads of the same `before`: of the ranks, and of the holders
  std::int32_t reader = 0;
  std::uint32_t index = 0;  ///< its number for the source that made it
};

/// Consecutive reads, those of all ranks that are exchanged at once.
struct shared_window {
  const shared_read* first = nullptr;  ///< the first read of the window
  const shared_read* last = nullptr;   ///< one past the last
  /// With end(): the reads of the window, in order.
  [[nodiscard]] const shared_read* begin() const noexcept { return first; }
  /// One past the last read; see begin().
  [[nodiscard]] const shared_read* end() const noexcept { return last; }
};

/// Bytes that nobody has touched.
struct raw_bytes {
  std::shared_ptr<std::byte[]> data;
  std::size_t size = 0;
  raw_bytes() = default;
  explicit raw_bytes(std::size_t bytes);
  /// The bytes as a message that shares their memory; they may not change any more.
  [[nodiscard]] lent_message message() const noexcept { return {data, size}; }
};

/// What a rank sends to all ranks of a set: one message. The message's head comes first.
using read_bundles = detail::sorted_map<const rank_set*, raw_bytes, by_ranks>;

/// Chooses for each read which of its ranks, or of its holders, makes it, in stripes in turn, and sorts reads by their
/// place in the exchange. Ranks that share reads, or read them for others, give the same ones in the same order, and come
/// to the same result without a message.
void assign_readers(std::vector<shared_read>& reads);

/// Where not every rank can read every file: for each rank that saved, the ranks that can read its files now, as memory of
/// the host where they are; the others get what they want of them from one of these.
struct file_holders {
  std::vector<std::vector<std::int32_t>> of;  ///< by the rank that saved; ascending
};

/// What all ranks of a load want. One thread at a time.
class shared_wants {
 public:
  /// The name under which it is known which ranks' records are wanted: as a box of ranks. No item can
  /// have it.
  static constexpr std::string_view records_name = "\x01records";

  shared_wants() = default;
  shared_wants(const shared_wants&) = delete;
  shared_wants& operator=(const shared_wants&) = delete;
  /// The wanted boxes of a stored item that meet a box, each once, ascending, in place of what `out` held.
  virtual void overlapping(std::string_view name, const chunk& box, std::vector<wanted_box>& out) = 0;
  /// The sets of ranks that reads are for.
  [[nodiscard]] virtual rank_sets& sets() noexcept = 0;

 protected:
  ~shared_wants() = default;
};

/// What a reader gives of one kind of shared things. The functions that take a window are called in its
/// order; read() is called by another thread at times, while that of the load is in take() or sets_of().
class shared_source {
 public:
  shared_source() = default;
  shared_source(const shared_source&) = delete;
  shared_source& operator=(const shared_source&) = delete;
  /// Reads and delivers this rank's reads of a window, and gives what others get of them, behind `head`. What
  /// a rank gets alone is not in a bundle.
  [[nodiscard]] virtual read_bundles read(shared_window window, std::span<const std::byte> head) = 0;
  /// Delivers what `reader` sent to a set that this rank is in, without the head.
  /// @throws peer_error (peer_bad_message) where it is not what the set waits for.
  virtual void take(shared_window window, std::int32_t reader, const rank_set* set,
                    std::span<const std::byte> bundle) = 0;
  /// Adds the sets that get something of a read.
  virtual void sets_of(const shared_read& read, std::vector<const rank_set*>& out) const = 0;

 protected:
  ~shared_source() = default;
};

/// The reads of this rank, as assign_readers() leaves them, and their source, which outlives the exchange.
struct shared_read_list {
  std::vector<shared_read> reads;   ///< in the order of the exchange
  shared_source* source = nullptr;  ///< makes the reads of this rank and takes those of others
};

/// How ranks that load together carry to each other what one of them reads: what read_shared() of a
/// SharingReader is given. The thread of the load.
class read_exchange {
 public:
  read_exchange() = default;
  read_exchange(const read_exchange&) = delete;
  read_exchange& operator=(const read_exchange&) = delete;
  [[nodiscard]] virtual std::int32_t rank() const = 0;
  /// What all ranks of this load want; valid as long as the exchange.
  [[nodiscard]] virtual shared_wants& wants() noexcept = 0;
  /// Collective: calls `make`, and exchanges its reads in windows. A window takes up to `budget` bytes of
  /// memory for what is sent, and as much for what is received; one read always fits.
  /// Who runs it again must do so after an exception as well, with a `make` that throws it: what take() threw in the last
  /// window is not known to the others, who go on to the next run.
  /// @throws on all ranks alike what `make` or read() throws on one of them, and what take() throws on
  /// this one; peer_error, timeout_error
  virtual void run(detail::function_ref<shared_read_list()> make, std::uint64_t budget, deadline until) = 0;
  /// Collective: the numbers that `make` gives on any rank, ascending, each once.
  /// @throws on all ranks alike what `make` throws on one of them; peer_error, timeout_error
  [[nodiscard]] virtual std::vector<std::uint64_t> unite(
      detail::function_ref<std::vector<std::uint64_t>()> make, deadline until) = 0;

 protected:
  ~read_exchange() = default;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/concepts/read_exchange.ipp>
#endif
