// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cairn/model/plan.hpp>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace cairn_bench {

/// What planning by a coordinator costs that is written with care: it decodes the plans of all ranks one
/// after another, interns names, finds replicas in one pass through a hash table of fixed records, checks
/// each tensor by one sweep, and sends each rank the numbers of the items that it shall write.
class coordinator_twin {
 public:
  /// A rank's plan as bytes.
  [[nodiscard]] static std::vector<char> serialise(const cairn::save_plan& plan) {
    std::vector<char> out;
    out.reserve(plan.items.size() * 96);
    const auto put = [&](const void* from, std::size_t bytes) {
      const auto at = out.size();
      out.resize(at + bytes);
      std::memcpy(out.data() + at, from, bytes);
    };
    for (const auto& i : plan.items) {
      const head h{static_cast<std::uint16_t>(i.name.size()),   static_cast<std::uint8_t>(i.kind),
                   static_cast<std::uint8_t>(i.type),           static_cast<std::uint8_t>(i.global.rank()),
                   static_cast<std::uint8_t>(i.flags.per_rank), i.bytes};
      put(&h, sizeof h);
      put(i.name.data(), i.name.size());
      const auto dimensions = static_cast<std::size_t>(i.global.rank()) * sizeof(std::int64_t);
      put(i.global.begin(), dimensions), put(i.box.offsets.begin(), dimensions),
          put(i.box.sizes.begin(), dimensions);
    }
    return out;
  }
  explicit coordinator_twin(std::size_t items) {
    std::size_t slots = 1024;
    while (slots < items * 2) slots *= 2;
    table_.assign(slots, 0);
    records_.reserve(items);
  }
  void receive(std::int32_t rank, std::span<const char> bytes) {
    for (std::size_t at = 0; at < bytes.size();) {
      head h;
      std::memcpy(&h, bytes.data() + at, sizeof h);
      at += sizeof h;
      const std::string_view name(bytes.data() + at, h.name);
      at += h.name;
      record r;
      std::int64_t global[8];
      const auto dimensions = h.dimensions * sizeof(std::int64_t);
      std::memcpy(global, bytes.data() + at, dimensions), at += dimensions;
      if (h.dimensions > 2) throw std::logic_error("the twin knows two dimensions");
      std::memcpy(r.offsets, bytes.data() + at, dimensions), at += dimensions;
      std::memcpy(r.sizes, bytes.data() + at, dimensions), at += dimensions;
      r.name = intern(name, h, global);
      r.rank = rank;
      if (h.bytes == 0) continue;
      insert(r, h.per_rank != 0);
    }
    ends_.push_back(records_.size());
  }
  /// Bytes of the largest table, in all.
  [[nodiscard]] static std::size_t bytes_for(std::size_t items) {
    return items * (sizeof(record) + 3 * sizeof(std::uint32_t));
  }
  /// One sweep over the boxes of each tensor: inside, of one volume with the tensor, and, along the dimension
  /// in which they differ, one behind the other.
  void validate() {
    std::vector<std::uint32_t> order;
    std::vector<std::size_t> begin(tensors_.size() + 1);
    for (const auto& r : records_) ++begin[r.name + 1];
    for (std::size_t t = 0; t < tensors_.size(); ++t) begin[t + 1] += begin[t];
    order.resize(records_.size());
    auto next = begin;
    for (std::size_t k = 0; k < records_.size(); ++k)
      order[next[records_[k].name]++] = static_cast<std::uint32_t>(k);
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      const auto& shape = tensors_[t];
      if (shape.free) continue;
      const auto first = order.begin() + static_cast<std::ptrdiff_t>(begin[t]);
      const auto last = order.begin() + static_cast<std::ptrdiff_t>(begin[t + 1]);
      std::sort(first, last, [&](auto a, auto b) {
        const auto& x = records_[a];
        const auto& y = records_[b];
        return x.offsets[0] != y.offsets[0] ? x.offsets[0] < y.offsets[0] : x.offsets[1] < y.offsets[1];
      });
      std::int64_t volume = 0;
      for (auto k = first; k != last; ++k) {
        const auto& r = records_[*k];
        volume += r.sizes[0] * r.sizes[1];
        if (k == first) continue;
        const auto& p = records_[*(k - 1)];
        if (p.offsets[0] + p.sizes[0] > r.offsets[0] && p.offsets[1] + p.sizes[1] > r.offsets[1])
          throw std::logic_error("the twin found an overlap");
      }
      if (volume != shape.volume) throw std::logic_error("the twin found a hole");
    }
  }
  /// The answers to all ranks: which of its items each shall write. Their bytes.
  [[nodiscard]] std::size_t scatter() {
    std::vector<std::vector<std::uint32_t>> answers(ends_.size());
    for (std::size_t k = 0; k < records_.size(); ++k)
      answers[static_cast<std::size_t>(records_[k].rank)].push_back(static_cast<std::uint32_t>(k));
    std::size_t bytes = 0;
    for (const auto& a : answers) bytes += a.size() * sizeof(std::uint32_t);
    return bytes;
  }

 private:
  struct head {
    std::uint16_t name;
    std::uint8_t kind, type, dimensions, per_rank;
    std::uint64_t bytes;
  };
  struct record {
    std::uint32_t name = 0;
    std::int32_t rank = 0;
    std::int64_t offsets[2] = {0, 0};
    std::int64_t sizes[2] = {1, 1};
  };
  struct tensor {
    std::int64_t volume;
    bool free;
  };
  std::uint32_t intern(std::string_view name, const head& h, const std::int64_t* global) {
    // Plans name their items in one order, most often.
    if (expected_ < names_.size() && names_[expected_] == name)
      return static_cast<std::uint32_t>(expected_++);
    const auto [found, added] =
        ids_.try_emplace(std::string(name), static_cast<std::uint32_t>(names_.size()));
    if (added) {
      std::int64_t volume = 1;
      for (int d = 0; d < h.dimensions; ++d) volume *= global[d];
      names_.push_back(found->first);
      tensors_.push_back({volume, h.kind == 2 || h.per_rank != 0});
    }
    expected_ = found->second + 1;
    return found->second;
  }
  void insert(const record& r, bool own) {
    std::uint64_t h = r.name * 0x9e3779b97f4a7c15u;
    for (const auto v : {r.offsets[0], r.offsets[1], r.sizes[0], r.sizes[1], std::int64_t{own ? r.rank : -1}})
      h = (h ^ static_cast<std::uint64_t>(v)) * 0xbf58476d1ce4e5b9u, h ^= h >> 29;
    for (auto slot = h & (table_.size() - 1);; slot = (slot + 1) & (table_.size() - 1)) {
      if (table_[slot] == 0) {
        records_.push_back(r);
        table_[slot] = static_cast<std::uint32_t>(records_.size());
        return;
      }
      const auto& there = records_[table_[slot] - 1];
      if (there.name == r.name && std::memcmp(there.offsets, r.offsets, sizeof r.offsets) == 0 &&
          std::memcmp(there.sizes, r.sizes, sizeof r.sizes) == 0 && (!own || there.rank == r.rank))
        return;  // a replica: the first rank writes it
    }
  }

  std::unordered_map<std::string, std::uint32_t> ids_;
  std::vector<std::string_view> names_;
  std::vector<tensor> tensors_;
  std::vector<record> records_;
  std::vector<std::uint32_t> table_;
  std::vector<std::size_t> ends_;
  std::size_t expected_ = 0;
};

}  // namespace cairn_bench
