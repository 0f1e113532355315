// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <support/s3_server_hashing.hpp>
#include <utility>
#include <vector>

/// Requests and replies of the scripted S3 server, as values, and the little XML that it reads and writes.
namespace cairn_test::s3 {

using name_values = std::vector<std::pair<std::string, std::string>>;

inline std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

inline std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r'))
    text.remove_suffix(1);
  return text;
}

inline std::optional<std::uint64_t> number_of(std::string_view text) {
  if (text.empty() || text.size() > 18) return std::nullopt;
  std::uint64_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + static_cast<std::uint64_t>(c - '0');
  }
  return value;
}

struct http_request {
  std::string method;
  std::string raw_path;    ///< as it was sent
  name_values parameters;  ///< of the query, decoded
  name_values headers;     ///< names in lower case
  std::string body;
  std::string body_sha256;  ///< in hexadecimal
  std::string body_md5;     ///< raw; empty where ETags are opaque

  std::string operation;  ///< as S3 names it: PutObject, UploadPart, ...
  std::string bucket;
  std::string key;

  [[nodiscard]] const std::string* header(std::string_view name) const { return find(headers, name); }
  [[nodiscard]] const std::string* parameter(std::string_view name) const { return find(parameters, name); }

 private:
  static const std::string* find(const name_values& all, std::string_view name) {
    for (const auto& [key, value] : all) {
      if (key == name) return &value;
    }
    return nullptr;
  }
};

/// The bytes of an object: those of its parts, in order.
struct content {
  std::vector<std::shared_ptr<const std::string>> pieces;
  [[nodiscard]] std::uint64_t size() const {
    std::uint64_t sum = 0;
    for (const auto& piece : pieces) sum += piece->size();
    return sum;
  }
  [[nodiscard]] std::string range(std::uint64_t begin, std::uint64_t length) const {
    std::string out;
    out.reserve(length);
    for (const auto& piece : pieces) {
      if (begin < piece->size() && length > 0) {
        const std::uint64_t taken = std::min<std::uint64_t>(length, piece->size() - begin);
        out.append(*piece, begin, taken);
        length -= taken;
        begin = 0;
      } else if (begin >= piece->size()) {
        begin -= piece->size();
      }
    }
    return out;
  }
};

struct http_reply {
  int status = 200;
  name_values headers;
  std::string body;
  std::string code;  ///< of an error, for the journal

  void set(std::string_view name, std::string_view value) {
    for (auto& [old, text] : headers) {
      if (old == name) {
        text = value;
        return;
      }
    }
    headers.emplace_back(name, value);
  }
  void remove(std::string_view name) {
    for (auto at = headers.begin(); at != headers.end();) at = at->first == name ? headers.erase(at) : at + 1;
  }
};

inline std::string_view reason_of(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 206:
      return "Partial Content";
    case 301:
      return "Moved Permanently";
    case 304:
      return "Not Modified";
    case 307:
      return "Temporary Redirect";
    case 400:
      return "Bad Request";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 409:
      return "Conflict";
    case 412:
      return "Precondition Failed";
    case 416:
      return "Range Not Satisfiable";
    case 500:
      return "Internal Server Error";
    case 503:
      return "Slow Down";
    default:
      return "Status";
  }
}

/// Escapes also characters that XML cannot hold: a client that wants those asks for encoding-type=url.
inline std::string xml_escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += "&#" + std::to_string(static_cast<int>(c)) + ";";
        } else {
          out += c;
        }
    }
  }
  return out;
}

inline std::string xml_element(std::string_view name, std::string_view text) {
  return "<" + std::string(name) + ">" + xml_escaped(text) + "</" + std::string(name) + ">";
}

inline constexpr std::string_view xml_declaration = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";

inline std::string xml_document(std::string_view root, std::string_view inner) {
  return std::string(xml_declaration) + "<" + std::string(root) +
         " xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">" + std::string(inner) + "</" +
         std::string(root) + ">";
}

