// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/known_blocks.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/storage/load/load_work.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/list_view.hpp>
#include <cairn/system/vector.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Finds the blocks of a load that memory does not have, and keeps what is known of memory true while they are read:
/// begin(), then the reads, then finish() if they succeeded. What a part of memory was filled from is exact where it is
/// the same part of the same stored box, and the same digest. So a block is left out only if everything that is wanted
/// of it is; a box that is stored in other pieces than before is read whole. One thread; `work` and `pass` outlive it.
class block_comparison {
 public:
  /// Changes nothing yet. Hashes memory on several threads, where the pass says so. @throws timeout_error
  block_comparison(const load_work& work, const load_plan& plan, block_pass& pass, deadline until);

  /// The blocks to read, in the order of the items. @pre the pass compares
  [[nodiscard]] list_view<const block_place> blocks() const noexcept { return blocks_; }
  /// More blocks that are going to be written, with the bytes that memory has: as another rank lacks them.
  void add(const std::vector<block_place>& blocks);
  /// Calls pass.ready(), and forgets what memory holds where it is going to change.
  void begin();
  /// Remembers what memory holds. @pre all blocks were delivered
  void finish();

 private:
  [[nodiscard]] filled_memory part_of(const load_item& item, const load_want& want,
                                      const load_plan& plan) const;
  void compare(deadline until);
  template <class Each>
  void for_each_want(block_place at, Each&& each) const;
  /// Whether memory holds a block, by its bytes; `room`: for a block whose bytes do not lie together.
  [[nodiscard]] static bool is_in_memory(const load_work& work, block_place at, std::vector<std::byte>& room);

  const load_work& work_;
  block_pass& pass_;
  vector<filled_memory> parts_;  ///< of each want
  std::vector<bool> changes_;    ///< of each want
  vector<block_place> blocks_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/load/block_comparison.ipp>
#endif
