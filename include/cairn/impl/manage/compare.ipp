// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/manage/chosen_names.hpp>
#include <cairn/manage/compare.hpp>
#include <cairn/manage/element_reads.hpp>
#include <cairn/manage/element_values.hpp>
#include <cairn/manage/readable_checkpoint.hpp>
#include <cairn/model/annotations.hpp>
#include <cairn/model/chunk_progression.hpp>
#include <cairn/model/dtype.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/model/item.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/model/record.hpp>
#include <cairn/model/stored_items.hpp>
#include <cairn/storage/load/stored_checkpoint.hpp>
#include <cairn/storage/load/stored_record.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/large_buffer.hpp>
#include <cairn/system/parallel.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

[[nodiscard]] inline std::vector<annotation_difference> differences_of(const annotations& a,
                                                                       const annotations& b) {
  std::vector<annotation_difference> found;
  for (const auto& said : a) {
    const auto* other = b.find(said.name);
    if (other == nullptr)
      found.push_back({said.name, said.value, {}});
    else if (!(said.value == *other))
      found.push_back({said.name, said.value, *other});
  }
  for (const auto& said : b)
    if (a.find(said.name) == nullptr) found.push_back({said.name, {}, said.value});
  detail::sort(found, [](const auto& x, const auto& y) { return x.name < y.name; });
  return found;
}

/// One comparison. One use.
class checkpoint_comparison {
 public:
  checkpoint_comparison(readable_checkpoint& a, readable_checkpoint& b, const compare_options& options)
      : a_{a, a.with_records(), reads_of(a, options)},
        b_{b, b.with_records(), reads_of(b, options)},
        options_(options),
        room_(std::max<std::uint64_t>(options.memory_bytes / 4, digest_block_bytes) / buffer_unit *
              buffer_unit) {}

  compare_report run() {
    try {
      find_names();
      for (const auto& n : names_) compare(n);
      flush();
    } catch (const stopped&) {
      report_.complete = false;
    }
    return finish();
  }

 private:
  struct side {
    readable_checkpoint& checkpoint;
    const stored_checkpoint* records;
    element_reads reads;
    large_buffer buffer = {};
    std::uint64_t filled = 0;
    [[nodiscard]] const stored_items& items() const noexcept { return checkpoint.metadata().items; }
  };
  static constexpr std::uint32_t none = UINT32_MAX;
  static constexpr std::uint64_t buffer_unit = 4096;
  struct name_pair {
    std::uint32_t a = none, b = none;
  };
  /// A chunk of an item with its number.
  struct numbered_chunk {
    stored_chunk chunk;
    std::uint32_t number;
  };
  /// Elements that are read from both sides and compared.
  struct piece {
    std::size_t result;
    dtype type_a, type_b;
    std::uint64_t elements;
    std::uint64_t at_a, at_b;  ///< in the buffers
    bool counted;              ///< that its block differs is known already
    bool differs = false;
    value_differences values = {};
  };

  [[nodiscard]] static element_reads reads_of(readable_checkpoint& from, const compare_options& options) {
    return {from.metadata(), [&from, memory = options.memory_bytes / 4](const load_plan& plan,
                                                                        const target_resolver& resolver) {
              return from.read(plan, resolver, memory);
            }};
  }
  struct stopped {};
  [[nodiscard]] static std::uint64_t bytes_of_item(const stored_item& item) {
    return item.kind == item_kind::bytes ? 0 : checked_bytes(item.type, item.global).value_or(0);
  }

