// SPDX-License-Identifier: Apache-2.0
#pragma once
// What inspect says about a local tier: the saves that it holds.
#include <cairn/storage/safetensors_reader.hpp>
#include <cairn/stores/any_store.hpp>
#include <cairn/tiers/held_record.hpp>
#include <cairn/tiers/held_store.hpp>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../tools/status.hpp"
#include "../tools/store.hpp"

namespace inspecting {

/// The name of the job whose local tier lies in this directory; empty where none does.
inline std::string job_of_tier(const std::string& directory) {
  std::ifstream file(directory + "/job");
  std::string kind;
  std::string job;
  if (!std::getline(file, kind) || !std::getline(file, job) || !kind.starts_with("cairn local tier "))
    return {};
  return job;
}

/// Of each save that not all ranks hold here: how many there are, and how many keep a piece of the others' images.
struct part_of_save {
  int held = 0;
  int pieces = 0;
  int world_size = 0;
};

/// A line for each save that a tier has; reads all of those that are held where `verify`.
inline tools::exit_status print_tier(const std::string& directory, const std::string& job, bool verify) {
  std::vector<cairn::detail::held_name> names;
  std::map<std::pair<std::int64_t, std::uint64_t>, part_of_save> parts;
  bool spread = false;  // hosts keep pieces for one another, and each has a tier of its own
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const auto text = entry.path().filename().string();
    if (const auto name = cairn::detail::parse_held_name(text)) {
      names.push_back(*name);
      auto& of = parts[{name->step, name->attempt}];
      ++of.held, of.world_size = name->world_size;
    } else if (const auto kept = cairn::detail::parse_kept_name(text)) {
      auto& of = parts[{kept->step, kept->attempt}];
      ++of.pieces, of.world_size = kept->world_size;
      spread = true;
    }
  }
  std::vector<std::string> damaged;
  const auto held = cairn::detail::complete_saves(directory, names, damaged);
  std::printf("%s held in %s, a local tier of %s\n", tools::count_text(held.size(), "save").c_str(),
              directory.c_str(), job.c_str());
  auto status = damaged.empty() ? held.empty() ? tools::nothing_there : tools::fine : tools::damaged;
  for (const auto& h : held) {
    const auto step = static_cast<long long>(h.step);
    try {
      cairn::safetensors_reader reader{cairn::any_store(cairn::detail::held_store(directory, h, names))};
      auto opened = reader.open(h.step, reader.fetch(h.step));
      std::uint64_t bytes = 0;
      for (const auto& r : opened.manifest().records) bytes += r.data_bytes;
      if (verify) static_cast<void>(reader.verify(opened, cairn::deadline::never()));
      std::printf("step %lld  held  %s  %s  %s  run %s%s\n", step,
                  tools::count_text(static_cast<std::uint64_t>(h.world_size), "rank").c_str(),
                  tools::size_text(bytes).c_str(),
                  tools::count_text(opened.manifest().content.items.size(), "item").c_str(),
                  cairn::to_string(h.run).c_str(), verify ? "  every digest is right" : "");
    } catch (const cairn::error& error) {
      status = tools::worse(status, tools::status_of(error));
      std::printf("step %lld  damaged: %s\n", step, error.what());
    }
  }
  for (const auto& text : damaged) std::printf("damaged: %s\n", text.c_str());
  for (const auto& [save, of] : parts) {
    const auto step = static_cast<long long>(save.first);
    if (of.held == of.world_size) continue;
    if (!spread)
      std::printf("step %lld  is held by %d of %d ranks, and so not held\n", step, of.held, of.world_size);
    else
      std::printf(
          "step %lld  here: images of %d and pieces for others of %d of %d ranks; see the other hosts\n",
          step, of.held, of.pieces, of.world_size);
    if (spread && status == tools::nothing_there) status = tools::fine;
  }
  return status;
}

}  // namespace inspecting
