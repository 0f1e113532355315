// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_reader.hpp>
#include <cairn/concepts/storage.hpp>
#include <cairn/system/error.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

CAIRN_BODY std::vector<std::int64_t> any_reader::list_from(std::int64_t step) {
  return face_->list_from(step);
}
CAIRN_BODY void any_reader::expect_reads() noexcept {
  face_->expect_reads();
}
CAIRN_BODY std::vector<std::int64_t> any_reader::list() {
  return face_->list();
}
CAIRN_BODY std::vector<std::byte> any_reader::fetch(std::int64_t step) {
  return face_->fetch(step);
}
CAIRN_BODY any_checkpoint any_reader::open(std::int64_t step, std::span<const std::byte> manifest) {
  return face_->open(step, manifest);
}
CAIRN_BODY std::uint64_t any_reader::read(any_checkpoint& checkpoint, const state_dict& state,
                                          const load_plan& plan, const target_resolver& resolver,
                                          read_options options, deadline until) {
  return face_->read(of_this(checkpoint), state, plan, resolver, options, until);
}
CAIRN_BODY bool any_reader::shares() const noexcept {
  return face_->shares();
}
CAIRN_BODY std::uint64_t any_reader::read_shared(any_checkpoint& checkpoint, const state_dict& state,
                                                 const load_plan& plan, const target_resolver& resolver,
                                                 read_options options, read_exchange& exchange,
                                                 deadline until) {
  return face_->read_shared(of_this(checkpoint), state, plan, resolver, options, exchange, until);
}
CAIRN_BODY std::uint64_t any_reader::verify(any_checkpoint& checkpoint, deadline until) {
  return face_->verify(of_this(checkpoint), until, nullptr);
}
CAIRN_BODY std::uint64_t any_reader::verify(any_checkpoint& checkpoint, deadline until,
                                            const read_gate& gate) {
  return face_->verify(of_this(checkpoint), until, &gate);
}
CAIRN_BODY bool any_reader::compares_blocks() const noexcept {
  return face_->compares_blocks();
}
CAIRN_BODY std::unique_ptr<change_watch> any_reader::watch() {
  return face_->watch();
}
CAIRN_BODY bool any_reader::reports_runs() const noexcept {
  return face_->reports_runs();
}
CAIRN_BODY std::optional<run_id> any_reader::run_of(std::int64_t step) {
  return face_->run_of(step);
}
CAIRN_BODY any_checkpoint::face& any_reader::of_this(any_checkpoint& checkpoint) const {
  if (checkpoint.face_->opened_by != static_cast<const void*>(face_.get()))
    fail(error_id::usage_bad_option, "a checkpoint is read by another reader than the one that opened it");
  return *checkpoint.face_;
}

}  // namespace v1
}  // namespace cairn
