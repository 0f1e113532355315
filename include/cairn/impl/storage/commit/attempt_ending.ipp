// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/concepts/byte_store.hpp>
#include <cairn/concepts/store_errors.hpp>
#include <cairn/model/record.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/storage/commit/attempt_ending.hpp>
#include <cairn/storage/commit/commit_options.hpp>
#include <cairn/storage/commit/commit_parts.hpp>
#include <cairn/storage/commit/step_objects.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/storage/manifest/record_format.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY bool refused(const std::exception_ptr& why) noexcept {
  try {
    std::rethrow_exception(why);
  } catch (const unpublished_error&) {
    return true;
  } catch (const storage_error& e) {
    return denies_publication(e.id());
  } catch (...) {
    return false;
  }
}

CAIRN_BODY attempt_ending::attempt_ending(const any_store& store, const commit_options& options,
                                          const save_context& c, std::exception_ptr failure,
                                          attempt_knowledge known)
    : store_(store),
      objects_(store),
      place_(placement_of(options, c.world_size)),
      block_ranks_(block_ranks_of(options, c.world_size)),
      c_(c),
      failure_(std::move(failure)),
      known_(known) {}

CAIRN_BODY bool attempt_ending::go() noexcept {
  try {
    return try_to_end();
  } catch (...) {  // out of memory
    return false;
  }
}

CAIRN_BODY bool attempt_ending::try_to_end() {
  if (!fenced_) {
    const auto stands = committed();
    if (stands == true) return true;
    // The store does not answer: each further call might wait as long, and who calls waits for all of them. Tried again soon.
    if (!stands) return false;
    look_for_end();
    tell_others();
    if (!fenced_ && (unnamed() || alone_commits())) {
      removed_ = remove();
      tell_others();  // again: the files' space is free now
    }
  }
  if (marked_ && !fenced_) {
    const auto stands = committed();
    if (!stands) return false;
    // The mark stays: others may rely on it, and readers see that the checkpoint is whole.
    if (*stands) return true;
    fenced_ = true;
  }
  if (fenced_) removed_ = remove();
  if (!fenced_ && !failure_recorded_ && !c_.coordinator() && unnamed()) signal();
  return removed_ && (fenced_ || (failure_recorded_ && !c_.coordinator()));
}

CAIRN_BODY std::optional<bool> attempt_ending::committed() const noexcept {
  try {
    return objects_.committed_by(c_.step, c_.attempt);
  } catch (...) {
    return std::nullopt;
  }
}

CAIRN_BODY void attempt_ending::look_for_end() noexcept {
  try {
    if (store_.size(aborted_key(c_.step, c_.attempt))) marked_ = true;
  } catch (...) {
  }
  try {
    const auto other = objects_.standing_attempt(c_.step);
    if (other && *other != c_.attempt && !store_.size(aborted_key(c_.step, *other))) fenced_ = true;
  } catch (...) {
  }
}

CAIRN_BODY bool attempt_ending::unnamed() const noexcept {
  if (failure_recorded_) return true;
  if (place_.shared() || !known_.here || known_.record) return false;
  try {
    return !store_.size(record_key(c_.step, c_.rank, c_.attempt, place_));
  } catch (...) {
    return false;
  }
}

CAIRN_BODY void attempt_ending::tell_others() {
  // Where ranks share files, no rank has a record of its own.
  if (!marked_ && !fenced_ && !failure_recorded_ && !place_.shared()) report();
  // A rank whose record is a failure is in no manifest; else the attempt as a whole must be ended. In a
  // large world the mark is seen sooner than the record.
  if (marked_ || fenced_ || (failure_recorded_ && !c_.coordinator() && !large())) return;
  const bool of_rank = (failure_recorded_ && large()) || place_.shared();
  marked_ = objects_.mark(c_.step, c_.attempt, of_rank ? failure_of_rank(failure_, c_.rank) : failure_);
}

CAIRN_BODY void attempt_ending::report() {
  const auto key = record_key(c_.step, c_.rank, c_.attempt, place_);
  try {
    record_identity identity;
    identify(identity, c_);
    store_.put_new(key, encode_failure_record(identity, failure_));
    failure_recorded_ = true;
    return;
  } catch (const storage_error& e) {
    if (e.id() != error_id::storage_exists) return;
  } catch (...) {
    return;
  }
  try {  // of an earlier go() whose answer was lost?
    std::array<std::byte, record_header_bytes> bytes;
    const read_range range{key, 0, bytes};
    store_.read({&range, 1});
    failure_recorded_ = decode_record_header(bytes, key).failed;
  } catch (...) {
  }
}

CAIRN_BODY void attempt_ending::signal() {
  if (!place_.shared()) (void)remove(record_key(c_.step, 0, c_.attempt, place_));
}

CAIRN_BODY bool attempt_ending::remove(const std::string& key) {
  try {
    if (store_.size(key)) store_.remove(key);
    return true;
  } catch (...) {
    return false;
  }
}

CAIRN_BODY bool attempt_ending::remove() {
  return c_.coordinator() ? remove_all() : remove_own();
}

CAIRN_BODY bool attempt_ending::remove_all() {
  if (!remove(record_key(c_.step, c_.rank, c_.attempt, place_))) return false;
  if (!fenced_ && committed() != false) return false;
  bool all = true;
  try {
    for (const auto& o : objects_.objects_of(c_.step))
      if (o.is_file() && o.name.attempt == c_.attempt) all = remove(o.key) && all;
  } catch (...) {
    all = false;
  }
  // A listing may lag behind: remove by name as well.
  return remove_own() && all;
}

CAIRN_BODY bool attempt_ending::remove_own() {
  bool all = true;
  const auto missing = [&](const std::string& key) {
    try {
      if (!store_.size(key)) return true;
      store_.remove(key);
    } catch (...) {
      all = false;
    }
    return false;
  };
  if (!failure_recorded_ && !place_.shared() && c_.rank != 0)
    (void)missing(record_key(c_.step, c_.rank, c_.attempt, place_));
  // Files that are begun at once get their numbers in any order, so gaps are possible.
  if (place_.first_of(c_.rank) == c_.rank)
    for (std::uint32_t k = 0, misses = 0; misses < 4 && all; ++k)
      if (missing(data_key(c_.step, c_.rank, c_.attempt, k, place_))) ++misses;
  if (large() && c_.rank % block_ranks_ == 0)
    (void)missing(records_key(c_.step, c_.rank, c_.attempt, place_));
  return all;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
