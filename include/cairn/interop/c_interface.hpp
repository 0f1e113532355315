// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of <cairn/interop/c_interface.h>, for one .cpp file of a program in C:
//
//     #include <cairn/cairn.hpp>
//     #include <cairn/interop/c_interface.hpp>
//
//     extern "C" cairn_checkpointer* cairn_open(const char* directory) {
//       return cairn::open_for_c([&] { return cairn::checkpointer{cairn::file_store{directory}}; });
//     }
//
// The functions are weak symbols: two files that include this are no error.
#include <cairn/interop/c_interface.h>
#include <cairn/any_checkpointer.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Bytes of a C program: a container of fixed size for state_dict::bytes.
struct c_bytes {
  std::byte* first = nullptr;
  std::size_t count = 0;
  [[nodiscard]] std::byte* data() const noexcept { return first; }
  [[nodiscard]] std::size_t size() const noexcept { return count; }
};

struct c_failure {
  std::string text;
  const char* shown = "";
  std::string opening;  ///< why the last opening on this thread failed; empty where it did not
};
inline c_failure& c_failure_of_thread() noexcept {
  thread_local c_failure last;
  return last;
}

/// Keeps the text of a failure for cairn_error_message(); its number.
inline int keep_failure(const std::exception_ptr& failure) noexcept {
  auto& last = c_failure_of_thread();
  const auto keep = [&](error_id id, const char* text) noexcept {
    try {
      last.text = text;
      last.shown = last.text.c_str();
    } catch (...) {
      last.shown = "memory ran out, also for the text of an error";
    }
    return static_cast<int>(id);
  };
  try {
    std::rethrow_exception(failure);
  } catch (const error& e) {
    return keep(e.id(), e.what());
  } catch (const std::bad_alloc&) {
    return keep(error_id::storage_out_of_memory, "[cairn.storage.out_of_memory] memory ran out");
  } catch (const std::exception& e) {
    return keep(error_id::storage_io, e.what());
  } catch (...) {
    return keep(error_id::storage_io, "an exception of an unknown type was thrown");
  }
}

