// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/stores/s3/answer.hpp>
#include <cairn/stores/s3/credentials.hpp>
#include <cairn/stores/s3/http_call.hpp>
#include <cairn/stores/s3/request.hpp>
#include <cairn/stores/s3/sigv4.hpp>
#include <cairn/stores/s3/xml.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY std::string printable_text(std::string_view text, std::size_t max_bytes,
                                      const s3_credentials& known) {
  for (const auto* secret : {&known.secret_key, &known.session_token}) {
    if (secret->size() < 4) continue;
    // Also a piece of it, since a long token does not fit into a message; and before the message is cut.
    const auto piece = std::string_view(*secret).substr(0, std::min<std::size_t>(secret->size(), 16));
    if (text.find(piece) != std::string::npos) return "(withheld)";
  }
  std::string out;
  for (const char c : text.substr(0, max_bytes)) out += c >= ' ' && c <= '~' ? c : '?';
  return out;
}

CAIRN_BODY s3_refusal refusal_in(const xml_element& e, const s3_credentials& known) {
  return {printable_text(e.text_of("Code"), 64, known), printable_text(e.text_of("Message"), 200, known),
          printable_text(e.text_of("RequestId"), 128, known), printable_text(e.text_of("Region"), 64, known)};
}

CAIRN_BODY void s3_answer::clear() noexcept {
  kept_.clear();
  too_long_.reset();
  object_bytes_.reset();
  received_ = 0;
  wrong_range_ = false;
}

CAIRN_BODY bool s3_answer::receive(std::span<const std::byte> bytes) {
  if (call_.status == 206 && !request_.pieces.empty()) return place(bytes);
  const bool good = call_.status / 100 == 2;
  const auto max_bytes = !good                     ? max_error_bytes
                         : request_.pieces.empty() ? request_.max_answer
                                                   : std::uint64_t{0};
  if (bytes.size() > max_bytes - std::min<std::uint64_t>(kept_.size(), max_bytes)) {
    std::uint64_t announced = 0;
    if (const auto length = call_.header("content-length")) (void)parse_decimal(*length, announced);
    too_long_ = announced;
    return false;
  }
  kept_.insert(kept_.end(), bytes.begin(), bytes.end());
  return true;
}

CAIRN_BODY bool s3_answer::has_its_length() const {
  const auto length = call_.header("content-length");
  if (!length) return true;
  std::uint64_t announced = 0;
  return parse_decimal(*length, announced) && announced == kept_.size();
}

CAIRN_BODY bool s3_answer::right_range() {
  const auto value = call_.header("content-range");
  if (!value || !value->starts_with("bytes ") || call_.header("content-encoding")) return false;
  auto rest = value->substr(6);
  const auto dash = rest.find('-');
  const auto slash = rest.find('/');
  if (dash == std::string_view::npos || slash == std::string_view::npos || dash > slash) return false;
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  std::uint64_t total = 0;
  if (!parse_decimal(rest.substr(0, dash), first) ||
      !parse_decimal(rest.substr(dash + 1, slash - dash - 1), last) ||
      !parse_decimal(rest.substr(slash + 1), total))
    return false;
  object_bytes_ = total;
  return first == request_.offset && last == request_.offset + request_.length - 1 && last < total;
}

CAIRN_BODY bool s3_answer::place(std::span<const std::byte> bytes) {
  if (received_ == 0 && !right_range()) return wrong_range_ = true, false;
  if (bytes.size() > request_.length - received_) return wrong_range_ = true, false;
  if (received_ == 0) piece_ = 0, in_piece_ = 0;
  received_ += bytes.size();
  while (!bytes.empty()) {
    const auto& piece = request_.pieces[piece_];
    const auto n = std::min(bytes.size(), piece.bytes - in_piece_);
    if (piece.to != nullptr && n != 0) std::memcpy(piece.to + in_piece_, bytes.data(), n);
    bytes = bytes.subspan(n);
    in_piece_ += n;
    if (in_piece_ == piece.bytes) ++piece_, in_piece_ = 0;
  }
  return true;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
