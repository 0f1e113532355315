// SPDX-License-Identifier: Apache-2.0
#pragma once
// What inspect says about a local tier: the saves that it holds.
#include <cairn/storage/safetensors_reader.hpp>
#include <cairn/stores/any_store.hpp>
#include <cairn/tiers/held_record.hpp>
#include <cairn/tiers/held_store.hpp>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../tools/json.hpp"
#include "../tools/status.hpp"
#include "../tools/store.hpp"
#include "../tools/terminal.hpp"
#include "json.hpp"

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
inline tools::exit_status print_tier(const std::string& directory, const std::string& job, bool verify,
                                     bool json, tools::terminal& lines) {
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
  if (!json)
    lines.say(tools::count_text(held.size(), "save") + " held in " + directory + ", a local tier of " + job);
  auto status = damaged.empty() ? held.empty() ? tools::nothing_there : tools::fine : tools::damaged;
  for (const auto& h : held) {
    const auto name = "step " + std::to_string(h.step);
    try {
      cairn::safetensors_reader reader{cairn::any_store(cairn::detail::held_store(directory, h, names))};
      auto opened = reader.open(h.step, reader.fetch(h.step));
      std::uint64_t bytes = 0;
      for (const auto& r : opened.manifest().records) bytes += r.data_bytes;
      std::atomic<std::uint64_t> done{0};
      if (verify)
        static_cast<void>(reader.verify(opened, cairn::deadline::never(), [&](std::uint64_t next) {
          lines.progress(name + "  reading", done.fetch_add(next), bytes);
        }));
      const auto ranks = static_cast<std::uint64_t>(h.world_size);
      const auto items = opened.manifest().content.items.size();
      if (json) {
        tools::json_object save;
        save.step("step", h.step).number("ranks", ranks).number("bytes", bytes).number("items", items);
        save.text("run", cairn::to_string(h.run)).truth("held", true);
        if (verify) save.truth("good", true);
        lines.say(save.line());
        continue;
      }
      lines.say(name + "  held  " + tools::count_text(ranks, "rank") + "  " + tools::size_text(bytes) + "  " +
                tools::count_text(items, "item") + "  run " + cairn::to_string(h.run) +
                (verify ? "  every digest is right" : ""));
    } catch (const cairn::error& error) {
      status = tools::worse(status, tools::status_of(error));
      lines.say(fault_line(h.step, error, json));
    }
  }
  for (const auto& text : damaged)
    lines.say(json ? tools::json_object().text("damaged", text).line() : "damaged: " + text);
  for (const auto& [save, of] : parts) {
    const auto name = "step " + std::to_string(save.first);
    const auto ranks = " of " + std::to_string(of.world_size) + " ranks";
    if (of.held == of.world_size) continue;
    if (json)
      lines.say(tools::json_object()
                    .step("step", save.first)
                    .step("ranks", of.world_size)
                    .step("images", of.held)
                    .step("pieces", of.pieces)
                    .truth("held", false)
                    .line());
    else if (!spread)
      lines.say(name + "  is held by " + std::to_string(of.held) + ranks + ", and so not held");
    else
      lines.say(name + "  here: images of " + std::to_string(of.held) + " and pieces for others of " +
                std::to_string(of.pieces) + ranks + "; see the other hosts");
    if (spread && status == tools::nothing_there) status = tools::fine;
  }
  return status;
}

}  // namespace inspecting
