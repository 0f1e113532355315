// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/fork_guard.hpp>

#include <unistd.h>

#include <string>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY void fork_guard::fail_in_child(const char* sentence) const {
  fail(error_id::usage_wrong_process, sentence,
       {.expected = "process " + std::to_string(process_), .got = "process " + std::to_string(::getpid())});
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
