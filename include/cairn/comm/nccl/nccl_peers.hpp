// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/comm/nccl/nccl_frame.hpp>
#include <cairn/concepts/communicator.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace cuda {
namespace detail {

/// How a word to a peer, or the wait for one, ended.
enum class peer_status : std::uint8_t {
  good,
  late,  ///< not by the deadline, or the peer was known to be gone
  gone,  ///< the peer was found to be gone just now
};

/// A message of a peer; its bytes may still be on their way, by NCCL.
struct nccl_message {
  std::vector<std::byte> bytes;
  bool ready = false;
};

/// The other ranks, as an nccl_world sees them: what goes to and comes from them by the control communicator,
/// the messages that came from each in their order, and who is gone. Used by one thread.
template <Communicator Control>
class nccl_peers {
 public:
  explicit nccl_peers(Control control) : control_(std::move(control)), rank_(control_.rank()) {}

  [[nodiscard]] Control& control() noexcept { return control_; }

  // --- Words

  /// Who was gone in an earlier call is asked anew. `about`: whom the call is about.
  void begin_call(int about) {
    lost_.clear();
    about_ = about;
    where_.clear();
  }
  /// Where the rank is that this call is about, as the control communicator told it when it did not come; may be empty.
  [[nodiscard]] const std::string& where() const noexcept { return where_; }
  [[nodiscard]] bool lost(int peer) const { return lost_.contains(peer); }
  /// A peer that is gone, or did not take it in time, is no matter of this call, unless it is about the same
  /// peer, which is noticed elsewhere. @throws what else the control communicator throws.
  peer_status say(int peer, std::span<const std::byte> frame, deadline until) {
    return contact(peer, [&] { control_.send(peer, frame, until); });
  }
  /// The next frame of a peer, if one comes by the deadline. @throws see say().
  peer_status receive_status(int peer, std::vector<std::byte>& frame, deadline until) {
    return contact(peer, [&] { frame = control_.receive(peer, until); });
  }

  // --- Messages

  /// Sends a message without NCCL, in parts.
  void send(int to, std::uint64_t id, std::span<const std::byte> bytes, deadline until) {
    std::size_t at = 0;
    do {
      const auto part = bytes.subspan(at, std::min(part_bytes, bytes.size() - at));
      at += part.size();
      const auto word = at == bytes.size() ? nccl_opcode::last : nccl_opcode::more;
      control_.send(to, encode_nccl_frame(word, id, bytes.size(), 0, part), until);
    } while (at != bytes.size());
  }
  /// A part of a message that a peer sends so. @throws peer_error (peer_bad_message)
  void take_part(int peer, nccl_frame frame) {
    auto& box = inbox_[peer];
    // A message whose sender gave up in the middle is dropped.
    if (box.part_of != frame.id) box.part.clear();
    box.part_of = frame.id;
    if (frame.part.size() > frame.bytes - std::min<std::uint64_t>(frame.bytes, box.part.size()))
      fail(error_id::peer_bad_message, "a message has more bytes than announced", {.rank = peer});
    if (box.part.empty())
      box.part = std::move(frame.part);
    else
      box.part.insert(box.part.end(), frame.part.begin(), frame.part.end());
    if (frame.word == nccl_opcode::more) return;
    if (box.part.size() != frame.bytes)
      fail(error_id::peer_bad_message, "a message has fewer bytes than announced", {.rank = peer});
    auto whole = std::exchange(box.part, {});
    // A sender whose half failed at the very end sends again what is here.
    if (box.by_nccl != frame.id) box.messages.push_back({std::move(whole), true});
  }
  /// The place of a message that NCCL is to bring into `memory`, behind all that came before; good until
  /// arrived() or dropped(), and then until it is taken.
  [[nodiscard]] nccl_message& expect(int peer, std::vector<std::byte> memory) {
    return inbox_[peer].messages.emplace_back(nccl_message{std::move(memory), false});
  }
  void arrived(int peer, nccl_message& place, std::uint64_t id) {
    place.ready = true;
    inbox_[peer].by_nccl = id;
  }
  void dropped(int peer, const nccl_message& place) {
    auto& messages = inbox_[peer].messages;
    messages.erase(
        std::find_if(messages.begin(), messages.end(), [&](const auto& m) { return &m == &place; }));
  }
  [[nodiscard]] bool has_message(int peer) const {
    const auto at = inbox_.find(peer);
    return at != inbox_.end() && !at->second.messages.empty() && at->second.messages.front().ready;
  }
  /// @pre has_message(peer).
  [[nodiscard]] std::vector<std::byte> take_message(int peer) {
    auto& messages = inbox_[peer].messages;
    auto bytes = std::move(messages.front().bytes);
    messages.pop_front();
    return bytes;
  }

 private:
  static constexpr std::size_t part_bytes = std::size_t{16} << 20;
  struct inbox {
    std::deque<nccl_message> messages;
    std::uint64_t part_of = 0;  ///< which message has come in part
    std::vector<std::byte> part;
    std::uint64_t by_nccl = 0;  ///< the last that NCCL brought
  };

  template <class Call>
  peer_status contact(int peer, Call&& call) {
    try {
      call();
      return peer_status::good;
    } catch (const timeout_error& e) {
      note(peer, e);
      return peer_status::late;
    } catch (const peer_error& e) {
      if (e.id() != error_id::peer_lost || e.fields().rank == rank_) throw;
      note(peer, e);
      return lost_.insert(peer).second ? peer_status::gone : peer_status::late;
    }
  }

  void note(int peer, const error& why) {
    if (peer == about_ && !why.fields().got.empty()) where_ = why.fields().got;
  }

  Control control_;
  int rank_;
  std::map<int, inbox> inbox_;
  std::set<int> lost_;  ///< seen to be gone in this call
  int about_ = -1;
  std::string where_;
};

}  // namespace detail
}  // namespace cuda
}  // namespace v1
}  // namespace cairn
