// SPDX-License-Identifier: Apache-2.0
#pragma once
// What inspect says about a store of checkpoints and the steps in it.
#include <cairn/cairn.hpp>
#include <cairn/storage/commit/commit_parts.hpp>
#include <cairn/storage/manifest/manifest.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/system/digest.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../tools/status.hpp"
#include "../tools/store.hpp"

namespace inspecting {

using tools::count_text;
using tools::exit_status;
using tools::reader_type;
using tools::size_text;
using tools::status_of;
using tools::store_type;

inline std::string time_text(std::int64_t unix_time) {
  const auto time = static_cast<std::time_t>(unix_time);
  std::tm parts{};
  char text[40];
  if (::gmtime_r(&time, &parts) == nullptr ||
      std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &parts) == 0)
    return "at " + std::to_string(unix_time);
  return text;
}

/// A checkpoint, and how to tell whether it is still the one that was opened; see cairn::detail::require_committed.
struct opened_step {
  reader_type::checkpoint_type checkpoint;
  std::uint64_t manifest_digest;
};
inline opened_step open(reader_type& reader, std::int64_t step) {
  const auto manifest_bytes = reader.fetch(step);
  return {reader.open(step, manifest_bytes), cairn::digest(manifest_bytes)};
}

inline std::string summary(const cairn::manifest& m) {
  std::uint64_t bytes = 0, files = 0;
  for (const auto& record : m.records)
    if (record.rank == m.placement.first_of(record.rank)) bytes += record.data_bytes, files += record.files;
  return "step " + std::to_string(m.step) + "  " + time_text(m.unix_time) + "  " +
         count_text(static_cast<std::uint64_t>(m.content.world_size), "rank") + "  " + size_text(bytes) +
         " in " + count_text(files, "file") + "  " + count_text(m.content.items.size(), "item");
}

/// What a listing shows to be wrong with the files of a checkpoint: missing ones, and other lengths than the
/// manifest says. Empty where nothing is. Compressed files have lengths of their own.
inline std::string damage_listed(store_type& store, const cairn::manifest& m) {
  std::map<std::string, std::uint64_t> there;
  for (auto& o : store.list(cairn::step_directory(m.step) + "/")) there[std::move(o.key)] = o.bytes;
  const bool encoded = std::any_of(m.codecs.begin(), m.codecs.end(), [](auto codec) { return codec != 0; });
  for (const auto& r : m.records) {
    if (r.rank != m.placement.first_of(r.rank)) continue;
    std::uint64_t bytes = 0;
    std::string name;
    for (std::uint32_t f = 0; f < r.files; ++f) {
      name = cairn::data_key(r.step, r.rank, r.attempt, f, m.placement);
      auto at = there.find(name);
      if (at == there.end() && encoded) at = there.find(cairn::compressed_key(name));
      if (at == there.end()) return name + " is not there";
      bytes += at->second;
    }
    // What ranks share ends with their records.
    if (!encoded && (bytes < r.data_bytes || (bytes != r.data_bytes && !m.placement.shared())))
      return (r.files == 1 ? name + " has" : "the files of rank " + std::to_string(r.rank) + " have") + " " +
             count_text(bytes, "byte") + " of " + std::to_string(r.data_bytes);
    if (!m.placement.shared() && !there.contains(cairn::record_key(r.step, r.rank, r.attempt, m.placement)))
      return cairn::record_key(r.step, r.rank, r.attempt, m.placement) + " is not there";
  }
  return {};
}

/// A directory of a step that holds no checkpoint: why, or an empty text while a save may be at work in it.
inline std::string interruption(store_type& store, std::int64_t step, bool is_directory) {
  const auto prefix = cairn::step_directory(step) + "/";
  std::set<std::uint64_t> ended, seen;  // attempts
  for (const auto& object : store.list(prefix)) {
    const std::string_view name = std::string_view(object.key).substr(prefix.size());
    if (name.starts_with("manifest.damaged.")) return "was damaged and is set aside";
    const auto parsed = cairn::parse_key(object.key);
    if (parsed && parsed->object.kind != cairn::object_kind::manifest)
      (parsed->object.kind == cairn::object_kind::aborted ? ended : seen).insert(parsed->object.attempt);
  }
  const auto parts = store.leftovers(prefix);
  for (const auto& key : parts)
    if (const auto about = cairn::detail::unfinished_object(key)) seen.insert(about->object.attempt);
  // A step that failed may be saved again.
  if (!ended.empty() && std::includes(ended.begin(), ended.end(), seen.begin(), seen.end()))
    return "failed: nothing was committed";
  // Who writes a file has it locked; a bucket does not tell whose uploads are.
  if (!is_directory || parts.empty()) return {};
  return "was interrupted: " + count_text(parts.size(), "unfinished file") + ", no manifest";
}

/// The steps that have a directory and no manifest, ascending.
inline std::vector<std::int64_t> uncommitted_steps(store_type& store,
                                                   const std::vector<std::int64_t>& committed) {
  std::set<std::int64_t> steps;
  const auto add = [&](const std::string& key) {
    const auto step = cairn::parse_step(std::string_view(key).substr(0, key.find('/')));
    if (step && !std::binary_search(committed.begin(), committed.end(), *step)) steps.insert(*step);
  };
  for (const auto& object : store.list("")) add(object.key);
  for (const auto& key : store.leftovers("")) add(key);
  return {steps.begin(), steps.end()};
}

}  // namespace inspecting