/// Runs an action of C; nothing leaves it but a number.
template <class Action>
int guarded(Action&& action) noexcept {
  try {
    action();
    return 0;
  } catch (...) {
    return keep_failure(std::current_exception());
  }
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn

/// What a C program's pointer means.
struct cairn_checkpointer {
  cairn::any_checkpointer held;
  cairn::state_dict state = {};
  std::deque<cairn::detail::c_bytes> bytes = {};  ///< at stable addresses, which the state refers to
  std::exception_ptr failed_registration = nullptr;
  std::map<std::string, std::exception_ptr> failed_rebinds = {};  ///< by the name that was given
  bool resumed = false;
};

namespace cairn {
inline namespace v1 {

/// Makes the checkpointer of a C program: `make()` returns a cairn::checkpointer of any composition, or an
/// any_checkpointer. Null, with cairn_error_message(), if it throws. The caller owns the result, cairn_close
/// frees it.
template <class Make>
cairn_checkpointer* open_for_c(Make&& make) noexcept {
  std::unique_ptr<cairn_checkpointer> opened;
  auto& last = detail::c_failure_of_thread();
  last.opening.clear();
  const int failed = detail::guarded([&] {
    auto ckpt = std::make_unique<cairn_checkpointer>(cairn_checkpointer{any_checkpointer(make())});
    if (!ckpt->held.has_value())
      fail(error_id::usage_closed, "the function that makes the checkpointer returned an empty one");
    opened = std::move(ckpt);
  });
  if (failed != 0) static_cast<void>(detail::guarded([&] { last.opening = std::string(last.shown); }));
  return opened.release();
}

namespace detail {

inline cairn_checkpointer& c_checkpointer(cairn_checkpointer* ckpt) {
  if (ckpt == nullptr) {
    const auto& why = c_failure_of_thread().opening;
    if (!why.empty()) fail(error_id::usage_closed, "the checkpointer is null, as opening it failed: " + why);
    fail(error_id::usage_closed,
         "the checkpointer is null: cairn_close has ended it, or it was never opened");
  }
  return *ckpt;
}

inline item_flags c_flags(unsigned flags) {
  if ((flags & ~(unsigned{cairn_copy_now} | unsigned{cairn_per_rank} | unsigned{cairn_optional} |
                 unsigned{cairn_frozen})) != 0)
    fail(error_id::usage_bad_option, "the flags of an item have a bit without a meaning",
         {.got = std::to_string(flags)});
  return {.copy_now = (flags & cairn_copy_now) != 0,
          .per_rank = (flags & cairn_per_rank) != 0,
          .optional = (flags & cairn_optional) != 0,
          .frozen = (flags & cairn_frozen) != 0};
}

inline dtype c_dtype(cairn_dtype type) {
  const auto number = static_cast<std::int64_t>(type);
  if (number < 0 || number > static_cast<std::int64_t>(last_dtype))
    fail(error_id::usage_bad_option, "there is no such cairn_dtype", {.got = std::to_string(number)});
  return static_cast<dtype>(number);
}

inline extents c_extents(const char* name, int dimensions, const std::int64_t* numbers) {
  if (dimensions < 0 || (dimensions > 0 && numbers == nullptr))
    fail(error_id::usage_bad_shape, "the number of dimensions is negative, or an array of sizes is null",
         {.item = name, .got = std::to_string(dimensions)});
  return extents(std::span<const std::int64_t>(numbers, static_cast<std::size_t>(dimensions)));
}

/// The memory of a tensor or of a part of it, as one row: sizes of C may multiply to anything.
inline tensor_view c_memory(const char* name, void* memory, dtype type, const extents& sizes) {
  const auto elements = sizes.checked_volume();
  if (!elements) fail(error_id::usage_bad_shape, "a tensor has more than 2^63 - 1 elements", {.item = name});
  return contiguous_view(memory, type, extents{*elements});
}

/// Runs a registration, and keeps its failure for resume and save.
template <class Add>
int c_register(cairn_checkpointer* ckpt, const char* name, Add&& add) noexcept {
  return guarded([&] {
    auto& c = c_checkpointer(ckpt);
    try {
      if (name == nullptr) fail(error_id::usage_bad_name, "the name of an item is null");
      if (c.resumed)
        fail(error_id::usage_wrong_order,
             "an item was registered after cairn_resume, which did not restore it; register it before",
             {.item = name});
      add(c);
    } catch (...) {
      if (c.failed_registration == nullptr) c.failed_registration = std::current_exception();
      throw;
    }
  });
}

template <class T>
void c_value(state_dict& state, const char* name, void* memory, item_flags flags) {
  if (memory == nullptr || reinterpret_cast<std::uintptr_t>(memory) % alignof(T) != 0)
    fail(error_id::usage_bad_shape, "the address of a value is null, or not aligned to its type",
         {.item = name});
  state.value(name, *static_cast<T*>(memory), flags);
}

inline void c_value(state_dict& state, const char* name, void* memory, dtype type, item_flags flags) {
  switch (type) {
    case dtype::boolean:
      return c_value<bool>(state, name, memory, flags);
    case dtype::u8:
      return c_value<std::uint8_t>(state, name, memory, flags);
    case dtype::i8:
      return c_value<std::int8_t>(state, name, memory, flags);
    case dtype::u16:
      return c_value<std::uint16_t>(state, name, memory, flags);
    case dtype::i16:
      return c_value<std::int16_t>(state, name, memory, flags);
    case dtype::u32:
      return c_value<std::uint32_t>(state, name, memory, flags);
    case dtype::i32:
      return c_value<std::int32_t>(state, name, memory, flags);
    case dtype::u64:
      return c_value<std::uint64_t>(state, name, memory, flags);
    case dtype::i64:
      return c_value<std::int64_t>(state, name, memory, flags);
    case dtype::f32:
      return c_value<float>(state, name, memory, flags);
    case dtype::f64:
      return c_value<double>(state, name, memory, flags);
    default:
      fail(error_id::usage_bad_option, "a value cannot be of this type; register it as a tensor or as bytes",
           {.item = name, .got = std::string(name_of(type))});
  }
}

inline void c_rebind_item(cairn_checkpointer& c, const char* name, void* memory) {
  if (name == nullptr) fail(error_id::usage_bad_name, "the name of an item is null");
  const auto* entry = c.state.find(name);
  if (entry != nullptr && entry->kind == item_kind::bytes) {
    auto& bytes = *static_cast<c_bytes*>(entry->memory.object);
    if (memory == nullptr && bytes.count > 0)
      fail(error_id::usage_bad_shape, "rebind: the new address is null", {.item = name});
    bytes.first = static_cast<std::byte*>(memory);
    return;
  }
  if (entry == nullptr) fail(error_id::usage_unknown_name, "rebind: no item has this name", {.item = name});
  if (entry->kind == item_kind::value &&
      reinterpret_cast<std::uintptr_t>(memory) % bytes_of(entry->type, 1) != 0)
    fail(error_id::usage_bad_shape, "rebind: the new address is not aligned to the type of the value",
         {.item = name});
  c.state.rebind(name, contiguous_view(memory, entry->type, extents{entry->elements}));
}

/// Keeps its failure for resume and save, until it succeeds: they would take the item's old memory for what it holds now.
inline void c_rebind(cairn_checkpointer& c, const char* name, void* memory) {
  const auto kept = c.failed_rebinds.try_emplace(name != nullptr ? name : "").first;
  try {
    c_rebind_item(c, name, memory);
  } catch (...) {
    kept->second = std::current_exception();
    throw;
  }
  c.failed_rebinds.erase(kept);
}

/// What resume and save find before they begin.
inline void c_check_registrations(const cairn_checkpointer& c) {
  if (c.failed_registration != nullptr) std::rethrow_exception(c.failed_registration);
  if (!c.failed_rebinds.empty()) std::rethrow_exception(c.failed_rebinds.begin()->second);
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn

extern "C" {

[[gnu::weak]] int cairn_tensor(cairn_checkpointer* ckpt, const char* name, void* memory, cairn_dtype type,
                               int dimensions, const std::int64_t* shape, unsigned flags) {
  using namespace cairn::detail;
  return c_register(ckpt, name, [&](cairn_checkpointer& c) {
    const auto whole = c_extents(name, dimensions, shape);
    c.state.tensor(name, c_memory(name, memory, c_dtype(type), whole), whole, c_flags(flags));
  });
}

[[gnu::weak]] int cairn_flat_range(cairn_checkpointer* ckpt, const char* name, void* memory, cairn_dtype type,
                                   int dimensions, const std::int64_t* shape, std::int64_t begin,
                                   std::int64_t length, unsigned flags) {
  using namespace cairn::detail;
  return c_register(ckpt, name, [&](cairn_checkpointer& c) {
    const cairn::extents held{length};  // refuses a negative length, which flat_shard would take as unknown
    c.state.tensor(name, c_memory(name, memory, c_dtype(type), held),
                   cairn::flat_shard{c_extents(name, dimensions, shape), begin, length}, c_flags(flags));
  });
}

[[gnu::weak]] int cairn_box(cairn_checkpointer* ckpt, const char* name, void* memory, cairn_dtype type,
                            int dimensions, const std::int64_t* shape, const std::int64_t* offset,
                            const std::int64_t* sizes, unsigned flags) {
  using namespace cairn::detail;
  return c_register(ckpt, name, [&](cairn_checkpointer& c) {
    const auto held = c_extents(name, dimensions, sizes);
    c.state.tensor(
        name, c_memory(name, memory, c_dtype(type), held),
        cairn::shard{c_extents(name, dimensions, shape), c_extents(name, dimensions, offset), held},
        c_flags(flags));
  });
}

[[gnu::weak]] int cairn_value(cairn_checkpointer* ckpt, const char* name, void* memory, cairn_dtype type,
                              unsigned flags) {
  using namespace cairn::detail;
  return c_register(ckpt, name, [&](cairn_checkpointer& c) {
    c_value(c.state, name, memory, c_dtype(type), c_flags(flags));
  });
}

[[gnu::weak]] int cairn_bytes(cairn_checkpointer* ckpt, const char* name, void* memory, std::size_t size,
                              unsigned flags) {
  using namespace cairn::detail;
  return c_register(ckpt, name, [&](cairn_checkpointer& c) {
    if (memory == nullptr && size > 0)
      cairn::fail(cairn::error_id::usage_bad_shape, "the address of a bytes item is null", {.item = name});
    const auto options = c_flags(flags);
    c.bytes.push_back({static_cast<std::byte*>(memory), size});
    c.state.bytes(name, c.bytes.back(), options);
  });
}

[[gnu::weak]] int cairn_rebind(cairn_checkpointer* ckpt, const char* name, void* memory) {
  using namespace cairn::detail;
  return guarded([&] { c_rebind(c_checkpointer(ckpt), name, memory); });
}

[[gnu::weak]] int cairn_resume(cairn_checkpointer* ckpt, std::int64_t* step) {
  using namespace cairn::detail;
  return guarded([&] {
    auto& c = c_checkpointer(ckpt);
    c_check_registrations(c);
    if (step == nullptr)
      cairn::fail(cairn::error_id::usage_bad_option, "cairn_resume needs an address for the step");
    if (const auto newest = c.held.resume(c.state)) *step = *newest;
    c.resumed = true;
  });
}

[[gnu::weak]] int cairn_save(cairn_checkpointer* ckpt, std::int64_t step) {
  using namespace cairn::detail;
  return guarded([&] {
    auto& c = c_checkpointer(ckpt);
    c_check_registrations(c);
    if (!c.resumed)
      cairn::fail(
          cairn::error_id::usage_wrong_order,
          "cairn_save was called before cairn_resume has succeeded; resume first, so that a run never "
          "begins anew beside its checkpoints");
    static_cast<void>(c.held.save(c.state, step));
  });
}

[[gnu::weak]] int cairn_before_update(cairn_checkpointer* ckpt) {
  using namespace cairn::detail;
  return guarded([&] { c_checkpointer(ckpt).held.before_update(); });
}

[[gnu::weak]] int cairn_close(cairn_checkpointer** ckpt) {
  using namespace cairn::detail;
  const std::unique_ptr<cairn_checkpointer> closing(ckpt != nullptr ? std::exchange(*ckpt, nullptr)
                                                                    : nullptr);
  return guarded([&] { c_checkpointer(closing.get()).held.close(); });
}

[[gnu::weak]] const char* cairn_error_message(void) {
  return cairn::detail::c_failure_of_thread().shown;
}

}  // extern "C"

namespace cairn {
inline namespace v1 {
namespace detail {
static_assert(static_cast<int>(last_dtype) == cairn_f4 && static_cast<int>(dtype::boolean) == cairn_boolean &&
              static_cast<int>(dtype::u16) == cairn_u16 && static_cast<int>(dtype::i64) == cairn_i64 &&
              static_cast<int>(dtype::bf16) == cairn_bf16 && static_cast<int>(dtype::f64) == cairn_f64 &&
              static_cast<int>(dtype::f8_e8m0) == cairn_f8_e8m0);
}  // namespace detail
}  // namespace v1
}  // namespace cairn
