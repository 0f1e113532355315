// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/metadata.hpp>
#include <cairn/system/callback.hpp>
#include <cairn/system/vector.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace cairn {
inline namespace v1 {

struct tensor_view;

/// Addresses of memory, from the first byte to behind the last one.
struct memory_range {
  std::uintptr_t begin = 0;  ///< of the first byte
  std::uintptr_t end = 0;    ///< behind the last one
};
/// Where the elements of a view lie; with strides, also what lies between them. Empty for an empty view.
[[nodiscard]] memory_range range_of(const tensor_view& view) noexcept;

/// Memory that holds a part of a stored item.
struct filled_memory {
  item_key part;  ///< digests of what is stored there, of which item, as which elements, and where it lies
  memory_range memory;                 ///< where it lies
  std::uint64_t first_block = 0;       ///< of the stored item
  std::vector<std::uint64_t> digests;  ///< of the blocks from first_block on that the part was taken from
};

/// From which blocks memory was filled: 8 bytes for each MiB, and about 100 for each part of an item. Memory counts as
/// that of one state_dict and its copies; so what another one has at the same address later is not taken for it. One
/// thread at a time.
class known_blocks {
 public:
  /// The memory with this part that belongs to a state, by state_dict::bindings(); nullptr where it is not known.
  [[nodiscard]] const filled_memory* find(const std::shared_ptr<const void>& state,
                                          const item_key& part) const noexcept;
  /// Forgets what lies in these ranges, whatever state it belongs to, and what belongs to states that are gone.
  void forget(detail::vector<memory_range> ranges);
  /// Remembers what memory holds now, and forgets what else lay there.
  void put(const std::shared_ptr<const void>& state, detail::vector<filled_memory> parts);
  /// Forgets everything.
  void clear() noexcept { states_.clear(); }
  /// True if nothing is known.
  [[nodiscard]] bool empty() const noexcept { return states_.empty(); }
  /// The memory that it takes.
  [[nodiscard]] std::uint64_t bytes() const noexcept;

 private:
  struct known_state {
    std::shared_ptr<const void> state;
    detail::vector<filled_memory> parts;  ///< by key
  };
  detail::vector<known_state> states_;
};

/// What one load does about blocks that are known. A reader fills in the second half.
struct block_pass {
  enum class action : unsigned char {
    read_all,  ///< reads all blocks and remembers them
    compare,   ///< reads only blocks that are not known to be in memory, and remembers all
    remember   ///< reads none: memory holds this checkpoint
  };
  known_blocks* known = nullptr;      ///< outlives the load
  std::shared_ptr<const void> state;  ///< state_dict::bindings()
  action what = action::read_all;     ///< what the load is to do
  bool hash_memory = false;  ///< for compare: finds equal blocks by the bytes in memory, not by what is known
  detail::callback<void()>
      ready;  ///< for compare: called once, before memory changes; what it throws ends the load
  std::uint64_t blocks = 0;            ///< of which something is wanted
  std::uint64_t equal = 0;             ///< of these, in memory already
  std::vector<std::uint32_t> changed;  ///< items of the plan of which something changes in memory
  std::size_t resized = 0;             ///< the first of these: bytes that got another size before ready()
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/model/known_blocks.ipp>
#endif
