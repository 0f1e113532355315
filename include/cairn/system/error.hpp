// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/error_ids.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {
inline namespace v1 {

class wire_reader;
class wire_writer;

/// What an error is about. Empty or negative means: does not apply.
struct error_fields {
  int rank = -1;             ///< the rank where it happened, or that is missing
  std::string item = {};     ///< name in the state dict or checkpoint
  std::string file = {};     ///< path or key
  std::int64_t offset = -1;  ///< bytes from the beginning of the file; of the item where no file is named
  /// What should have been there, in words; empty where there is nothing to compare.
  std::string expected = {};
  /// What was there.
  std::string got = {};
};

/// The base of everything that cairn throws. what() is "[cairn.<id>] sentence (rank 3, item wte, ...)".
/// Copying does not throw: text and fields are shared.
class error : public std::runtime_error {
 public:
  error(error_id id, std::string_view message, error_fields fields);

  [[nodiscard]] error_id id() const noexcept { return data_->id; }
  [[nodiscard]] error_kind kind() const noexcept { return kind_of(data_->id); }
  /// The sentence alone, without id and fields.
  [[nodiscard]] const std::string& message() const noexcept { return data_->message; }
  /// The facts of this error, each empty where it does not apply.
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
[[noreturn, gnu::cold]] void fail(error_id id, std::string_view message, error_fields fields = {});

/// The same as `fail`, as a pointer to hand on.
[[nodiscard]] std::exception_ptr make_failure(error_id id, std::string_view message,
                                              error_fields fields = {});

/// An error as data, so that it crosses ranks and processes and comes out as the same type.
void encode(wire_writer& out, const error& e);

/// Any exception as data; what is not a cairn::error becomes storage.out_of_memory (bad_alloc) or storage.io.
/// Never throws anything but bad_alloc.
[[nodiscard]] std::vector<std::byte> encode_failure(const std::exception_ptr& failure);

/// The reverse of encode_failure. `rank` fills the field where the sender left it open.
/// @throws wire_error if the bytes are no error.
[[nodiscard]] std::exception_ptr decode_failure(wire_reader& in, int rank = -1);

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/system/error.ipp>
#endif
