// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/comm/collective_frame.hpp>
#include <cairn/comm/collective_pieces.hpp>
#include <cairn/comm/collective_tree.hpp>
#include <cairn/comm/collectives.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/shared.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

CAIRN_BODY collectives::collectives(any_communicator communicator)
    : tree_(detail::make_owned<detail::collective_tree>(std::move(communicator))) {}
CAIRN_BODY collectives::collectives(detail::owned<detail::collective_runner> runner) noexcept
    : tree_(std::move(runner)) {}
CAIRN_BODY collectives::collectives(collectives&& other) noexcept = default;
CAIRN_BODY collectives& collectives::operator=(collectives&& other) noexcept = default;
CAIRN_BODY collectives::~collectives() = default;

CAIRN_BODY int collectives::rank() const {
  return tree_->messages().rank();
}
CAIRN_BODY int collectives::size() const {
  return tree_->messages().size();
}
CAIRN_BODY any_communicator& collectives::communicator() noexcept {
  return tree_->messages().communicator();
}
CAIRN_BODY std::uint64_t collectives::epoch() const noexcept {
  return tree_->messages().epoch();
}
CAIRN_BODY void collectives::set_run(const std::array<std::byte, 16>& run) noexcept {
  tree_->messages().set_run(run);
}
CAIRN_BODY const std::array<std::byte, 16>& collectives::run() const noexcept {
  return tree_->messages().run();
}

CAIRN_BODY std::vector<std::byte> collectives::broadcast(int root, collective_input own, deadline until) {
  if (rank() != root) own.bytes().clear();
  return tree_->run(detail::collective_operation::broadcast, root, std::move(own), until);
}

namespace detail {
[[nodiscard]] CAIRN_BODY collective_input labelled(int rank, collective_input own) {
  if (own.failure()) return own;
  return collective_input::from([&] { return label_piece(rank, own.bytes()); });
}
}  // namespace detail

CAIRN_BODY std::vector<std::vector<std::byte>> collectives::gather(int root, collective_input own,
                                                                   deadline until) {
  const auto all =
      tree_->run(detail::collective_operation::gather, root, detail::labelled(rank(), std::move(own)), until);
  return rank() == root ? detail::sort_labelled(all, size()) : std::vector<std::vector<std::byte>>();
}

CAIRN_BODY std::vector<std::vector<std::byte>> collectives::all_gather(collective_input own, deadline until) {
  const auto all = tree_->run(detail::collective_operation::all_gather, 0,
                              detail::labelled(rank(), std::move(own)), until);
  return detail::sort_labelled(all, size());
}

CAIRN_BODY std::vector<std::byte> collectives::scatter(int root,
                                                       const std::vector<std::vector<std::byte>>& pieces,
                                                       deadline until, std::exception_ptr failure) {
  auto own = collective_input::from([&]() -> std::vector<std::byte> {
    if (failure) std::rethrow_exception(failure);
    if (rank() != root) return {};
    if (pieces.size() != static_cast<std::size_t>(size()))
      fail(error_id::usage_bad_option, "scatter needs one message for each rank",
           {.expected = std::to_string(size()), .got = std::to_string(pieces.size())});
    std::vector<std::span<const std::byte>> list;
    list.reserve(pieces.size());
    for (const auto& each : pieces) list.emplace_back(each);
    return detail::join_pieces(list);
  });
  const auto mine = tree_->run(detail::collective_operation::scatter, root, std::move(own), until);
  const auto list = detail::split_pieces(mine);
  return {list.front().begin(), list.front().end()};
}

CAIRN_BODY void collectives::barrier(deadline until, std::exception_ptr failure) {
  static_cast<void>(
      tree_->run(detail::collective_operation::barrier, 0, collective_input(std::move(failure)), until));
}

CAIRN_BODY std::vector<std::byte> collectives::reduce(collective_input own, merge_parts merge,
                                                      deadline until) {
  return tree_->run(detail::collective_operation::tree_reduce_broadcast, 0, std::move(own), until, &merge);
}

CAIRN_BODY std::vector<std::byte> collectives::reduce_on_demand(collective_input own, merge_parts merge,
                                                                deadline until,
                                                                const function_ref<void()>* look) {
  return tree_->run(detail::collective_operation::planning, 0, std::move(own), until, &merge, look);
}

CAIRN_BODY void collectives::on_demand_barrier(deadline until, std::exception_ptr failure) {
  static_cast<void>(tree_->run(detail::collective_operation::end_of_planning, 0,
                               collective_input(std::move(failure)), until));
}

CAIRN_BODY void collectives::begin_exchange() {
  exchange_ = detail::make_owned<detail::collective_call>(
      tree_->messages().begin(detail::collective_operation::exchange, 0));
}

CAIRN_BODY std::vector<std::byte> collectives::message_head() const {
  return detail::encode_frame(*exchange_, detail::collective_step::up, {}, {});
}

CAIRN_BODY void collectives::send_message(int to, const lent_message& message, deadline until) {
  tree_->messages().communicator().lend(to, message, until);
}

CAIRN_BODY lent_message collectives::take_message(int from, deadline until) {
  bool landed = false;
  return take_message(from, 0, {}, landed, until);
}

CAIRN_BODY lent_message collectives::take_message(int from, std::size_t first, std::span<std::byte> rest,
                                                  bool& landed, deadline until) {
  auto frame = tree_->messages().receive(*exchange_, detail::collective_step::up, from, until, {first, rest});
  landed = frame.landed;
  if (!frame.what.ok() || frame.step != detail::collective_step::up)
    fail(error_id::peer_bad_message, "a message of an exchange is invalid", {.rank = from});
  if (frame.lent.data != nullptr) return std::move(frame.lent);
  const auto bytes = detail::make_shared<std::vector<std::byte>>(std::move(frame.what.value));
  return {{bytes, bytes->data()}, bytes->size()};
}

}  // namespace v1
}  // namespace cairn
