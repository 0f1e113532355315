// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <support/s3_server_http.hpp>
#include <support/s3_server_terms.hpp>
#include <utility>

/// What the scripted S3 server keeps, and what each request does to it.
namespace cairn_test::s3 {

struct object_rules {
  std::set<std::string> buckets{"bucket"};
  std::uint64_t min_part = std::uint64_t{5} << 20U;  ///< of each part but the last
  std::uint64_t max_part = std::uint64_t{5} << 30U;
  std::uint64_t max_parts = 10000;
  std::uint64_t page = 1000;       ///< entries of a listing
  bool conditional_writes = true;  ///< false: If-None-Match is ignored, as by old servers
  bool refuse_conditions = false;  ///< If-None-Match is answered with 501
  bool checksums = true;           ///< false: x-amz-checksum-* is answered with 501
  bool ignore_checksums = false;   ///< x-amz-checksum-* is read over
  bool opaque_etags = false;       ///< ETags are no MD5, as with encryption
  bucket_terms terms = {};
  std::string locked = {};   ///< keys that hold this are not removed, where it is not empty
  std::string unheard = {};  ///< nor are those by a request for many, which says nothing of them
  bool whole_names = false;  ///< uploads are listed by a whole key, not by its beginning, as by MinIO
  bool copies = true;        ///< false: UploadPartCopy is answered with 501
  bool no_times = false;     ///< what should be times of uploads and parts is none
  bool google = false;       ///< the dialect of Google Cloud Storage, see s3_server_google.hpp
};

struct stored_object {
  content data;
  std::string etag;  ///< with its quotes
  name_values headers;
  std::time_t modified = 0;
};

class object_table {
 public:
  object_rules rules;

  /// Carries the request out. `now` is the server's clock.
  http_reply perform(http_request& request, std::time_t now) {
    const std::lock_guard lock(mutex_);
    now_ = now;
    if (request.operation == "CreateBucket") {
      rules.buckets.insert(request.bucket);
      return {};
    }
    if (!rules.buckets.contains(request.bucket)) {
      return error_reply(404, "NoSuchBucket", "The specified bucket does not exist");
    }
    if (request.operation == "HeadBucket") return {};
    if (request.key.size() > 1024) return error_reply(400, "KeyTooLongError", "Your key is too long");
    if (auto refused = refuse_terms(rules.terms, request)) return *refused;
    if (auto refused = refuse_checksums(request)) return *refused;
    const auto& operation = request.operation;
    if (operation == "PutObject") return put(request);
    if (operation == "GetObject" || operation == "HeadObject") return get(request);
    if (operation == "DeleteObject") {
      if (is_locked(request.key)) return error_reply(403, "AccessDenied", "Access Denied");
      const auto at = objects_.find({request.bucket, request.key});
      if (const auto* match = request.header("if-match"); match != nullptr && rules.conditional_writes &&
                                                          at != objects_.end() &&
                                                          unquoted(*match) != unquoted(at->second.etag))
        return precondition_failed("If-Match");
      if (objects_.erase({request.bucket, request.key}) == 0 && rules.google) return no_such_key();
      auto reply = with_status(204);
      if (rules.terms.versions) reply.set("x-amz-delete-marker", "true");
      return reply;
    }
    if (operation == "DeleteObjects") return delete_many(request);
    if (operation == "ListObjectsV2") return list(request);
    if (operation == "CreateMultipartUpload") return create(request);
    if (operation == "UploadPart") return upload_part(request);
    if (operation == "UploadPartCopy") return copy_part(request);
    if (operation == "CompleteMultipartUpload") return complete(request);
    if (operation == "AbortMultipartUpload") return abort(request);
    if (operation == "ListParts") return list_parts(request);
    if (operation == "ListMultipartUploads") return list_uploads(request);
    return error_reply(501, "NotImplemented",
                       "A header or query you provided implies what is not implemented");
  }

