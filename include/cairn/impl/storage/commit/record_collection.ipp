// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/concepts/byte_store.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/storage/commit/commit_parts.hpp>
#include <cairn/storage/commit/record_collection.hpp>
#include <cairn/storage/commit/step_objects.hpp>
#include <cairn/storage/manifest/corrupt.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/storage/manifest/record_format.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/list_view.hpp>
#include <cairn/system/thread_pool.hpp>
#include <cairn/system/vector.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// After so many names that are not there one poll asks for no more.
inline constexpr std::size_t max_misses = 8;

/// Calls visit(ranks) for the ranks of each file of records, of ascending `ranks`, until it returns false.
template <class Visit>
void for_each_record_file(const file_placement& place, list_view<const std::int32_t> ranks, Visit visit) {
  for (std::size_t i = 0; i < ranks.size();) {
    auto end = i + 1;
    while (end < ranks.size() && place.first_of(ranks[end]) == place.first_of(ranks[i]) && place.shared())
      ++end;
    if (!visit(ranks.subspan(i, end - i))) return;
    i = end;
  }
}

/// Looks for objects in order, until `max_misses` are not there; returns for each that it looked for whether it is. Of more than so
/// many in a distant store it looks for so many at once.
template <class KeyOf>
[[nodiscard]] std::vector<bool> look_for(const any_store& store, std::size_t count, const KeyOf& key_of) {
  const auto at_once = count > max_misses && store.reads_at_once() > 1 ? max_misses : std::size_t{1};
  std::vector<bool> there;
  std::optional<thread_pool> pool;
  for (std::size_t misses = 0; there.size() < count && misses < max_misses;) {
    const auto first = there.size();
    std::array<bool, max_misses> found{};
    const auto some = std::min(at_once, count - first);
    const auto look = [&](std::size_t i) { found[i] = store.size(key_of(first + i)).has_value(); };
    if (some == 1) {
      look(0);
    } else {
      if (!pool) pool.emplace();
      pool->run(some, some, look);
    }
    for (std::size_t i = 0; i < some; ++i) {
      there.push_back(found[i]);
      if (!found[i]) ++misses;
    }
  }
  return there;
}

/// Those of `missing` whose records can be read now, ascending.
[[nodiscard]] inline std::vector<std::int32_t> probe_records(const any_store& store, const save_context& c,
                                                             const file_placement& place,
                                                             list_view<const std::int32_t> missing) {
  std::vector<list_view<const std::int32_t>> files;
  for_each_record_file(place, missing, [&](list_view<const std::int32_t> ranks) {
    files.push_back(ranks);
    return true;
  });
  const auto found = look_for(store, files.size(), [&](std::size_t i) {
    return record_key(c.step, files[i].front(), c.attempt, place);
  });
  std::vector<std::int32_t> there;
  for (std::size_t i = 0; i < found.size(); ++i)
    if (found[i]) there.insert(there.end(), files[i].begin(), files[i].end());
  return there;
}

CAIRN_BODY std::uint64_t record_header_offset(const file_placement& place, std::int32_t rank,
                                              std::int32_t world_size, std::uint64_t file_bytes,
                                              const std::string& key) {
  if (!place.shared()) return 0;
  const auto first = place.first_of(rank);
  const auto of_all = static_cast<std::uint64_t>(sharers_of(place, rank, world_size)) * record_header_bytes;
  // Also where this rank's own header would fit: callers read on from the first rank's.
  if (file_bytes < of_all)
    corrupt(error_id::corrupt_truncated, "a file of several ranks ends before their records", key,
            file_bytes);
  return file_bytes - of_all + static_cast<std::uint64_t>(rank - first) * record_header_bytes;
}

/// The headers of the records of some ranks, one after another; one batch.
[[nodiscard]] inline std::vector<std::byte> read_record_headers(const any_store& store, const save_context& c,
                                                                const file_placement& place,
                                                                list_view<const std::int32_t> ranks) {
  std::vector<std::byte> bytes(ranks.size() * record_header_bytes);
  std::vector<std::string> keys;
  std::vector<read_range> ranges;
  for (const auto rank : ranks) keys.push_back(record_key(c.step, rank, c.attempt, place));
  std::uint64_t file_bytes = 0;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (place.shared() && (i == 0 || keys[i] != keys[i - 1])) file_bytes = store.size(keys[i]).value_or(0);
    ranges.push_back({keys[i], record_header_offset(place, ranks[i], c.world_size, file_bytes, keys[i]),
                      std::span(bytes).subspan(i * record_header_bytes, record_header_bytes)});
  }
  if (!ranges.empty()) store.read(ranges);
  return bytes;
}

