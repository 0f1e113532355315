// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/manage/chosen_names.hpp>
#include <cairn/manage/element_reads.hpp>
#include <cairn/manage/readable_checkpoint.hpp>
#include <cairn/manage/reshard.hpp>
#include <cairn/manage/streamed_checkpoint.hpp>
#include <cairn/model/chunk_progression.hpp>
#include <cairn/model/chunk_set.hpp>
#include <cairn/model/dtype.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/model/item.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/record.hpp>
#include <cairn/model/stored_items.hpp>
#include <cairn/storage/load/stored_checkpoint.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// A checkpoint that is written for other ranks. One use.
class resharding {
 public:
  resharding(readable_checkpoint& from, const reshard_options& options)
      : from_(from),
        options_(options),
        records_(from.with_records()),
        reads_(from.metadata(), [&from, memory = options.memory_bytes](const load_plan& plan,
                                                                       const target_resolver& resolver) {
          return from.read(plan, resolver, memory);
        }) {}

  reshard_report run(const any_store& target) {
    if (options_.ranks < 1 || options_.dimension < 0)
      fail(error_id::usage_bad_option,
           "a checkpoint is written for one rank or more, along dimension 0 or a later one");
    const auto ranks = static_cast<std::size_t>(options_.ranks);
    made_.plans.resize(ranks), sources_.resize(ranks), bytes_of_rank_.resize(ranks);
    made_.stored.world_size = options_.ranks;
    made_.stored.state_version = from_.metadata().state_version;
    made_.stored.annotations = from_.metadata().annotations;
    const auto& items = from_.metadata().items;
    chosen_names chosen(options_.items);
    for (std::uint32_t i = 0; i < items.size(); ++i)
      if (chosen.take(items[i].name)) take(i);
    chosen.require_all_used([&](auto tell) {
      for (const auto& item : items) tell(item.name);
    });
    if (report_.items == 0) fail(error_id::usage_unknown_name, "no item of this checkpoint is to be written");
    made_.step = options_.step < 0 ? from_.step() : options_.step;
    made_.maker = "cairn.reshard.1";
    made_.stop = options_.stop;
    made_.commit_timeout = options_.timeout;
    made_.fetch = [this](std::size_t rank, std::span<const streamed_bytes> wanted) { fetch(rank, wanted); };
    // What is committed gets digests, and would be taken for one model for ever.
    made_.check = [this] { from_.require_unchanged(); };
    report_.complete = write_streamed(target, made_);
    return std::move(report_);
  }

 private:
  /// Where the bytes of an item of a plan come from.
  struct source {
    std::uint32_t item;
    std::optional<std::uint32_t> chunk;  ///< its number, where only this one has them
  };

  void take(std::uint32_t index) {
    auto item = from_.metadata().items[index];
    std::vector<stored_chunk> chunks;
    if (item.per_rank) {
      std::uint32_t number = 0;
      for (const auto& c : item.chunks) {
        if (c.rank < options_.ranks) chunks.push_back(put(index, item, c.box, c.rank, number));
        ++number;
      }
      if (chunks.size() < item.chunks.size())
        report_.left_out.push_back(item.name + " of " + std::to_string(item.chunks.size() - chunks.size()) +
                                   (item.chunks.size() - chunks.size() == 1 ? " rank" : " ranks"));
      if (chunks.empty()) return;
    } else if (item.kind == item_kind::bytes) {
      chunks.push_back(put(index, item, item.chunks[0].box, lightest(), 0));
    } else {
      cut(index, item, chunks);
    }
    item.chunks = chunk_set::from(chunks);
    item.codec = 0;
    made_.stored.items.push_back(std::move(item));
    ++report_.items;
  }
  /// The tensor in parts of about the same size, or whole on the rank that has the fewest bytes.
  void cut(std::uint32_t index, const stored_item& item, std::vector<stored_chunk>& chunks) {
    const int d = options_.dimension;
    const auto granule = granule_of(item.type);
    const std::int64_t unit = d + 1 == item.global.rank() ? granule : 1;
    const auto ranks = static_cast<std::int64_t>(options_.ranks);
    // Rows that fill no whole bytes stay together.
    if (d >= item.global.rank() || item.global[item.global.rank() - 1] % granule != 0 ||
        item.global[d] / unit < ranks || item.global.volume() == 0) {
      chunks.push_back(put(index, item, whole(item.global), lightest(), {}));
      return;
    }
    const auto units = item.global[d] / unit;
    const auto cut_at = [&](std::int64_t r) {
      return r == ranks ? item.global[d] : (units / ranks * r + std::min(r, units % ranks)) * unit;
    };
    for (std::int32_t r = 0; r < options_.ranks; ++r) {
      auto box = whole(item.global);
      box.offsets.set(d, cut_at(r));
      box.sizes.set(d, cut_at(r + 1) - cut_at(r));
      chunks.push_back(put(index, item, box, r, {}));
    }
  }
  [[nodiscard]] std::int32_t lightest() const {
    return static_cast<std::int32_t>(std::min_element(bytes_of_rank_.begin(), bytes_of_rank_.end()) -
                                     bytes_of_rank_.begin());
  }
  stored_chunk put(std::uint32_t index, const stored_item& item, const cairn::chunk& box, std::int32_t rank,
                   std::optional<std::uint32_t> number) {
    write_item w;
    w.name = item.name, w.kind = item.kind, w.type = item.type, w.global = item.global;
    w.flags.per_rank = item.per_rank;
    w.box = box;
    w.bytes = item.kind == item_kind::bytes ? records_->find(item, item.chunks[number.value_or(0)]).bytes
                                            : bytes_of(item.type, box.volume());
    const auto to = static_cast<std::size_t>(rank);
    bytes_of_rank_[to] += w.bytes, report_.bytes += w.bytes;
    made_.plans[to].items.push_back(std::move(w));
    sources_[to].push_back({index, number});
    return {box, rank};
  }

