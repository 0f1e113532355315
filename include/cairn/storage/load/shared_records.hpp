// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/read_exchange.hpp>
#include <cairn/model/rank_set.hpp>
#include <cairn/storage/load/stored_checkpoint.hpp>
#include <cairn/storage/load/stored_record.hpp>
#include <cairn/storage/manifest/manifest.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/callback.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/sorted_map.hpp>
#include <cairn/system/wire.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Gets the bytes of a rank's record, from any thread.
using record_sink = callback<void(std::int32_t, std::span<const std::byte>)>;
/// Reads the records of these ranks into the checkpoint; gives the bytes.
using record_fetch = std::function<std::uint64_t(std::vector<std::int32_t>, const record_sink&)>;

/// The records of a load that is shared, as shared_blocks is for its data. Where files have holders, so have records: a
/// holder reads all those of its own that anybody wants.
class shared_records final : public shared_source {
 public:
  shared_records(stored_checkpoint& checkpoint, shared_wants& wants, std::int32_t rank, record_fetch fetch,
                 const file_holders* holders = nullptr)
      : checkpoint_(checkpoint), wants_(wants), rank_(rank), fetch_(std::move(fetch)), holders_(holders) {}

  /// `wanted`: the ranks whose records this rank needs, ascending. Reads those that nobody else needs.
  [[nodiscard]] std::vector<shared_read> find_shared_reads(const std::vector<std::int32_t>& wanted) {
    std::vector<shared_read> reads;
    std::vector<std::int32_t> alone;
    std::vector<wanted_box> parts;
    std::vector<const rank_set*> sets;
    if (holders_ != nullptr) return find_held_reads(wanted);
    for (const auto r : wanted) {
      wants_.overlapping(shared_wants::records_name, {{r}, {1}}, parts);
      sets.clear();
      for (const auto& p : parts) sets.push_back(p.ranks);
      const auto* set = sets.empty() ? nullptr : wants_.sets().unite(sets);
      if (set == nullptr || set->ranks.size() < 2 || !set->has(rank_)) {
        alone.push_back(r);
        continue;
      }
      shared_read u;
      u.ranks = set;
      u.bytes = u.cost = nominal_bytes;
      u.index = static_cast<std::uint32_t>(r);
      reads.push_back(u);
    }
    assign_readers(reads);
    if (!alone.empty()) bytes_read_ += fetch_(std::move(alone), {});
    return reads;
  }
  void sets_of(const shared_read& u, std::vector<const rank_set*>& out) const override {
    out.push_back(u.ranks);
  }
  [[nodiscard]] read_bundles read(shared_window window, std::span<const std::byte> head) override {
    std::vector<std::int32_t> mine;
    for (const auto& u : window)
      if (u.reader == rank_) mine.push_back(static_cast<std::int32_t>(u.index));
    detail::sorted_map<std::int32_t, std::vector<std::byte>> contents;
    std::mutex mutex;
    bytes_read_ += fetch_(mine, [&](std::int32_t r, std::span<const std::byte> bytes) {
      const std::lock_guard lock(mutex);
      contents[r].assign(bytes.begin(), bytes.end());
    });
    detail::sorted_map<const rank_set*, wire_writer, by_ranks> texts;
    for (const auto& u : window) {
      if (u.reader != rank_) continue;
      auto& text = texts[u.ranks];
      if (text.size() == 0) text.raw(head);
      const auto& bytes = contents[static_cast<std::int32_t>(u.index)];
      text.put(static_cast<std::uint64_t>(bytes.size())).raw(bytes);
    }
    read_bundles bundles;
    for (const auto& [set, text] : texts) {
      auto& bundle = bundles[set] = raw_bytes(text.size());
      std::copy(text.view().begin(), text.view().end(), bundle.data.get());
    }
    return bundles;
  }
  void take(shared_window window, std::int32_t reader, const rank_set* set,
            std::span<const std::byte> bundle) override {
    try {
      wire_reader in(bundle);
      for (const auto& u : window) {
        if (u.reader != reader || u.ranks != set) continue;
        const auto bytes = in.take(in.get_count(1));
        const auto& named = checkpoint_.manifest().records[u.index];
        checkpoint_.add_record(named.rank, detail::make_owned<stored_record>(
                                               named, bytes, checkpoint_.record_key_of(named.rank)));
      }
      in.finish();
    } catch (const wire_error&) {
      fail(error_id::peer_bad_message, "the records that a rank read for others arrived damaged",
           {.rank = reader});
    }
  }
  [[nodiscard]] std::uint64_t bytes_read() const noexcept { return bytes_read_; }

 private:
  [[nodiscard]] std::vector<shared_read> find_held_reads(const std::vector<std::int32_t>& wanted) {
    std::vector<shared_read> reads;
    std::vector<std::int32_t> alone;
    std::vector<wanted_box> parts;
    std::vector<std::int32_t> held_here;
    for (std::int32_t r = 0; r < static_cast<std::int32_t>(holders_->of.size()); ++r) {
      const auto* const holders = wants_.sets().of(holders_->of[static_cast<std::size_t>(r)]);
      wants_.overlapping(shared_wants::records_name, {{r}, {1}}, parts);
      if (parts.empty()) continue;
      std::vector<std::int32_t> others;
      for (const auto& p : parts) others.insert(others.end(), p.ranks->ranks.begin(), p.ranks->ranks.end());
      detail::erase_if(others, [&](auto each) { return holders->has(each); });
      const bool held = holders->has(rank_);
      if (held) held_here.push_back(r);
      if (others.empty() || (!held && !std::binary_search(wanted.begin(), wanted.end(), r))) continue;
      shared_read u;
      u.ranks = wants_.sets().of(std::move(others));
      u.holders = holders;
      u.bytes = u.cost = nominal_bytes;
      u.index = static_cast<std::uint32_t>(r);
      reads.push_back(u);
    }
    assign_readers(reads);
    for (const auto r : held_here)  // what it reads for others it has by that
      if (!detail::any_of(reads, [&](const shared_read& u) {
            return u.reader == rank_ && u.index == static_cast<std::uint32_t>(r);
          }))
        alone.push_back(r);
    if (!alone.empty()) bytes_read_ += fetch_(std::move(alone), {});
    return reads;
  }
  /// For the exchange's account: how long a record is is known to its reader alone.
  static constexpr std::uint64_t nominal_bytes = std::uint64_t{1} << 20;
  stored_checkpoint& checkpoint_;
  shared_wants& wants_;
  std::int32_t rank_;
  record_fetch fetch_;
  const file_holders* holders_;
  std::uint64_t bytes_read_ = 0;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
