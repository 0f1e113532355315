// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/dtype.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/model/item.hpp>
#include <cairn/model/placement.hpp>
#include <cairn/model/state_entry.hpp>
#include <cairn/model/tensor_view.hpp>
#include <cairn/system/callback.hpp>
#include <cairn/system/vector.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

class digest_stream;
class migration;
class state_scope;

/// Registers the state of a type that you cannot change; specialise it. A type of yours has a member instead:
/// `void register_state(cairn::state_scope& scope) { scope.tensor("weight", weight_, {n, k}); }`
template <class T>
struct state_of {};

namespace detail {
template <class T>
concept HasRegisterMember = requires(T& t, state_scope& s) { t.register_state(s); };
template <class T>
concept HasStateOf = requires(T& t, state_scope& s) { state_of<T>::register_state(s, t); };
template <class>
inline constexpr bool always_false = false;

}  // namespace detail

/// The named state of a training job on this rank: what saves write and loads restore. It refers to
/// memory and owns none. The memory must be valid at each save and load, and unchanged until the save has
/// released it; the state_dict itself may be changed or destroyed once save() has returned.
///
/// - A container (std::vector, std::array, C array, anything with data() and size()) is kept by
///   reference, and each save asks for its address and size: it may be reassigned, but must keep its size
///   and outlive the state_dict.
/// - The address of a raw pointer or a tensor_view is copied; `rebind` gives the item a new address.
/// - Names are unique; a second item of the same name is a usage error (usage_duplicate_name).
///
/// One thread at a time. Registration costs one or two small allocations for each item.
class state_dict {
 public:
  state_dict() noexcept;
  state_dict(const state_dict& other);
  state_dict(state_dict&& other) noexcept;
  state_dict& operator=(const state_dict& other);
  state_dict& operator=(state_dict&& other) noexcept;
  ~state_dict();

  /// Adds a whole tensor. If several ranks add the same name and shape, it is replicated. `memory`: a
  /// pointer to the elements, a container, or a tensor_view. Flags: copy_now, per_rank, optional, frozen.
  /// @throws usage_error for a bad name or shape, or a container of another size.
  template <class Memory, ItemFlag... Flags>
  void tensor(std::string_view name, Memory&& memory, const extents& shape, Flags... flags) {
    add_tensor(form_of<Memory>(name, memory, flags...), shape);
  }
  /// Adds this rank's shard or flat_shard of a global tensor.
  template <class Memory, Placement P, ItemFlag... Flags>
  void tensor(std::string_view name, Memory&& memory, const P& placement, Flags... flags) {
    add_tensor(form_of<Memory>(name, memory, flags...), placement);
  }
  /// Adds a whole tensor with the shape of the view.
  template <ItemFlag... Flags>
  void tensor(std::string_view name, const tensor_view& view, Flags... flags) {
    tensor(name, view, view.shape, flags...);
  }

  /// Adds an arithmetic value or an enumeration, which loads restore in place. Only lvalues: the
  /// state_dict refers to it.
  template <class T, ItemFlag... Flags>
    requires(std::is_arithmetic_v<T> || std::is_enum_v<T>)
  void value(std::string_view name, T& value, Flags... flags) {
    static_assert(
        Element<T>,
        "cairn::state_dict::value: this type has no dtype; specialise cairn::dtype_for or store it as bytes");
    entry_form form{name};
    form.type = dtype_v<T>;
    form.memory.object = std::addressof(value);
    (detail::set_flag(form.flags, flags), ...);
    add_value(form);
  }

  template <class T, ItemFlag... Flags>
    requires(!std::is_lvalue_reference_v<T>)
  void value(std::string_view, T&&, Flags...) {
    static_assert(detail::always_false<T>,
                  "cairn::state_dict::value: the state_dict refers to the value, so it must be an lvalue "
                  "that outlives it");
  }

  template <class T, ItemFlag... Flags>
    requires(!std::is_arithmetic_v<T> && !std::is_enum_v<T>)
  void value(std::string_view, T&, Flags...) {
    static_assert(
        detail::always_false<T>,
        "cairn::state_dict::value: takes a number or an enumeration; a struct of yours joins through "
        "register_state and state.object(name, it), a std::string or what you serialise to one (a "
        "map, a random generator) through state.bytes(name, it), with cairn::per_rank where each "
        "rank has its own");
  }

  /// Adds opaque bytes: a container of one-byte elements, by reference. Its size may change from save to
  /// save. A load resizes it, or throws where it cannot be resized and the sizes differ. Only lvalues.
  template <detail::ByteContainer C, ItemFlag... Flags>
  void bytes(std::string_view name, C& container, Flags... flags) {
    entry_form form{name};
    form.memory = detail::bind_container(container);
    (detail::set_flag(form.flags, flags), ...);
    add_bytes(form);
  }

