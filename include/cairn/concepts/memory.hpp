// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/image_layout.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/model/tensor_view.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace cairn {
inline namespace v1 {

/// A buffer that a Memory gave; its destructor gives it back.
///
/// - `bytes()`: the whole buffer, at least as long as was asked for, aligned to image_alignment; the same
///   address as long as the block lives, also when the block is moved.
template <class B>
concept MemoryBlock = std::movable<B> && requires(const B& block) {
  { block.bytes() } noexcept -> std::same_as<std::span<std::byte>>;
};

/// Where the buffers of a buffered_stager come from.
///
/// - `block_type`: a MemoryBlock. Blocks outlive the memory that gave them.
/// - `space`: a memory_space constant: what kind of memory the blocks are. `shareable`: a bool constant:
///   whether another process can map a block (then `process_executor` can write it): such a block has
///   `shared(digests_offset)`, which gives a shared_image with the control that make_control() gave last.
/// - `allocate(bytes)`: a block that can be written at full speed: its pages are there already. Throws
///   storage_error, the message naming needed, free and the limit: storage_limit where a limit of the process
///   or its group is in the way, storage_out_of_memory where the machine has no more. Nothing is held after a
///   throw.
/// - `make_control(block)`: a fresh control for one image in this block. A handle may keep it long after the
///   block was given to the next image, so it does not own the block; memories that share blocks place it
///   where both processes see it.
///
/// One thread at a time; blocks are destroyed by any thread.
template <class M>
concept Memory = std::movable<M> && MemoryBlock<typename M::block_type> &&
                 requires(M& memory, typename M::block_type& block, std::uint64_t bytes) {
                   { M::space } -> std::same_as<const memory_space&>;
                   { M::shareable } -> std::same_as<const bool&>;
                   { memory.allocate(bytes) } -> std::same_as<typename M::block_type>;
                   { memory.make_control(block) } -> std::same_as<std::shared_ptr<image_control>>;
                 };

/// What a Memory may offer besides, where its pages can come from one NUMA node.
///
/// - `allocate(bytes, node)`: as allocate(bytes), with pages of this node where it has them; negative: of any.
template <class M>
concept NodeMemory = Memory<M> && requires(M& memory, std::uint64_t bytes, int node) {
  { memory.allocate(bytes, node) } -> std::same_as<typename M::block_type>;
};

}  // namespace v1
}  // namespace cairn