  // --- For tests
  std::vector<std::string> keys(const std::string& bucket) {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> out;
    for (const auto& [where, object] : objects_) {
      if (where.first == bucket) out.push_back(where.second);
    }
    return out;
  }
  std::size_t uploads() {
    const std::lock_guard lock(mutex_);
    return uploads_.size();
  }
  /// A header that is kept with an object; "" where there is none.
  std::string kept(const std::string& bucket, const std::string& key, std::string_view header) {
    const std::lock_guard lock(mutex_);
    const auto at = objects_.find({bucket, key});
    if (at != objects_.end())
      for (const auto& [name, value] : at->second.headers)
        if (name == header) return value;
    return {};
  }
  std::optional<std::string> bytes(const std::string& bucket, const std::string& key) {
    const std::lock_guard lock(mutex_);
    const auto at = objects_.find({bucket, key});
    if (at == objects_.end()) return std::nullopt;
    return at->second.data.range(0, at->second.data.size());
  }
  /// Stores an object as if another client had written it.
  void put_behind_the_back(const std::string& bucket, const std::string& key, std::string data) {
    const std::lock_guard lock(mutex_);
    store(bucket, key, one_piece(std::move(data)), {}, quoted(hex_of("other" + std::to_string(++counter_))));
  }
  /// Changes the ETag, and keeps the bytes.
  void touch(const std::string& bucket, const std::string& key) {
    const std::lock_guard lock(mutex_);
    const auto at = objects_.find({bucket, key});
    if (at != objects_.end()) at->second.etag = quoted(hex_of("touched" + std::to_string(++counter_)));
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    objects_.clear();
    uploads_.clear();
  }

 private:
  struct part {
    std::shared_ptr<const std::string> data;
    std::string etag;
    std::string checksum;  ///< base64
    std::time_t modified = 0;
  };
  struct upload {
    std::string bucket;
    std::string key;
    std::string algorithm;  ///< in lower case, or empty
    std::string type;
    name_values headers;
    std::map<std::uint64_t, part> parts;
    std::time_t begun = 0;
  };
  struct given_checksum {
    std::string algorithm;
    std::string value;
  };

  static http_reply with_status(int status) {
    http_reply reply;
    reply.status = status;
    return reply;
  }
  static std::string quoted(std::string_view text) { return "\"" + std::string(text) + "\""; }
  static std::string unquoted(std::string_view text) {
    if (text.size() >= 2 && text.front() == '"' && text.back() == '"') text = text.substr(1, text.size() - 2);
    return std::string(text);
  }
  static content one_piece(std::string data) {
    content out;
    out.pieces.push_back(std::make_shared<const std::string>(std::move(data)));
    return out;
  }
  std::string iso_time(std::time_t time) const {
    if (rules.no_times) return "lately";
    std::tm parts{};
    ::gmtime_r(&time, &parts);
    std::array<char, 40> buffer{};
    std::strftime(buffer.data(), buffer.size(), "%Y-%m-%dT%H:%M:%S.000Z", &parts);
    return buffer.data();
  }
  static std::string http_time(std::time_t time) {
    std::tm parts{};
    ::gmtime_r(&time, &parts);
    std::array<char, 40> buffer{};
    std::strftime(buffer.data(), buffer.size(), "%a, %d %b %Y %H:%M:%S GMT", &parts);
    return buffer.data();
  }
  static std::string xml_checksum_name(std::string_view algorithm) {
    std::string out = "Checksum";
    for (const char c : algorithm) out += c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    return out;
  }
  std::string etag_of(const http_request& request) {
    if (rules.opaque_etags) return quoted("opaque-" + std::to_string(++counter_));
    return quoted(hex_of(request.body_md5));
  }
  void store(const std::string& bucket, const std::string& key, content data, name_values headers,
             std::string etag) {
    objects_[{bucket, key}] = {std::move(data), std::move(etag), std::move(headers), now_};
  }

  /// The one x-amz-checksum-* of the request; nothing where there is none.
  std::optional<given_checksum> checksum_in(const http_request& request) const {
    static constexpr std::string_view prefix = "x-amz-checksum-";
    for (const auto& [name, value] : request.headers) {
      if (name.rfind(prefix, 0) != 0 || name == "x-amz-checksum-algorithm" || name == "x-amz-checksum-type" ||
          name == "x-amz-checksum-mode") {
        continue;
      }
      return given_checksum{name.substr(prefix.size()), value};
    }
    return std::nullopt;
  }

