// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/image_control.hpp>
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

/// A buffer of a Memory; its destructor gives it back.
///
/// - `bytes()`: returns the whole buffer, at least as long as was requested and aligned to
///   image_alignment. Its address stays the same as long as the block lives, also when the block is
///   moved.
template <class B>
concept MemoryBlock = std::movable<B> && requires(const B& block) {
  { block.bytes() } noexcept -> std::same_as<std::span<std::byte>>;
};

/// Allocates the buffers of a buffered_stager.
///
/// - `block_type`: a MemoryBlock. Blocks may outlive the Memory that allocated them.
/// - `space`: a memory_space constant, the kind of memory of the blocks.
/// - `shareable`: a bool constant, whether another process can map a block, so that `process_executor`
///   can write it. Such a block has `shared(digests_offset)`, which returns a shared_image with the last
///   control of make_control().
/// - `allocate(bytes)`: returns a block whose pages are faulted in already. Throws
///   storage_error with the needed and free bytes and the limit: storage_limit for a limit of the process
///   or its group, storage_out_of_memory where the machine has no more. Holds nothing after it has thrown.
/// - `make_control(block)`: returns a fresh control for one image in this block. A handle may keep it
///   long after the block was given to the next image, so it does not own the block. Memory that other
///   processes map places it where both processes see it.
///
/// One thread at a time; any thread may destroy blocks.
template <class M>
concept Memory = std::movable<M> && MemoryBlock<typename M::block_type> &&
                 requires(M& memory, typename M::block_type& block, std::uint64_t bytes) {
                   { M::space } -> std::same_as<const memory_space&>;
                   { M::shareable } -> std::same_as<const bool&>;
                   { memory.allocate(bytes) } -> std::same_as<typename M::block_type>;
                   { memory.make_control(block) } -> std::same_as<std::shared_ptr<image_control>>;
                 };

/// A Memory that can allocate on one NUMA node.
///
/// - `allocate(bytes, node)`: as allocate(bytes), with pages of this node where it has some; negative: of
///   any node.
template <class M>
concept NodeMemory = Memory<M> && requires(M& memory, std::uint64_t bytes, int node) {
  { memory.allocate(bytes, node) } -> std::same_as<typename M::block_type>;
};

}  // namespace v1
}  // namespace cairn
