// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/concepts/device_access.hpp>
#include <cairn/concepts/read_exchange.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/rank_set.hpp>
#include <cairn/storage/load/byte_box.hpp>
#include <cairn/storage/load/load_work.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/large_buffer.hpp>
#include <cairn/system/list_view.hpp>
#include <cairn/system/vector.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// The data of a load that is shared: finds the blocks that other ranks want, too, reads this rank's share of
/// them, and takes what others have read. Where files have holders, each of these reads what it wants by itself, and what
/// others want of its files, which `work` has as items without wants. Its virtual functions are inline: a class with another one is compiled in each
/// program.
class shared_blocks final : public shared_source {
 public:
  shared_blocks(const any_store& store, const load_work& work, shared_wants& wants, std::int32_t rank,
                std::uint64_t budget, deadline until, device_load* devices = nullptr,
                const file_holders* holders = nullptr);

  [[nodiscard]] std::vector<shared_read> find_shared_reads();
  /// For a refresh: this rank reads alone only what it lacks, `lacking`, ordered by item and block. Returns numbers, the
  /// same on all ranks, of those of `reads` that it lacks.
  [[nodiscard]] std::vector<std::uint64_t> lack(const std::vector<shared_read>& reads,
                                                list_view<const block_place> lacking);
  /// Leaves of `reads` those that some rank lacks, by their numbers, ascending. Returns the blocks of those that are left.
  [[nodiscard]] std::vector<block_place> leave_lacked(std::vector<shared_read>& reads,
                                                      const std::vector<std::uint64_t>& lacked);
  /// The files that this rank reads something of.
  [[nodiscard]] std::vector<bool> files_of(list_view<const shared_read> reads) const;
  void sets_of(const shared_read& u, std::vector<const rank_set*>& out) const override {
    add_sets_of(u, out);
  }

  [[nodiscard]] read_bundles read(shared_window window, std::span<const std::byte> head) override {
    return read_window(window, head);
  }

  void take(shared_window window, std::int32_t reader, const rank_set* set,
            std::span<const std::byte> bundle) override {
    take_bundle(window, reader, set, bundle);
  }

  /// Reads what nobody else wants.
  void read_alone();
  /// From the store, by this rank.
  [[nodiscard]] std::uint64_t bytes_read() const noexcept { return bytes_read_; }
  /// The stages of this rank's own reads, without what came from others.
  [[nodiscard]] load_stages stages() const;

 private:
  /// A wanted box as bytes of a stored item.
  struct part {
    byte_box box;
    const rank_set* ranks;
    bool mine;
  };
  void add_sets_of(const shared_read& u, std::vector<const rank_set*>& out) const;
  [[nodiscard]] read_bundles read_window(shared_window window, std::span<const std::byte> head);
  void take_bundle(shared_window window, std::int32_t reader, const rank_set* set,
                   std::span<const std::byte> bundle);
  /// A message lies in ordinary memory: devices get it from a buffer of theirs.
  void put_on_devices(const load_item& item, const part& from, std::uint64_t begin,
                      std::span<const std::byte> bytes, std::uint64_t scratch_bytes);
  void add_part(const load_item& item, const wanted_box& wanted, std::vector<part>& parts) const;
  /// The ranks that hold the file of an item; null: each rank can read it.
  [[nodiscard]] const rank_set* holders_of(const load_item& item) const;
  /// What each of them takes of this rank's memory.
  void count_costs(std::vector<shared_read>& reads) const;
  [[nodiscard]] std::uint64_t number_of(const shared_read& u) const;
  /// Leaves of the parts what others than the holders want.
  void leave_to_others(const rank_set& holders, std::vector<part>& parts) const;
  /// What others would send must be what this rank waits for.
  void check_wants(const load_item& item, const std::vector<part>& parts) const;
  [[nodiscard]] std::uint64_t begin_of(block_place at) const noexcept {
    return at.block * digest_block_bytes;
  }
  [[nodiscard]] std::uint64_t end_of(block_place at) const noexcept;
  [[nodiscard]] std::uint64_t part_bytes(const part& p, block_place at) const noexcept;
  [[nodiscard]] bool wanted_here(const load_item& item, block_place at) const noexcept;
  template <class Each>
  void for_each_part(const shared_read& u, Each&& each) const {
    const auto at = places_[u.index];
    for (const auto& p : parts_[at.item])
      if (const auto bytes = part_bytes(p, at); bytes != 0) each(p, bytes);
  }

  any_store store_;
  any_store::read_session reads_;
  const load_work& work_;
  shared_wants& wants_;
  std::int32_t rank_;
  std::uint64_t budget_;
  deadline until_;
  device_load* devices_;
  const file_holders* holders_;
  std::vector<std::vector<part>> parts_;  ///< of each item
  vector<block_place> places_;            ///< of reads, by index
  vector<block_place> alone_;
  std::uint64_t bytes_read_ = 0;
  load_stages stages_;
  large_buffer memory_;  ///< of one engine after the other
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/load/shared_reads.ipp>
#endif