  void fetch(std::size_t rank, std::span<const streamed_bytes> wanted) {
    const std::lock_guard lock(mutex_);
    struct rounded {
      const streamed_bytes* wanted;
      std::vector<std::byte> bytes;
      std::uint64_t skipped;
    };
    std::vector<rounded>
        odd;  // where a request begins or ends within a group of packed elements, or an element
    odd.reserve(wanted.size());
    for (const auto& w : wanted) {
      const auto& s = sources_[rank][w.item];
      const auto& item = made_.plans[rank].items[w.item];
      if (item.kind == item_kind::bytes) {
        fetch_bytes(s, w);
        continue;
      }
      const auto granule = static_cast<std::uint64_t>(granule_of(item.type));
      const auto granule_bytes = bytes_of(item.type, granule_of(item.type));
      const auto first = w.begin / granule_bytes;
      const auto last = (w.begin + w.out.size() + granule_bytes - 1) / granule_bytes;
      auto* to = w.out.data();
      if ((last - first) * granule_bytes != w.out.size()) {
        odd.push_back({&w, std::vector<std::byte>(static_cast<std::size_t>((last - first) * granule_bytes)),
                       w.begin - first * granule_bytes});
        to = odd.back().bytes.data();
      }
      reads_.want(s.item, item.box, first * granule, (last - first) * granule, to, s.chunk);
    }
    (void)reads_.read();
    for (const auto& o : odd)
      std::memcpy(o.wanted->out.data(), o.bytes.data() + o.skipped, o.wanted->out.size());
    for (const auto& w : wanted) done_ += w.out.size();
    if (options_.progress) options_.progress(std::min(done_, report_.bytes), report_.bytes);
  }
  /// Items of bytes are read as a whole, and kept for the next request.
  void fetch_bytes(const source& s, const streamed_bytes& w) {
    if (!kept_ || kept_->item != s.item || kept_->chunk != s.chunk) {
      kept_bytes_ = from_.read_stored(s.item, from_.metadata().items[s.item].chunks[s.chunk.value_or(0)]);
      kept_ = s;
    }
    std::memcpy(w.out.data(), kept_bytes_.data() + w.begin, w.out.size());
  }

  readable_checkpoint& from_;
  const reshard_options& options_;
  const stored_checkpoint* records_;
  element_reads reads_;
  streamed_checkpoint made_;
  std::vector<std::vector<source>> sources_;  ///< of the items of each plan
  std::vector<std::uint64_t> bytes_of_rank_;
  reshard_report report_;
  std::mutex mutex_;  ///< of the following, and of what reads
  std::uint64_t done_ = 0;
  std::optional<source> kept_;
  std::vector<std::byte> kept_bytes_;
};

}  // namespace detail

CAIRN_BODY reshard_report reshard_checkpoint(readable_checkpoint& from, const any_store& target,
                                             const reshard_options& options) {
  return detail::resharding(from, options).run(target);
}

}  // namespace v1
}  // namespace cairn