  /// Compares Content-MD5 and x-amz-checksum-* with the body.
  std::optional<http_reply> refuse_checksums(const http_request& request) const {
    if (const auto* md5 = request.header("content-md5")) {
      const auto raw = from_base64(*md5);
      if (!raw || raw->size() != 16)
        return error_reply(400, "InvalidDigest", "The Content-MD5 you specified is not valid.");
      if (*raw != hash_of(EVP_md5(), request.body)) {
        return error_reply(400, "BadDigest", "The Content-MD5 you specified did not match what we received.");
      }
    }
    std::size_t given = 0;
    for (const auto& [name, value] : request.headers) {
      if (name.rfind("x-amz-checksum-", 0) != 0 && name != "x-amz-sdk-checksum-algorithm") continue;
      if (!rules.checksums) return error_reply(501, "NotImplemented", name + " is not implemented");
      static const std::set<std::string> other{"x-amz-checksum-algorithm", "x-amz-checksum-type",
                                               "x-amz-checksum-mode", "x-amz-sdk-checksum-algorithm"};
      if (other.contains(name) || rules.ignore_checksums) continue;
      if (++given > 1) return error_reply(400, "InvalidRequest", "Expecting a single x-amz-checksum- header");
      const auto raw = from_base64(value);
      const std::string algorithm = name.substr(std::string_view("x-amz-checksum-").size());
      if (request.operation == "CompleteMultipartUpload") continue;  // that of the object, not of this body
      const auto computed = checksum_of(algorithm, request.body);
      if (!computed || !raw || raw->size() != computed->size()) {
        return error_reply(400, "InvalidRequest", "Value for " + name + " header is invalid.");
      }
      if (*computed != *raw) {
        return error_reply(400, "BadDigest",
                           "The " + algorithm + " you specified did not match what we received.");
      }
    }
    return std::nullopt;
  }

  std::optional<http_reply> refuse_condition(const http_request& request) {
    const auto at = objects_.find({request.bucket, request.key});
    if (const auto* none = request.header("if-none-match")) {
      if (rules.refuse_conditions || *none != "*") {
        return error_reply(501, "NotImplemented",
                           "A header you provided implies functionality that is not implemented",
                           xml_element("Header", "If-None-Match"));
      }
      if (rules.conditional_writes && at != objects_.end()) return precondition_failed("If-None-Match");
    }
    if (const auto* match = request.header("if-match"); match != nullptr && rules.conditional_writes) {
      if (at == objects_.end()) return no_such_key();
      if (unquoted(*match) != unquoted(at->second.etag)) return precondition_failed("If-Match");
    }
    return std::nullopt;
  }
  static http_reply precondition_failed(std::string_view condition) {
    return error_reply(412, "PreconditionFailed",
                       "At least one of the pre-conditions you specified did not hold",
                       xml_element("Condition", condition));
  }
  static http_reply no_such_key() {
    return error_reply(404, "NoSuchKey", "The specified key does not exist.");
  }
  static http_reply no_such_upload() {
    return error_reply(404, "NoSuchUpload", "The specified multipart upload does not exist.");
  }
  static http_reply malformed_xml() {
    return error_reply(400, "MalformedXML", "The XML you provided was not well-formed");
  }
  name_values kept_headers(const http_request& request) const {
    name_values out;
    for (const auto& [name, value] : request.headers) {
      if (name == "content-type" || name.rfind("x-amz-meta-", 0) == 0 ||
          (about_keeping(name) && !rules.terms.ignores_encryption))
        out.emplace_back(name, value);
    }
    return out;
  }
  /// Adds to an answer what it says about the object that was made.
  static void confirm_encryption(const name_values& kept, http_reply& reply) {
    for (const auto& [name, value] : kept)
      if (name.starts_with("x-amz-server-side-encryption")) reply.set(name, value);
  }

  http_reply put(http_request& request) {
    if (auto refused = refuse_condition(request)) return *refused;
    if (request.body.size() > rules.max_part)
      return error_reply(400, "EntityTooLarge", "Your proposed upload is too large");
    http_reply reply;
    auto headers = kept_headers(request);
    confirm_encryption(headers, reply);
    const auto etag = etag_of(request);
    reply.set("ETag", etag);
    if (const auto sum = checksum_in(request); sum && !rules.ignore_checksums) {
      headers.emplace_back("x-amz-checksum-" + sum->algorithm, sum->value);
      headers.emplace_back("x-amz-checksum-type", "FULL_OBJECT");
      reply.set("x-amz-checksum-" + sum->algorithm, sum->value);
      reply.set("x-amz-checksum-type", "FULL_OBJECT");
    }
    store(request.bucket, request.key, one_piece(std::move(request.body)), std::move(headers), etag);
    return reply;
  }

