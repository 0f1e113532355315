// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/storage/commit/commit_options.hpp>
#include <cairn/storage/manifest/manifest.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/storage/safetensors/shared_file_plan.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/wire.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace cairn {
inline namespace v1 {
CAIRN_BODY file_placement placement_of(const commit_options& o, std::int32_t world_size) noexcept {
  file_placement place;
  place.ranks_per_file = std::clamp(world_size, 1, o.ranks_per_file);
  const auto per_directory = std::int64_t{o.ranks_per_directory} * place.ranks_per_file;
  if (world_size > per_directory) place.ranks_per_directory = static_cast<std::int32_t>(per_directory);
  return place;
}
CAIRN_BODY void check_options(const commit_options& o, bool store_shares, std::string_view store) {
  const auto bad = [](const std::string& what) {
    fail(error_id::usage_bad_option, "commit_options: " + what);
  };
  if (o.block_ranks < 2) bad("block_ranks must be at least 2");
  if (o.ranks_per_directory < 1) bad("ranks_per_directory must be at least 1");
  if (o.ranks_per_file < 1 || o.ranks_per_file > detail::max_ranks_per_file)
    bad("ranks_per_file must be 1 to " + std::to_string(detail::max_ranks_per_file));
  if (o.ranks_per_file > 1 && !store_shares)
    bad(std::string(store) + " cannot have one object written by several ranks: leave ranks_per_file at 1");
}

namespace detail {
CAIRN_BODY void encode_options(wire_writer& out, const commit_options& o) {
  out.put(static_cast<std::int64_t>(o.rival_timeout.count()))
      .put(static_cast<std::int64_t>(o.directory_timeout.count()))
      .put(static_cast<std::int64_t>(o.durability_timeout.count()))
      .put(o.block_ranks)
      .put(o.ranks_per_file)
      .put(o.ranks_per_directory);
}
CAIRN_BODY commit_options decode_options(wire_reader& in) {
  commit_options o;
  o.rival_timeout = std::chrono::nanoseconds(in.get<std::int64_t>());
  o.directory_timeout = std::chrono::nanoseconds(in.get<std::int64_t>());
  o.durability_timeout = std::chrono::nanoseconds(in.get<std::int64_t>());
  o.block_ranks = in.get<std::int32_t>();
  o.ranks_per_file = in.get<std::int32_t>();
  o.ranks_per_directory = in.get<std::int32_t>();
  return o;
}

CAIRN_BODY std::int32_t block_ranks_of(const commit_options& o, std::int32_t world_size) noexcept {
  const auto file = placement_of(o, world_size).ranks_per_file;
  if (file == 1) return o.block_ranks;
  return std::max((o.block_ranks + file - 1) / file, 16) * file;
}
}  // namespace detail

}  // namespace v1
}  // namespace cairn
