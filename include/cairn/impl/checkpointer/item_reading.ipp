// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/item_reading.hpp>
#include <cairn/checkpointer/options.hpp>
#include <cairn/concepts/any_reader.hpp>
#include <cairn/concepts/planner.hpp>
#include <cairn/concepts/storage.hpp>
#include <cairn/model/dtype.hpp>
#include <cairn/model/item.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/state_dict.hpp>
#include <cairn/model/state_entry.hpp>
#include <cairn/model/stored_items.hpp>
#include <cairn/model/tensor_view.hpp>
#include <cairn/plan/default_planner.hpp>
#include <cairn/plan/load/load_changes.hpp>
#include <cairn/plan/load/load_planning.hpp>
#include <cairn/plan/near_names.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/function_ref.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY void convert_target(const load_changes& changes, const state_entry& e, const stored_item& item,
                               const read_item& wanted, item_target& target) {
  if (!wanted.converted || item.type == target.view.type) return;
  if (const auto cast = changes.conversion(e.name, item.type, target.view.type); cast != nullptr)
    target.cast = cast;
}

CAIRN_BODY void read_one_item(any_reader reader, const std::string& name, std::int64_t step,
                              std::span<const std::byte> manifest, dtype type, const load_request& request,
                              const checkpointer_options& options,
                              function_ref<void*(std::size_t)> allocate) {
  auto opened = reader.open(step, manifest);
  const auto& stored = opened.metadata();
  const auto* item = stored.find(name);
  if (request.changes != nullptr)
    if (const auto renamed = request.changes->find(stored.items, name)) item = &stored.items[*renamed];
  if (item == nullptr) {
    near_names similar(name);
    stored.items.for_each_name(
        [&](std::size_t, std::string_view other) { similar.offer(std::string(other)); });
    const auto others = similar.text();
    fail(
        error_id::usage_unknown_name,
        "the checkpoint has no item of this name" + (others.empty() ? std::string() : "; near it: " + others),
        {.item = name});
  }
  // Bytes and booleans as the numbers that they are.
  const bool is_bytes = item->kind == item_kind::bytes;
  const bool as_it_is = is_bytes ? type == dtype::u8
                                 : item->type == type || (item->type == dtype::boolean && type == dtype::u8);
  if (!as_it_is && (is_bytes || request.changes == nullptr || !request.changes->converts(name)))
    fail(error_id::plan_dtype_mismatch,
         "the item has another dtype; read it as that, or convert it with cairn::convert{}",
         {.item = name,
          .expected = std::string(name_of(type)),
          .got = is_bytes ? "bytes" : std::string(name_of(item->type))});
  item_flags flags;
  flags.per_rank = item->per_rank;
  std::vector<std::byte> blob;
  state_dict state;
  const auto elements = item->global.checked_volume();
  if (!elements) fail(error_id::corrupt_bad_value, "the size of an item overflows", {.item = name});
  const auto memory_at = [&](void* data) {
    return contiguous_view(data, as_it_is ? item->type : type, item->global);
  };
  // A shape costs nothing to claim: the memory is asked for when the reader has found files that have the bytes.
  bool allocated = false;
  std::byte no_memory_yet{};
  if (is_bytes)
    state.bytes(name, blob, flags);
  else
    state.tensor(name, memory_at(&no_memory_yet), flags);
  load_planning planning(stored, request);
  planning.add(state.entries()[0], 0, name, state.entries()[0].type, true);
  const auto plan = planning.finish();
  if (!plan.report.missing.empty())
    fail(error_id::plan_missing_item, "the checkpoint has no item of this name for this rank",
         {.rank = request.rank, .item = name});
  if (!plan.report.mismatched.empty())
    fail(error_id::plan_no_cast, "the item cannot be read so: " + plan.report.mismatched.front(),
         {.item = name});
  default_planner planner;
  const target_resolver resolver = [&](const read_item& wanted) {
    if (!is_bytes && !std::exchange(allocated, true))
      state.rebind(name, memory_at(allocate(static_cast<std::size_t>(*elements))));
    auto target = planner.resolve(state, stored, wanted);
    if (request.changes != nullptr)
      convert_target(*request.changes, state.entries()[wanted.entry], stored.items[wanted.stored], wanted,
                     target);
    return target;
  };
  (void)reader.read(opened, state, plan, resolver, {.memory_budget = options.load_memory},
                    deadline::in(options.timeout));
  if (is_bytes && !blob.empty()) std::memcpy(allocate(blob.size()), blob.data(), blob.size());
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
