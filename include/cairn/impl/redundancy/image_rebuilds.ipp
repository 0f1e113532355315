// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/redundancy/image_rebuilds.hpp>
#include <cairn/redundancy/kept_piece.hpp>
#include <cairn/redundancy/place_sources.hpp>
#include <cairn/redundancy/stepwise_rebuild.hpp>
#include <cairn/redundancy/surviving_set.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/error.hpp>
#include <cairn/tiers/held_record.hpp>
#include <cairn/tiers/tier_directory.hpp>
#include <cairn/tiers/tier_files.hpp>

#include <algorithm>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY redundancy_rebuilder::redundancy_rebuilder(any_redundancy by, std::shared_ptr<tier_files> files)
    : by_(std::move(by)), files_(files != nullptr ? std::move(files) : std::make_shared<tier_files>()) {}

CAIRN_BODY void redundancy_rebuilder::survey(const std::string& directory, std::vector<surveyed_save>& saves,
                                             std::vector<std::string>& damaged) {
  for (const auto& each : names_in_tier(directory)) {
    const auto name = parse_kept_name(each);
    if (!name) continue;
    try {
      const auto path = directory + "/" + each;
      const auto bytes = tier_file(path);
      if (!bytes) continue;
      const auto kept = decode_kept(*bytes, *name, path);
      auto save = std::find_if(saves.begin(), saves.end(),
                               [&](const surveyed_save& s) { return names_save(*name, s); });
      if (save == saves.end()) {
        surveyed_save made;
        made.run = name->run, made.attempt = name->attempt, made.step = name->step;
        made.world_size = name->world_size, made.plan_digest = name->plan_digest;
        save = saves.insert(saves.end(), std::move(made));
      }
      surveyed_piece piece{.rank = name->rank,
                           .member = kept.member,
                           .made_by = kept.made_by,
                           .made_of = 0,
                           .ranks = {},
                           .bytes = {},
                           .piece_bytes = kept.blocks.bytes()};
      digest_stream heads;
      for (const auto& head : kept.heads) {
        const auto encoded = encode_head(head);
        heads.put(digest(encoded));
        piece.ranks.push_back(head.name.rank);
        piece.bytes.push_back(head.blocks.bytes());
        if (head.name.rank == 0 && !save->has_runs)
          if (auto runs = decode_held(head.record, head.name, path).runs)
            save->has_runs = true, save->runs = std::move(*runs);
      }
      piece.made_of = heads.value();
      save->pieces.push_back(std::move(piece));
    } catch (const corrupt_error& e) {
      damaged.push_back("a piece of step " + std::to_string(name->step) + " in the local tier: " + e.what());
    }
  }
}

CAIRN_BODY void redundancy_rebuilder::remove_pieces(const std::string& directory,
                                                    const surveyed_save& which) {
  for (const auto& each : names_in_tier(directory)) {
    const auto name = parse_kept_name(each);
    if (!name || !names_save(*name, which)) continue;
    files_->remove(directory + "/" + each);  // before what it names
    files_->remove(directory + "/" + piece_name(name->rank, name->slot));
  }
}

CAIRN_BODY std::string redundancy_rebuilder::obstacle(const surveyed_save& all, std::int32_t lost) {
  try {
    const auto set = set_left(all, by_, lost);
    static_cast<void>(by_.rebuilding(set.members, set.lost, set.survivors));
  } catch (const error& e) {
    return e.what();
  }
  return {};
}
CAIRN_BODY std::string redundancy_rebuilder::other_redundancy(const surveyed_save& all, std::int32_t lost) {
  try {
    static_cast<void>(set_left(all, by_, lost));
  } catch (const usage_error& e) {
    return e.message();
  } catch (const peer_error&) {  // nothing is left that tells
  }
  return {};
}
CAIRN_BODY std::unique_ptr<rebuild_sources> redundancy_rebuilder::sources(const std::string& directory,
                                                                          const surveyed_save& all) {
  return sources_in(directory, all);
}
CAIRN_BODY std::unique_ptr<image_rebuild> redundancy_rebuilder::begin(const std::string& directory,
                                                                      const surveyed_save& all,
                                                                      std::int32_t lost) {
  return begin_rebuild(by_, directory, all, lost, files_);
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
