// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/communicator.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/wire.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace cuda {
namespace detail {

/// What two ranks say to each other about a message. Of each pair the lower rank begins a transfer, so that
/// no circle of ranks waits for each other: a rank that waits for a higher one is not waited for by it.
enum class nccl_opcode : std::uint8_t {
  more,        ///< a part of a message, with its bytes
  last,        ///< its last part
  offer,       ///< higher to lower: there is a message for you
  give,        ///< lower to higher: take this message now
  take,        ///< lower to higher: send the message that you offered now
  ready,       ///< higher to lower: I do nothing else until you say go or cancel
  go,          ///< lower to higher: my half of the transfer begins, begin yours
  received,    ///< by the receiver: all of it is here
  cancel,      ///< what was said of this message is void
  by_control,  ///< send it without NCCL
  aborted,     ///< this rank no longer uses NCCL; what was under way is void
};

struct nccl_frame {
  nccl_opcode word{};
  std::uint64_t id = 0;      ///< of a message of one sender; odd for those from the lower rank of a pair
  std::uint64_t bytes = 0;   ///< of the whole message
  std::uint64_t ticket = 0;  ///< which attempt to begin its transfer; 0: whichever
  std::vector<std::byte> part;

  static constexpr std::size_t head_bytes = 25;
};

[[nodiscard]] inline std::vector<std::byte> encode_nccl_frame(nccl_opcode word, std::uint64_t id,
                                                              std::uint64_t bytes, std::uint64_t ticket = 0,
                                                              std::span<const std::byte> part = {}) {
  wire_writer out;
  out.put(word).put(id).put(bytes).put(ticket).raw(part);
  return out.take();
}

/// @throws peer_error (peer_bad_message)
[[nodiscard]] inline nccl_frame decode_nccl_frame(std::span<const std::byte> message, int from) {
  try {
    wire_reader in(message);
    nccl_frame frame;
    frame.word = in.get_enum(nccl_opcode::aborted);
    frame.id = in.get<std::uint64_t>();
    frame.bytes = in.get<std::uint64_t>();
    frame.ticket = in.get<std::uint64_t>();
    if (frame.bytes > max_message_bytes) in.fail_here("a message is longer than 1 GiB");
    const auto rest = in.take(message.size() - nccl_frame::head_bytes);
    if (frame.word > nccl_opcode::last && !rest.empty()) in.fail_here("bytes follow the end");
    frame.part.assign(rest.begin(), rest.end());
    return frame;
  } catch (const wire_error& e) {
    fail(error_id::peer_bad_message,
         std::string("a message is not one of this communicator's: ") + e.what() +
             "; give it a control communicator that carries nothing else",
         {.rank = from, .offset = static_cast<std::int64_t>(e.offset)});
  }
}

}  // namespace detail
}  // namespace cuda
}  // namespace v1
}  // namespace cairn
