// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_writer.hpp>
#include <cairn/concepts/portable.hpp>
#include <cairn/concepts/storage.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/system/error.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

CAIRN_BODY image_layout any_writer::layout(const save_plan& plan, std::span<const std::uint64_t> item_bytes,
                                           int rank) const {
  return face_->layout(plan, item_bytes, rank);
}
CAIRN_BODY std::uint64_t any_writer::fingerprint() const {
  return face_->fingerprint();
}
CAIRN_BODY record any_writer::write(const save_context& context, const staged_image& image, deadline until) {
  return face_->write(context, image, until);
}
CAIRN_BODY void any_writer::commit(const save_context& context, const metadata& stored, deadline until) {
  face_->commit(context, stored, until);
}
CAIRN_BODY void any_writer::await_commit(const save_context& context, deadline until) {
  face_->await_commit(context, until);
}
CAIRN_BODY void any_writer::abort(const save_context& context, std::exception_ptr failure) noexcept {
  face_->abort(context, std::move(failure));
}
CAIRN_BODY void any_writer::remove(std::int64_t step) {
  face_->remove(step);
}
CAIRN_BODY bool any_writer::remove_attempt(save_attempt attempt) {
  return face_->remove_attempt(attempt);
}
CAIRN_BODY bool any_writer::quarantine(std::int64_t step) {
  return face_->quarantine(step);
}
CAIRN_BODY std::uint64_t any_writer::clean(run_id run) {
  return face_->clean(run);
}
CAIRN_BODY void any_writer::check_space(space_needed needed) {
  face_->check_space(needed);
}
CAIRN_BODY int any_writer::other_writing_rank(const save_context& context) noexcept {
  return face_->other_writing_rank(context);
}
CAIRN_BODY bool any_writer::tests_store() const noexcept {
  return face_->tests_store();
}
CAIRN_BODY store_test_report any_writer::test_store() {
  return face_->test_store();
}
CAIRN_BODY void any_writer::look_up_mark(run_id run) {
  face_->look_up_mark(run);
}
CAIRN_BODY void any_writer::leave_mark(run_id run) {
  face_->leave_mark(run);
}
CAIRN_BODY mark_visibility any_writer::sees_mark(run_id run) {
  return face_->sees_mark(run);
}
CAIRN_BODY void any_writer::remove_mark(run_id run) noexcept {
  face_->remove_mark(run);
}
CAIRN_BODY checkpoint_lease any_writer::lease(std::int64_t step, deadline until, lease_check check) {
  return face_->lease(step, until, check);
}
CAIRN_BODY std::vector<std::string> any_writer::readers(std::int64_t step) {
  return face_->readers(step);
}
CAIRN_BODY void any_writer::pin(std::int64_t step, deadline until) {
  face_->pin(step, until);
}
CAIRN_BODY void any_writer::unpin(std::int64_t step) {
  face_->unpin(step);
}
CAIRN_BODY std::vector<std::int64_t> any_writer::pinned() {
  return face_->pinned();
}
CAIRN_BODY void any_writer::note_restart(run_id run, std::int64_t step) {
  face_->note_restart(run, step);
}
CAIRN_BODY std::vector<std::int64_t> any_writer::restarts() {
  return face_->restarts();
}
CAIRN_BODY void any_writer::forget_restart(run_id run, std::int64_t step) {
  face_->forget_restart(run, step);
}
CAIRN_BODY std::size_t any_writer::forget_restarts(std::int64_t up_to) {
  return face_->forget_restarts(up_to);
}
CAIRN_BODY save_announcement any_writer::announce(const save_context& context) {
  return face_->announce(context);
}
CAIRN_BODY save_announcement any_writer::announce_worker(const save_context& context) {
  return face_->announce_worker(context);
}
CAIRN_BODY void any_writer::retract(const save_context& context) noexcept {
  face_->retract(context);
}
CAIRN_BODY std::vector<save_attempt> any_writer::live_saves(run_id run) {
  return face_->live_saves(run);
}
CAIRN_BODY takeover any_writer::take_over(run_id run, const takeover_wait& waits) {
  return face_->take_over(run, waits);
}
CAIRN_BODY std::shared_ptr<void> any_writer::show_run(run_id run) {
  return face_->show_run(run);
}
CAIRN_BODY std::vector<run_id> any_writer::live_runs(run_id run) {
  return face_->live_runs(run);
}
CAIRN_BODY bool any_writer::has_died(run_id run) {
  return face_->has_died(run);
}
CAIRN_BODY std::string any_writer::root_identity() {
  return face_->root_identity();
}
CAIRN_BODY void any_writer::require_root(const known_root& known) {
  face_->require_root(known);
}
CAIRN_BODY std::string any_writer::location_of(std::int64_t step) {
  return face_->location_of(step);
}
CAIRN_BODY writer_maker any_writer::maker() const noexcept {
  return face_->maker();
}
CAIRN_BODY std::string_view any_writer::type_name() const noexcept {
  return face_->type_name();
}
CAIRN_BODY std::vector<std::byte> any_writer::description() const {
  return face_->description();
}

}  // namespace v1
}  // namespace cairn
