// SPDX-License-Identifier: Apache-2.0
#pragma once
// One checkpoint by URL, whoever wrote it.
#include <cairn/manage/readable_checkpoint.hpp>
#include <cairn/safetensors_files.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>

#include "store.hpp"

namespace tools {

/// For --help: what a URL of one checkpoint is.
inline constexpr const char* checkpoint_help =
    "A URL may end with the directory of a step (checkpoints/step-00000100), or be safetensors files that\n"
    "something else wrote: a directory or bucket without checkpoints, a file.\n";

/// The step that a URL names with its last directory, which is taken off; -1: none.
inline std::int64_t take_step(std::string& url) {
  const auto query = url.starts_with("s3://") ? url.find('?') : std::string::npos;
  auto path = url.substr(0, query);
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  const auto slash = path.rfind('/');
  const auto begin = slash == std::string::npos ? 0 : slash + 1;
  const auto step = cairn::parse_step(path.substr(begin));
  if (!step) return -1;
  path.resize(slash == std::string::npos ? 0 : slash == 0 ? 1 : slash);
  if (path.empty()) path = ".";
  url = path + (query == std::string::npos ? std::string() : url.substr(query));
  return *step;
}

/// Opens the checkpoint of a step; -1: the one that the URL names, or the newest, or files of something else.
/// @throws cairn::error: storage_not_committed where there is none, usage_bad_option where the URL names another step
inline cairn::readable_checkpoint open_checkpoint(std::string url, std::int64_t step) {
  const auto directory = directory_of(url);
  if (directory && (directory->ends_with(".safetensors") || directory->ends_with(".json")))
    return cairn::readable_checkpoint(cairn::safetensors_files(*directory).reader());
  const auto whole_url = url;
  const auto named = take_step(url);
  if (step >= 0 && named >= 0 && step != named)
    cairn::fail(cairn::error_id::usage_bad_option, "the URL names another step than the option does",
                {.file = whole_url, .expected = std::to_string(named), .got = std::to_string(step)});
  if (step < 0) step = named;
  const storage_type storage{open_store(url)};
  auto reader = storage.reader();
  if (step < 0) {
    const auto steps = reader.list();
    if (steps.empty()) {
      // A directory may have files whose names no store takes, of which the error of safetensors_files tells.
      if (directory && std::filesystem::is_directory(*directory)) {
        try {
          return cairn::readable_checkpoint(cairn::safetensors_files(*directory).reader());
        } catch (const cairn::storage_error& e) {
          if (e.id() != cairn::error_id::storage_not_found) throw;
        }
      } else {
        for (const auto& key : cairn::any_store(storage.store()).keys("", 1))
          if (key.ends_with(".safetensors"))
            return cairn::readable_checkpoint(cairn::safetensors_files(storage.store()).reader());
      }
      cairn::fail(cairn::error_id::storage_not_committed, no_checkpoint_in(url));
    }
    step = steps.back();
  }
  return {std::move(reader), step};
}

}  // namespace tools
