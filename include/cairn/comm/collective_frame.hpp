// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/communicator.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/list_view.hpp>
#include <cairn/system/wire.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

enum class collective_operation : std::uint8_t {
  broadcast,
  gather,
  scatter,
  barrier,
  tree_reduce_broadcast,
  all_gather,
  exchange,
  planning,
  end_of_planning
};

/// Whether it is made only by those ranks that find that they must: such calls have no place in the count of
/// collectives. A message carries its sender's own count of them, a verdict that of the message it answers.
constexpr bool is_on_demand(collective_operation operation) noexcept {
  return operation >= collective_operation::planning;
}

constexpr std::string_view operation_name(collective_operation operation) noexcept {
  constexpr std::array<std::string_view, 9> names{
      "broadcast",  "gather",   "scatter",  "barrier",        "tree_reduce_broadcast",
      "all_gather", "exchange", "planning", "end of planning"};
  return names[static_cast<std::size_t>(operation)];
}

/// Which way a message of a collective goes: a child's part, a child's word that it is there and for whom it
/// waits, the verdict; of an on-demand call a child's word that it does not wait for the verdict any more.
enum class collective_step : std::uint8_t { up, waiting, down, withdrawn };

/// Which call a message belongs to.
struct collective_call {
  std::array<std::byte, 16> run{};
  std::uint64_t epoch = 0;
  collective_operation operation{};
  std::int32_t root = 0;
};

struct absent_rank {
  std::int32_t rank;
  bool lost;        ///< the transport knows that it is gone; else it did not arrive by the deadline
  std::string who;  ///< "rank 3 on node7 (10.1.0.7)", where the transport of its neighbour told it
};

/// What one rank, a subtree, or the whole world comes to: a value, or who failed and who is absent.
struct outcome {
  std::vector<std::byte> value;
  std::int32_t failed_rank = -1;
  std::vector<std::byte> failure;  ///< of encode_failure; the one of the lowest rank that failed
  std::vector<absent_rank> absent;
  bool from_neighbour = false;  ///< a neighbour said so; else it is what this rank found out itself

  [[nodiscard]] bool ok() const noexcept { return failed_rank < 0 && absent.empty(); }

  void add_failure(int rank, std::vector<std::byte> encoded) {
    if (failed_rank >= 0 && failed_rank <= rank) return;
    failed_rank = rank;
    failure = std::move(encoded);
  }
  void add_absent(int rank, bool lost, std::string who = {}) {
    const auto at = std::lower_bound(absent.begin(), absent.end(), rank,
                                     [](const absent_rank& each, int wanted) { return each.rank < wanted; });
    if (at == absent.end() || at->rank != rank) {
      absent.insert(at, {static_cast<std::int32_t>(rank), lost, std::move(who)});
      return;
    }
    at->lost = at->lost || lost;
    if (at->who.empty()) at->who = std::move(who);
  }
  /// Takes over what went wrong in another part of the tree; values are the caller's matter.
  void add_failures(outcome other) {
    if (other.failed_rank >= 0) add_failure(other.failed_rank, std::move(other.failure));
    for (auto& each : other.absent) add_absent(each.rank, each.lost, std::move(each.who));
  }
};

inline constexpr std::uint32_t collective_magic = 0x4D4D4343;  // "CCMM"
inline constexpr std::uint16_t collective_version = 3;
inline constexpr std::size_t max_absent_named = 1024;
inline constexpr std::size_t max_who_length = 200;

/// What a communicator's error tells of where a rank is.
[[nodiscard]] inline std::string who_is(const error& from, int rank) {
  const auto& told = from.fields().got;
  const auto begin = "rank " + std::to_string(rank) + " ";
  return told.starts_with(begin) && told.size() <= max_who_length ? told : std::string();
}
/// The longest value in a message: what remains of max_message_bytes beside the frame.
inline constexpr std::size_t max_collective_bytes = max_message_bytes - 64;

