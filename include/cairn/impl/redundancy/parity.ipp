// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/redundancy/parity.hpp>
#include <cairn/redundancy/redundancy_checks.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/error.hpp>

#include <isa-l.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace cairn {
inline namespace v1 {
namespace detail {

/// How the images of a set are cut. Group g, one for each member, has the members g + losses, g + losses + 1, ... (all
/// numbers modulo the size of the set) as its columns: column c gives part c of its image. The members g to
/// g + losses - 1 keep its rows of parity. So each member is once each column and once each row.
class parity_layout {
 public:
  parity_layout(const redundancy_set& set, int losses)
      : set_(set), size_(static_cast<std::int32_t>(set.size())), rows_(losses), columns_(size_ - losses) {
    std::uint64_t longest = 0;
    for (const auto& member : set) longest = std::max(longest, member.bytes);
    const auto columns = static_cast<std::uint64_t>(columns_);
    constexpr std::uint64_t unit = 64;  // see combine()
    part_ = (longest / columns + (longest % columns != 0) + unit - 1) / unit * unit;
  }

  [[nodiscard]] std::int32_t rows() const { return rows_; }
  [[nodiscard]] std::int32_t columns() const { return columns_; }
  [[nodiscard]] std::int32_t member_of_column(std::int32_t group, std::int32_t column) const {
    return (group + rows_ + column) % size_;
  }
  [[nodiscard]] std::int32_t group_of_column(std::int32_t member, std::int32_t column) const {
    return (member - rows_ - column + 2 * size_) % size_;
  }
  [[nodiscard]] std::int32_t keeper_of_row(std::int32_t group, std::int32_t row) const {
    return (group + row) % size_;
  }
  [[nodiscard]] std::int32_t group_of_row(std::int32_t member, std::int32_t row) const {
    return (member - row + size_) % size_;
  }
  [[nodiscard]] std::uint64_t begin_of_part(std::int32_t column) const {
    return static_cast<std::uint64_t>(column) * part_;
  }
  [[nodiscard]] std::uint64_t bytes_of_part(std::int32_t member, std::int32_t column) const {
    const auto bytes = set_[static_cast<std::size_t>(member)].bytes;
    return std::min(part_, bytes - std::min(bytes, begin_of_part(column)));
  }
  /// Bytes of each row of parity of a group.
  [[nodiscard]] std::uint64_t bytes_of_group(std::int32_t group) const {
    std::uint64_t longest = 0;
    for (std::int32_t c = 0; c < columns_; ++c)
      longest = std::max(longest, bytes_of_part(member_of_column(group, c), c));
    return longest;
  }
  /// Where the row lies in the piece of the member that keeps it; of rows(), the length of the piece.
  [[nodiscard]] std::uint64_t begin_of_row(std::int32_t member, std::int32_t row) const {
    std::uint64_t begin = 0;
    for (std::int32_t before = 0; before < row; ++before)
      begin += bytes_of_group(group_of_row(member, before));
    return begin;
  }
  /// Calls `strip(begin, end)` for each range of [0, bytes) of a group in which the same columns have bytes.
  template <class Strip>
  void for_each_strip(std::int32_t group, std::uint64_t bytes, const Strip& strip) const {
    std::vector<std::uint64_t> ends{bytes};
    for (std::int32_t c = 0; c < columns_; ++c)
      ends.push_back(std::min(bytes, bytes_of_part(member_of_column(group, c), c)));
    detail::sort(ends);
    std::uint64_t begin = 0;
    for (const auto end : ends)
      if (end > begin) {
        strip(begin, end);
        begin = end;
      }
  }
  /// The factor of a column in a row of parity. Every square part of this matrix can be inverted, as those of the Cauchy
  /// matrix can whose columns it multiplies by a number.
  [[nodiscard]] std::uint8_t factor(std::int32_t row, std::int32_t column) const {
    const auto cauchy = [&](std::int32_t r) {
      return ::gf_inv(static_cast<unsigned char>((columns_ + r) ^ column));
    };
    return ::gf_mul(cauchy(row), ::gf_inv(cauchy(0)));
  }

 private:
  const redundancy_set& set_;
  std::int32_t size_;
  std::int32_t rows_;
  std::int32_t columns_;
  std::uint64_t part_ = 0;
};

}  // namespace detail

CAIRN_BODY int parity::tolerated() const {
  if (data < 1 || losses < 1 || data > 127 || losses > 127 || data + losses > 128)
    fail(error_id::usage_bad_option,
         "parity{data, losses} is of at least one image and for at least one loss, and of 128 ranks at most",
         {.got = std::to_string(data) + " and " + std::to_string(losses)});
  return losses;
}
CAIRN_BODY std::int32_t parity::set_count(std::int32_t members) const {
  const std::int32_t size = data + tolerated();
  return std::max(1, std::min((members + size - 1) / size, members / (losses + 1)));
}
CAIRN_BODY std::uint64_t parity::overhead(const redundancy_set& set, std::int32_t member) const {
  detail::check_set(set, member, tolerated());
  return detail::parity_layout(set, losses).begin_of_row(member, losses);
}
CAIRN_BODY std::vector<redundancy_strip> parity::encoding(const redundancy_set& set,
                                                          std::int32_t member) const {
  detail::check_set(set, member, tolerated());
  const detail::parity_layout layout(set, losses);
  std::vector<redundancy_strip> strips;
  for (std::int32_t row = 0; row < layout.rows(); ++row) {
    const auto group = layout.group_of_row(member, row);
    const auto place = layout.begin_of_row(member, row);
    layout.for_each_strip(group, layout.bytes_of_group(group), [&](std::uint64_t begin, std::uint64_t end) {
      redundancy_strip strip{.begin = place + begin, .bytes = end - begin, .sources = {}, .factors = {}};
      for (std::int32_t c = 0; c < layout.columns(); ++c) {
        const auto from = layout.member_of_column(group, c);
        if (layout.bytes_of_part(from, c) <= begin) continue;
        strip.sources.push_back({.member = from, .begin = layout.begin_of_part(c) + begin});
        strip.factors.push_back(layout.factor(row, c));
      }
      strips.push_back(std::move(strip));
    });
  }
  return strips;
}
CAIRN_BODY std::vector<redundancy_strip> parity::rebuilding(const redundancy_set& set, std::int32_t member,
                                                            const set_survivors& survivors) const {
  detail::check_set(set, member, tolerated());
  const detail::parity_layout layout(set, losses);
  std::vector<redundancy_strip> strips;
  for (std::int32_t own = 0; own < layout.columns(); ++own) {
    const auto group = layout.group_of_column(member, own);
    layout.for_each_strip(
        group, layout.bytes_of_part(member, own), [&](std::uint64_t begin, std::uint64_t end) {
          std::vector<std::int32_t> known;
          std::vector<std::int32_t> lost{own};
          for (std::int32_t c = 0; c < layout.columns(); ++c) {
            const auto from = layout.member_of_column(group, c);
            if (c == own || layout.bytes_of_part(from, c) <= begin) continue;
            (survivors.images[static_cast<std::size_t>(from)] ? known : lost).push_back(c);
          }
          std::vector<std::int32_t> rows;
          for (std::int32_t row = 0; row < layout.rows() && rows.size() < lost.size(); ++row)
            if (survivors.pieces[static_cast<std::size_t>(layout.keeper_of_row(group, row))])
              rows.push_back(row);
          if (rows.size() < lost.size()) detail::fail_lost(set, member, survivors, losses);
          // What the rows have of the lost columns, as equations; the first row of the inverse gives the own column.
          const auto count = lost.size();
          std::vector<unsigned char> equations;
          std::vector<unsigned char> inverse(count * count);
          for (const auto row : rows)
            for (const auto column : lost) equations.push_back(layout.factor(row, column));
          if (::gf_invert_matrix(equations.data(), inverse.data(), static_cast<int>(count)) != 0)
            fail(error_id::corrupt_bad_value,
                 "the equations of a parity have no solution, which none of them is without");
          redundancy_strip strip{
              .begin = layout.begin_of_part(own) + begin, .bytes = end - begin, .sources = {}, .factors = {}};
          const auto add = [&](member_range from, std::uint8_t factor) {
            if (factor == 0) return;
            strip.sources.push_back(from);
            strip.factors.push_back(factor);
          };
          for (std::size_t i = 0; i < count; ++i) {
            const auto keeper = layout.keeper_of_row(group, rows[i]);
            add({.member = keeper, .piece = true, .begin = layout.begin_of_row(keeper, rows[i]) + begin},
                inverse[i]);
          }
          for (const auto column : known) {
            std::uint8_t factor = 0;
            for (std::size_t i = 0; i < count; ++i)
              factor =
                  static_cast<std::uint8_t>(factor ^ ::gf_mul(inverse[i], layout.factor(rows[i], column)));
            add({.member = layout.member_of_column(group, column),
                 .begin = layout.begin_of_part(column) + begin},
                factor);
          }
          strips.push_back(std::move(strip));
        });
  }
  return strips;
}

CAIRN_BODY void parity::combine(std::span<const std::uint8_t> factors,
                                std::span<const std::byte* const> sources, std::span<std::byte> out) const {
  const auto count = sources.size();
  if (count == 0 || count > 255 || factors.size() != count)
    fail(error_id::usage_bad_option, "a strip has 1 to 255 sources, and a factor for each",
         {.got = std::to_string(count) + " and " + std::to_string(factors.size())});
  const bool plain = std::all_of(factors.begin(), factors.end(), [](std::uint8_t f) { return f == 1; });
  if (count == 1 && plain) {
    if (!out.empty()) std::memcpy(out.data(), sources[0], out.size());
    return;
  }
  // xor_gen wants aligned memory, 64 bytes where the processor has AVX-512.
  const auto aligned = [](const std::byte* p) { return reinterpret_cast<std::uintptr_t>(p) % 64 == 0; };
  const bool sums = plain && aligned(out.data()) && std::all_of(sources.begin(), sources.end(), aligned);
  std::array<unsigned char, 32 * 255> tables;
  std::array<unsigned char, 255> matrix;
  if (!sums) {
    std::copy(factors.begin(), factors.end(), matrix.begin());
    ::ec_init_tables(static_cast<int>(count), 1, matrix.data(), tables.data());
  }
  // As much at a time as stays in the cache of a core with its sum.
  constexpr std::size_t unit = 32768;
  for (std::size_t at = 0; at < out.size(); at += unit) {
    const int bytes = static_cast<int>(std::min(unit, out.size() - at));
    std::array<unsigned char*, 256> parts;
    for (std::size_t i = 0; i < count; ++i)
      parts[i] = reinterpret_cast<unsigned char*>(const_cast<std::byte*>(sources[i] + at));  // only read
    parts[count] = reinterpret_cast<unsigned char*>(out.data() + at);
    if (sums) {
      std::array<void*, 256> all;
      std::copy(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(count + 1), all.begin());
      if (::xor_gen(static_cast<int>(count + 1), bytes, all.data()) != 0)
        fail(error_id::usage_bad_option, "ISA-L refuses to add the sources of a strip");
    } else {
      ::ec_encode_data(bytes, static_cast<int>(count), 1, tables.data(), parts.data(), &parts[count]);
    }
  }
}

}  // namespace v1
}  // namespace cairn
