// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/metadata.hpp>
#include <cairn/model/record.hpp>

#include <cstdio>
#include <string>

namespace cairn {
inline namespace v1 {

CAIRN_BODY std::string to_string(const run_id& id) {
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(id.high),
                static_cast<unsigned long long>(id.low));
  return text;
}

}  // namespace v1
}  // namespace cairn