/// An exception as data that decode_failure accepts, of the rank where it happened.
[[nodiscard]] inline std::vector<std::byte> portable_failure(const std::exception_ptr& failure, int rank) {
  auto encoded = encode_failure(failure);
  try {
    wire_reader in(encoded);
    return encode_failure(decode_failure(in, rank));
  } catch (const wire_error&) {
    // An id of the user's own, or text longer than a message may carry.
  }
  const auto shorter = [](std::string text) {
    if (text.size() > 1000) text.resize(1000);
    return text;
  };
  try {
    std::rethrow_exception(failure);
  } catch (const error& e) {
    auto f = e.fields();
    f = {.rank = f.rank < 0 ? rank : f.rank,
         .item = shorter(f.item),
         .file = shorter(f.file),
         .offset = f.offset,
         .expected = shorter(f.expected),
         .got = shorter(f.got)};
    const auto id = error_name(e.id()) == "unknown" ? error_id::peer_failed : e.id();
    return encode_failure(make_failure(id, shorter(e.message()), std::move(f)));
  } catch (const std::exception& e) {
    return encode_failure(make_failure(error_id::peer_failed, shorter(e.what()), {.rank = rank}));
  } catch (...) {
    return encode_failure(
        make_failure(error_id::peer_failed, "an unknown exception was thrown", {.rank = rank}));
  }
}

[[nodiscard]] inline std::vector<std::byte> encode_frame(const collective_call& call, collective_step step,
                                                         const outcome& what,
                                                         std::span<const std::byte> value) {
  wire_writer out;
  out.reserve(max_message_bytes - max_collective_bytes + value.size());
  out.put(collective_magic)
      .put(collective_version)
      .put(call.operation)
      .put(step)
      .raw(call.run)
      .put(call.epoch);
  out.put(call.root).put(static_cast<std::uint8_t>(what.ok() ? 0 : 1));
  if (what.ok()) {
    out.raw(value);
    return out.take();
  }
  out.put(what.failed_rank).put(static_cast<std::uint64_t>(what.failure.size())).raw(what.failure);
  const auto shown = std::min(what.absent.size(), max_absent_named);
  out.put(static_cast<std::uint64_t>(shown));
  for (const auto& each : list_view(what.absent).first(shown))
    out.put(each.rank).put(std::uint8_t{each.lost}).put(std::string_view(each.who));
  return out.take();
}

struct collective_frame {
  collective_call call;
  collective_step step{};
  outcome what;
  std::size_t head = 0;  ///< bytes of what.value that belong to the frame
  lent_message lent;     ///< with data: the whole message, in place of what.value
  bool landed = false;   ///< what.value has the first bytes alone
};

/// @throws wire_error if the bytes are no frame of this version, or name ranks that the world does not have.
[[nodiscard]] inline collective_frame decode_frame(std::vector<std::byte> message, int size) {
  wire_reader in(message);
  collective_frame frame;
  if (in.get<std::uint32_t>() != collective_magic) in.fail_here("the magic number is missing");
  if (in.get<std::uint16_t>() != collective_version)
    in.fail_here("the version of the messages is another one");
  frame.call.operation = in.get_enum(collective_operation::end_of_planning);
  frame.step = in.get_enum(collective_step::withdrawn);
  const auto run = in.take(frame.call.run.size());
  std::copy(run.begin(), run.end(), frame.call.run.begin());
  frame.call.epoch = in.get<std::uint64_t>();
  frame.call.root = in.get<std::int32_t>();
  const auto check_rank = [&](std::int32_t rank) {
    if (rank < 0 || rank >= size) in.fail_here("a rank is outside of the world");
  };
  check_rank(frame.call.root);
  const auto status = in.get<std::uint8_t>();
  if (status > 1) in.fail_here("the status is unknown");
  if (status == 0) {
    frame.head = in.offset();
    // Of an exchange, whose messages are long, the value stays behind its head.
    if (frame.call.operation != collective_operation::exchange) {
      message.erase(message.begin(), message.begin() + static_cast<std::ptrdiff_t>(frame.head));
      frame.head = 0;
    }
    frame.what.value = std::move(message);
    return frame;
  }
  const auto failed = in.get<std::int32_t>();
  const auto failure = in.take(in.get_count(1));
  if (failed != -1) {
    check_rank(failed);
    wire_reader inner(failure);
    static_cast<void>(decode_failure(inner, failed));
    inner.finish();
    frame.what.add_failure(failed, {failure.begin(), failure.end()});
  }
  const auto absent = in.get_count(9);
  if (absent > max_absent_named) in.fail_here("more absent ranks are named than allowed");
  for (std::size_t i = 0; i < absent; ++i) {
    const auto rank = in.get<std::int32_t>();
    check_rank(rank);
    const auto lost = in.get<std::uint8_t>() != 0;
    frame.what.add_absent(rank, lost, in.get_string(max_who_length));
  }
  in.finish();
  if (frame.what.ok()) in.fail_here("a failure without a cause");
  return frame;
}