  void find_names() {
    std::vector<std::pair<std::string, std::uint32_t>> of[2];
    chosen_names wanted(options_.items);  // where equal() would be no answer
    const auto collect = [&](const side& s, auto& to) {
      s.items().for_each_name([&](std::size_t i, std::string_view name) {
        if (wanted.take(name)) to.emplace_back(name, static_cast<std::uint32_t>(i));
      });
    };
    collect(a_, of[0]), collect(b_, of[1]);
    wanted.require_all_used([&](auto tell) {
      for (const auto* const s : {&a_, &b_})
        s->items().for_each_name([&](std::size_t, std::string_view name) { tell(name); });
    });
    for (std::size_t i = 0, j = 0; i < of[0].size() || j < of[1].size();) {
      name_pair n;
      const auto order = i == of[0].size()   ? 1
                         : j == of[1].size() ? -1
                                             : of[0][i].first.compare(of[1][j].first);
      if (order <= 0) n.a = of[0][i++].second;
      if (order >= 0) n.b = of[1][j++].second;
      names_.push_back(n);
    }
    report_.items = names_.size();
  }

  [[nodiscard]] static std::string text_of(const stored_item& item) {
    std::string text = item.per_rank ? std::to_string(item.chunks.size()) + " ranks, " : std::string();
    if (item.kind == item_kind::bytes) return text + "bytes";
    return text + std::string(name_of(item.type)) + " " + to_string(item.global);
  }
  std::size_t add_result(const stored_item* a, const stored_item* b, difference_kind kind) {
    item_difference d;
    d.name = (a != nullptr ? a : b)->name, d.kind = kind;
    if (a != nullptr) d.a = text_of(*a);
    if (b != nullptr) d.b = text_of(*b);
    results_.push_back(std::move(d));
    return results_.size() - 1;
  }

  void compare(const name_pair& n) {
    const auto* a = n.a == none ? nullptr : &std::as_const(a_.items())[n.a];
    const auto* b = n.b == none ? nullptr : &std::as_const(b_.items())[n.b];
    if (a == nullptr || b == nullptr) {
      add_result(a, b, b == nullptr ? difference_kind::only_in_a : difference_kind::only_in_b);
    } else if ((a->kind == item_kind::bytes) != (b->kind == item_kind::bytes) || a->per_rank != b->per_rank) {
      add_result(a, b, difference_kind::item_kind);
    } else if (a->kind != item_kind::bytes && a->global != b->global) {
      add_result(a, b, difference_kind::shape);
    } else if (a->kind != item_kind::bytes && a->type != b->type) {
      const auto result = add_result(a, b, difference_kind::type);
      if (options_.values && !a->per_rank && (a->type == dtype::c64) == (b->type == dtype::c64)) {
        results_[result].has_values = true;
        for (const auto& c : b->chunks) want_chunk(n, result, c.box, {}, {});
        return;
      }
    } else {
      compare_content(n, *a, *b);
      return;
    }
    ++report_.by_digests;
  }

  [[nodiscard]] static std::vector<numbered_chunk> chunks_of(const stored_item& item) {
    std::vector<numbered_chunk> chunks;
    std::uint32_t number = 0;
    for (const auto& c : item.chunks) chunks.push_back({c, number++});
    detail::sort(chunks, [&](const numbered_chunk& x, const numbered_chunk& y) {
      return item.per_rank ? x.chunk.rank < y.chunk.rank : x.chunk.box < y.chunk.box;
    });
    return chunks;
  }

  void compare_content(const name_pair& n, const stored_item& a, const stored_item& b) {
    const auto of_a = chunks_of(a), of_b = chunks_of(b);
    if (a.per_rank &&
        !std::equal(of_a.begin(), of_a.end(), of_b.begin(), of_b.end(),
                    [](const auto& x, const auto& y) { return x.chunk.rank == y.chunk.rank; })) {
      add_result(&a, &b, difference_kind::shape);
      ++report_.by_digests;
      return;
    }
    const auto result = add_result(&a, &b, difference_kind::content);
    const auto read_before = wanted_;
    std::size_t i = 0;
    for (const auto& there : of_b) {
      while (!a.per_rank && i < of_a.size() && of_a[i].chunk.box < there.chunk.box) ++i;
      const bool alike = i < of_a.size() && (a.per_rank || of_a[i].chunk.box == there.chunk.box);
      const auto* here = alike ? &of_a[i] : nullptr;
      if (a.per_rank) ++i;
      if (here != nullptr && a_.records != nullptr && b_.records != nullptr)
        compare_digests(n, result, a, b, *here, there);
      else
        want_chunk(n, result, there.chunk.box, {}, {});
    }
    results_[result].has_values = options_.values && a.kind != item_kind::bytes;
    if (wanted_ != read_before) return;
    ++report_.by_digests;
    done_ += bytes_of_item(b);
    if (results_[result].kind == difference_kind::content && results_[result].differing == 0)
      results_.pop_back();
  }