  template <class C, ItemFlag... Flags>
    requires(!detail::ByteContainer<C>)
  void bytes(std::string_view, C&, Flags...) {
    static_assert(
        detail::always_false<C>,
        "cairn::state_dict::bytes: takes a container of elements of one byte that may be written "
        "(std::string, std::vector<std::byte>); a container of numbers is a tensor: "
        "state.tensor(name, it, {size}), with cairn::per_rank where each rank has its own; a struct "
        "of yours joins through register_state and state.object(name, it)");
  }
  template <class C, ItemFlag... Flags>
    requires(!std::is_lvalue_reference_v<C>)
  void bytes(std::string_view, C&&, Flags...) {
    static_assert(detail::always_false<C>,
                  "cairn::state_dict::bytes: the state_dict refers to the container, so it must be an lvalue "
                  "that outlives it");
  }

  /// Adds the items that a struct registers, with "prefix." before their names; see state_of. The struct
  /// must outlive the state_dict.
  template <class T>
  void object(std::string_view prefix, T& object);

  /// The version of what the names, shapes and values mean; raise it when a program that has an older one would load
  /// them wrongly. It stands in each checkpoint. A load refuses a checkpoint of a newer version, and
  /// one of an older version unless migrate() was called (plan_state_version). A state without a version, which is 0, takes every
  /// checkpoint as it is; one without a version is older than 1. The same on all ranks.
  /// @throws usage_error (usage_bad_option) if it is negative
  void version(std::int64_t number);
  [[nodiscard]] std::int64_t version() const noexcept { return version_; }
  /// What a load of a checkpoint with an older version does: `hook(cairn::migration&)` is called on each rank, before
  /// anything is planned or read, and says what is different there:
  ///
  ///   state.version(2);
  ///   state.migrate([](cairn::migration& m) {
  ///     if (m.from() < 2) m.use(cairn::rename{{"w", "weight"}});
  ///   });
  ///
  /// What it throws fails the load, on all ranks. The state_dict keeps a copy.
  void migrate(detail::callback<void(migration&)> hook) { migrate_ = std::move(hook); }
  /// What migrate() was given; holds nothing where it was not called.
  [[nodiscard]] const detail::callback<void(migration&)>& migrates() const noexcept { return migrate_; }

  /// Gives a new address to a tensor that was added by pointer or view; a view also gives its strides and
  /// memory space. @throws usage_error if the name is unknown or bound to a container, or the view has
  /// another shape; plan_error for another dtype.
  template <Element T>
  void rebind(std::string_view name, T* data) {
    rebind_to(name, data, dtype_v<T>);
  }
  void rebind(std::string_view name, const tensor_view& view);

  /// All entries in the order of registration.
  [[nodiscard]] std::span<const state_entry> entries() const noexcept {
    return {entries_.data(), entries_.size()};
  }
  /// The entry with a name, or nullptr.
  [[nodiscard]] const state_entry* find(std::string_view name) const;
  /// True if it has no item.
  [[nodiscard]] bool empty() const noexcept { return entries_.empty(); }

  /// A digest of everything that a plan depends on: names, kinds, dtypes, shapes, boxes, flags and the version, but
  /// not addresses, values, or the sizes of items of bytes. Cached until the next registration: O(1)
  /// after the first call.
  [[nodiscard]] std::uint64_t structure() const;
  /// Identifies the entries and their bindings. Equal pointers, of two calls or two copies, mean equal
  /// entries and bindings, except for the addresses and sizes of containers. Each registration and
  /// rebind() changes it. O(1).
  [[nodiscard]] std::shared_ptr<const void> bindings() const;

