// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/comm/collective_frame.hpp>
#include <cairn/comm/collective_input.hpp>
#include <cairn/comm/collective_messages.hpp>
#include <cairn/concepts/any_communicator.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/function_ref.hpp>

#include <cstddef>
#include <exception>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What a collective makes of two neighbours' parts; the left one is of the lower ranks.
using merge_parts = function_ref<std::vector<std::byte>(std::vector<std::byte>&&, std::vector<std::byte>&&)>;

/// Carries each collective from rank to rank, so that it ends alike on all of them.
class collective_runner {
 public:
  explicit collective_runner(any_communicator communicator) : messages_(std::move(communicator)) {}
  collective_runner(const collective_runner&) = delete;
  collective_runner& operator=(const collective_runner&) = delete;
  virtual ~collective_runner() = default;

  [[nodiscard]] collective_messages& messages() noexcept { return messages_; }

  /// One collective: the parts of all ranks are merged, and each rank gets its share of what comes of it. Without
  /// `merge` the parts are joined as the operation has it. `look` is asked now and then while this rank waits: what
  /// it throws ends the call on this rank at once.
  [[nodiscard]] virtual std::vector<std::byte> run(collective_operation kind, int root, collective_input own,
                                                   deadline until, const merge_parts* merge = nullptr,
                                                   const function_ref<void()>* look = nullptr) = 0;

 protected:
  collective_messages messages_;
};

/// In a world of one rank, which has nobody to wait for.
class one_rank_runner final : public collective_runner {
 public:
  using collective_runner::collective_runner;
  [[nodiscard]] std::vector<std::byte> run(collective_operation kind, int root, collective_input own,
                                           deadline, const merge_parts*,
                                           const function_ref<void()>*) override {
    static_cast<void>(messages_.begin(kind, root));
    if (own.failure()) std::rethrow_exception(own.failure());
    return std::move(own.bytes());
  }
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