  void compare_digests(const name_pair& n, std::size_t result, const stored_item& a, const stored_item& b,
                       const numbered_chunk& here, const numbered_chunk& there) {
    const auto& x = a_.records->find(a, here.chunk);
    const auto& y = b_.records->find(b, there.chunk);
    auto& d = results_[result];
    if (x.bytes != y.bytes) {  // of bytes: the others have the size of their box
      d.kind = difference_kind::shape;
      d.a = std::to_string(x.bytes) + " bytes", d.b = std::to_string(y.bytes) + " bytes";
      return;
    }
    const auto blocks = block_count(x.bytes);
    d.blocks += blocks;
    if (x.digest == y.digest) return;
    const auto* digests_a =
        &a_.records->record_of(here.chunk.rank).content().blocks[static_cast<std::size_t>(x.first_block)];
    const auto* digests_b =
        &b_.records->record_of(there.chunk.rank).content().blocks[static_cast<std::size_t>(y.first_block)];
    for (std::uint64_t block = 0; block < blocks; ++block) {
      if (digests_a[block] == digests_b[block]) continue;
      ++results_[result].differing;
      if (options_.values && b.kind != item_kind::bytes) want_block(n, result, b, here, there, block);
    }
  }
  /// The elements that lie in a block, and of packed dtypes those that begin in it.
  void want_block(const name_pair& n, std::size_t result, const stored_item& item, const numbered_chunk& here,
                  const numbered_chunk& there, std::uint64_t block) {
    const auto granule = static_cast<std::uint64_t>(granule_of(item.type));
    const auto granule_bytes = bytes_of(item.type, granule_of(item.type));
    const auto all = static_cast<std::uint64_t>(there.chunk.box.volume());
    const auto begin = block * digest_block_bytes / granule_bytes * granule;
    const auto end =
        std::min(all, ((block + 1) * digest_block_bytes + granule_bytes - 1) / granule_bytes * granule);
    const auto number = [&](const numbered_chunk& c) {
      return item.per_rank ? std::optional<std::uint32_t>(c.number) : std::nullopt;
    };
    want(n, result, there.chunk.box, begin, end - begin, number(here), number(there), true);
  }
  /// All elements of a box, in pieces.
  void want_chunk(const name_pair& n, std::size_t result, const cairn::chunk& box,
                  std::optional<std::uint32_t> in_a, std::optional<std::uint32_t> in_b) {
    const auto type_a = a_.items()[n.a].type, type_b = b_.items()[n.b].type;
    const auto bits = std::max(bits_of(type_a), bits_of(type_b));
    const auto step = digest_block_bytes / std::max(bits, 8u) * 8 / 4 * 4;
    const auto all = static_cast<std::uint64_t>(box.volume());
    for (std::uint64_t begin = 0; begin < all; begin += step) {
      const auto count = std::min(step, all - begin);
      ++results_[result].blocks;
      want(n, result, box, begin, count, in_a, in_b, false);
    }
  }
  void want(const name_pair& n, std::size_t result, const cairn::chunk& box, std::uint64_t begin,
            std::uint64_t count, std::optional<std::uint32_t> in_a, std::optional<std::uint32_t> in_b,
            bool counted) {
    if (pieces_.size() == max_pieces) flush();
    piece p{result, a_.items()[n.a].type, b_.items()[n.b].type, count, 0, 0, counted, false, {}};
    const auto bytes = [&](dtype type) { return bytes_of(type, static_cast<std::int64_t>(count)); };
    if (std::max(a_.filled + bytes(p.type_a), b_.filled + bytes(p.type_b)) > room_) flush();
    const auto place = [&](side& s, std::uint32_t item, std::uint64_t size,
                           std::optional<std::uint32_t> chunk) {
      if (s.buffer.size() == 0) s.buffer = large_buffer(static_cast<std::size_t>(room_ + 4 * buffer_unit));
      const auto at = s.filled;
      s.reads.want(item, box, begin, count, s.buffer.data() + at, chunk);
      s.filled += size;
      return at;
    };
    p.at_a = place(a_, n.a, bytes(p.type_a), in_a);
    p.at_b = place(b_, n.b, bytes(p.type_b), in_b);
    wanted_ += bytes(p.type_b);
    pieces_.push_back(p);
  }

