// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/plan.hpp>
#include <cairn/model/source_table.hpp>
#include <cairn/system/list_view.hpp>
#include <cairn/system/shared.hpp>

#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

CAIRN_BODY source_table::source_table(std::vector<item_source> sources, std::shared_ptr<const save_plan> plan)
    : sources_(detail::make_shared<const std::vector<item_source>>(std::move(sources))),
      first_(sources_->data()),
      size_(sources_->size()),
      plan_(std::move(plan)) {}

CAIRN_BODY std::string_view source_table::name(std::size_t item) const noexcept {
  return plan_ != nullptr && item < plan_->items.size() ? std::string_view(plan_->items[item].name)
                                                        : std::string_view();
}

}  // namespace v1
}  // namespace cairn
