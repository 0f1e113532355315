// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/manage/chosen_names.hpp>
#include <cairn/manage/element_reads.hpp>
#include <cairn/manage/element_values.hpp>
#include <cairn/manage/readable_checkpoint.hpp>
#include <cairn/manage/statistics.hpp>
#include <cairn/model/chunk_progression.hpp>
#include <cairn/model/dtype.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/model/item.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/model/stored_items.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/large_buffer.hpp>
#include <cairn/system/parallel.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// One measurement. One use.
class checkpoint_measurement {
 public:
  checkpoint_measurement(readable_checkpoint& from, const statistics_options& options)
      : items_(from.metadata().items),
        options_(options),
        reads_(from.metadata(),
               [&from, memory = options.memory_bytes / 2](const load_plan& plan,
                                                          const target_resolver& resolver) {
                 return from.read(plan, resolver, memory);
               }),
        buffer_(
            static_cast<std::size_t>(std::max<std::uint64_t>(options.memory_bytes / 2, digest_block_bytes))) {
  }

  statistics_report run() {
    std::vector<std::uint32_t> chosen;
    chosen_names wanted(options_.items);
    items_.for_each_name([&](std::size_t i, std::string_view name) {
      if (wanted.take(name)) chosen.push_back(static_cast<std::uint32_t>(i));
    });
    wanted.require_all_used(
        [&](auto tell) { items_.for_each_name([&](std::size_t, std::string_view name) { tell(name); }); });
    for (const auto i : chosen)
      if (items_[i].kind != item_kind::bytes)
        all_ += checked_bytes(items_[i].type, items_[i].global).value_or(0) * copies(items_[i]);
    try {
      for (const auto i : chosen) measure(i);
      flush();
      if (options_.stop && options_.stop()) throw stopped{};
      if (open_) tell();
    } catch (const stopped&) {
      report_.complete = false;
    }
    return std::move(report_);
  }

 private:
  struct stopped {};
  struct piece {
    std::uint32_t item;
    std::uint64_t elements;
    std::uint64_t at;
    value_statistics values = {};
  };
  [[nodiscard]] static std::uint64_t copies(const stored_item& item) {
    return item.per_rank ? item.chunks.size() : 1;
  }

  void measure(std::uint32_t index) {
    const auto& item = items_[index];
    if (item.kind == item_kind::bytes) {
      ++report_.left_out;
      return;
    }
    if (!item.per_rank) {
      want_box(index, whole(item.global), {});
    } else {
      std::uint32_t number = 0;
      for (const auto& c : item.chunks) want_box(index, c.box, number++);
    }
  }
  void want_box(std::uint32_t index, const cairn::chunk& box, std::optional<std::uint32_t> chunk) {
    const auto type = items_[index].type;
    const auto granule = static_cast<std::uint64_t>(granule_of(type));
    const auto granule_bytes = bytes_of(type, granule_of(type));
    const auto step = digest_block_bytes / granule_bytes * granule;
    const auto all = static_cast<std::uint64_t>(box.volume());
    std::uint64_t begin = 0;
    do {  // one without elements has a piece, too, so that it is told
      const auto count = std::min(step, all - begin);
      const auto bytes = bytes_of(type, static_cast<std::int64_t>(count));
      if (pieces_.size() == max_pieces || filled_ + bytes > buffer_.size()) flush();
      if (count != 0) reads_.want(index, box, begin, count, buffer_.data() + filled_, chunk);
      pieces_.push_back({index, count, filled_, {}});
      filled_ += bytes, begin += count;
    } while (begin < all);
  }
  void flush() {
    if (options_.stop && options_.stop()) throw stopped{};
    (void)reads_.read();
    parallel_for(pieces_.size(), static_cast<std::size_t>(load_threads()), [&](std::size_t i, std::size_t) {
      auto& p = pieces_[i];
      p.values = statistics_of(items_[p.item].type, buffer_.data() + p.at, p.elements);
    });
    for (const auto& p : pieces_) {
      if (open_ && index_ != p.item) tell();
      if (!open_) {
        const auto& item = items_[p.item];
        current_ = {item.name, item.type, item.global, item.per_rank ? item.chunks.size() : 0, {}};
        index_ = p.item, open_ = true;
      }
      current_.values.add(p.values);
    }
    done_ += filled_, filled_ = 0;
    pieces_.clear();
    if (options_.progress) options_.progress(done_, all_);
  }
  void tell() {
    ++report_.items;
    report_.nan_items += current_.values.nan != 0;
    report_.infinite_items += current_.values.infinite != 0;
    report_.values.add(current_.values);
    if (options_.found) options_.found(current_);
    open_ = false;
  }

  static constexpr std::size_t max_pieces = 65536;
  const stored_items& items_;
  const statistics_options& options_;
  element_reads reads_;
  large_buffer buffer_;
  std::uint64_t filled_ = 0;
  std::uint64_t done_ = 0;
  std::uint64_t all_ = 0;
  std::vector<piece> pieces_;
  item_statistics current_;
  std::uint32_t index_ = 0;
  bool open_ = false;  ///< current_ has pieces
  statistics_report report_;
};

}  // namespace detail

CAIRN_BODY statistics_report measure_checkpoint(readable_checkpoint& from,
                                                const statistics_options& options) {
  return detail::checkpoint_measurement(from, options).run();
}

}  // namespace v1
}  // namespace cairn
