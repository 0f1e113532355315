// SPDX-License-Identifier: Apache-2.0
#pragma once
// With CAIRN_PRECOMPILE, what is compiled once for all programs that know object storage, after
// cairn_common.hpp; and CLI11, as the programs among them read their command lines.
#if __has_include(<CLI/CLI.hpp>)
// A precompiled header emits every inline function, and one of libstdc++'s <filesystem> calls what its library keeps to itself.
#define CLI11_HAS_FILESYSTEM 0
#include <CLI/CLI.hpp>
#endif
#include <cairn/manage/copy.hpp>
#include <cairn/manage/export_safetensors.hpp>
#include <cairn/manage/verify.hpp>
#include <cairn/storage/compressed/compressed_storage.hpp>
#include <cairn/storage/compressed/zstd_codec.hpp>
#include <cairn/stores/any_store.hpp>
#include <cairn/stores/s3_store.hpp>
#include <cairn/stores/s3_url.hpp>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace cairn_common {

#if __has_include(<CLI/CLI.hpp>)
/// Never called.
inline int instantiate(CLI::App& app, std::string& text, std::vector<std::string>& texts, bool& flag,
                       std::int64_t& step, std::uint64_t& number, int argc, char** argv) try {
  app.add_option("", text, "")->required()->check(CLI::NonNegativeNumber)->check(CLI::ExistingPath);
  app.add_option("", texts, "");
  app.add_option("", step, "")->check(CLI::Range(1, 2));
  app.add_option("", number, "");
  app.add_flag("", flag, "");
  app.parse(argc, argv);
  return 0;
} catch (const CLI::ParseError& error) {
  return app.exit(error);
}
#endif

/// Never called.
inline void instantiate(cairn::s3_store bucket, cairn::url_store any) {
  using compressed = cairn::compressed_storage<cairn::url_store, cairn::zstd_codec>;
  cairn::any_checkpointer each = cairn::checkpointer{std::move(bucket)};
  each = cairn::checkpointer{compressed{std::move(any)}};
}

}  // namespace cairn_common
