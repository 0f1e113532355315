// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/error_ids.hpp>
#include <cairn/system/wire.hpp>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {
inline namespace v1 {

/// What an error is about. Empty or negative means: does not apply.
struct error_fields {
  int rank = -1;             ///< the rank where it happened, or that is missing
  std::string item = {};     ///< name in the state dict or checkpoint
  std::string file = {};     ///< path or key
  std::int64_t offset = -1;  ///< bytes from the beginning of the file; of the item where no file is named
  std::string expected = {};
  std::string got = {};
};

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

/// The base of everything that cairn throws. what() is "[cairn.<id>] sentence (rank 3, item wte, ...)".
/// Copying does not throw: text and fields are shared.
class error : public std::runtime_error {
 public:
  error(error_id id, std::string_view message, error_fields fields)
      : std::runtime_error(detail::error_text(id, message, fields)),
        data_(std::make_shared<const data>(data{id, std::string(message), std::move(fields)})) {}

  [[nodiscard]] error_id id() const noexcept { return data_->id; }
  [[nodiscard]] error_kind kind() const noexcept { return kind_of(data_->id); }
  /// The sentence alone, without id and fields.
  [[nodiscard]] const std::string& message() const noexcept { return data_->message; }
  [[nodiscard]] const error_fields& fields() const noexcept { return data_->fields; }

 private:
  struct data {
    error_id id;
    std::string message;
    error_fields fields;
  };
  std::shared_ptr<const data> data_;
};

/// The caller can act: an argument, an option or the order of calls is wrong. Nothing was written.
struct usage_error : error {
  using error::error;
};
/// The states that ranks described, or state and checkpoint, do not fit together. Nothing was written.
struct plan_error : error {
  using error::error;
};
/// The store refused or failed: full, read-only, I/O error, not there.
struct storage_error : error {
  using error::error;
};
/// Bytes were read that are not what was written.
struct corrupt_error : error {
  using error::error;
};
/// A deadline passed; the message says what was waited for.
struct timeout_error : error {
  using error::error;
};
/// Another rank or process failed or is gone; fields().rank names it.
struct peer_error : error {
  using error::error;
};

/// Throws the class that belongs to the id's kind.
[[noreturn]] inline void fail(error_id id, std::string_view message, error_fields fields = {}) {
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

/// The same as `fail`, as a pointer to hand on.
[[nodiscard]] inline std::exception_ptr make_failure(error_id id, std::string_view message,
                                                     error_fields fields = {}) {
  try {
    fail(id, message, std::move(fields));
  } catch (...) {
    return std::current_exception();
  }
}

/// An error as data, so that it crosses ranks and processes and comes out as the same type.
inline void encode(wire_writer& out, const error& e) {
  const auto& f = e.fields();
  out.put(static_cast<std::uint16_t>(e.id())).put(e.message()).put(static_cast<std::int32_t>(f.rank));
  out.put(f.item).put(f.file).put(f.offset).put(f.expected).put(f.got);
}

/// Any exception as data; what is not a cairn::error becomes storage.out_of_memory (bad_alloc) or storage.io.
/// Never throws anything but bad_alloc.
[[nodiscard]] inline std::vector<std::byte> encode_failure(const std::exception_ptr& failure) {
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

/// The reverse of encode_failure. `rank` fills the field where the sender left it open.
/// @throws wire_error if the bytes are no error.
[[nodiscard]] inline std::exception_ptr decode_failure(wire_reader& in, int rank = -1) {
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
