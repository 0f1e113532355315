// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/peer_watch.hpp>
#include <cairn/storage/commit/checkpoint_catalog.hpp>
#include <cairn/storage/commit/commit_parts.hpp>
#include <cairn/storage/commit/lost_parts.hpp>
#include <cairn/storage/manifest/record_format.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/error.hpp>

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY std::vector<std::int32_t> lost_parts::among(list_view<const std::int32_t> ranks) {
  std::vector<std::int32_t> lost;
  if (c_.peers == nullptr) return lost;
  for (const auto rank : ranks)
    if (c_.peers->is_gone(rank)) lost.push_back(rank);
  if (lost.empty() || !c_.peers->leaves_workers()) return lost;
  if (!look_again_.passed() || !store_.tracks_writers() || place_.shared()) return {};
  erase_if(lost, [&](auto rank) { return goes_on(rank); });
  if (lost.empty()) look_again_ = deadline::in(std::chrono::seconds(1));
  return lost;
}

CAIRN_BODY bool lost_parts::goes_on(std::int32_t rank) const {
  auto theirs = c_;
  theirs.rank = rank;
  return !store_.live_writers(announcement_key(theirs, place_)).empty();
}

CAIRN_BODY void lost_saves::end(const std::vector<save_attempt>& alive, const store_look& look,
                                const run_id& by) {
  vector<std::pair<save_attempt, deadline>> still;
  for (const auto& a : alive) {
    if (!is_lost(a, look)) continue;
    auto since = deadline::in(grace_period);
    for (const auto& [seen, until] : seen_)
      if (seen == a) since = until;
    still.push_back({a, since});
    if (since.passed()) step_objects(store_).require_mark(a.step, a.attempt, superseded(a.step, by));
  }
  seen_ = std::move(still);
}

CAIRN_BODY bool lost_saves::is_lost(const save_attempt& a, const store_look& look) const {
  // Ranks that wrote all of their part, and those of which a process goes on.
  std::vector<std::int32_t> there;
  std::optional<std::string> record;
  for (const auto& key : look.steps) {
    const auto parsed = parse_key(key);
    if (!parsed || parsed->step != a.step || parsed->object.attempt != a.attempt) continue;
    if (parsed->object.kind == object_kind::record) record = key;
    if (parsed->object.kind == object_kind::record ||
        (parsed->object.kind == object_kind::data && store_.writer_lives(key)))
      there.push_back(parsed->object.rank);
  }
  if (!record) return false;  // nobody knows how many ranks it has
  for (const auto& object : look.unfinished)
    if (const auto about = unfinished_object(object.key);
        object.lives && about && about->step == a.step && about->object.attempt == a.attempt)
      there.push_back(about->object.rank);
  std::array<std::byte, record_header_bytes> header;
  const read_range range{*record, 0, header};
  try {
    store_.read({&range, 1});
    const auto size = decode_record_header(header, *record).world_size;
    for (std::int32_t rank = 0; rank < size; ++rank)
      if (!contains(there, rank)) return true;
  } catch (const error&) {  // it ends meanwhile, or is damaged: as before, by its deadline
  }
  return false;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
