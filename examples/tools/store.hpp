// SPDX-License-Identifier: Apache-2.0
#pragma once
// Stores by URL, for all programs: directories, and buckets where this build has cairn::s3; reading what is
// compressed where it has cairn::zstd.
#include <cairn/storage/safetensors_storage.hpp>
#include <cairn/stores/any_store.hpp>
#ifdef CAIRN_USES_S3
#include <cairn/stores/s3_url.hpp>
#endif
#ifdef CAIRN_USES_ZSTD
#include <cairn/storage/compressed/compressed_storage.hpp>
#include <cairn/storage/compressed/zstd_codec.hpp>
#endif

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace tools {

#ifdef CAIRN_USES_S3
using store_type = cairn::url_store;
/// @throws cairn::usage_error
inline store_type open_store(std::string_view url) {
  return cairn::open_store(url);
}
#else
using store_type = cairn::any_store_of<cairn::file_store>;
inline store_type open_store(std::string_view url) {
  return cairn::open_file_url(url);
}
#endif

#ifdef CAIRN_USES_ZSTD
using storage_type = cairn::compressed_storage<store_type, cairn::zstd_codec>;
#else
using storage_type = cairn::safetensors_storage<store_type>;
#endif
using reader_type = decltype(std::declval<const storage_type&>().reader());

/// For --help: what a URL is.
inline constexpr const char* url_help =
    "URLs: a directory (checkpoints, file:checkpoints, file:///data/run) or s3://BUCKET/PREFIX with\n"
    "?endpoint=https://...&region=... behind it where needed; credentials come from the environment\n"
    "(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) or the shared credentials file.\n";

/// The directory that a URL names; nothing for a bucket, and for what open_store() refuses.
inline std::optional<std::string> directory_of(std::string_view url) {
  const auto scheme = cairn::detail::scheme_of(url);
  if (!scheme.empty() && scheme != "file") return std::nullopt;
  if (scheme == "file") url.remove_prefix(5);
  if (url.starts_with("///")) url.remove_prefix(2);
  return std::string(url);
}

/// What a program says where it finds no checkpoint.
inline std::string no_checkpoint_in(std::string_view url) {
  std::string text = "there is no checkpoint in ";
  text += url;
  std::error_code unknown;
  if (const auto directory = directory_of(url); directory && !std::filesystem::exists(*directory, unknown))
    text += ": there is no such directory";
  return text;
}

}  // namespace tools
