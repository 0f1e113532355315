// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/record.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/storage/manifest/record_format.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/list_view.hpp>
#include <cairn/system/vector.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

// What commit_protocol does without its store.

/// The longest mark, or record of a failure, that is read, in bytes.
inline constexpr std::uint64_t max_mark_bytes = std::uint64_t{1} << 20;

/// Ranks that wait check after so many polls whether their own record still exists.
inline constexpr std::uint64_t polls_for_own_record = 8;

/// Replaces the clock and the waits of the calling thread, where set, so that tests can try many orders
/// of events without waiting.
class simulated_waits {
 public:
  virtual ~simulated_waits() = default;
  /// False, at once, if the deadline has passed.
  [[nodiscard]] virtual bool wait(std::chrono::nanoseconds pause, deadline until) = 0;
  [[nodiscard]] virtual bool passed(deadline until) const = 0;
  /// Calls task() at intervals until it returns true, in place of a thread.
  virtual void try_again(std::function<bool()> task) = 0;
};
inline thread_local simulated_waits* current_simulated_waits = nullptr;

[[nodiscard]] inline bool has_passed(deadline until) {
  return current_simulated_waits != nullptr ? current_simulated_waits->passed(until) : until.passed();
}

/// Pauses between polls of one store by all ranks of a world: exponential backoff from 0.2 ms to 50 ms,
/// with jitter, so that ranks do not poll in step. In a world of more than 500 ranks the pauses begin and
/// end longer, so that all ranks together do not poll more often, and they grow to a 16th of the time
/// waited so far; the first pauses are spread over their whole length. The same attempt and rank have the
/// same pauses.
class poll_backoff {
 public:
  poll_backoff(std::uint64_t attempt, std::int32_t rank, std::int32_t world_size = 1) noexcept;
  /// The next pause.
  [[nodiscard]] std::chrono::nanoseconds next() noexcept;
  /// False, at once, if the deadline has passed.
  [[nodiscard]] bool wait(deadline until);

 private:
  std::uint64_t noise_;
  std::chrono::nanoseconds pause_ = std::chrono::microseconds(200);
  std::chrono::nanoseconds max_ = std::chrono::milliseconds(50);
  std::chrono::nanoseconds last_ = std::chrono::milliseconds(50);
  std::chrono::nanoseconds waited_{0};
  bool spread_ = false;
};

/// An object of cairn in a step's directory: one of object_name's, or one of the two below.
struct step_object {
  std::string key;
  object_name name;
  bool own = true;  ///< `name` says what it is
  bool claimed = false;
  [[nodiscard]] bool is_file() const noexcept;
  [[nodiscard]] bool is_mark() const noexcept { return own && name.kind == object_kind::aborted; }
  /// A quarantined manifest.
  [[nodiscard]] bool is_quarantined() const noexcept { return !own && !claimed; }
  /// A claim, which decides which of several attempts of the step goes on; its bytes are the attempt's
  /// number.
  [[nodiscard]] bool is_claim() const noexcept { return claimed; }
};
[[nodiscard]] bool is_among(const std::vector<std::uint64_t>& attempts, std::uint64_t attempt) noexcept;

[[nodiscard]] std::string quarantined_key(std::int64_t step, int n);
[[nodiscard]] std::string claim_key(std::int64_t step, int n);
/// Parses a key; nothing for names that cairn does not make. `directory_bytes`: the length of the step's
/// directory with its slash.
[[nodiscard]] std::optional<step_object> parse_object(std::string_view key, std::size_t directory_bytes);
/// The final key of an unfinished object, if its key has the form "<key>.<something>".
[[nodiscard]] std::optional<parsed_key> unfinished_object(std::string_view key) noexcept;

/// An attempt that has objects in a step's directory.
struct found_attempt {
  std::uint64_t attempt = 0;
  bool marked = false;    ///< aborted for good
  std::size_t files = 0;  ///< data and records
};
[[nodiscard]] vector<found_attempt> attempts_in(const vector<step_object>& objects,
                                                std::optional<std::uint64_t> but);

/// True if attempt_of() returns this attempt for one of the first million saves of this run.
[[nodiscard]] inline bool made_by(const run_id& run, std::int64_t step, std::uint64_t attempt) {
  return save_count_of(run, step, attempt) < (std::uint64_t{1} << 20);
}

void identify(record_identity& r, const save_context& c) noexcept;

[[nodiscard]] std::exception_ptr already_committed(std::int64_t step);
[[noreturn]] void fail_already_committed(std::int64_t step);
/// The error of an attempt that another attempt or clean() has ended; `got` names the run that did it.
[[nodiscard]] std::exception_ptr superseded(std::int64_t step, const run_id& by);
/// The error of an attempt whose step was removed; `got` keeps the mark until there is a newer checkpoint.
[[nodiscard]] std::exception_ptr removed_meanwhile(std::int64_t step);
/// A failure with the rank filled in, where it has none.
[[nodiscard]] std::exception_ptr failure_of_rank(const std::exception_ptr& failure, std::int32_t rank);
/// Why an attempt was ended, as its mark says it.
[[nodiscard]] std::exception_ptr why_marked(std::span<const std::byte> bytes, std::int64_t step,
                                            const std::string& key);

/// "ranks 3, 5 and 7", at most 16 of them.
[[nodiscard]] std::string ranks_text(list_view<const std::int32_t> ranks);
/// The error about a rank that others waited for until the deadline; `what` follows its name.
[[noreturn]] void fail_absent(const save_context& c, std::int32_t rank, std::string_view what,
                              const std::string& file);
[[noreturn]] void fail_missing(const save_context& c, list_view<const std::int32_t> missing);
/// The error about a rank for which this step is the save `count` of the run, and for this rank another one.
[[noreturn]] void fail_counts_differ(const save_context& c, std::int32_t rank, std::uint64_t count);
[[noreturn]] void fail_lost(const save_context& c, list_view<const std::int32_t> lost);
/// @throws plan_error naming those of `ranks` whose record is not of this save or plan.
void check_agreement(const save_context& c, list_view<const std::int32_t> ranks,
                     list_view<const record_header> headers);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/commit/commit_parts.ipp>
#endif
