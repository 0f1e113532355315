// SPDX-License-Identifier: Apache-2.0
#pragma once
// With CAIRN_PRECOMPILE, what is compiled once for all programs that know object storage, after
// cairn_common.hpp; and CLI11, as the programs among them read their command lines.
#include "cairn_common_cli.hpp"

#include <cairn/manage/copy.hpp>
#include <cairn/manage/export_safetensors.hpp>
#include <cairn/manage/verify.hpp>
#include <cairn/storage/compressed/compressed_storage.hpp>
#include <cairn/storage/compressed/zstd_codec.hpp>
#include <cairn/stores/any_store.hpp>
#include <cairn/stores/s3_store.hpp>
#include <cairn/stores/s3_url.hpp>

#include <utility>

namespace cairn_common {

/// Never called.
inline void instantiate(cairn::s3_store bucket, cairn::url_store any) {
  using compressed = cairn::compressed_storage<cairn::url_store, cairn::zstd_codec>;
  cairn::any_checkpointer each = cairn::checkpointer{std::move(bucket)};
  each = cairn::checkpointer{compressed{std::move(any)}};
}

}  // namespace cairn_common