CAIRN_BODY void take_away(std::vector<std::int32_t>& from, list_view<const std::int32_t> sorted) {
  detail::erase_if(from, [&](auto rank) { return std::binary_search(sorted.begin(), sorted.end(), rank); });
}

CAIRN_BODY block_merge::block_merge(const any_store& store, const save_context& c,
                                    const file_placement& place, std::int32_t block_ranks)
    : store_(store), c_(c), place_(place) {
  if (c.world_size <= block_ranks || c.rank == 0 || c.rank % block_ranks != 0) return;
  const auto end = c.rank + std::min(block_ranks, c.world_size - c.rank);
  for (auto rank = c.rank; rank < end; ++rank) missing_.push_back(rank);
  headers_.resize(missing_.size() * record_header_bytes);
}

CAIRN_BODY void block_merge::advance() noexcept {
  if (missing_.empty()) return;
  try {
    const auto there = probe_records(store_, c_, place_, missing_);
    const auto bytes = read_record_headers(store_, c_, place_, there);
    for (std::size_t i = 0; i < there.size(); ++i) {
      const auto one = std::span(bytes).subspan(i * record_header_bytes, record_header_bytes);
      // The coordinator reads the record of a failed rank itself.
      if (decode_record_header(one, {}).failed) return missing_.clear();
      std::memcpy(headers_.data() + static_cast<std::size_t>(there[i] - c_.rank) * record_header_bytes,
                  one.data(), one.size());
    }
    take_away(missing_, there);
    if (missing_.empty()) store_.put_new(records_key(c_.step, c_.rank, c_.attempt, place_), headers_);
  } catch (...) {
    missing_.clear();
  }
}

CAIRN_BODY record_collection::record_collection(const any_store& store, const step_objects& objects,
                                                const save_context& c, const file_placement& place,
                                                std::int32_t block_ranks)
    : store_(store),
      objects_(objects),
      c_(c),
      place_(place),
      headers_(static_cast<std::size_t>(c.world_size)),
      lost_(store, c, place) {
  for (std::int32_t r = 0; r < c.world_size; ++r) missing_.push_back(r);
  if (c.world_size > block_ranks) block_ranks_ = block_ranks;
  if (block_ranks_ != 0)
    for (auto r = block_ranks; r < c.world_size; r += std::min(block_ranks, c.world_size - r))
      blocks_.push_back(r);
}

CAIRN_BODY vector<record_header> record_collection::collect(deadline until) {
  poll_backoff pause(c_.attempt, c_.rank);
  for (std::uint64_t poll = 0;; ++poll) {
    if (block_ranks_ == 0) {
      take(probe_small_world(poll));
    } else {
      std::vector<std::int32_t> own;
      for (const auto rank : missing_)
        if (rank < block_ranks_) own.push_back(rank);
      take(probe_records(store_, c_, place_, own));
      take_blocks();
      // A listing costs O(ranks): make one more and more rarely.
      if (std::exchange(damaged_, false) ||
          (poll >= 64 && (poll < 512 ? (poll & (poll - 1)) : poll % 512) == 0))
        take(listed());
    }
    if (missing_.empty()) return std::move(headers_);
    objects_.check_open(c_);
    if (poll % polls_for_own_record == polls_for_own_record - 1) objects_.check_record(c_, place_);
    end_if_lost();
    if (pause.wait(until)) continue;
    if (block_ranks_ != 0) {
      take(listed());
      take(probe_records(store_, c_, place_, missing_));
      if (missing_.empty()) return std::move(headers_);
    }
    fail_if_counts_differ();
    fail_missing(c_, missing_);
  }
}

CAIRN_BODY void record_collection::fail_if_counts_differ() const {
  vector<step_object> objects;
  try {
    objects = objects_.objects_of(c_.step);
  } catch (const storage_error&) {
    return;  // who is missing is known all the same
  }
  const auto ended = [&](std::uint64_t attempt) {  // such as an earlier try of this step
    return detail::any_of(objects, [&](const auto& o) { return o.is_mark() && o.name.attempt == attempt; });
  };
  for (const auto& o : objects) {
    if (!o.own || !o.is_file() || o.name.attempt == c_.attempt || !made_by(c_.run, c_.step, o.name.attempt) ||
        ended(o.name.attempt))
      continue;
    const auto found =
        detail::find_if(missing_, [&](auto rank) { return place_.first_of(rank) == o.name.rank; });
    if (found != missing_.end())
      fail_counts_differ(c_, *found, save_count_of(c_.run, c_.step, o.name.attempt));
  }
}

