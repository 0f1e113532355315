// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/image_layout.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/source_table.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/parallel.hpp>
#include <cairn/system/vector.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Finds the items of a rank that stay as they are from one save to the next, by digests of their memory. The thread of
/// training.
class unchanged_items {
 public:
  /// Smaller ones are not worth a file.
  static constexpr std::uint64_t min_bytes = always_copied_below;

  /// Looks at the memory of all items: those that are `unchanged()` afterwards are as they were at the call before. False
  /// where one that was is not any more, or another plan came: what was written before has other values then.
  ///
  /// Reads items that are unchanged, and new ones, whole (some 20 GB/s a thread, on up to four); of others at most one
  /// block, and the more seldom the more often they changed.
  [[nodiscard]] bool look(const std::shared_ptr<const save_plan>& plan, const image_layout& layout,
                          const source_table& sources) {
    bool same = plan_ == plan;
    if (!same) {
      items_.assign(plan->items.size(), {});
      plan_ = plan;
    }
    std::vector<const item_placement*> whole;
    for (const auto& place : layout.items) {
      auto& i = items_[place.item];
      if (!is_readable(plan->items[place.item], place, sources[place.item])) {
        same = same && !i.unchanged;
        i = {};
      } else if (i.pause != 0) {
        --i.pause;
      } else if (i.known && !i.unchanged && i.first != digest(block(sources[place.item], place.bytes, 0))) {
        i.put_off();
      } else {
        whole.push_back(&place);
      }
    }
    const auto found = digests_of(whole, sources);
    for (std::size_t k = 0; k < whole.size(); ++k) {
      const auto& place = *whole[k];
      auto& i = items_[place.item];
      if (i.known && i.all != found[k].all) {
        same = same && !i.unchanged;
        i.put_off();
        continue;
      }
      i.unchanged = i.known;
      i.known = true;
      i.first = found[k].first, i.all = found[k].all;
    }
    return same;
  }
  /// Of an item of the plan that was looked at.
  [[nodiscard]] bool unchanged(std::size_t item) const { return items_[item].unchanged; }
  [[nodiscard]] bool any() const {
    return std::any_of(items_.begin(), items_.end(), [](const state& i) { return i.unchanged; });
  }

 private:
  struct state {
    std::uint64_t first = 0;  // digest of its first block
    std::uint64_t all = 0;    // of all its blocks' digests
    std::uint32_t pause = 0;  // saves in which it is not looked at
    std::uint32_t changes = 0;
    bool known = false;
    bool unchanged = false;
    void put_off() noexcept {
      known = unchanged = false;
      changes = std::min(changes + 1, 7U);
      pause = (1U << changes) - 1;
    }
  };
  struct digests {
    std::uint64_t first = 0;
    std::uint64_t all = 0;
  };
  [[nodiscard]] static bool is_readable(const write_item& i, const item_placement& place,
                                        const item_source& source) {
    return i.kind == item_kind::tensor && !i.flags.frozen && place.bytes >= min_bytes &&
           source.cast == nullptr && source.view.space != memory_space::device && source.view.contiguous();
  }
  [[nodiscard]] static std::span<const std::byte> block(const item_source& source, std::uint64_t bytes,
                                                        std::uint64_t number) {
    const auto begin = number * digest_block_bytes;
    return {source.view.data + begin, static_cast<std::size_t>(std::min(digest_block_bytes, bytes - begin))};
  }
  [[nodiscard]] static std::vector<digests> digests_of(const std::vector<const item_placement*>& places,
                                                       const source_table& sources) {
    struct task {
      const item_placement* place;
      std::uint64_t number;
    };
    vector<task> tasks;
    for (const auto* p : places)
      for (std::uint64_t n = 0; n < block_count(p->bytes); ++n) tasks.push_back({p, n});
    std::vector<std::uint64_t> found(tasks.size());
    constexpr std::size_t stride = 16;  // blocks of one turn
    parallel_for((tasks.size() + stride - 1) / stride, 4, [&](std::size_t turn, std::size_t) {
      for (auto k = turn * stride; k < std::min(tasks.size(), (turn + 1) * stride); ++k)
        found[k] = digest(block(sources[tasks[k].place->item], tasks[k].place->bytes, tasks[k].number));
    });
    std::vector<digests> out;
    std::size_t at = 0;
    for (const auto* p : places) {
      const auto blocks = static_cast<std::size_t>(block_count(p->bytes));
      out.push_back({found[at], digest_of_blocks(std::span<const std::uint64_t>(found).subspan(at, blocks))});
      at += blocks;
    }
    return out;
  }

  std::shared_ptr<const save_plan> plan_;
  std::vector<state> items_;  // of the plan
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