  http_reply get(const http_request& request) {
    const auto at = objects_.find({request.bucket, request.key});
    if (at == objects_.end()) return no_such_key();
    const stored_object& object = at->second;
    if (const auto* match = request.header("if-match");
        match != nullptr && unquoted(*match) != unquoted(object.etag)) {
      return precondition_failed("If-Match");
    }
    if (const auto* none = request.header("if-none-match");
        none != nullptr && (*none == "*" || unquoted(*none) == unquoted(object.etag))) {
      return with_status(304);
    }
    http_reply reply;
    const std::uint64_t size = object.data.size();
    std::uint64_t begin = 0;
    std::uint64_t end = size;
    if (const auto* range = request.header("range");
        range != nullptr && range->find(',') == std::string::npos) {
      const auto parsed = range_of(*range, size);
      if (!parsed) {
        auto refused = error_reply(416, "InvalidRange", "The requested range is not satisfiable",
                                   xml_element("ActualObjectSize", std::to_string(size)));
        refused.set("Content-Range", "bytes */" + std::to_string(size));
        return refused;
      }
      if (parsed->first < parsed->second) {
        begin = parsed->first;
        end = parsed->second;
        reply.status = 206;
      }
      if (reply.status == 206)
        reply.set("Content-Range", "bytes " + std::to_string(begin) + "-" + std::to_string(end - 1) + "/" +
                                       std::to_string(size));
    }
    reply.set("ETag", object.etag);
    reply.set("Last-Modified", http_time(object.modified));
    reply.set("Accept-Ranges", "bytes");
    reply.set("Content-Type", "binary/octet-stream");
    const auto* mode = request.header("x-amz-checksum-mode");
    for (const auto& [name, value] : object.headers) {
      if (name.rfind("x-amz-checksum-", 0) == 0 &&
          (mode == nullptr || *mode != "ENABLED" || reply.status == 206))
        continue;
      reply.set(name == "content-type" ? "Content-Type" : name, value);
    }
    reply.set("Content-Length", std::to_string(end - begin));
    if (request.operation == "GetObject") reply.body = object.data.range(begin, end - begin);
    return reply;
  }

  /// [begin, end), empty if the header is ignored; nothing if it cannot be satisfied.
  static std::optional<std::pair<std::uint64_t, std::uint64_t>> range_of(std::string_view text,
                                                                         std::uint64_t size) {
    static constexpr std::string_view unit = "bytes=";
    const std::pair<std::uint64_t, std::uint64_t> whole{0, 0};
    if (text.substr(0, unit.size()) != unit) return whole;
    text.remove_prefix(unit.size());
    const auto dash = text.find('-');
    if (dash == std::string_view::npos) return whole;
    const auto first = number_of(text.substr(0, dash));
    const auto last = number_of(text.substr(dash + 1));
    if (!first && last) {
      if (*last == 0 || size == 0) return std::nullopt;
      return std::pair{size - std::min(size, *last), size};
    }
    if (!first || (last && *last < *first)) return whole;
    if (*first >= size) return std::nullopt;
    return std::pair{*first, last ? std::min(size, *last + 1) : size};
  }

  [[nodiscard]] bool is_locked(std::string_view key) const {
    return !rules.locked.empty() && key.find(rules.locked) != std::string_view::npos;
  }

  http_reply delete_many(const http_request& request) {
    if (request.header("content-md5") == nullptr && !checksum_in(request)) {
      return error_reply(400, "InvalidRequest",
                         "Missing required header for this request: Content-MD5 OR x-amz-checksum-*");
    }
    const auto root = xml_reader(request.body).read();
    if (!root || root->name != "Delete") return malformed_xml();
    std::string inner;
    std::size_t count = 0;
    for (const auto& node : root->children) {
      if (node.name == "Quiet") continue;
      if (node.name != "Object" || node.child("Key") == nullptr || ++count > 1000) return malformed_xml();
    }
    if (count == 0) return malformed_xml();
    for (const auto& node : root->children) {
      if (node.name != "Object") continue;
      if (!rules.unheard.empty() && node.value("Key").find(rules.unheard) != std::string::npos) continue;
      if (is_locked(node.value("Key"))) {
        inner += "<Error>" + xml_element("Key", node.value("Key")) + xml_element("Code", "AccessDenied") +
                 "</Error>";
        continue;
      }
      objects_.erase({request.bucket, node.value("Key")});
      if (root->value("Quiet") != "true")
        inner += "<Deleted>" + xml_element("Key", node.value("Key")) + "</Deleted>";
    }
    return xml_reply("DeleteResult", inner);
  }

  static http_reply xml_reply(std::string_view root, std::string_view inner) {
    http_reply reply;
    reply.set("Content-Type", "application/xml");
    reply.body = xml_document(root, inner);
    return reply;
  }

  // Tokens hold characters that a query must encode.
  static std::string token_of(std::string_view text) { return "t/" + base64_of(text) + "+/=="; }
  static std::optional<std::string> from_token(std::string_view token) {
    if (token.size() < 6 || token.substr(0, 2) != "t/" || token.substr(token.size() - 4) != "+/==")
      return std::nullopt;
    return from_base64(token.substr(2, token.size() - 6));
  }
  std::optional<std::uint64_t> limit_in(const http_request& request, std::string_view name) const {
    const auto* text = request.parameter(name);
    if (text == nullptr) return rules.page;
    const auto value = number_of(*text);
    if (!value) return std::nullopt;
    return std::min(*value, rules.page);
  }
  static http_reply invalid_argument(std::string_view what) {
    return error_reply(400, "InvalidArgument", "An argument is not valid: " + std::string(what));
  }

