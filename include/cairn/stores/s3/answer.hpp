// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/stores/s3/credentials.hpp>
#include <cairn/stores/s3/http_call.hpp>
#include <cairn/stores/s3/request.hpp>
#include <cairn/stores/s3/xml.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// An answer's error in the server's words, checked and shortened.
struct s3_refusal {
  std::string code = {};
  std::string message = {};
  std::string request_id = {};
  std::string region = {};
};

/// A server's words for a message: short, printable, without what only the signer may know.
[[nodiscard]] std::string printable_text(std::string_view text, std::size_t max_bytes,
                                         const s3_credentials& known);

/// What an Error document says.
[[nodiscard]] s3_refusal refusal_in(const xml_element& e, const s3_credentials& known);

/// The bytes that answer an attempt of a request: kept, or put where its pieces want them. Of the transport's
/// thread until the call has ended.
class s3_answer {
 public:
  /// Both outlive it: they are those of the call that it is a part of.
  s3_answer(const s3_request& request, const http_call& call) : request_(request), call_(call) {}

  /// Another attempt begins.
  void clear() noexcept;
  /// A piece of the body; false: refused.
  [[nodiscard]] bool receive(std::span<const std::byte> bytes);

  /// What was kept.
  [[nodiscard]] const std::vector<std::byte>& bytes() const noexcept { return kept_; }
  [[nodiscard]] std::vector<std::byte> take() noexcept { return std::move(kept_); }
  void forget() noexcept { kept_.clear(); }
  [[nodiscard]] std::string_view text() const noexcept {
    return {reinterpret_cast<const char*>(kept_.data()), kept_.size()};
  }

  /// It is longer than it may be; what it says its length is, or 0.
  [[nodiscard]] std::optional<std::uint64_t> too_long() const noexcept { return too_long_; }
  /// The size of the object that a Content-Range gave.
  [[nodiscard]] std::optional<std::uint64_t> object_bytes() const noexcept { return object_bytes_; }
  /// It began with other bytes than those asked for.
  [[nodiscard]] bool wrong_range() const noexcept { return wrong_range_; }
  /// All pieces are filled, with what was asked for.
  [[nodiscard]] bool filled_pieces() {
    return call_.status == 206 && received_ == request_.length && right_range();
  }
  /// What was kept is as long as its head says, where that says so.
  [[nodiscard]] bool has_its_length() const;

 private:
  static constexpr std::uint64_t max_error_bytes = std::uint64_t{1} << 20;

  /// "bytes 5-9/100" as asked for; notes the size of the object.
  [[nodiscard]] bool right_range();
  /// Puts bytes of the answer where they belong.
  [[nodiscard]] bool place(std::span<const std::byte> bytes);

  const s3_request& request_;
  const http_call& call_;
  std::vector<std::byte> kept_;
  std::optional<std::uint64_t> too_long_;
  std::optional<std::uint64_t> object_bytes_;
  std::uint64_t received_ = 0;
  std::size_t piece_ = 0;
  std::size_t in_piece_ = 0;
  bool wrong_range_ = false;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_S3)
#include <cairn/impl/stores/s3/answer.ipp>
#endif
