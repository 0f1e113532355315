// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/shared.hpp>
#include <cairn/system/wire.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

inline std::string error_text(error_id id, std::string_view what, const error_fields& f) {
  std::string text = "[cairn.";
  text.append(error_name(id)).append("] ").append(what);
  std::string fields;
  const auto add = [&](std::string_view name, std::string_view value) {
    if (value.empty()) return;
    if (!fields.empty()) fields += ", ";
    fields.append(name).append(" ").append(value);
  };
  if (f.rank >= 0) add("rank", std::to_string(f.rank));
  add("item", f.item);
  add("file", f.file);
  if (f.offset >= 0) add("offset", std::to_string(f.offset));
  add("expected", f.expected);
  add("got", f.got);
  if (!fields.empty()) text.append(" (").append(fields).append(")");
  return text;
}

}  // namespace detail

CAIRN_BODY error::error(error_id id, std::string_view message, error_fields fields)
    : std::runtime_error(detail::error_text(id, message, fields)),
      data_(detail::make_shared<const data>(data{id, std::string(message), std::move(fields)})) {}

CAIRN_BODY void fail(error_id id, std::string_view message, error_fields fields) {
  switch (kind_of(id)) {
    case error_kind::usage:
      throw usage_error(id, message, std::move(fields));
    case error_kind::plan:
      throw plan_error(id, message, std::move(fields));
    case error_kind::storage:
      throw storage_error(id, message, std::move(fields));
    case error_kind::timeout:
      throw timeout_error(id, message, std::move(fields));
    case error_kind::peer:
      throw peer_error(id, message, std::move(fields));
    case error_kind::corrupt:
      break;
  }
  throw corrupt_error(id, message, std::move(fields));
}

CAIRN_BODY std::exception_ptr make_failure(error_id id, std::string_view message, error_fields fields) {
  try {
    fail(id, message, std::move(fields));
  } catch (...) {
    return std::current_exception();
  }
}

CAIRN_BODY void encode(wire_writer& out, const error& e) {
  const auto& f = e.fields();
  out.put(static_cast<std::uint16_t>(e.id())).put(e.message()).put(static_cast<std::int32_t>(f.rank));
  out.put(f.item).put(f.file).put(f.offset).put(f.expected).put(f.got);
}

CAIRN_BODY std::vector<std::byte> encode_failure(const std::exception_ptr& failure) {
  wire_writer out;
  try {
    std::rethrow_exception(failure);
  } catch (const error& e) {
    encode(out, e);
  } catch (const std::bad_alloc&) {
    encode(out, storage_error(error_id::storage_out_of_memory, "memory ran out", {}));
  } catch (const std::exception& e) {
    encode(out, storage_error(error_id::storage_io, e.what(), {}));
  } catch (...) {
    encode(out, storage_error(error_id::storage_io, "an exception of an unknown type was thrown", {}));
  }
  return out.take();
}

CAIRN_BODY std::exception_ptr decode_failure(wire_reader& in, int rank) {
  const auto id = static_cast<error_id>(in.get<std::uint16_t>());
  if (error_name(id) == "unknown") in.fail_here("an unknown error id");
  auto message = in.get_string();
  error_fields f;
  f.rank = in.get<std::int32_t>();
  if (f.rank < 0) f.rank = rank;
  f.item = in.get_string();
  f.file = in.get_string();
  f.offset = in.get<std::int64_t>();
  f.expected = in.get_string();
  f.got = in.get_string();
  return make_failure(id, message, std::move(f));
}

}  // namespace v1
}  // namespace cairn
