// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/communicator.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/wire.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <span>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What stands before each piece of a message in a ring. A message is one piece or more; the first piece of
/// the next one ends a message that its sender gave up.
struct piece_header {
  static constexpr std::uint32_t piece_magic = 0x45504343;  // "CCPE"
  static constexpr std::uint32_t first = 1;
  static constexpr std::uint32_t last = 2;

  std::uint32_t magic = piece_magic;
  std::uint32_t flags = 0;
  std::uint32_t bytes = 0;          ///< of this piece, behind the header
  std::uint32_t sequence = 0;       ///< counts the pieces of a ring, from 0, wrapping
  std::uint64_t message_bytes = 0;  ///< of the whole message
  std::uint64_t digest = 0;         ///< piece_digest of the fields above and the bytes
};
static_assert(sizeof(piece_header) == 32);

[[nodiscard]] inline std::uint64_t piece_digest(const piece_header& h,
                                                std::span<const std::byte> bytes) noexcept {
  const std::array<std::uint64_t, 4> parts{h.magic | std::uint64_t{h.flags} << 32,
                                           h.bytes | std::uint64_t{h.sequence} << 32, h.message_bytes,
                                           digest(bytes)};
  return digest(std::as_bytes(std::span(parts)));
}

/// Bytes that lie in a ring: in one part, or in two where they go round its end. They may change while they
/// are read, if the other side is hostile: they are copied first and checked then.
struct ring_bytes {
  std::span<const std::byte> front;
  std::span<const std::byte> back = {};

  [[nodiscard]] std::size_t size() const noexcept { return front.size() + back.size(); }
  /// The `count` bytes from `from` on, which are there.
  [[nodiscard]] ring_bytes part(std::size_t from, std::size_t count) const noexcept {
    if (from >= front.size()) return {back.subspan(from - front.size(), count)};
    const auto here = std::min(count, front.size() - from);
    return {front.subspan(from, here), back.first(count - here)};
  }
  void append_to(std::vector<std::byte>& out) const {
    out.insert(out.end(), front.begin(), front.end());
    out.insert(out.end(), back.begin(), back.end());
  }
};

/// Puts the messages of one sender together from their pieces, which are hostile until checked.
class message_assembler {
 public:
  /// Takes the piece at the front of `ring`; a message that it ends goes to `messages`. Returns the bytes
  /// that the piece took. One piece must be there whole, as senders publish them.
  /// @throws wire_error if the bytes are no piece that belongs here; the assembler is useless then. bad_alloc
  /// leaves everything as it was.
  std::size_t take(const ring_bytes& ring, std::deque<std::vector<std::byte>>& messages) {
    piece_header h;
    if (ring.size() < sizeof h) fail_here("a piece of a message is cut off");
    const auto raw = ring.part(0, sizeof h);
    auto* to = reinterpret_cast<std::byte*>(&h);
    std::copy(raw.back.begin(), raw.back.end(), std::copy(raw.front.begin(), raw.front.end(), to));
    const bool first = (h.flags & piece_header::first) != 0;
    const std::size_t before = first ? 0 : partial_.size();
    check(h, first, before, ring.size() - sizeof h);
    if (first) {
      partial_.clear();
      open_ = false;
    }
    const bool last = (h.flags & piece_header::last) != 0;
    if (last) messages.emplace_back();  // before anything is changed: it may throw
    try {
      if (const auto after = before + h.bytes; after > partial_.capacity()) {
        // Memory follows what really arrives: a piece may claim a long message and be all of it that comes.
        partial_.reserve(static_cast<std::size_t>(
            std::min(h.message_bytes, std::max<std::uint64_t>(4 * after, first_reserved))));
      }
      ring.part(sizeof h, h.bytes).append_to(partial_);
      if (piece_digest(h, std::span<const std::byte>(partial_).subspan(before)) != h.digest)
        fail_here("a piece of a message is damaged: its digest differs");
    } catch (...) {
      if (last) messages.pop_back();
      throw;
    }
    open_ = !last;
    expected_ = h.message_bytes;
    if (last) {
      messages.back().swap(partial_);
      partial_ = {};
    }
    ++sequence_;
    const auto taken = sizeof h + h.bytes;
    offset_ += taken;
    return taken;
  }
  /// Bytes of the message that is not complete yet.
  [[nodiscard]] std::size_t partial_bytes() const noexcept { return partial_.size(); }

 private:
  void check(const piece_header& h, bool first, std::size_t before, std::size_t there) const {
    if (h.magic != piece_header::piece_magic) fail_here("the magic number of a piece is missing");
    if ((h.flags & ~(piece_header::first | piece_header::last)) != 0) fail_here("a piece has unknown flags");
    if (h.sequence != sequence_) fail_here("a piece is missing or comes twice");
    if (h.bytes > there) fail_here("a piece is longer than what was sent");
    if (h.message_bytes > max_message_bytes) fail_here("a message is longer than 1 GiB");
    if (!first && (!open_ || h.message_bytes != expected_)) fail_here("a piece belongs to no message");
    const auto after = before + h.bytes;
    if (after > h.message_bytes) fail_here("the pieces of a message are longer than the message");
    if ((after == h.message_bytes) != ((h.flags & piece_header::last) != 0))
      fail_here("a message ends in the wrong place");
    if (h.bytes == 0 && h.message_bytes != 0) fail_here("a piece is empty");
  }
  [[noreturn]] void fail_here(const char* why) const {
    throw wire_error(why, static_cast<std::size_t>(offset_));
  }

  static constexpr std::uint64_t first_reserved = std::uint64_t{64} << 10;

