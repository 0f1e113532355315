// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_redundancy.hpp>
#include <cairn/concepts/any_store.hpp>
#include <cairn/concepts/image_tier.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {

/// A save that the tiers of some hosts hold between them.
struct surviving_step {
  held_step which;                 ///< one save of one run: images of others are never mixed with it
  std::uint64_t plan_digest = 0;   ///< of the plan of all ranks
  std::vector<std::int32_t> lost;  ///< ranks whose image none of the tiers holds
  std::string missing;  ///< why the save cannot be made whole, in a sentence; empty: it is, or can be
};

/// What tiers that survived hold, ascending by step; of one step the newest last. Reads the records alone. `directories`:
/// of the tiers of all hosts that are left, wherever they lie now. `damaged` gets a sentence for each record of a piece
/// that cannot be read. @throws storage_error
[[nodiscard]] std::vector<surviving_step> find_surviving_steps(std::span<const std::string> directories,
                                                               const any_redundancy& by,
                                                               std::vector<std::string>& damaged);

/// Rebuilds the images of all ranks that are lost of a step, and holds them in the tier in `into`, with the plan: each
/// by a file, and a record that gets its name when all blocks of the image are verified by the digests of the save. Where
/// a block of a piece or of another image is wrong, another source of the same step is taken. `notes` gets a sentence
/// for each source that was wrong or gone. What is rebuilt stays where another one fails. `step.lost` may name more ranks,
/// such as one whose image has a wrong block.
/// @throws peer_error (peer_lost) naming the ranks whose loss is too much; corrupt_error; storage_error
void rebuild_lost_images(std::span<const std::string> directories, const any_redundancy& by,
                         const surviving_step& step, const std::string& into,
                         std::vector<std::string>& notes);

/// Reads all images of a save whole, and gives up those with a wrong block: then they are lost, and may be rebuilt. Returns
/// a sentence for each. @throws storage_error
std::vector<std::string> give_up_damaged_images(std::span<const std::string> directories,
                                                const surviving_step& step);

/// A save of which no image is lost, as a store that nobody writes, for what reads or copies checkpoints.
/// @throws corrupt_error, storage_error
[[nodiscard]] any_store surviving_store(std::span<const std::string> directories, const surviving_step& step);

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/redundancy/lost_images.ipp>
#endif
