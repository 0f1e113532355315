// SPDX-License-Identifier: Apache-2.0
#pragma once
// What inspect --json prints: an object on each line, for a checkpoint or for an item of one.
#include <cairn/cairn.hpp>
#include <cairn/storage/manifest/manifest.hpp>

#include <cstdint>
#include <cstdio>
#include <string>

#include "../tools/annotations.hpp"
#include "../tools/json.hpp"
#include "../tools/status.hpp"

namespace inspecting {

inline std::string json_of(const cairn::annotations& said) {
  tools::json_object all;
  for (const auto& a : said) tools::add_annotation(all, a.name, a.value);
  return all.line();
}

/// A checkpoint, apart from its items. `damage`: what a listing shows; empty: nothing.
inline tools::json_object json_of(const cairn::manifest& m, const std::string& damage) {
  std::uint64_t bytes = 0, files = 0;
  for (const auto& record : m.records)
    if (record.rank == m.placement.first_of(record.rank)) bytes += record.data_bytes, files += record.files;
  tools::json_object out;
  out.step("step", m.step).step("unix_time", m.unix_time).step("ranks", m.content.world_size);
  out.number("bytes", bytes).number("files", files).number("items", m.content.items.size());
  out.text("run", cairn::to_string(m.run)).step("state_version", m.content.state_version);
  out.raw("annotations", json_of(m.content.annotations));
  if (!damage.empty()) out.text("damaged", damage);
  return out;
}

inline tools::json_object json_of(const cairn::stored_item& item, std::uint64_t bytes) {
  tools::json_object out;
  out.text("item", item.name).text("kind", name_of(item.kind)).text("dtype", name_of(item.type));
  if (item.kind == cairn::item_kind::tensor) out.raw("shape", cairn::to_string(item.global));
  return out.truth("per_rank", item.per_rank).number("bytes", bytes).number("chunks", item.chunks.size());
}

/// The line about a step of which `error` came in place of what it holds.
inline std::string fault_line(std::int64_t step, const cairn::error& error, bool json) {
  const auto fault = tools::fault_of(error);
  if (json) return tools::json_object().step("step", step).text(fault.member, error.what()).line();
  return "step " + std::to_string(step) + "  " + fault.text + ": " + error.what();
}

inline void print_json(const tools::json_object& object) {
  std::printf("%s\n", object.line().c_str());
}

}  // namespace inspecting
