// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/execute/worker_settings.hpp>
#include <cairn/system/thread_settings.hpp>
#include <cairn/system/wire.hpp>

#include <cstdint>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY void encode(wire_writer& out, const worker_settings& s) {
  out.put(static_cast<std::int32_t>(s.nice)).put(s.io).put(static_cast<std::int32_t>(s.io_level));
  out.put(static_cast<std::uint64_t>(s.cores.size()));
  for (const int core : s.cores) out.put(static_cast<std::int32_t>(core));
}

CAIRN_BODY worker_settings decode_worker_settings(wire_reader& in) {
  worker_settings s;
  s.nice = in.get<std::int32_t>();
  s.io = in.get_enum(io_class::idle);
  s.io_level = in.get<std::int32_t>();
  s.cores.resize(in.get_count(4));
  for (int& core : s.cores) core = in.get<std::int32_t>();
  check(s);
  return s;
}

CAIRN_BODY void encode(wire_writer& out, const worker_hello& hello) {
  out.put(hello.build), encode(out, hello.settings);
  out.put(hello.bytes_per_second);
}

CAIRN_BODY worker_hello decode_hello(wire_reader& in) {
  worker_hello hello;
  hello.build = in.get<std::uint64_t>();
  hello.settings = decode_worker_settings(in);
  hello.bytes_per_second = in.get<std::uint64_t>();
  in.finish();
  return hello;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
