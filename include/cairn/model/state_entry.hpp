// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/dtype.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/model/item.hpp>
#include <cairn/model/tensor_view.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

/// How the memory of an entry is found: an address taken at its word, or a container that is asked anew at
/// each save.
struct memory_binding {
  void* object = nullptr;                   ///< the container, or the address itself where `data` is null
  void* (*data)(void*) = nullptr;           ///< address of the container's first element
  std::uint64_t (*count)(void*) = nullptr;  ///< elements that the container holds now
  void (*resize)(void*, std::uint64_t) = nullptr;  ///< null where the size cannot change
};

/// One name of a state_dict, on this rank. Planners read it; users do not make it.
struct state_entry {
  /// Unique in its state.
  std::string name;
  item_kind kind = item_kind::tensor;
  /// The type of its elements; u8 for bytes.
  dtype type = dtype::u8;
  extents global;  ///< shape of the whole tensor; empty for values; not used for bytes
  item_flags flags;
  std::vector<chunk> boxes;   ///< what this rank holds, in memory order; none of them is empty
  std::int64_t elements = 0;  ///< in all boxes together
  /// Where it lies.
  memory_binding memory;
  tensor_view shape_of_memory;  ///< strides, space and device where the entry is one box; `data` is not used
  bool strided = false;         ///< shape_of_memory holds strides of the user

  /// The memory of a box, asked for now. @throws usage_error (usage_size_changed) if the container does not
  /// fit any more.
  [[nodiscard]] tensor_view view(std::size_t box) const;
  /// The memory of a bytes item, asked for now.
  [[nodiscard]] std::span<std::byte> bytes() const;

 private:
  [[nodiscard]] void* address_now() const {
    return memory.data != nullptr ? memory.data(memory.object) : memory.object;
  }
};

namespace detail {
template <class C>
using element_of = std::remove_pointer_t<decltype(std::data(std::declval<C&>()))>;
template <class C>
concept TensorContainer = requires(C& c) {
  { std::data(c) };
  { std::size(c) } -> std::convertible_to<std::size_t>;
} && Element<element_of<C>> && !std::is_const_v<element_of<C>>;
template <class C>
concept ByteContainer =
    requires(C& c) {
      { std::data(c) };
      { std::size(c) } -> std::convertible_to<std::size_t>;
    } && sizeof(element_of<C>) == 1 && std::is_trivially_copyable_v<element_of<C>> &&
    !std::is_const_v<element_of<C>>;

template <class C>
concept ResizableContainer = requires(C& c) { c.resize(std::size_t{}); };

template <class C>
memory_binding bind_container(C& c) {
  memory_binding m;
  m.object = const_cast<void*>(static_cast<const void*>(std::addressof(c)));
  m.data = [](void* o) -> void* { return std::data(*static_cast<C*>(o)); };
  m.count = [](void* o) -> std::uint64_t { return std::size(*static_cast<C*>(o)); };
  if constexpr (ResizableContainer<C>)
    m.resize = [](void* o, std::uint64_t n) { static_cast<C*>(o)->resize(static_cast<std::size_t>(n)); };
  return m;
}
}  // namespace detail

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/model/state_entry.ipp>
#endif
