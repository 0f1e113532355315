// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/annotations.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/model/peer_watch.hpp>
#include <cairn/model/record.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {

/// One attempt to save a step.
struct save_attempt {
  /// The step of the save.
  std::int64_t step = 0;
  /// The number that tells attempts at one step apart.
  std::uint64_t attempt = 0;
  bool operator==(const save_attempt&) const = default;
};

/// What a run knows of where its checkpoints are.
struct known_root {
  /// Of the store's root, when the run began to use it; empty: not known. See KnowsRoot.
  std::string identity = {};
  /// The checkpoint that the run has loaded from there, or committed, last; -1: none.
  std::int64_t step = -1;
};

/// Identifies one save on one rank. Plain data, except for `peers`.
struct save_context {
  /// The run that saves.
  run_id run = {};
  /// The step that is saved.
  std::int64_t step = 0;
  /// The same on all ranks, different for every save of every run; see attempt_of.
  std::uint64_t attempt = 0;
  std::uint64_t plan_digest = 0;  ///< digest of the global summary: the same on all ranks
  std::int32_t rank = 0;
  /// The number of ranks that save; `rank` is one of them.
  std::int32_t world_size = 1;
  std::chrono::nanoseconds timeout = std::chrono::minutes(30);  ///< for writing, and again for the commit
  /// Tells which ranks are gone; null where nobody knows. Not sent to a worker process, which is told by its trainer.
  std::shared_ptr<const peer_watch> peers = nullptr;
  /// What is said about the checkpoint, beside what the metadata says; null: nothing. Those of the coordinator count.
  std::shared_ptr<const cairn::annotations> annotations = nullptr;
  /// So many ranks write data at once; 0: all of them. See persist::writers_at_once.
  std::int32_t writers_at_once = 0;
  /// Earlier saves of this run on this rank, the one to try first first, whose files the image's linked files are.
  std::vector<save_attempt> link_from = {};
  /// Of the coordinator: the save fails where another root is in the place of this one.
  known_root root = {};

  /// How long the other ranks wait for the coordinator after they have written. The coordinator may still
  /// write, and then waits for records, at most `timeout` each; so it gives up first, and its error names
  /// the missing rank.
  [[nodiscard]] std::chrono::nanoseconds outcome_timeout() const noexcept;
  /// The longest time that a save takes on this rank, whatever happens.
  [[nodiscard]] std::chrono::nanoseconds longest() const noexcept;
  /// True on the rank that commits: rank 0.
  [[nodiscard]] bool coordinator() const noexcept { return rank == 0; }
};

namespace detail {
inline constexpr std::uint64_t attempt_stride = 0x9E3779B97F4A7C15;  // odd, so that it can be divided by
inline constexpr std::uint64_t attempt_stride_inverse = 0xF1DE83E19937733D;
static_assert(attempt_stride * attempt_stride_inverse == 1);
}  // namespace detail

/// The attempt number, which every rank derives without a message.
[[nodiscard]] std::uint64_t attempt_of(const run_id& run, std::int64_t step, std::uint64_t save_count);
/// The inverse of attempt_of(): the save_count of this attempt if it is of this run and step, otherwise
/// some number, most likely a huge one.
[[nodiscard]] std::uint64_t save_count_of(const run_id& run, std::int64_t step, std::uint64_t attempt);

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/model/save_context.ipp>
#endif