inline http_reply error_reply(int status, std::string_view code, std::string_view message,
                              std::string_view more = {}) {
  http_reply reply;
  reply.status = status;
  reply.code = code;
  reply.set("Content-Type", "application/xml");
  reply.body = std::string(xml_declaration) + "<Error>" + xml_element("Code", code) +
               xml_element("Message", message) + std::string(more) +
               "<RequestId>@REQUEST@</RequestId><HostId>scripted</HostId></Error>";
  return reply;
}

/// The XML that a client sends: elements with text; attributes are ignored.
struct xml_node {
  std::string name;
  std::string text;
  std::vector<xml_node> children;
  [[nodiscard]] const xml_node* child(std::string_view wanted) const {
    for (const auto& node : children) {
      if (node.name == wanted) return &node;
    }
    return nullptr;
  }
  [[nodiscard]] std::string value(std::string_view wanted) const {
    const auto* node = child(wanted);
    return node == nullptr ? std::string() : node->text;
  }
};

class xml_reader {
 public:
  explicit xml_reader(std::string_view text) : text_(text) {}
  /// Returns nothing if it is not one well-formed element.
  std::optional<xml_node> read() {
    skip_space();
    if (text_.substr(at_, 5) == "<?xml") {
      const auto end = text_.find("?>", at_);
      if (end == std::string_view::npos) return std::nullopt;
      at_ = end + 2;
    }
    skip_space();
    auto root = element(0);
    skip_space();
    if (at_ != text_.size()) return std::nullopt;
    return root;
  }

 private:
  void skip_space() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos)
      ++at_;
  }
  std::optional<xml_node> element(int depth) {
    if (depth > 8 || at_ >= text_.size() || text_[at_] != '<') return std::nullopt;
    const auto close = text_.find('>', at_);
    if (close == std::string_view::npos || close == at_ + 1) return std::nullopt;
    std::string_view tag = text_.substr(at_ + 1, close - at_ - 1);
    at_ = close + 1;
    const bool empty = tag.back() == '/';
    if (empty) tag.remove_suffix(1);
    xml_node node;
    node.name = std::string(tag.substr(0, tag.find_first_of(" \t\r\n")));
    if (node.name.empty() || node.name.front() == '!' || node.name.front() == '/') return std::nullopt;
    if (empty) return node;
    for (;;) {
      const auto next = text_.find('<', at_);
      if (next == std::string_view::npos) return std::nullopt;
      auto text = unescaped(text_.substr(at_, next - at_));
      if (!text) return std::nullopt;
      node.text += *text;
      at_ = next;
      if (text_.substr(at_, 2) == "</") {
        const auto end = text_.find('>', at_);
        if (end == std::string_view::npos || text_.substr(at_ + 2, end - at_ - 2) != node.name)
          return std::nullopt;
        at_ = end + 1;
        return node;
      }
      auto child = element(depth + 1);
      if (!child) return std::nullopt;
      node.children.push_back(std::move(*child));
    }
  }
  static std::optional<std::string> unescaped(std::string_view text) {
    std::string out;
    while (!text.empty()) {
      if (text.front() != '&') {
        out += text.front();
        text.remove_prefix(1);
        continue;
      }
      const auto end = text.find(';');
      if (end == std::string_view::npos) return std::nullopt;
      const std::string_view name = text.substr(1, end - 1);
      static constexpr std::pair<std::string_view, char> known[] = {
          {"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}};
      char found = '\0';
      for (const auto& [entity, c] : known) {
        if (entity == name) found = c;
      }
      if (found == '\0' && name.size() > 1 && name[0] == '#') {
        const auto value = name[1] == 'x' ? hexadecimal(name.substr(2)) : number_of(name.substr(1));
        if (value && *value < 0x80) found = static_cast<char>(*value);
      }
      if (found == '\0') return std::nullopt;
      out += found;
      text.remove_prefix(end + 1);
    }
    return out;
  }
  static std::optional<std::uint64_t> hexadecimal(std::string_view digits) {
    if (digits.empty() || digits.size() > 6) return std::nullopt;
    return std::strtoull(std::string(digits).c_str(), nullptr, 16);
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace cairn_test::s3