  http_reply list(const http_request& request) {
    const auto text = [&](std::string_view name) {
      const auto* value = request.parameter(name);
      return value == nullptr ? std::string() : *value;
    };
    const auto limit = limit_in(request, "max-keys");
    if (!limit) return invalid_argument("max-keys");
    const bool encode = text("encoding-type") == "url";
    const auto shown = [&](std::string_view raw) {
      return encode ? percent_encoded(raw, true) : std::string(raw);
    };
    const std::string prefix = text("prefix");
    const std::string delimiter = text("delimiter");
    std::string after = text("start-after");
    if (const auto* token = request.parameter("continuation-token")) {
      const auto decoded = from_token(*token);
      if (!decoded) return invalid_argument("continuation-token");
      after = *decoded;
    }
    std::string entries;
    std::string prefixes;
    std::string last;
    std::string last_prefix;
    std::uint64_t count = 0;
    bool truncated = false;
    for (auto at = objects_.lower_bound({request.bucket, prefix}); at != objects_.end(); ++at) {
      const auto& [where, object] = *at;
      if (where.first != request.bucket || where.second.compare(0, prefix.size(), prefix) != 0) break;
      const std::string& key = where.second;
      if (!after.empty() && (key <= after || (!delimiter.empty() && after.size() >= delimiter.size() &&
                                              after.compare(after.size() - delimiter.size(), delimiter.size(),
                                                            delimiter) == 0 &&
                                              key.compare(0, after.size(), after) == 0))) {
        continue;
      }
      const auto cut = delimiter.empty() ? std::string::npos : key.find(delimiter, prefix.size());
      const std::string common =
          cut == std::string::npos ? std::string() : key.substr(0, cut + delimiter.size());
      if (!common.empty() && common == last_prefix) continue;
      if (count == *limit) {
        truncated = true;
        break;
      }
      ++count;
      if (!common.empty()) {
        prefixes += "<CommonPrefixes>" + xml_element("Prefix", shown(common)) + "</CommonPrefixes>";
        last = last_prefix = common;
      } else {
        entries += "<Contents>" + xml_element("Key", shown(key)) +
                   xml_element("LastModified", iso_time(object.modified)) + xml_element("ETag", object.etag) +
                   xml_element("Size", std::to_string(object.data.size())) +
                   "<StorageClass>STANDARD</StorageClass></Contents>";
        last = key;
      }
    }
    std::string inner = xml_element("Name", request.bucket) + xml_element("Prefix", shown(prefix));
    if (!delimiter.empty()) inner += xml_element("Delimiter", shown(delimiter));
    inner += xml_element("MaxKeys", std::to_string(*limit)) + xml_element("KeyCount", std::to_string(count));
    if (encode) inner += "<EncodingType>url</EncodingType>";
    inner += xml_element("IsTruncated", truncated ? "true" : "false");
    if (truncated) inner += xml_element("NextContinuationToken", token_of(last));
    return xml_reply("ListBucketResult", inner + entries + prefixes);
  }

  http_reply create(const http_request& request) {
    upload made;
    made.bucket = request.bucket;
    made.key = request.key;
    made.headers = kept_headers(request);
    made.begun = now_;
    http_reply reply;
    confirm_encryption(made.headers, reply);
    if (const auto* algorithm = request.header("x-amz-checksum-algorithm");
        algorithm != nullptr && !rules.ignore_checksums) {
      made.algorithm = lower(*algorithm);
      if (!checksum_of(made.algorithm, ""))
        return error_reply(400, "InvalidRequest", "Checksum algorithm is invalid.");
      const bool crc = made.algorithm.rfind("crc", 0) == 0;
      const auto* type = request.header("x-amz-checksum-type");
      made.type = type != nullptr ? *type : made.algorithm == "crc64nvme" ? "FULL_OBJECT" : "COMPOSITE";
      if ((made.type == "FULL_OBJECT" && !crc) ||
          (made.type == "COMPOSITE" && made.algorithm == "crc64nvme")) {
        return error_reply(400, "InvalidRequest",
                           "The " + made.type + " checksum type cannot be used with this algorithm.");
      }
      reply.set("x-amz-checksum-algorithm", *algorithm);
      reply.set("x-amz-checksum-type", made.type);
    } else if (request.header("x-amz-checksum-type") != nullptr && !rules.ignore_checksums) {
      return error_reply(400, "InvalidRequest",
                         "The x-amz-checksum-type header can only be used with x-amz-checksum-algorithm.");
    }
    // Characters that a query must encode.
    const std::string id =
        "2~" + hex_of(hash_of(EVP_sha256(), "upload" + std::to_string(++counter_))).substr(0, 20) + "+/_.=";
    reply.set("Content-Type", "application/xml");
    reply.body = xml_document("InitiateMultipartUploadResult", xml_element("Bucket", request.bucket) +
                                                                   xml_element("Key", request.key) +
                                                                   xml_element("UploadId", id));
    uploads_[id] = std::move(made);
    return reply;
  }

