// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/dtype.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/model/item.hpp>
#include <cairn/model/placement.hpp>
#include <cairn/model/state_dict.hpp>
#include <cairn/model/state_entry.hpp>
#include <cairn/model/tensor_view.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/shared.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

CAIRN_BODY state_dict::state_dict() noexcept = default;
CAIRN_BODY state_dict::state_dict(const state_dict& other) = default;
CAIRN_BODY state_dict::state_dict(state_dict&& other) noexcept = default;
CAIRN_BODY state_dict& state_dict::operator=(const state_dict& other) {
  return *this = state_dict(other);
}
CAIRN_BODY state_dict& state_dict::operator=(state_dict&& other) noexcept = default;
CAIRN_BODY state_dict::~state_dict() = default;

CAIRN_BODY const state_entry* state_dict::find(std::string_view name) const {
  const auto found = index_of(name);
  return found == entries_.size() ? nullptr : &entries_[found];
}

CAIRN_BODY std::size_t state_dict::index_of(std::string_view name) const noexcept {
  if (slots_.empty()) return entries_.size();
  for (auto at = static_cast<std::size_t>(digest(name));; ++at) {
    const auto slot = slots_[at & (slots_.size() - 1)];
    if (slot == 0) return entries_.size();
    if (entries_[slot - 1].name == name) return slot - 1;
  }
}

CAIRN_BODY void state_dict::index(std::size_t entry) {
  auto at = static_cast<std::size_t>(digest(entries_[entry].name));
  while (slots_[at & (slots_.size() - 1)] != 0) ++at;
  slots_[at & (slots_.size() - 1)] = entry + 1;
}

CAIRN_BODY state_entry state_dict::begin_entry(const entry_form& form, item_kind kind) {
  if (const auto problem = name_problem(form.name); !problem.empty())
    fail(error_id::usage_bad_name, "the name of an item " + std::string(problem),
         {.item = std::string(form.name.substr(0, 200))});
  state_entry e;
  e.name = form.name;
  e.kind = kind;
  e.type = form.type;
  e.flags = form.flags;
  e.memory = form.memory;
  if (form.view != nullptr) {
    e.shape_of_memory = *form.view;
    e.strided = !form.view->contiguous();
  }
  return e;
}

CAIRN_BODY void state_dict::add_tensor(const entry_form& form, const extents& shape) {
  auto e = begin_entry(form, item_kind::tensor);
  e.global = shape;
  e.boxes = {whole(shape)};
  finish_tensor(std::move(e), form.held);
}

CAIRN_BODY void state_dict::add_tensor(const entry_form& form, const shard& s) {
  auto e = begin_entry(form, item_kind::tensor);
  place(e, s, form.held);
  finish_tensor(std::move(e), form.held);
}

CAIRN_BODY void state_dict::add_tensor(const entry_form& form, const flat_shard& s) {
  auto e = begin_entry(form, item_kind::tensor);
  place(e, s, form.held);
  finish_tensor(std::move(e), form.held);
}

CAIRN_BODY void state_dict::add_value(const entry_form& form) {
  auto e = begin_entry(form, item_kind::value);
  e.boxes = {whole({})};
  e.elements = 1;
  add(std::move(e));
}

CAIRN_BODY void state_dict::add_bytes(const entry_form& form) {
  add(begin_entry(form, item_kind::bytes));
}

CAIRN_BODY std::uint64_t state_dict::structure() const {
  if (structure_known_) return structure_;
  digest_stream d;
  for (const auto& e : entries_) {
    d.put(e.name).put(e.kind).put(e.type).put(e.flags.copy_now).put(e.flags.per_rank).put(e.flags.optional);
    d.put(e.flags.frozen);
    put(d, e.global);
    d.put(static_cast<std::uint64_t>(e.boxes.size()));
    for (const auto& b : e.boxes) put(d, b.offsets), put(d, b.sizes);
  }
  if (version_ != 0) d.put(version_);
  structure_ = d.value();
  structure_known_ = true;
  return structure_;
}

CAIRN_BODY void state_dict::version(std::int64_t number) {
  if (number < 0)
    fail(error_id::usage_bad_option, "the version of a state is not negative",
         {.got = std::to_string(number)});
  version_ = number;
  structure_known_ = false;
}

CAIRN_BODY std::shared_ptr<const void> state_dict::bindings() const {
  if (bindings_ == nullptr) bindings_ = detail::make_shared<const char>();
  return bindings_;
}

CAIRN_BODY void state_dict::put(digest_stream& d, const extents& e) {
  d.put(e.rank());
  for (auto v : e) d.put(v);
}

CAIRN_BODY void state_dict::place(state_entry& e, const shard& s, std::int64_t held) {
  e.global = s.global;
  chunk box{s.offset, s.sizes};
  if (s.offset.rank() != s.global.rank())
    fail(error_id::usage_bad_shape, "a shard's offset has another number of dimensions than its global shape",
         {.item = e.name, .expected = to_string(s.global), .got = to_string(s.offset)});
  if (s.sizes.rank() == 0 && s.global.rank() > 0) {
    if (held < 0)
      fail(error_id::usage_bad_shape,
           "a shard over a raw pointer needs its sizes: cairn::shard{global, offset, sizes}",
           {.item = e.name});
    box.sizes = s.global;
    std::int64_t row = 1;
    for (int d = 1; d < s.global.rank(); ++d) row *= s.global[d];
    if (row != 0 && held % row != 0)
      fail(error_id::usage_bad_shape,
           "a container does not hold whole rows of its shard; give the sizes: cairn::shard{global, offset, "
           "sizes}",
           {.item = e.name, .expected = "a multiple of " + std::to_string(row), .got = std::to_string(held)});
    box.sizes.set(0, row == 0 ? 0 : held / row);
  }
  if (!inside(box, s.global))
    fail(error_id::usage_bad_shape, "a shard reaches outside of its global shape",
         {.item = e.name, .expected = "inside " + to_string(s.global), .got = to_string(box)});
  e.boxes = {box};
}

