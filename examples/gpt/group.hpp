// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_communicator.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstring>
#include <exception>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace gpt {

/// Over shared memory, over MPI, or of one process: chosen when the program runs.
using cairn::any_communicator;

/// The ranks that train one model together, as one of them sees them. One thread at a time uses it.
class group {
 public:
  /// @param communicator the trainer's own: cairn gets another one, so that neither sees the other's messages
  /// @param timeout how long an exchange waits for another rank
  explicit group(any_communicator communicator, std::chrono::seconds timeout = std::chrono::minutes(5))
      : communicator_(std::move(communicator)), timeout_(timeout) {}

  std::size_t rank() const { return static_cast<std::size_t>(communicator_.rank()); }
  std::size_t size() const { return static_cast<std::size_t>(communicator_.size()); }

  /// Collective: outgoing[r] goes to rank r, incoming[r] is filled by rank r; both have size() entries, and
  /// what r sends to s has the length that s expects from r. Incoming and outgoing parts do not overlap, but
  /// for a rank's own, which may be the same memory. When it returns, this rank may change its memory, and
  /// every other rank has called it.
  /// @throws cairn::error, which names the rank, if one is gone or does not come in time; then every rank
  /// throws, here or in its next exchange
  void exchange(std::span<const std::span<const float>> outgoing,
                std::span<const std::span<float>> incoming) {
    try {
      exchange_in_pairs(outgoing, incoming, cairn::deadline::in(timeout_));
    } catch (const cairn::error& error) {
      // Without a word, those who wait for this rank would take it for the one that is gone.
      told_ = true;
      tell_who_is_missing(error.fields().rank, error.fields().got);
      find_out_who_is_missing(error.fields().rank);
      throw;
    }
  }

  /// This rank ends because a call of others' messages, such as cairn's, failed like this. Where it misses a rank, the others are told,
  /// as exchange() does. @throws cairn::error that names who is missing, where the rank that the call missed has itself left word
  /// that it gives up; returns where it has not, and after an exchange that failed
  void give_up(const cairn::error& error) {
    const bool misses =
        error.id() == cairn::error_id::peer_lost || error.id() == cairn::error_id::timeout_peer;
    if (told_ || !misses || error.fields().rank == communicator_.rank()) return;
    told_ = true;
    tell_who_is_missing(error.fields().rank, error.fields().got);
    find_out_who_is_missing(error.fields().rank);
  }

  /// Collective: returns when every rank has called it.
  void barrier() {
    const std::vector<std::span<const float>> nothing(size());
    const std::vector<std::span<float>> into(size());
    exchange(nothing, into);
  }

 private:
  void exchange_in_pairs(std::span<const std::span<const float>> outgoing,
                         std::span<const std::span<float>> incoming, cairn::deadline until) {
    // In each round the ranks form pairs, and the lower of a pair speaks first: nobody waits in a circle,
    // even where a send returns only when the other side receives.
    for (std::size_t round = 0; round < size(); ++round) {
      const std::size_t other = (round + size() - rank()) % size();
      if (other == rank()) {
        put(std::as_bytes(outgoing[other]), incoming[other], other);
      } else if (rank() < other) {
        send(other, outgoing[other], until);
        receive(other, incoming[other], until);
      } else {
        receive(other, incoming[other], until);
        send(other, outgoing[other], until);
      }
    }
  }

  void send(std::size_t to, std::span<const float> part, cairn::deadline until) {
    try {
      communicator_.send(static_cast<int>(to), std::as_bytes(part), until);
    } catch (const cairn::peer_error&) {
      // It is gone; it may have left word why.
      try {
        for (;;) check_farewell(communicator_.receive(static_cast<int>(to), until), to);
      } catch (const cairn::timeout_error&) {
      }
      throw;
    }
  }
  void receive(std::size_t from, std::span<float> part, cairn::deadline until) {
    const std::vector<std::byte> bytes = communicator_.receive(static_cast<int>(from), until);
    check_farewell(bytes, from);
    put(bytes, part, from);
  }
  static void put(std::span<const std::byte> bytes, std::span<float> part, std::size_t from) {
    if (bytes.size() != part.size_bytes())
      throw std::logic_error("rank " + std::to_string(from) + " sent " + std::to_string(bytes.size()) +
                             " bytes instead of " + std::to_string(part.size_bytes()));
    if (!bytes.empty() && bytes.data() != reinterpret_cast<std::byte*>(part.data()))
      std::memcpy(part.data(), bytes.data(), bytes.size());
  }

  /// Throws where the bytes are what a rank says that gives up because another one is missing.
  static void check_farewell(std::span<const std::byte> bytes, std::size_t from) {
    if (bytes.size() % sizeof(float) != 1) return;  // a part of an exchange has whole floats
    int missing = 0;
    std::memcpy(&missing, bytes.data(), sizeof missing);
    const auto who = bytes.subspan(sizeof missing);
    std::string text(reinterpret_cast<const char*>(who.data()), who.size());
    text.erase(text.find_last_not_of(' ') + 1);
    cairn::fail(cairn::error_id::peer_lost,
                "rank " + std::to_string(from) + " gives up, because another rank is missing",
                {.rank = missing, .got = text});
  }

  /// Whom this rank waited for may itself have waited for another one, and says so now. @throws cairn::error
  /// that names the last of such a chain, who says nothing; returns where that is `missing`
  void find_out_who_is_missing(int missing) {
    std::exception_ptr last;
    for (std::size_t asked = 0; asked < size() && missing >= 0 && missing != communicator_.rank(); ++asked) {
      try {
        const auto until = cairn::deadline::in(std::chrono::seconds(2));
        for (;;) check_farewell(communicator_.receive(missing, until), static_cast<std::size_t>(missing));
      } catch (const cairn::timeout_error&) {
        break;
      } catch (const cairn::peer_error& error) {
        if (error.fields().rank == missing) break;
        missing = error.fields().rank;
        last = std::current_exception();
      }
    }
    if (last) std::rethrow_exception(last);
  }

  void tell_who_is_missing(int missing, std::string who) noexcept {
    do who += ' ';
    while (who.size() % sizeof(float) != 1);
    std::vector<std::byte> bytes(sizeof missing + who.size());
    std::memcpy(bytes.data(), &missing, sizeof missing);
    std::memcpy(bytes.data() + sizeof missing, who.data(), who.size());
    for (int to = 0; to < communicator_.size(); ++to) {
      if (to == missing || to == communicator_.rank()) continue;
      try {
        communicator_.send(to, bytes, cairn::deadline::in(std::chrono::seconds(1)));
      } catch (...) {
        // Then that rank is gone, too, or finds out by itself.
      }
    }
  }

  any_communicator communicator_;
  std::chrono::seconds timeout_;
  bool told_ = false;
};

}  // namespace gpt
