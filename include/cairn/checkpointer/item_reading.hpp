// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/options.hpp>
#include <cairn/concepts/any_reader.hpp>
#include <cairn/concepts/planner.hpp>
#include <cairn/model/dtype.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/state_entry.hpp>
#include <cairn/model/stored_items.hpp>
#include <cairn/system/function_ref.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Gives a destination the conversion that a load was asked for, where its plan says so; else the planner's own stays.
void convert_target(const load_changes& changes, const state_entry& e, const stored_item& item,
                    const read_item& wanted, item_target& target);

/// This rank's part of checkpointer_base::read(): one item of a checkpoint whose manifest is there. Sends no message. Calls
/// allocate() at most once, when the reader asks where the first bytes go.
void read_one_item(any_reader reader, const std::string& name, std::int64_t step,
                   std::span<const std::byte> manifest, dtype type, const load_request& request,
                   const checkpointer_options& options, function_ref<void*(std::size_t)> allocate);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/checkpointer/item_reading.ipp>
#endif
