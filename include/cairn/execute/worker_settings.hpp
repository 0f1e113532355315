// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/thread_settings.hpp>
#include <cairn/system/wire.hpp>

#include <cstdint>

namespace cairn {
inline namespace v1 {

/// How little a worker is to disturb training: all of its threads.
using worker_settings = thread_settings;

namespace detail {

inline void encode(wire_writer& out, const worker_settings& s) {
  out.put(static_cast<std::int32_t>(s.nice)).put(s.io).put(static_cast<std::int32_t>(s.io_level));
  out.put(static_cast<std::uint64_t>(s.cores.size()));
  for (const int core : s.cores) out.put(static_cast<std::int32_t>(core));
}
[[nodiscard]] inline worker_settings decode_worker_settings(wire_reader& in) {
  worker_settings s;
  s.nice = in.get<std::int32_t>();
  s.io = in.get_enum(io_class::idle);
  s.io_level = in.get<std::int32_t>();
  s.cores.resize(in.get_count(4));
  for (int& core : s.cores) core = in.get<std::int32_t>();
  check(s);
  return s;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
