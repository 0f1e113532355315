// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::nccl
#pragma once
#include <cairn/comm/nccl/basic_nccl_communicator.hpp>
#include <cairn/comm/nccl/nccl_runtime.hpp>

#include <utility>

namespace cairn {
inline namespace v1 {
namespace cuda {

/// See basic_nccl_communicator.
template <Communicator Control>
class nccl_communicator : public basic_nccl_communicator<nccl_runtime, Control> {
 public:
  using basic_nccl_communicator<nccl_runtime, Control>::basic_nccl_communicator;
};
template <Communicator Control>
nccl_communicator(Control) -> nccl_communicator<Control>;
template <Communicator Control>
nccl_communicator(Control, nccl_options) -> nccl_communicator<Control>;

}  // namespace cuda
}  // namespace v1
}  // namespace cairn