  std::vector<std::byte> partial_;
  std::uint64_t expected_ = 0;  ///< bytes of the message that is open
  std::uint64_t offset_ = 0;    ///< bytes taken
  std::uint32_t sequence_ = 0;
  bool open_ = false;
};

/// All messages in `bytes`, as if a ring had carried nothing else; a last one without its end is dropped.
/// @throws wire_error if the bytes are no pieces.
[[nodiscard]] inline std::deque<std::vector<std::byte>> read_pieces(std::span<const std::byte> bytes) {
  std::deque<std::vector<std::byte>> messages;
  message_assembler assembler;
  while (!bytes.empty()) bytes = bytes.subspan(assembler.take({bytes}, messages));
  return messages;
}

/// How far a ring was written and read, in bytes since its beginning: all that its two ends share beside the
/// bytes themselves. Each counter has one writer and a cache line of its own. Zeros are an empty ring.
struct ring_counters {
  alignas(64) std::atomic<std::uint64_t> written{0};
  alignas(64) std::atomic<std::uint64_t> read{0};
};
static_assert(sizeof(ring_counters) == 128 && std::atomic<std::uint64_t>::is_always_lock_free);

/// A message on its way into a ring.
struct outgoing_message {
  std::span<const std::byte> bytes;
  std::size_t sent = 0;
  bool begun = false;

  [[nodiscard]] bool done() const noexcept { return begun && sent == bytes.size(); }
};

/// The writing end of a ring. It trusts of the shared memory only what it has checked, and keeps its own
/// place to itself. One thread; no lock, nothing that its death leaves behind.
class ring_writer {
 public:
  ring_writer() = default;
  /// `memory`: of a power of two of bytes.
  ring_writer(ring_counters& shared, std::span<std::byte> memory) noexcept
      : shared_(&shared), memory_(memory) {}

  /// Puts as much of the message into the ring as there is room for, in pieces of at most half of the ring.
  /// Whether anything was put. @throws wire_error if the reader's counter is impossible.
  bool put(outgoing_message& message) {
    bool any = false;
    const auto half = memory_.size() / 2 - sizeof(piece_header);
    while (!message.done()) {
      const auto wanted = std::min(message.bytes.size() - message.sent, half);
      const auto free = room();
      // Not in crumbs: each piece has its price.
      if (free < sizeof(piece_header) + std::min(wanted, half / 2)) return any;
      put_piece(message, std::min(wanted, free - sizeof(piece_header)));
      any = true;
    }
    return any;
  }

 private:
  [[nodiscard]] std::size_t room() const {
    const auto used = written_ - shared_->read.load(std::memory_order_seq_cst);
    if (used > memory_.size()) throw wire_error("the reader's place in a ring is impossible", written_);
    return memory_.size() - static_cast<std::size_t>(used);
  }
  void put_piece(outgoing_message& message, std::size_t bytes) noexcept {
    const auto part = message.bytes.subspan(message.sent, bytes);
    piece_header h;
    h.bytes = static_cast<std::uint32_t>(bytes);
    h.sequence = sequence_++;
    h.message_bytes = message.bytes.size();
    h.flags = (message.begun ? 0 : piece_header::first) |
              (message.sent + bytes == message.bytes.size() ? piece_header::last : 0);
    h.digest = piece_digest(h, part);
    copy_in(0, std::as_bytes(std::span(&h, 1)));
    copy_in(sizeof h, part);
    written_ += sizeof h + bytes;
    shared_->written.store(written_, std::memory_order_seq_cst);
    message.begun = true;
    message.sent += bytes;
  }
  void copy_in(std::size_t behind, std::span<const std::byte> bytes) noexcept {
    if (bytes.empty()) return;
    const auto at = static_cast<std::size_t>(written_ + behind) & (memory_.size() - 1);
    const auto here = std::min(bytes.size(), memory_.size() - at);
    std::memcpy(memory_.data() + at, bytes.data(), here);
    if (here < bytes.size()) std::memcpy(memory_.data(), bytes.data() + here, bytes.size() - here);
  }

  ring_counters* shared_ = nullptr;
  std::span<std::byte> memory_;
  std::uint64_t written_ = 0;
  std::uint32_t sequence_ = 0;
};

/// The reading end of a ring; see ring_writer.
class ring_reader {
 public:
  ring_reader() = default;
  ring_reader(ring_counters& shared, std::span<const std::byte> memory) noexcept
      : shared_(&shared), memory_(memory) {}

  /// Bytes that lie there now. @throws wire_error if the writer's counter is impossible.
  [[nodiscard]] std::size_t available() const {
    const auto there = shared_->written.load(std::memory_order_seq_cst) - read_;
    if (there > memory_.size()) throw wire_error("the writer's place in a ring is impossible", read_);
    return static_cast<std::size_t>(there);
  }
  /// Takes one piece, if there is one; a message that it ends goes to `messages`. The bytes that it took.
  /// @throws wire_error if what lies there is no piece, or as available().
  std::size_t take(std::deque<std::vector<std::byte>>& messages) {
    const auto there = available();
    if (there == 0) return 0;
    const auto at = static_cast<std::size_t>(read_) & (memory_.size() - 1);
    const auto here = std::min(there, memory_.size() - at);
    const auto taken = assembler_.take({memory_.subspan(at, here), memory_.first(there - here)}, messages);
    read_ += taken;
    shared_->read.store(read_, std::memory_order_seq_cst);
    return taken;
  }
  [[nodiscard]] std::size_t partial_bytes() const noexcept { return assembler_.partial_bytes(); }

 private:
  ring_counters* shared_ = nullptr;
  std::span<const std::byte> memory_;
  std::uint64_t read_ = 0;
  message_assembler assembler_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