  /// Reads what is wanted, and compares it.
  void flush() {
    if (options_.stop && options_.stop()) throw stopped{};
    if (pieces_.empty()) return;
    report_.bytes_read += a_.reads.read();
    report_.bytes_read += b_.reads.read();
    parallel_for(pieces_.size(), static_cast<std::size_t>(load_threads()), [&](std::size_t i, std::size_t) {
      auto& p = pieces_[i];
      const auto* a = a_.buffer.data() + p.at_a;
      const auto* b = b_.buffer.data() + p.at_b;
      if (p.type_a == p.type_b)
        p.differs =
            std::memcmp(
                a, b, static_cast<std::size_t>(bytes_of(p.type_a, static_cast<std::int64_t>(p.elements)))) !=
            0;
      if (options_.values) p.values = differences_of(p.type_a, a, p.type_b, b, p.elements);
    });
    for (const auto& p : pieces_) {
      auto& d = results_[p.result];
      if (d.kind == difference_kind::content && !p.counted) d.differing += p.differs;
      d.values.add(p.values);
      done_ += bytes_of(p.type_b, static_cast<std::int64_t>(p.elements));
    }
    pieces_.clear();
    a_.filled = b_.filled = 0;
    if (options_.progress) options_.progress(std::min(done_, all_bytes()), all_bytes());
  }
  [[nodiscard]] std::uint64_t all_bytes() {
    if (all_ == 0)
      for (const auto& n : names_)
        if (n.a != none && n.b != none) all_ += bytes_of_item(b_.items()[n.b]);
    return all_;
  }

  compare_report finish() {
    for (auto& d : results_) {
      if (d.kind == difference_kind::content && d.differing == 0) continue;
      if (d.kind != difference_kind::content) d.blocks = d.differing = 0;
      // What digests found equal was not read.
      report_.differences.push_back(std::move(d));
    }
    return std::move(report_);
  }

  // About 40 MB of what is kept for each piece; the bytes of the buffers are the limit before for all but small ones.
  static constexpr std::size_t max_pieces = 65536;
  side a_, b_;
  const compare_options& options_;
  const std::uint64_t room_;
  std::vector<name_pair> names_;
  std::vector<item_difference> results_;
  std::vector<piece> pieces_;
  std::uint64_t wanted_ = 0;
  std::uint64_t done_ = 0;
  std::uint64_t all_ = 0;
  compare_report report_;
};

}  // namespace detail

CAIRN_BODY std::string_view name_of(difference_kind kind) noexcept {
  switch (kind) {
    case difference_kind::only_in_a:
      return "only in A";
    case difference_kind::only_in_b:
      return "only in B";
    case difference_kind::item_kind:
      return "kind";
    case difference_kind::shape:
      return "shape";
    case difference_kind::type:
      return "dtype";
    case difference_kind::content:
      break;
  }
  return "content";
}

CAIRN_BODY compare_report compare_checkpoints(readable_checkpoint& a, readable_checkpoint& b,
                                              const compare_options& options) {
  auto report = detail::checkpoint_comparison(a, b, options).run();
  report.annotations = detail::differences_of(a.metadata().annotations, b.metadata().annotations);
  return report;
}

}  // namespace v1
}  // namespace cairn
