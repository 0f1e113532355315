// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/shared.hpp>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY std::shared_ptr<void> owner_of(void* object, void (*destroy)(void*)) {
  return {object, destroy};
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
