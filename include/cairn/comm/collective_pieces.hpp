// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/error.hpp>
#include <cairn/system/list_view.hpp>
#include <cairn/system/wire.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Several byte strings as one: what scatter sends.
[[nodiscard]] inline std::vector<std::byte> join_pieces(list_view<const std::span<const std::byte>> list) {
  wire_writer out;
  out.put(static_cast<std::uint64_t>(list.size()));
  for (const auto& each : list) out.put(static_cast<std::uint64_t>(each.size())).raw(each);
  return out.take();
}

/// The reverse: at least one piece, each a view of `joined`.
/// @throws peer_error (peer_bad_message) if the bytes are no list of pieces.
[[nodiscard]] inline std::vector<std::span<const std::byte>> split_pieces(std::span<const std::byte> joined) {
  try {
    wire_reader in(joined);
    const auto count = in.get_count(sizeof(std::uint64_t));
    if (count == 0) in.fail_here("a list has no piece");
    std::vector<std::span<const std::byte>> list;
    list.reserve(count);
    for (std::size_t i = 0; i < count; ++i) list.push_back(in.take(in.get_count(1)));
    in.finish();
    return list;
  } catch (const wire_error& e) {
    fail(error_id::peer_bad_message, std::string("pieces of a collective are damaged: ") + e.what());
  }
}

/// The bytes of one rank with its number: what gather appends to each other on the way up.
[[nodiscard]] inline std::vector<std::byte> label_piece(int rank, std::span<const std::byte> bytes) {
  wire_writer out;
  out.put(static_cast<std::int32_t>(rank)).put(static_cast<std::uint64_t>(bytes.size())).raw(bytes);
  return out.take();
}

/// The labelled pieces of all ranks, in any order, as a list in rank order.
/// @throws peer_error (peer_bad_message) if the bytes are not one piece of each rank.
[[nodiscard]] inline std::vector<std::vector<std::byte>> sort_labelled(std::span<const std::byte> all,
                                                                       int size) {
  const auto ranks = static_cast<std::size_t>(size);
  std::vector<std::vector<std::byte>> result(ranks);
  std::vector<bool> seen(ranks);
  try {
    wire_reader in(all);
    for (std::size_t i = 0; i < ranks; ++i) {
      const auto from = in.get<std::uint32_t>();
      if (from >= ranks || seen[from]) in.fail_here("a rank is unknown or comes twice");
      seen[from] = true;
      const auto bytes = in.take(in.get_count(1));
      result[from].assign(bytes.begin(), bytes.end());
    }
    in.finish();
  } catch (const wire_error& e) {
    fail(error_id::peer_bad_message, std::string("gathered parts are damaged: ") + e.what());
  }
  return result;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
