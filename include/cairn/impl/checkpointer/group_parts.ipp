// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/group_parts.hpp>
#include <cairn/checkpointer/windowed_exchange.hpp>
#include <cairn/comm/collective_runner.hpp>
#include <cairn/comm/collectives.hpp>
#include <cairn/concepts/any_communicator.hpp>
#include <cairn/plan/load/read_requests.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/shared.hpp>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

[[nodiscard]] CAIRN_BODY std::shared_ptr<read_exchange> begin_sharing(collectives& group,
                                                                      function_ref<const metadata&()> open,
                                                                      const load_plan& plan, bool all,
                                                                      deadline until) {
  auto own = collective_input::from([&] {
    const auto& stored = open();
    return encode_wants(requests_of(stored, plan, group.rank(), all));
  });
  const auto merge = [&](std::vector<std::byte> left, std::vector<std::byte> right) {
    return encode_wants(merge_wants(decode_wants(left, group.size()), decode_wants(right, group.size())));
  };
  return detail::make_shared<windowed_exchange>(group,
                                                group.tree_reduce_broadcast(std::move(own), merge, until));
}

[[nodiscard]] CAIRN_BODY collectives make_group(any_communicator communicator) {
  return collectives(std::move(communicator));
}
[[nodiscard]] CAIRN_BODY collectives make_group_of_one(any_communicator communicator) {
  return collectives(owned<collective_runner>(make_owned<one_rank_runner>(std::move(communicator))));
}

CAIRN_BODY group_parts parts_of_group() noexcept {
  return {&make_group, &begin_sharing};
}
CAIRN_BODY group_parts parts_of_one_rank() noexcept {
  return {&make_group_of_one, nullptr};
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
