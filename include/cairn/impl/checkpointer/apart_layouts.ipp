// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/apart_layouts.hpp>
#include <cairn/checkpointer/unchanged_items.hpp>
#include <cairn/system/owned.hpp>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

template <class>
class unchanged_apart final : public apart_layouts {
 public:
  [[nodiscard]] std::shared_ptr<const image_layout> choose(const save_plans& plans,
                                                           const cached_plan& planned,
                                                           const std::shared_ptr<const image_layout>& whole,
                                                           const source_table& sources, int rank,
                                                           const any_writer& writer, bool& changed) override {
    changed = !unchanged_.look(planned.plan, *whole, sources);
    if (!unchanged_.any()) return whole;
    std::vector<bool> marks(planned.plan->items.size());
    for (std::size_t i = 0; i < marks.size(); ++i) marks[i] = unchanged_.unchanged(i);
    if (apart_ == nullptr || apart_of_ != whole || marks != marks_) {
      apart_ = plans.lay_out_apart(planned, rank, writer, [&](std::size_t i) { return marks[i]; });
      apart_of_ = whole;
      marks_ = std::move(marks);
    }
    return apart_;
  }

 private:
  unchanged_items unchanged_;
  std::shared_ptr<const image_layout> apart_;
  std::shared_ptr<const image_layout> apart_of_;  // the one without
  std::vector<bool> marks_;                       // of apart_
};

template <class Named>
owned<apart_layouts> make_apart_layouts() {
  return make_owned<unchanged_apart<Named>>();
}
#if defined(CAIRN_COMPILED)
template owned<apart_layouts> make_apart_layouts<void>();
#endif

}  // namespace detail
}  // namespace v1
}  // namespace cairn