  upload* find_upload(const http_request& request) {
    const auto* id = request.parameter("uploadId");
    const auto at = id == nullptr ? uploads_.end() : uploads_.find(*id);
    if (at == uploads_.end() || at->second.bucket != request.bucket || at->second.key != request.key)
      return nullptr;
    return &at->second;
  }

  http_reply upload_part(http_request& request) {
    const auto number = number_of(*request.parameter("partNumber"));
    if (!number || *number < 1 || *number > rules.max_parts) {
      return invalid_argument("Part number must be an integer between 1 and 10000, inclusive");
    }
    upload* to = find_upload(request);
    if (to == nullptr) return no_such_upload();
    if (request.body.size() > rules.max_part)
      return error_reply(400, "EntityTooLarge", "Your proposed upload is too large");
    http_reply reply;
    part made;
    if (!rules.ignore_checksums) {
      const auto sum = checksum_in(request);
      // Without an algorithm at the beginning, parts may bring any; it was checked and is not kept.
      if (!to->algorithm.empty() && (!sum || sum->algorithm != to->algorithm)) {
        return error_reply(400, "InvalidRequest",
                           "Checksum Type mismatch occurred, expected checksum Type: " + to->algorithm +
                               ", actual checksum Type: " + (sum ? sum->algorithm : "null"));
      }
      if (sum) {
        if (!to->algorithm.empty()) made.checksum = sum->value;
        reply.set("x-amz-checksum-" + sum->algorithm, sum->value);
      }
    }
    made.modified = now_;
    made.etag = etag_of(request);
    reply.set("ETag", made.etag);
    made.data = std::make_shared<const std::string>(std::move(request.body));
    to->parts[*number] = std::move(made);
    return reply;
  }

  /// As the service answers it: errors of the copy come as a document, here always with their status.
  http_reply copy_part(const http_request& request) {
    if (!rules.copies)
      return error_reply(501, "NotImplemented", "A header you provided implies no functionality");
    const auto number = number_of(*request.parameter("partNumber"));
    upload* to = find_upload(request);
    if (to == nullptr) return no_such_upload();
    auto name = percent_decoded(*request.header("x-amz-copy-source"));
    if (!number || !name || !request.body.empty()) return invalid_argument("no copy");
    if (name->starts_with("/")) name->erase(0, 1);
    const auto slash = name->find('/');
    const auto at =
        objects_.find({name->substr(0, slash), slash == std::string::npos ? "" : name->substr(slash + 1)});
    if (at == objects_.end()) return no_such_key();
    const std::uint64_t size = at->second.data.size();
    std::uint64_t begin = 0, end = size;
    if (const auto* range = request.header("x-amz-copy-source-range")) {
      const auto parsed = range_of(*range, size);
      if (!parsed || size <= (std::uint64_t{5} << 20U)) return invalid_argument("the range of a copy");
      begin = parsed->first, end = parsed->second;
    }
    if (end - begin > rules.max_part)
      return error_reply(400, "InvalidRequest", "The copy source is too large");
    part made;
    made.data = std::make_shared<const std::string>(at->second.data.range(begin, end - begin));
    made.modified = now_;
    made.etag = quoted(hex_of("copied" + std::to_string(++counter_)));
    auto reply = xml_reply("CopyPartResult",
                           xml_element("ETag", made.etag) + xml_element("LastModified", iso_time(now_)));
    to->parts[*number] = std::move(made);
    return reply;
  }

