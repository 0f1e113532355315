// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_communicator.hpp>
#include <cairn/concepts/any_executor.hpp>
#include <cairn/concepts/any_observer.hpp>
#include <cairn/concepts/any_planner.hpp>
#include <cairn/concepts/any_stager.hpp>
#include <cairn/concepts/any_storage.hpp>
#include <cairn/concepts/any_store.hpp>
#include <cairn/concepts/any_writer.hpp>
#include <cairn/concepts/byte_store.hpp>
#include <cairn/concepts/portable.hpp>
#include <cairn/concepts/storage.hpp>
#include <cairn/system/shared.hpp>

#include <concepts>
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

// What a checkpointer takes for a role that no argument plays. Their pages are not needed for that.
class default_planner;
class heap_stager;
class single_process;
class thread_executor;
template <ByteStore Store>
class safetensors_storage;
template <ByteStore Store>
class safetensors_writer;

namespace detail {

/// How another process makes the default writer over a store again; see Portable.
struct writer_origin {
  writer_maker maker = nullptr;  ///< null: it cannot
  std::string_view type_name;    ///< of the writer
  /// The description of the store by its own type: an any_store looks through other handles, and would say that
  /// of the store in an any_store_of. Null where it has none.
  std::vector<std::byte> (*describe)(const void* store) = nullptr;
  std::shared_ptr<const void> store = nullptr;
};

[[nodiscard]] any_planners make_default_planners();
/// The same for one rank.
[[nodiscard]] any_planners make_planners_of_one_rank();
[[nodiscard]] any_stager make_default_stager();
[[nodiscard]] any_executor make_default_executor();
[[nodiscard]] any_communicator make_default_communicator();
[[nodiscard]] any_observer make_default_observer();
/// What safetensors_storage is over this store, without its type.
///
/// This one and make_verified_storage_of_one_rank() are templates so that who does not name them compiles nothing of them.
template <class = void>
[[nodiscard]] any_storage make_default_storage(any_store store, writer_origin origin);
/// The same for one rank that saves in its own process.
[[nodiscard]] any_storage make_storage_of_one_rank(any_store store);
/// One that can also verify what it has.
template <class = void>
[[nodiscard]] any_storage make_verified_storage_of_one_rank(any_store store);
/// A writer of that storage from its description; `make` makes the store.
[[nodiscard]] any_writer make_default_writer(std::span<const std::byte> description,
                                             any_store (*make)(std::span<const std::byte>));

template <Portable Store>
[[nodiscard]] any_writer default_writer_made_of(std::span<const std::byte> description) {
  return make_default_writer(description, [](std::span<const std::byte> bytes) {
    return any_store(Store::from_description(bytes));
  });
}
template <ByteStore Store>
[[nodiscard]] any_storage default_storage_over(Store store) {
  const auto held = detail::make_shared<Store>(std::move(store));
  writer_origin origin{.type_name = writer_type_name<safetensors_writer<Store>>()};
  if constexpr (Portable<Store>) {
    origin.maker = &default_writer_made_of<Store>;
    origin.describe = [](const void* described) {
      return static_cast<const Store*>(described)->description();
    };
    origin.store = held;
  }
  return make_default_storage<>(any_store(held), std::move(origin));
}

template <ByteStore Store>
[[nodiscard]] any_storage storage_of_one_rank_over(Store store, any_storage (*make)(any_store)) {
  return make(any_store(detail::make_shared<Store>(std::move(store))));
}

/// Stands for the default writer over a store where an executor is asked whether it accepts it.
template <ByteStore Store>
class default_writer_over : public any_writer {
 public:
  [[nodiscard]] std::vector<std::byte> description() const
    requires Portable<Store>;
  [[nodiscard]] static default_writer_over from_description(std::span<const std::byte> bytes)
    requires Portable<Store>;

 private:
  // Hides what any_writer has for writers of any type.
  void description() const
    requires(!Portable<Store>);
};

/// Whether a storage is for loads alone; the default one is not, and is not asked, as its page need not be there.
template <class Storage>
inline constexpr bool is_read_only = ReadOnlyStorage<Storage>;
template <ByteStore Store>
inline constexpr bool is_read_only<safetensors_storage<Store>> = false;

/// The writer of a storage, as executors are asked about it.
template <class Storage>
struct writer_of {
  using type = decltype(std::declval<Storage&>().writer());
};
template <ByteStore Store>
struct writer_of<safetensors_storage<Store>> {
  using type = default_writer_over<Store>;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
