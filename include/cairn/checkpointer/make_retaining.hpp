// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/retaining.hpp>
#include <cairn/system/owned.hpp>

#include <memory>

namespace cairn {
inline namespace v1 {
namespace detail {

template <class>
[[nodiscard]] owned<retaining> make_retaining(const std::shared_ptr<save_services>& services,
                                              const retention_policy& policy);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/checkpointer/make_retaining.ipp>
#endif