  http_reply complete(const http_request& request) {
    upload* from = find_upload(request);
    if (from == nullptr) return no_such_upload();
    const auto root = xml_reader(request.body).read();
    if (!root || root->name != "CompleteMultipartUpload" || root->children.empty()) return malformed_xml();
    if (auto refused = refuse_condition(request)) return *refused;
    content data;
    std::uint64_t before = 0;
    std::string digests;
    const std::string checksum_name = xml_checksum_name(from->algorithm);
    for (const auto& node : root->children) {
      const auto number = number_of(node.value("PartNumber"));
      if (node.name != "Part" || !number || node.child("ETag") == nullptr) return malformed_xml();
      if (*number <= before) {
        return error_reply(400, "InvalidPartOrder", "The list of parts was not in ascending order.");
      }
      before = *number;
      const auto at = from->parts.find(*number);
      if (at == from->parts.end() || unquoted(node.value("ETag")) != unquoted(at->second.etag)) {
        return error_reply(400, "InvalidPart", "One or more of the specified parts could not be found.",
                           xml_element("PartNumber", std::to_string(*number)));
      }
      if (!from->algorithm.empty()) {
        const auto* sum = node.child(checksum_name);
        if (sum == nullptr && from->type == "COMPOSITE") {
          return error_reply(400, "InvalidRequest",
                             "The upload was created using a " + from->algorithm +
                                 " checksum. The complete request must include the checksum for each part.");
        }
        if (sum != nullptr && sum->text != at->second.checksum) {
          return error_reply(
              400, "InvalidPart",
              "One or more of the specified parts could not be found: its checksum is another.");
        }
      }
      data.pieces.push_back(at->second.data);
      digests += from_base64(at->second.checksum).value_or("");
    }
    for (std::size_t i = 0; i + 1 < data.pieces.size(); ++i) {
      if (data.pieces[i]->size() < rules.min_part) {
        return error_reply(400, "EntityTooSmall",
                           "Your proposed upload is smaller than the minimum allowed size",
                           xml_element("PartNumber", root->children[i].value("PartNumber")));
      }
    }
    if (const auto* size = request.header("x-amz-mp-object-size");
        size != nullptr && number_of(*size) != data.size()) {
      return error_reply(400, "InvalidRequest",
                         "The provided 'x-amz-mp-object-size' header does not match the object.");
    }
    auto headers = from->headers;
    const std::string parts = std::to_string(data.pieces.size());
    std::string total;
    if (!from->algorithm.empty()) {
      const bool whole = from->type == "FULL_OBJECT";
      const auto given = checksum_in(request);
      const auto* type = request.header("x-amz-checksum-type");
      if (type != nullptr && *type != from->type) {
        return error_reply(400, "InvalidRequest", "The upload was created with another x-amz-checksum-type.");
      }
      if (whole) {
        total = base64_of(whole_checksum(from->algorithm, data));
      } else {
        total = base64_of(*checksum_of(from->algorithm, digests)) + "-" + parts;
      }
      if (given && (given->algorithm != from->algorithm || given->value != total)) {
        return error_reply(
            400, given->algorithm != from->algorithm ? "InvalidRequest" : "BadDigest",
            "The " + given->algorithm + " you specified did not match the calculated checksum.");
      }
      headers.emplace_back("x-amz-checksum-" + from->algorithm, total);
      headers.emplace_back("x-amz-checksum-type", from->type);
    }
    std::string md5s;
    for (const auto& node : root->children) {
      const auto& etag = from->parts[*number_of(node.value("PartNumber"))].etag;
      for (std::size_t i = 1; i + 2 < etag.size() && !rules.opaque_etags; i += 2) {
        md5s += *percent_decoded("%" + etag.substr(i, 2));
      }
    }
    const std::string etag = quoted(
        (rules.opaque_etags ? "opaque" + std::to_string(++counter_) : hex_of(hash_of(EVP_md5(), md5s))) +
        "-" + parts);
    store(from->bucket, from->key, std::move(data), std::move(headers), etag);
    const std::string sum_element =
        total.empty() ? std::string()
                      : xml_element(checksum_name, total) + xml_element("ChecksumType", from->type);
    auto reply = xml_reply(
        "CompleteMultipartUploadResult",
        xml_element("Location", "http://scripted/" + from->bucket + "/" + percent_encoded(from->key, true)) +
            xml_element("Bucket", from->bucket) + xml_element("Key", from->key) + xml_element("ETag", etag) +
            sum_element);
    uploads_.erase(*request.parameter("uploadId"));
    return reply;
  }

  static std::string whole_checksum(const std::string& algorithm, const content& data) {
    const auto run = [&]<class Word, Word Polynomial>() {
      Word crc = 0;
      for (const auto& piece : data.pieces) crc = reflected_crc<Word, Polynomial>(*piece, crc);
      return big_endian(crc);
    };
    if (algorithm == "crc32") return run.template operator()<std::uint32_t, 0xEDB88320U>();
    if (algorithm == "crc32c") return run.template operator()<std::uint32_t, 0x82F63B78U>();
    return run.template operator()<std::uint64_t, 0x9A6C9329AC4BC9B5U>();
  }