/// The same of a message that may be lent. Of one of an exchange the head alone is decoded.
[[nodiscard]] inline collective_frame decode_frame(borrowed_message message, int size) {
  if (message.lent.data == nullptr) {
    auto frame = decode_frame(std::move(message.sent), size);
    frame.landed = message.landed;
    return frame;
  }
  const auto whole = message.lent.view();
  constexpr auto operation_at = sizeof collective_magic + sizeof collective_version;
  if (whole.size() <= operation_at ||
      whole[operation_at] != static_cast<std::byte>(collective_operation::exchange))
    return decode_frame({whole.begin(), whole.end()}, size);
  const auto head = encode_frame({}, collective_step::up, {}, {}).size();
  const auto begin = whole.first(std::min(head, whole.size()));
  auto frame = decode_frame({begin.begin(), begin.end()}, size);
  frame.lent = std::move(message.lent);
  return frame;
}

[[nodiscard]] inline std::string call_text(const collective_call& call) {
  std::string text(operation_name(call.operation));
  if (is_on_demand(call.operation)) return text;
  return text.append(" (collective ").append(std::to_string(call.epoch)).append(")");
}

/// "rank 3 is gone", "ranks 3, 7 did not arrive at barrier (collective 5) by the deadline"
[[nodiscard]] inline std::string absent_text(const std::vector<absent_rank>& absent,
                                             const collective_call& call) {
  const auto list = [&](bool lost) {
    std::string ranks;
    std::size_t count = 0;
    for (const auto& each : absent) {
      if (each.lost != lost) continue;
      if (++count > 16) continue;
      ranks.append(ranks.empty() ? "" : ", ").append(std::to_string(each.rank));
    }
    if (count > 16) ranks.append(" and ").append(std::to_string(count - 16)).append(" more");
    return count == 0 ? std::string() : (count == 1 ? "rank " : "ranks ") + ranks;
  };
  const auto lost = list(true);
  const auto late = list(false);
  std::string text;
  if (!lost.empty()) text.append("at ").append(call_text(call)).append(", gone: ").append(lost);
  if (!lost.empty() && !late.empty()) text.append("; ");
  if (!late.empty())
    text.append(late).append(" did not arrive at ").append(call_text(call)).append(" by the deadline");
  return text;
}

/// "rank 3 on node7 (10.1.0.7), rank 7 on node9 (10.1.0.9)": of the first of them whose hosts are known.
[[nodiscard]] inline std::string who_is_absent(const std::vector<absent_rank>& absent) {
  std::string text;
  std::size_t count = 0;
  for (const auto& each : absent) {
    if (each.who.empty() || ++count > 4) continue;
    text.append(text.empty() ? "" : ", ").append(each.who);
  }
  return text;
}

/// Throws what an outcome without a value says: the same on all ranks that hold the same outcome.
[[noreturn]] inline void raise(const outcome& what, const collective_call& call) {
  if (what.failed_rank < 0) {
    const auto& first = what.absent.front();
    fail(first.lost ? error_id::peer_lost : error_id::timeout_peer, absent_text(what.absent, call),
         {.rank = first.rank, .got = who_is_absent(what.absent)});
  }
  wire_reader in(what.failure);
  const auto failure = decode_failure(in, what.failed_rank);
  if (what.absent.empty()) std::rethrow_exception(failure);
  try {
    std::rethrow_exception(failure);
  } catch (const error& e) {
    fail(e.id(), e.message() + "; " + absent_text(what.absent, call), e.fields());
  }
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
