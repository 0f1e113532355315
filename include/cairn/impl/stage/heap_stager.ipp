// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/stager.hpp>
#include <cairn/model/image_layout.hpp>
#include <cairn/model/source_table.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/stage/buffered_stager.hpp>
#include <cairn/stage/heap_memory.hpp>
#include <cairn/stage/heap_stager.hpp>
#include <cairn/stage/host_copy.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/owned.hpp>

#include <memory>
#include <utility>

namespace cairn {
inline namespace v1 {

struct heap_stager::buffered : buffered_stager<heap_memory, host_copy> {
  using buffered_stager::buffered_stager;
};

CAIRN_BODY heap_stager::heap_stager(buffered_stager_options options, host_copy engine, heap_memory memory)
    : inside_(detail::make_owned<buffered>(std::move(options), std::move(engine), memory)) {}
CAIRN_BODY heap_stager::heap_stager(heap_stager&& other) noexcept = default;
CAIRN_BODY heap_stager& heap_stager::operator=(heap_stager&& other) noexcept = default;
CAIRN_BODY heap_stager::~heap_stager() = default;

CAIRN_BODY staged_image heap_stager::stage(std::shared_ptr<const image_layout> layout,
                                           const source_table& sources, stage_options options,
                                           deadline until) {
  return inside_->stage(std::move(layout), sources, options, until);
}
CAIRN_BODY void heap_stager::prepare(const image_layout& layout, deadline until) {
  inside_->prepare(layout, until);
}
CAIRN_BODY void heap_stager::prepare(const source_table& sources) {
  inside_->prepare(sources);
}
CAIRN_BODY int heap_stager::depth() const noexcept {
  return inside_->depth();
}

static_assert(Stager<heap_stager> && PreparesSources<heap_stager>,
              "heap_stager must model Stager and PreparesSources");

}  // namespace v1
}  // namespace cairn
