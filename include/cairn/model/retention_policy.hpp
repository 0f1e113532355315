// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/annotations.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

/// For keep_last: a checkpoint counts as kept only after rank 0 has read it back whole and verified it.
/// Rank 0 does that in the background, from the commit on; of the checkpoints that are committed
/// meanwhile, it verifies the newest next. Older checkpoints stay until then. It reads at most so many
/// bytes per second; 0: no limit. A failed verification is reported with the file, and nothing is
/// removed; close() and the destructor abandon a verification that is under way.
struct verified_t {
  /// The limit of the read-back, in bytes per second; 0: none.
  std::uint64_t bytes_per_second = std::uint64_t{256} << 20;
};
/// `cairn::keep_last(3, cairn::verified)`
inline constexpr verified_t verified{};

namespace detail {
/// A number of checkpoints; 0 for one below it, which would be a very large one else.
template <class N>
[[nodiscard]] constexpr std::size_t kept_count(N n) noexcept {
  if constexpr (std::is_signed_v<N>) {
    if (n < 0) return 0;
  }
  return static_cast<std::size_t>(n);
}
}  // namespace detail

/// The newest n checkpoints stay, at least 1.
struct keep_last {
  template <class N>
    requires std::is_integral_v<N>
  explicit constexpr keep_last(N n) noexcept : count(detail::kept_count(n)) {}
  template <class N>
    requires std::is_integral_v<N>
  constexpr keep_last(N n, verified_t how) noexcept : count(detail::kept_count(n)), scrub(how) {}
  /// How many checkpoints stay; at least 1.
  std::size_t count;
  /// With a value: only what was read back and verified counts as kept.
  std::optional<verified_t> scrub = {};
};

/// Steps that are divisible by n stay; at least 1.
struct keep_every {
  explicit constexpr keep_every(std::int64_t n) noexcept : steps(n) {}
  std::int64_t steps;  ///< n
};

/// Which values of an annotation are the best.
enum class best : std::uint8_t { lowest, highest };

/// The n checkpoints stay whose annotation of this name is the best number, `cairn::keep_best("loss", 3)`; of equal
/// ones the newer. One without it, or where it is a text or NaN, is none of them.
struct keep_best {
  template <class N>
    requires std::is_integral_v<N>
  keep_best(std::string annotation, N n, best which = best::lowest)
      : name(std::move(annotation)), count(detail::kept_count(n)), order(which) {}
  std::string name;   ///< of the annotation
  std::size_t count;  ///< n
  best order;         ///< which values are the best
};

/// What was committed within this time stays: `cairn::keep_within(std::chrono::hours(48))`. By the clock of the host
/// that committed and that of the one that removes.
struct keep_within {
  template <class Duration>
    requires requires(Duration d) {
      d.count();
      Duration::period::num;
    }
  explicit constexpr keep_within(Duration time) noexcept
      : seconds(static_cast<double>(time.count()) * static_cast<double>(Duration::period::num) /
                static_cast<double>(Duration::period::den)) {}
  double seconds;  ///< the time
};

/// What policies ask about a checkpoint.
struct retained_checkpoint {
  std::int64_t step = 0;  ///< of the checkpoint
  bool counts = true;     ///< for keep_last; false: it was not verified yet
  bool readable = true;   ///< false: the manifest could not be read; where it matters, the checkpoint stays
  std::int64_t committed_at = 0;  ///< in seconds since 1970; 0: not known, and it stays where that matters
  cairn::annotations annotations = {};  ///< what was said about it
};

/// Which checkpoints stay: those that any of its policies keeps. Made of one, or of several with `|`:
///
/// `cairn::keep_last(3) | cairn::keep_every(1000) | cairn::keep_best("loss", 3)`
///
/// After each commit, a checkpointer removes what stays by none of them. It looks at the line of its run alone: the
/// checkpoints up to the one that the run resumed from or loaded last, as they were then, and those that the run has
/// committed since. Never removed are the checkpoint that was just committed, the one that the run resumed from or
/// loaded last, steps after the one just committed, and what is pinned or leased. A checkpoint
/// that is not in the line (of another run, of a branch left by a roll-back, or passed over by resume())
/// neither counts nor is removed; a warning says so once. cairn-prune and cairn::prune() apply the same policies to all
/// checkpoints of a store.
class retention_policy {
 public:
  /// Keeps nothing by itself.
  retention_policy() = default;
  retention_policy(keep_last policy) noexcept : last_(policy) {}
  retention_policy(keep_every policy) : every_{policy.steps} {}
  retention_policy(keep_best policy) : best_{std::move(policy)} {}
  retention_policy(keep_within policy) noexcept : seconds_(policy.seconds) {}
  /// True if it has no policy.
  [[nodiscard]] bool empty() const noexcept { return !last_ && every_.empty() && best_.empty() && !seconds_; }
  /// How keep_last verifies; nothing where it does not.
  [[nodiscard]] std::optional<verified_t> scrub() const noexcept {
    return last_ ? last_->scrub : std::nullopt;
  }
  /// True if it asks for annotations or times, which are in manifests.
  [[nodiscard]] bool asks_manifests() const noexcept { return !best_.empty() || seconds_.has_value(); }
  /// The annotations by which a keep_best chooses, and which are a number in none of these checkpoints, so that it keeps
  /// nothing; none where no manifest could be read.
  [[nodiscard]] std::vector<std::string> missing_annotations(
      const std::vector<retained_checkpoint>& line) const;

  /// Why each of these stays, such as "one of the last 3"; empty where no policy keeps it. `line`: in the order
  /// in which they came to be. `now`: in seconds since 1970.
  [[nodiscard]] std::vector<std::string> reasons(const std::vector<retained_checkpoint>& line,
                                                 std::int64_t now) const;
  /// @throws usage_error (usage_bad_option) for numbers that mean nothing
  void check() const;
  /// Keeps what the other one keeps, too. Of two keep_last the larger counts, and of two keep_within the longer.
  void add(const retention_policy& other);

 private:
  std::optional<keep_last> last_;
  std::vector<std::int64_t> every_;
  std::vector<keep_best> best_;
  std::optional<double> seconds_;
};

/// What either keeps; see retention_policy::add.
[[nodiscard]] inline retention_policy operator|(retention_policy a, const retention_policy& b) {
  a.add(b);
  return a;
}

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/model/retention_policy.ipp>
#endif