CAIRN_BODY void record_collection::end_if_lost() {
  if (c_.peers == nullptr || !ask_for_peers_.passed()) return;
  ask_for_peers_ = deadline::in(std::chrono::milliseconds(20));
  auto lost = lost_.among(missing_);
  if (lost.empty()) return;
  // What they did before they were gone is visible to requests that begin now.
  take(lost.size() < max_misses ? probe_records(store_, c_, place_, lost) : listed());
  detail::erase_if(lost,
                   [&](auto rank) { return !std::binary_search(missing_.begin(), missing_.end(), rank); });
  if (!lost.empty()) fail_lost(c_, lost);
}

CAIRN_BODY std::vector<std::int32_t> record_collection::probe_small_world(std::uint64_t poll) const {
  // Listings of network file systems may lag behind: ask for the names themselves now and then.
  if (missing_.size() <= max_misses || poll % 16 == 15) {
    auto there = probe_records(store_, c_, place_, missing_);
    if (!there.empty() || missing_.size() <= max_misses) return there;
  }
  return listed();
}

CAIRN_BODY std::vector<std::int32_t> record_collection::listed() const {
  std::vector<std::int32_t> there;
  for (const auto& o : objects_.objects_of(c_.step)) {
    if (!o.own || o.name.attempt != c_.attempt) continue;
    if (place_.shared() ? o.name.kind != object_kind::data || o.name.index != 0
                        : o.name.kind != object_kind::record)
      continue;
    const auto of_file = std::equal_range(missing_.begin(), missing_.end(), o.name.rank, [&](auto a, auto b) {
      return place_.first_of(a) < place_.first_of(b);
    });
    there.insert(there.end(), of_file.first, of_file.second);
  }
  detail::sort(there);
  return there;
}

CAIRN_BODY void record_collection::take(const std::vector<std::int32_t>& there) {
  std::vector<std::byte> bytes;
  try {
    bytes = read_record_headers(store_, c_, place_, there);
  } catch (const storage_error& e) {
    if (e.id() == error_id::storage_not_found)
      objects_.check_open(c_);  // whoever removed a record has ended the attempt
    throw;
  }
  for (std::size_t i = 0; i < there.size(); ++i) {
    const auto key = record_key(c_.step, there[i], c_.attempt, place_);
    auto& h = headers_[static_cast<std::size_t>(there[i])];
    h = decode_record_header(std::span(bytes).subspan(i * record_header_bytes), key);
    if (h.failed) objects_.throw_failure_in(key);
  }
  check_agreement(c_, there, headers_);
  take_away(missing_, there);
}

CAIRN_BODY void record_collection::take_blocks() {
  const auto found = look_for(store_, blocks_.size(), [&](std::size_t i) {
    return records_key(c_.step, blocks_[i], c_.attempt, place_);
  });
  std::vector<std::int32_t> there;
  for (std::size_t i = 0; i < found.size(); ++i)
    if (found[i]) there.push_back(blocks_[i]);
  if (there.empty()) return;
  std::vector<std::string> keys;
  std::vector<read_range> ranges;
  std::vector<std::byte> bytes(static_cast<std::size_t>(c_.world_size) * record_header_bytes);
  for (const auto first : there) keys.push_back(records_key(c_.step, first, c_.attempt, place_));
  for (std::size_t i = 0; i < there.size(); ++i) {
    const auto at = static_cast<std::size_t>(there[i]) * record_header_bytes;
    ranges.push_back({keys[i], 0, std::span(bytes).subspan(at, size_of(there[i]) * record_header_bytes)});
  }
  // An error here is no failure: the ranks' own records are read instead.
  try {
    store_.read(ranges);
    std::vector<std::int32_t> ranks;
    for (const auto first : there)
      for (std::size_t i = 0; i < size_of(first); ++i) {
        const auto rank = first + static_cast<std::int32_t>(i);
        const auto at = static_cast<std::size_t>(rank);
        headers_[at] = decode_record_header(std::span(bytes).subspan(at * record_header_bytes), {});
        if (headers_[at].failed)
          fail(error_id::corrupt_bad_value, "the headers of a block hold that of a rank that failed");
        ranks.push_back(rank);
      }
    check_agreement(c_, ranks, headers_);
    take_away(missing_, ranks);
  } catch (const corrupt_error&) {
    damaged_ = true;
  } catch (const storage_error& e) {
    if (e.id() != error_id::storage_not_found) throw;
    objects_.check_open(c_);
    damaged_ = true;
  }
  take_away(blocks_, there);
}

CAIRN_BODY std::size_t record_collection::size_of(std::int32_t first) const noexcept {
  return static_cast<std::size_t>(std::min(block_ranks_, c_.world_size - first));
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