  http_reply abort(const http_request& request) {
    if (find_upload(request) == nullptr) return no_such_upload();
    uploads_.erase(*request.parameter("uploadId"));
    return with_status(204);
  }

  http_reply list_parts(const http_request& request) {
    const upload* from = find_upload(request);
    if (from == nullptr) return no_such_upload();
    const auto limit = limit_in(request, "max-parts");
    const auto* marker = request.parameter("part-number-marker");
    const auto after = marker == nullptr ? std::optional<std::uint64_t>(0) : number_of(*marker);
    if (!limit || !after) return invalid_argument("max-parts or part-number-marker");
    std::string entries;
    std::uint64_t count = 0;
    std::uint64_t last = *after;
    bool truncated = false;
    for (const auto& [number, one] : from->parts) {
      if (number <= *after) continue;
      if (count == *limit) {
        truncated = true;
        break;
      }
      ++count;
      last = number;
      entries += "<Part>" + xml_element("PartNumber", std::to_string(number)) +
                 xml_element("LastModified", iso_time(one.modified)) + xml_element("ETag", one.etag) +
                 xml_element("Size", std::to_string(one.data->size())) +
                 (one.checksum.empty() ? std::string()
                                       : xml_element(xml_checksum_name(from->algorithm), one.checksum)) +
                 "</Part>";
    }
    return xml_reply("ListPartsResult", xml_element("Bucket", from->bucket) + xml_element("Key", from->key) +
                                            xml_element("UploadId", *request.parameter("uploadId")) +
                                            xml_element("PartNumberMarker", std::to_string(*after)) +
                                            xml_element("NextPartNumberMarker", std::to_string(last)) +
                                            xml_element("MaxParts", std::to_string(*limit)) +
                                            xml_element("IsTruncated", truncated ? "true" : "false") +
                                            entries);
  }

  http_reply list_uploads(const http_request& request) {
    const auto text = [&](std::string_view name) {
      const auto* value = request.parameter(name);
      return value == nullptr ? std::string() : *value;
    };
    const auto limit = limit_in(request, "max-uploads");
    if (!limit) return invalid_argument("max-uploads");
    if (!text("delimiter").empty())
      return error_reply(501, "NotImplemented", "delimiter is not implemented here");
    const bool encode = text("encoding-type") == "url";
    const auto shown = [&](std::string_view raw) {
      return encode ? percent_encoded(raw, true) : std::string(raw);
    };
    std::map<std::pair<std::string, std::string>, const upload*> sorted;
    const std::string prefix = text("prefix");
    const bool whole = rules.whole_names && !prefix.empty();
    for (const auto& [id, one] : uploads_)
      if (one.bucket == request.bucket && (whole ? one.key == prefix : one.key.starts_with(prefix)))
        sorted[{one.key, id}] = &one;
    const std::string key_marker = text("key-marker");
    const std::string id_marker = text("upload-id-marker");
    std::string entries;
    std::uint64_t count = 0;
    bool truncated = false;
    std::pair<std::string, std::string> last;
    for (const auto& [where, one] : sorted) {
      const auto& [key, id] = where;
      if (!key_marker.empty() &&
          (key < key_marker || (key == key_marker && (id_marker.empty() || id <= id_marker))))
        continue;
      if (count == *limit) {
        truncated = true;
        break;
      }
      ++count;
      last = where;
      entries += "<Upload>" + xml_element("Key", shown(key)) + xml_element("UploadId", id) +
                 "<StorageClass>STANDARD</StorageClass>" + xml_element("Initiated", iso_time(one->begun)) +
                 "</Upload>";
    }
    std::string inner = xml_element("Bucket", request.bucket) + xml_element("KeyMarker", shown(key_marker)) +
                        xml_element("UploadIdMarker", id_marker) +
                        xml_element("Prefix", shown(text("prefix"))) +
                        xml_element("MaxUploads", std::to_string(*limit)) +
                        xml_element("IsTruncated", truncated ? "true" : "false");
    if (encode) inner += "<EncodingType>url</EncodingType>";
    if (truncated)
      inner +=
          xml_element("NextKeyMarker", shown(last.first)) + xml_element("NextUploadIdMarker", last.second);
    return xml_reply("ListMultipartUploadsResult", inner + entries);
  }

  std::mutex mutex_;
  std::map<std::pair<std::string, std::string>, stored_object> objects_;
  std::map<std::string, upload> uploads_;
  std::uint64_t counter_ = 0;
  std::time_t now_ = 0;
};

}  // namespace cairn_test::s3
