// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_redundancy.hpp>
#include <cairn/model/surveyed_save.hpp>
#include <cairn/tiers/held_record.hpp>

#include <cstdint>

namespace cairn {
inline namespace v1 {
namespace detail {

/// The set of a rank that is lost, and what is left of it, as far as records tell.
struct set_that_is_left {
  redundancy_set members;
  set_survivors survivors;
  std::int32_t lost = 0;  // the member that is wanted
};
/// @throws peer_error where no piece is left that says what the set was; usage_error (usage_bad_option)
[[nodiscard]] set_that_is_left set_left(const surveyed_save& all, const any_redundancy& by,
                                        std::int32_t rank);
/// Whether a record's name is of this save.
[[nodiscard]] bool names_save(const held_name& name, const surveyed_save& save);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/redundancy/surviving_set.ipp>
#endif
