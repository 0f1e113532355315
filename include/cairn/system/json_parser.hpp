// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wall"
#pragma GCC diagnostic ignored "-Wextra"
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wpedantic"
#endif
#if defined(__clang__)
// RapidJSON's empty stack adds an offset to a null pointer before it compares and allocates, which is
// harmless but not allowed; the sanitizer is to watch our code.
#pragma clang attribute push(__attribute__((no_sanitize("pointer-overflow"))), apply_to = function)
#endif
#include <rapidjson/memorystream.h>
#include <rapidjson/reader.h>
#if defined(__clang__)
#pragma clang attribute pop
#endif
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

namespace cairn {
inline namespace v1 {
namespace detail {

/// Receives the events of a JSON text. Each function gives nullptr, or the reason to stop.
class json_events {
 public:
  virtual const char* begin_object() = 0;
  virtual const char* key(std::string_view text) = 0;
  virtual const char* end_object() = 0;
  virtual const char* begin_array() = 0;
  virtual const char* end_array() = 0;
  virtual const char* string(std::string_view text) = 0;
  /// An integer without a sign. Every other number, and true, false and null, are `other()`.
  virtual const char* number(std::uint64_t value) = 0;
  virtual const char* other() = 0;

 protected:
  ~json_events() = default;
};

/// Where and why a JSON text was refused; `what` is nullptr if it was not.
struct json_problem {
  const char* what = nullptr;
  std::size_t offset = 0;  ///< bytes from the beginning of the text
};

/// Deepest nesting of a JSON text.
inline constexpr int max_json_depth = 32;

/// What the JSON parser calls; hands on to json_events, so that the parser is compiled once.
class json_adapter {
 public:
  explicit json_adapter(json_events& events) noexcept : events_(events) {}

  bool Null() { return take(events_.other()); }
  bool Bool(bool) { return take(events_.other()); }
  // The parser gives signed numbers only where the text has a minus.
  bool Int(int) { return take(events_.other()); }
  bool Int64(std::int64_t) { return take(events_.other()); }
  bool Uint(unsigned value) { return take(events_.number(value)); }
  bool Uint64(std::uint64_t value) { return take(events_.number(value)); }
  bool Double(double) { return take(events_.other()); }
  bool RawNumber(const char*, rapidjson::SizeType, bool) { return take(events_.other()); }
  bool String(const char* text, rapidjson::SizeType size, bool) {
    return whole({text, size}) && take(events_.string({text, size}));
  }
  bool Key(const char* text, rapidjson::SizeType size, bool) {
    return whole({text, size}) && take(events_.key({text, size}));
  }
  bool StartObject() { return deeper() && take(events_.begin_object()); }
  bool StartArray() { return deeper() && take(events_.begin_array()); }
  bool EndObject(rapidjson::SizeType) { return --depth_, take(events_.end_object()); }
  bool EndArray(rapidjson::SizeType) { return --depth_, take(events_.end_array()); }

  [[nodiscard]] const char* problem() const noexcept { return problem_; }

 private:
  bool take(const char* problem) noexcept {
    problem_ = problem;
    return problem == nullptr;
  }
  /// The parser lets an escape of the second half of a surrogate pair stand alone, and makes bytes of it that are no
  /// UTF-8 (ED A0..BF): nothing could read them again.
  bool whole(std::string_view text) noexcept {
    for (auto at = text.find('\xED'); at != text.npos; at = text.find('\xED', at + 1))
      if (at + 1 < text.size() && static_cast<unsigned char>(text[at + 1]) >= 0xA0)
        return take("has half of a surrogate pair");
    return true;
  }
  bool deeper() noexcept { return ++depth_ <= max_json_depth || take("is nested deeper than 32 levels"); }

  json_events& events_;
  const char* problem_ = nullptr;
  int depth_ = 0;
};

/// Parses one JSON value, strictly: valid UTF-8, no comments, nothing after the value. Never recurses, so the
/// depth of a hostile text costs no stack. What the events throw comes through.
[[nodiscard]] inline json_problem parse_json(std::string_view text, json_events& events) {
  rapidjson::MemoryStream stream(text.data(), text.size());
  rapidjson::Reader reader;
  json_adapter adapter(events);
  constexpr unsigned flags = rapidjson::kParseIterativeFlag | rapidjson::kParseValidateEncodingFlag;
  if (!reader.Parse<flags>(stream, adapter))
    return {adapter.problem() != nullptr ? adapter.problem() : "is not valid JSON", reader.GetErrorOffset()};
  // The parser takes a NUL for the end of the text.
  if (stream.Tell() != text.size()) return {"goes on after its JSON value", stream.Tell()};
  return {};
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
