// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/stores/s3/xml.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>

#include <expat.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY const xml_element* xml_element::child(std::string_view wanted) const noexcept {
  for (const auto& c : children)
    if (c.name == wanted) return &c;
  return nullptr;
}

CAIRN_BODY std::string_view xml_element::text_of(std::string_view wanted) const noexcept {
  const auto* c = child(wanted);
  return c == nullptr ? std::string_view() : std::string_view(c->text);
}

CAIRN_BODY xml_element xml_reader::read(std::string_view text, std::string_view what) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  const auto begin = text.find_first_not_of(" \t\r\n");
  text.remove_prefix(begin == std::string_view::npos ? text.size() : begin);
  xml_reader reader;
  if (text.empty()) reader.refused_ = "it is empty";
  if (text.size() > max_bytes) reader.refused_ = "it is too long";
  if (reader.refused_ == nullptr) reader.parse(text);
  if (reader.refused_ != nullptr)
    fail(error_id::corrupt_bad_value,
         "the server's answer is not an XML document of the requested kind: " + std::string(reader.refused_),
         {.file = std::string(what)});
  return std::move(reader.root_);
}

CAIRN_BODY void xml_reader::parse(std::string_view text) {
  const std::unique_ptr<std::remove_pointer_t<XML_Parser>, decltype(&::XML_ParserFree)> parser(
      ::XML_ParserCreate(nullptr), &::XML_ParserFree);
  if (!parser) throw std::bad_alloc();
  parser_ = parser.get();
  ::XML_SetUserData(parser_, this);
  ::XML_SetElementHandler(parser_, &xml_reader::on_start, &xml_reader::on_end);
  ::XML_SetCharacterDataHandler(parser_, &xml_reader::on_text);
  ::XML_SetStartDoctypeDeclHandler(parser_, &xml_reader::on_doctype);
  const auto status = ::XML_Parse(parser_, text.data(), static_cast<int>(text.size()), 1);
  if (out_of_memory_) throw std::bad_alloc();
  if (status != XML_STATUS_OK && refused_ == nullptr)
    refused_ = ::XML_ErrorString(::XML_GetErrorCode(parser_));
}

CAIRN_BODY void xml_reader::refuse(const char* why) noexcept {
  if (refused_ == nullptr) refused_ = why;
  ::XML_StopParser(parser_, XML_FALSE);
}

CAIRN_BODY void xml_reader::on_start(void* self, const char* name, const char**) {
  guarded(self, [&](xml_reader& r) {
    if (r.depth_ == max_depth) return r.refuse("its elements are nested too deeply");
    if (++r.elements_ > max_elements) return r.refuse("it has too many elements");
    std::string_view local(name);
    if (const auto colon = local.rfind(':'); colon != std::string_view::npos) local.remove_prefix(colon + 1);
    if (local.empty()) return r.refuse("an element has no name behind its colon");
    ++r.depth_;
    if (r.depth_ == 1) {
      r.root_.name = local;
      return;
    }
    r.open(r.depth_ - 1).children.push_back({std::string(local), {}, {}});
  });
}

CAIRN_BODY void xml_reader::on_end(void* self, const char*) {
  guarded(self, [](xml_reader& r) { --r.depth_; });
}

CAIRN_BODY void xml_reader::on_text(void* self, const char* text, int bytes) {
  guarded(self, [&](xml_reader& r) {
    auto& e = r.open(r.depth_);
    if (e.children.empty()) e.text.append(text, static_cast<std::size_t>(bytes));
  });
}

CAIRN_BODY void xml_reader::on_doctype(void* self, const char*, const char*, const char*, int) {
  guarded(self, [](xml_reader& r) { r.refuse("it declares a document type"); });
}

CAIRN_BODY xml_element& xml_reader::open(std::size_t depth) noexcept {
  auto* e = &root_;
  for (std::size_t d = 1; d < depth; ++d) e = &e->children.back();
  return *e;
}

CAIRN_BODY std::string xml_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else
      out += c;
  }
  return out;
}

CAIRN_BODY bool percent_decoded(std::string_view text, std::string& out) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
  };
  out.clear();
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '+') {
      out += ' ';
    } else if (text[i] != '%') {
      out += text[i];
    } else {
      if (text.size() - i < 3) return false;
      const int high = digit(text[i + 1]);
      const int low = digit(text[i + 2]);
      if (high < 0 || low < 0) return false;
      out += static_cast<char>(high * 16 + low);
      i += 2;
    }
  }
  return true;
}

CAIRN_BODY bool parse_decimal(std::string_view text, std::uint64_t& out) noexcept {
  if (text.empty() || text.size() > 20) return false;
  std::uint64_t n = 0;
  for (const char c : text) {
    if (c < '0' || c > '9' || __builtin_mul_overflow(n, std::uint64_t{10}, &n) ||
        __builtin_add_overflow(n, static_cast<std::uint64_t>(c - '0'), &n))
      return false;
  }
  out = n;
  return true;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