CAIRN_BODY void state_dict::place(state_entry& e, const flat_shard& s, std::int64_t held) {
  e.global = s.global;
  const auto volume = s.global.checked_volume();
  const auto length = s.length >= 0 ? s.length : held;
  if (length < 0)
    fail(error_id::usage_bad_shape,
         "a flat_shard over a raw pointer needs its length: cairn::flat_shard{global, begin, length}",
         {.item = e.name});
  if (!volume || s.begin < 0 || s.begin > *volume || length > *volume - s.begin)
    fail(error_id::usage_bad_shape, "a flat_shard reaches outside of its global shape",
         {.item = e.name,
          .expected = "inside " + to_string(s.global),
          .got = "[" + std::to_string(s.begin) + ", +" + std::to_string(length) + ")"});
  if (e.strided)
    fail(error_id::usage_bad_shape, "a flat_shard needs contiguous memory; this view has strides",
         {.item = e.name});
  e.boxes = boxes_of_range(s.global, s.begin, length);
}

CAIRN_BODY void state_dict::finish_tensor(state_entry e, std::int64_t held) {
  if (!checked_bytes(e.type, e.global))
    fail(error_id::usage_bad_shape,
         "a tensor is larger than 2^63 bits, or its packed elements do not fill whole bytes",
         {.item = e.name, .got = to_string(e.global)});
  detail::erase_if(e.boxes, [](const chunk& b) { return b.empty(); });
  for (const auto& b : e.boxes) {
    e.elements += b.volume();
    const auto granule = granule_of(e.type);
    if (granule != 1 && (b.sizes.rank() == 0 || b.offsets[b.sizes.rank() - 1] % granule != 0 ||
                         b.sizes[b.sizes.rank() - 1] % granule != 0))
      fail(error_id::usage_bad_shape,
           "a shard of a packed type is cut inside of a byte in its last dimension",
           {.item = e.name, .got = to_string(b)});
  }
  if (held >= 0 && held != e.elements)
    fail(error_id::usage_bad_shape,
         "the memory of a tensor holds another number of elements than its shape says",
         {.item = e.name, .expected = std::to_string(e.elements), .got = std::to_string(held)});
  if (e.strided && e.boxes.size() == 1 && !(e.shape_of_memory.shape == e.boxes[0].sizes))
    fail(
        error_id::usage_bad_shape, "a view with strides has another shape than its shard",
        {.item = e.name, .expected = to_string(e.boxes[0].sizes), .got = to_string(e.shape_of_memory.shape)});
  if (e.strided && granule_of(e.type) != 1)
    fail(error_id::usage_bad_shape, "a view of a packed type must be contiguous", {.item = e.name});
  if (e.memory.object == nullptr && e.elements > 0)
    fail(error_id::usage_bad_shape, "the address of a tensor is null", {.item = e.name});
  add(std::move(e));
}

CAIRN_BODY void state_dict::add(state_entry e) {
  if (index_of(e.name) != entries_.size())
    fail(error_id::usage_duplicate_name, "a name was given twice; every item of a state_dict has its own",
         {.item = e.name});
  std::vector<std::size_t> wider;  // 2^n slots, at least twice as many as entries
  if (2 * (entries_.size() + 1) > slots_.size()) wider.resize(slots_.empty() ? 16 : 2 * slots_.size());
  entries_.push_back(std::move(e));
  structure_known_ = false;
  bindings_ = nullptr;
  if (wider.empty()) return index(entries_.size() - 1);
  slots_.swap(wider);
  for (std::size_t i = 0; i < entries_.size(); ++i) index(i);
}

CAIRN_BODY void state_dict::rebind(std::string_view name, const tensor_view& view) {
  if (const auto* e = find(name)) {
    const bool contiguous = view.contiguous();
    if (view.shape.volume() != e->elements ||
        (!contiguous && (e->boxes.size() != 1 || !(view.shape == e->boxes[0].sizes))))
      fail(error_id::usage_bad_shape, "rebind: the view has another shape than the memory of the tensor",
           {.item = e->name,
            .expected = e->boxes.size() == 1 ? to_string(e->boxes[0].sizes) : std::to_string(e->elements),
            .got = to_string(view.shape)});
    if (!contiguous && granule_of(e->type) != 1)
      fail(error_id::usage_bad_shape, "a view of a packed type must be contiguous", {.item = e->name});
  }
  rebind_to(name, view.data, view.type);
  auto& e = entries_[index_of(name)];
  e.shape_of_memory = view;
  e.strided = !view.contiguous();
}

CAIRN_BODY void state_dict::rebind_to(std::string_view name, void* data, dtype type) {
  const auto found = index_of(name);
  if (found == entries_.size())
    fail(error_id::usage_unknown_name, "rebind: no item has this name", {.item = std::string(name)});
  auto& e = entries_[found];
  if (e.memory.data != nullptr)
    fail(error_id::usage_bad_name,
         "rebind: the item is bound to a container, which is asked for its address at each save",
         {.item = e.name});
  if (e.type != type)
    fail(error_id::plan_dtype_mismatch, "rebind: the new memory has another dtype",
         {.item = e.name, .expected = std::string(name_of(e.type)), .got = std::string(name_of(type))});
  if (data == nullptr && e.elements > 0)
    fail(error_id::usage_bad_shape, "rebind: the new address is null", {.item = e.name});
  e.memory.object = data;
  bindings_ = nullptr;
}

}  // namespace v1
}  // namespace cairn