 private:
  /// What a template knows of an item; the rest is done by functions that are compiled once.
  struct entry_form {
    std::string_view name;
    dtype type = dtype::u8;
    item_flags flags = {};
    memory_binding memory = {};
    const tensor_view* view = nullptr;  ///< where the memory is one
    std::int64_t held = -1;             ///< elements in the memory; -1 where it does not know them
  };
  template <class Memory, ItemFlag... Flags>
  static entry_form form_of(std::string_view name, Memory& memory, Flags... flags) {
    using M = std::remove_cvref_t<Memory>;
    entry_form form{name};
    (detail::set_flag(form.flags, flags), ...);
    if constexpr (std::same_as<M, tensor_view>) {
      form.type = memory.type;
      form.memory.object = memory.data;
      form.view = &memory;
      form.held = memory.shape.volume();
    } else if constexpr (std::is_pointer_v<M>) {
      static_assert(Element<std::remove_pointer_t<M>>,
                    "cairn::state_dict::tensor: pass a pointer to non-const elements that have a dtype "
                    "(specialise cairn::dtype_for), "
                    "or a cairn::tensor_view");
      if constexpr (Element<std::remove_pointer_t<M>>) {
        form.type = dtype_v<std::remove_pointer_t<M>>;
        form.memory.object = memory;
      }
    } else if constexpr (detail::TensorContainer<std::remove_reference_t<Memory>>) {
      static_assert(std::is_lvalue_reference_v<Memory>,
                    "cairn::state_dict::tensor: the state_dict keeps a reference to the container, so it "
                    "must be an lvalue that "
                    "outlives it; pass .data() to bind an address");
      form.type = dtype_v<detail::element_of<std::remove_reference_t<Memory>>>;
      form.memory = detail::bind_container(memory);
      form.memory.resize = nullptr;
      form.held = static_cast<std::int64_t>(std::size(memory));
    } else {
      static_assert(detail::always_false<Memory>,
                    "cairn::state_dict::tensor: the second argument must be an element pointer, a container "
                    "with data() and size() of "
                    "non-const elements, or a cairn::tensor_view");
    }
    return form;
  }
  void add_tensor(const entry_form& form, const extents& shape);
  void add_tensor(const entry_form& form, const shard& s);
  void add_tensor(const entry_form& form, const flat_shard& s);
  void add_value(const entry_form& form);
  void add_bytes(const entry_form& form);
  [[nodiscard]] static state_entry begin_entry(const entry_form& form, item_kind kind);
  static void place(state_entry& e, const shard& s, std::int64_t held);
  static void place(state_entry& e, const flat_shard& s, std::int64_t held);
  void finish_tensor(state_entry e, std::int64_t held);
  void add(state_entry e);
  void rebind_to(std::string_view name, void* data, dtype type);
  static void put(digest_stream& d, const extents& e);
  /// The number of an entry in entries_, or entries_.size().
  [[nodiscard]] std::size_t index_of(std::string_view name) const noexcept;
  void index(std::size_t entry);

  detail::vector<state_entry> entries_;
  std::vector<std::size_t> slots_;  // a hash table of the names: one more than the number of an entry, or 0
  std::int64_t version_ = 0;
  detail::callback<void(migration&)> migrate_;
  mutable std::uint64_t structure_ = 0;
  mutable bool structure_known_ = false;
  mutable std::shared_ptr<const void> bindings_;  // made when it is asked for
};

/// A state_dict that puts a prefix before each name: "encoder." + name. The argument of register_state;
/// it lives only during that call.
class state_scope {
 public:
  state_scope(state_dict& state, std::string prefix) : state_(state), prefix_(std::move(prefix)) {}

  /// As the functions of state_dict of this name.
  template <class Memory, ItemFlag... Flags>
  void tensor(std::string_view name, Memory&& memory, const extents& shape, Flags... flags) {
    state_.tensor(prefix_ + std::string(name), std::forward<Memory>(memory), shape, flags...);
  }
  template <class Memory, Placement P, ItemFlag... Flags>
  void tensor(std::string_view name, Memory&& memory, const P& placement, Flags... flags) {
    state_.tensor(prefix_ + std::string(name), std::forward<Memory>(memory), placement, flags...);
  }
  template <ItemFlag... Flags>
  void tensor(std::string_view name, const tensor_view& view, Flags... flags) {
    state_.tensor(prefix_ + std::string(name), view, flags...);
  }
  /// As state_dict::value.
  template <class T, ItemFlag... Flags>
  void value(std::string_view name, T& value, Flags... flags) {
    state_.value(prefix_ + std::string(name), value, flags...);
  }
  template <class C, ItemFlag... Flags>
  void bytes(std::string_view name, C& container, Flags... flags) {
    state_.bytes(prefix_ + std::string(name), container, flags...);
  }
  /// As state_dict::object; the prefixes are joined by a dot.
  template <class T>
  void object(std::string_view name, T& object) {
    state_.object(prefix_ + std::string(name), object);
  }

 private:
  state_dict& state_;
  std::string prefix_;
};

template <class T>
void state_dict::object(std::string_view prefix, T& object) {
  static_assert(detail::HasRegisterMember<T> || detail::HasStateOf<T>,
                "cairn::state_dict::object: the type joins a state_dict through a member void "
                "register_state(cairn::state_scope&), or a "
                "specialisation cairn::state_of<T> with static void register_state(cairn::state_scope&, T&)");
  state_scope scope(*this, std::string(prefix) + ".");
  if constexpr (detail::HasRegisterMember<T>)
    object.register_state(scope);
  else if constexpr (detail::HasStateOf<T>)
    state_of<T>::register_state(scope, object);
}

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/model/state_dict.ipp>
#endif
