// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/dtype.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/model/item.hpp>
#include <cairn/model/tensor_view.hpp>
#include <cairn/system/error.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
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
  std::string name;
  item_kind kind = item_kind::tensor;
  dtype type = dtype::u8;
  extents global;  ///< shape of the whole tensor; empty for values; not used for bytes
  item_flags flags;
  std::vector<chunk> boxes;   ///< what this rank holds, in memory order; none of them is empty
  std::int64_t elements = 0;  ///< in all boxes together
  memory_binding memory;
  tensor_view shape_of_memory;  ///< strides, space and device where the entry is one box; `data` is not used
  bool strided = false;         ///< shape_of_memory holds strides of the user

  /// The memory of a box, asked for now. @throws usage_error (usage_size_changed) if the container does not
  /// fit any more.
  [[nodiscard]] tensor_view view(std::size_t box) const {
    void* address = address_now();
    if (memory.count != nullptr && memory.count(memory.object) != static_cast<std::uint64_t>(elements))
      fail(
          error_id::usage_size_changed,
          "a container has another size than when its tensor was added; make a new state_dict after resizing",
          {.item = name,
           .expected = std::to_string(elements),
           .got = std::to_string(memory.count(memory.object))});
    if (strided) {
      tensor_view v = shape_of_memory;
      v.data = static_cast<std::byte*>(address);
      return v;
    }
    std::int64_t before = 0;
    for (std::size_t i = 0; i < box; ++i) before += boxes[i].volume();
    tensor_view v =
        contiguous_view(static_cast<std::byte*>(address) + bytes_of(type, before), type, boxes[box].sizes);
    v.space = shape_of_memory.space;
    v.device = shape_of_memory.device;
    return v;
  }
  /// The memory of a bytes item, asked for now.
  [[nodiscard]] std::span<std::byte> bytes() const {
    return {static_cast<std::byte*>(address_now()), static_cast<std::size_t>(memory.count(memory.object))};
  }

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
memory_binding bind_container(C& c) {
  memory_binding m;
  m.object = const_cast<void*>(static_cast<const void*>(std::addressof(c)));
  m.data = [](void* o) -> void* { return std::data(*static_cast<C*>(o)); };
  m.count = [](void* o) -> std::uint64_t { return std::size(*static_cast<C*>(o)); };
  if constexpr (requires { c.resize(std::size_t{}); })
    m.resize = [](void* o, std::uint64_t n) { static_cast<C*>(o)->resize(static_cast<std::size_t>(n)); };
  return m;
}
}  // namespace detail

}  // namespace v1
}  // namespace cairn
