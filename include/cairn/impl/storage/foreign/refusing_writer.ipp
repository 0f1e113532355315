// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/storage.hpp>
#include <cairn/model/image_layout.hpp>
#include <cairn/model/record.hpp>
#include <cairn/storage/foreign/refusing_writer.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>

#include <cstdint>
#include <span>

namespace cairn {
inline namespace v1 {
namespace detail {
[[noreturn]] inline void refuse_to_write() {
  fail(error_id::usage_bad_option,
       "this storage is only read: save into a checkpointer over a store, such as cairn::file_store");
}
}  // namespace detail

CAIRN_BODY image_layout refusing_writer::layout(const save_plan&, std::span<const std::uint64_t>, int) const {
  detail::refuse_to_write();
}
CAIRN_BODY record refusing_writer::write(const save_context&, const staged_image&, deadline) {
  detail::refuse_to_write();
}
CAIRN_BODY void refusing_writer::commit(const save_context&, const metadata&, deadline) {
  detail::refuse_to_write();
}
CAIRN_BODY void refusing_writer::await_commit(const save_context&, deadline) {
  detail::refuse_to_write();
}
CAIRN_BODY void refusing_writer::remove(std::int64_t) {
  detail::refuse_to_write();
}
CAIRN_BODY void refusing_writer::check_space(space_needed) {
  detail::refuse_to_write();
}

}  // namespace v1
}  // namespace cairn
