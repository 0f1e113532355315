// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <doctest/doctest.h>

#include <cairn/concepts/communicator.hpp>
#include <cairn/model/dtype.hpp>
#include <cairn/system/error.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

/// The conformance suite of Communicator. An Env gives one world:
///
///     struct env {
///       // The size of the world, at least 1.
///       int size();
///       // Runs body(communicator&) once on each rank, at the same time. Rethrows what a rank threw, or
/// throws an
///       // exception of its own that says it.
///       template <class Body> void run(Body body);
///     };
///
/// and is run with `TEST_CASE_TEMPLATE_INVOKE(communicator_conformance, env);`. The bodies check by throwing,
/// so that ranks may be threads or processes.
namespace cairn_test {

inline std::vector<std::byte> bytes_of(std::string_view text) {
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}
inline std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Throws on the rank where the condition does not hold.
inline void expect(bool good, const std::string& what) {
  if (!good) throw std::logic_error(what);
}

/// Longer than anything takes on a busy machine.
inline cairn::deadline ample() {
  return cairn::deadline::in(std::chrono::minutes(4));
}

/// 10 MiB that no other rank's message equals, nor any 4 KiB of it another 4 KiB. Many are made, by builds
/// without optimisation: they differ in the number at the beginning of each 4 KiB.
inline std::vector<std::byte> large_message(int rank) {
  constexpr std::size_t size = 10U << 20, block = 4096;
  static const auto words = [] {
    std::vector<std::uint64_t> made(size / sizeof(std::uint64_t));
    std::uint64_t next = 1;
    for (auto *to = made.data(), *end = to + made.size(); to != end; ++to)
      *to = next = next * 6364136223846793005U + 1442695040888963407U;
    return made;
  }();
  std::vector<std::byte> bytes(size);
  std::memcpy(bytes.data(), words.data(), size);
  for (std::size_t at = 0; at < size; at += block) {
    const auto number = static_cast<std::uint64_t>(rank) << 32 | at;
    std::memcpy(bytes.data() + at, &number, sizeof number);
  }
  return bytes;
}

/// The same as ==, which compares byte by byte and is slow without optimisation.
inline bool same_bytes(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

}  // namespace cairn_test

TEST_CASE_TEMPLATE_DEFINE("Communicator conformance", Env, communicator_conformance) {
  using namespace cairn_test;
  Env env;
  const int size = env.size();

  SUBCASE("rank and size") {
    CHECK_NOTHROW(env.run([size](auto& comm) {
      expect(comm.size() == size, "the size differs from the world's");
      expect(comm.rank() >= 0 && comm.rank() < size, "the rank is outside of the world");
    }));
  }
  SUBCASE("messages of a pair keep their order, also to oneself") {
    CHECK_NOTHROW(env.run([size](auto& comm) {
      for (const int step : {0, 1}) {
        const int next = (comm.rank() + step) % size;
        const int previous = (comm.rank() - step + size) % size;
        for (int i = 0; i < 200; ++i)
          comm.send(next, bytes_of(std::to_string(comm.rank()) + "/" + std::to_string(i)), ample());
        for (int i = 0; i < 200; ++i) {
          const auto got = text_of(comm.receive(previous, ample()));
          expect(got == std::to_string(previous) + "/" + std::to_string(i), "out of order: " + got);
        }
      }
    }));
  }
  SUBCASE("an empty message is a message") {
    CHECK_NOTHROW(env.run([size](auto& comm) {
      comm.send((comm.rank() + 1) % size, {}, ample());
      comm.send((comm.rank() + 1) % size, bytes_of("after"), ample());
      const int previous = (comm.rank() + size - 1) % size;
      expect(comm.receive(previous, ample()).empty(), "the empty message came with bytes");
      expect(text_of(comm.receive(previous, ample())) == "after", "the message after the empty one differs");
    }));
  }
  SUBCASE("the sender may reuse its memory when send returns") {
    CHECK_NOTHROW(env.run([size](auto& comm) {
      auto message = bytes_of("first");
      comm.send((comm.rank() + 1) % size, message, ample());
      message = bytes_of("other");
      expect(text_of(comm.receive((comm.rank() + size - 1) % size, ample())) == "first",
             "the message changed");
    }));
  }
  SUBCASE("10 MiB in one message") {
    CHECK_NOTHROW(env.run([size](auto& comm) {
      // In turn, so that a transport whose send waits for the receiver passes, too.
      const int next = (comm.rank() + 1) % size;
      const int previous = (comm.rank() + size - 1) % size;
      if (comm.rank() == 0) comm.send(next, large_message(0), ample());
      expect(same_bytes(comm.receive(previous, ample()), large_message(previous)),
             "the large message differs");
      if (comm.rank() != 0) comm.send(next, large_message(comm.rank()), ample());
    }));
  }
  SUBCASE("all to all, received in another order than sent") {
    CHECK_NOTHROW(env.run([size](auto& comm) {
      for (int to = 0; to < size; ++to)
        comm.send(to, bytes_of(std::to_string(comm.rank()) + " to " + std::to_string(to)), ample());
      for (int from = size - 1; from >= 0; --from) {
        const auto got = text_of(comm.receive(from, ample()));
        expect(got == std::to_string(from) + " to " + std::to_string(comm.rank()), "wrong message: " + got);
      }
    }));
  }
  SUBCASE("a wait that times out names the peer, and later messages still arrive") {
    CHECK_NOTHROW(env.run([size](auto& comm) {
      const int last = size - 1;
      if (comm.rank() == 0) {
        try {
          static_cast<void>(comm.receive(last, cairn::deadline::in(std::chrono::milliseconds(30))));
          expect(false, "a message came that nobody sent");
        } catch (const cairn::timeout_error& e) {
          expect(e.id() == cairn::error_id::timeout_peer, "another id than timeout.peer");
          expect(e.fields().rank == last, "the peer is not named");
        }
        comm.send(last, bytes_of("now"), ample());
      }
      if (comm.rank() == last) {
        expect(text_of(comm.receive(0, ample())) == "now", "the message to the last rank differs");
        comm.send(0, bytes_of("late"), ample());
      }
      if (comm.rank() == 0)
        expect(text_of(comm.receive(last, ample())) == "late", "the message after the timeout differs");
    }));
  }
  SUBCASE("what has arrived is received even after the deadline") {
    CHECK_NOTHROW(env.run([](auto& comm) {
      comm.send(comm.rank(), bytes_of("here"), ample());
      const auto got = comm.receive(comm.rank(), cairn::deadline::in(std::chrono::nanoseconds(0)));
      expect(text_of(got) == "here", "the message differs");
    }));
  }
  SUBCASE("a rank outside of the world is a usage error") {
    CHECK_NOTHROW(env.run([size](auto& comm) {
      for (const int peer : {-1, size, 1 << 20}) {
        try {
          comm.send(peer, bytes_of("x"), ample());
          expect(false, "a message went to a rank that does not exist");
        } catch (const cairn::usage_error&) {
        }
        try {
          static_cast<void>(comm.receive(peer, ample()));
          expect(false, "a message came from a rank that does not exist");
        } catch (const cairn::usage_error&) {
        }
      }
    }));
  }
  SUBCASE("a communicator that was moved goes on where it was") {
    CHECK_NOTHROW(env.run([size](auto& comm) {
      comm.send((comm.rank() + 1) % size, bytes_of("one"), ample());
      auto moved = std::move(comm);
      moved.send((moved.rank() + 1) % size, bytes_of("two"), ample());
      comm = std::move(moved);
      const int previous = (comm.rank() + size - 1) % size;
      expect(text_of(comm.receive(previous, ample())) == "one", "the first message differs");
      expect(text_of(comm.receive(previous, ample())) == "two", "the second message differs");
    }));
  }
}
