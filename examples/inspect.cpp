// SPDX-License-Identifier: Apache-2.0
//
// Shows what a directory of checkpoints holds, whoever wrote it: the checkpoints, and of one the items with
// their shards, files and digests. Reads everything and checks it, or waits for new checkpoints. Changes
// nothing.
#include <CLI/CLI.hpp>
#include <cairn/cairn.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <exception>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace {

struct inspect_options {
  std::string directory;
  std::int64_t step = -1;
  bool verify = false;
  bool watch = false;
  std::uint64_t watch_seconds = 0;
  std::vector<std::string> items;
};

using store_type = cairn::file_store;
using reader_type = cairn::safetensors_reader<store_type>;

std::string size_text(std::uint64_t bytes) {
  const char* const units[] = {"bytes", "kB", "MB", "GB", "TB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1000 && unit < 4; ++unit) value /= 1000;
  char text[40];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
  return text;
}

std::string count_text(std::uint64_t count, std::string_view one) {
  return std::to_string(count) + " " + std::string(one) + (count == 1 ? "" : "s");
}

std::string time_text(std::int64_t unix_time) {
  const auto time = static_cast<std::time_t>(unix_time);
  std::tm parts{};
  char text[40];
  if (::gmtime_r(&time, &parts) == nullptr ||
      std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &parts) == 0)
    return "at " + std::to_string(unix_time);
  return text;
}

/// "rank 2", "ranks 0-3", "ranks 0-1, 3"
std::string ranks_text(const std::vector<cairn::stored_chunk>& chunks) {
  std::set<std::int32_t> ranks;
  for (const auto& chunk : chunks) ranks.insert(chunk.rank);
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (auto at = ranks.begin(); at != ranks.end();) {
    const auto first = *at;
    auto last = first;
    for (++at; at != ranks.end() && *at == last + 1; ++at) last = *at;
    if (first != *ranks.begin()) text += ", ";
    text += std::to_string(first);
    if (last != first) text += "-" + std::to_string(last);
  }
  return text;
}

reader_type::checkpoint_type open(reader_type& reader, std::int64_t step) {
  return reader.open(step, reader.fetch(step));
}

std::string summary(const cairn::manifest& m) {
  std::uint64_t bytes = 0, files = 0;
  for (const auto& record : m.records) bytes += record.data_bytes, files += record.files;
  return "step " + std::to_string(m.step) + "  " + time_text(m.unix_time) + "  " +
         count_text(static_cast<std::uint64_t>(m.content.world_size), "rank") + "  " + size_text(bytes) +
         " in " + count_text(files, "file") + "  " + count_text(m.content.items.size(), "item");
}

/// A directory of a step that holds no checkpoint: why, or an empty text while a save may be at work in it.
std::string interruption(store_type& store, std::int64_t step) {
  const auto prefix = cairn::step_directory(step) + "/";
  for (const auto& object : store.list(prefix)) {
    const std::string_view name = std::string_view(object.key).substr(prefix.size());
    if (name.starts_with("manifest.damaged.")) return "was damaged and is set aside";
    const auto parsed = cairn::parse_object(name);
    if (parsed && parsed->kind == cairn::object_kind::aborted) return "failed: nothing was committed";
  }
  const auto parts = store.leftovers(prefix).size();
  if (parts == 0) return {};
  return "was interrupted: " + count_text(parts, "unfinished file") + ", no manifest";
}

/// The steps that have a directory and no manifest, ascending.
std::vector<std::int64_t> uncommitted_steps(store_type& store, const std::vector<std::int64_t>& committed) {
  std::set<std::int64_t> steps;
  const auto add = [&](const std::string& key) {
    const auto step = cairn::parse_step(std::string_view(key).substr(0, key.find('/')));
    if (step && !std::binary_search(committed.begin(), committed.end(), *step)) steps.insert(*step);
  };
  for (const auto& object : store.list("")) add(object.key);
  for (const auto& key : store.leftovers("")) add(key);
  return {steps.begin(), steps.end()};
}

/// One line for each checkpoint; false if one of them cannot be opened.
bool print_list(const std::string& directory, store_type& store, reader_type& reader) {
  bool whole = true;
  const auto steps = reader.list();
  std::printf("%s in %s\n", count_text(steps.size(), "checkpoint").c_str(), directory.c_str());
  for (const auto step : steps) {
    try {
      std::printf("%s\n", summary(open(reader, step).manifest()).c_str());
    } catch (const cairn::corrupt_error& error) {
      whole = false;
      std::printf("step %lld  damaged: %s\n", static_cast<long long>(step), error.what());
    }
  }
  for (const auto step : uncommitted_steps(store, steps)) {
    const auto why = interruption(store, step);
    std::printf("step %lld  %s\n", static_cast<long long>(step),
                why.empty() ? "is not committed: being saved, or interrupted" : why.c_str());
  }
  return whole;
}

void print_item(const reader_type::checkpoint_type& checkpoint, const cairn::stored_item& item) {
  std::uint64_t bytes = 0;
  for (const auto& chunk : item.chunks) bytes += checkpoint.find(item, chunk).bytes;
  const std::string shape = item.kind == cairn::item_kind::tensor ? cairn::to_string(item.global) : "";
  const std::string kind = std::string(item.per_rank ? "per-rank " : "") + std::string(name_of(item.kind));
  const std::string type = item.kind == cairn::item_kind::bytes ? "" : std::string(name_of(item.type));
  std::printf("%-28s %-14s %-4s %-14s %-10s %s, %s\n", item.name.c_str(), kind.c_str(), type.c_str(),
              shape.c_str(), size_text(bytes).c_str(), count_text(item.chunks.size(), "chunk").c_str(),
              ranks_text(item.chunks).c_str());
  for (const auto& chunk : item.chunks) {
    const cairn::record_item& found = checkpoint.find(item, chunk);
    std::string box;
    if (item.chunks.size() > 1 && !item.per_rank)
      box = "offsets " + cairn::to_string(chunk.box.offsets) + " sizes " + cairn::to_string(chunk.box.sizes) +
            "  ";
    std::printf("    %s%s at %llu of rank %d's file %u  xxh3 %016llx\n", box.c_str(),
                count_text(found.bytes, "byte").c_str(), static_cast<unsigned long long>(found.offset),
                chunk.rank, found.file, static_cast<unsigned long long>(found.digest));
  }
}

/// Everything about one checkpoint, or about those of its items that match a pattern.
void print_checkpoint(reader_type& reader, std::int64_t step, const std::vector<std::string>& patterns) {
  auto checkpoint = open(reader, step);
  reader.load_records(checkpoint, cairn::deadline::never());
  const cairn::manifest& m = checkpoint.manifest();
  const auto wanted = [&](const auto& item) { return cairn::is_wanted(patterns, item.name); };
  if (!patterns.empty() && std::none_of(m.content.items.begin(), m.content.items.end(), wanted))
    throw std::runtime_error("no item of step " + std::to_string(step) + " matches --items");
  std::printf("%s\nrun %s, attempt %016llx\n\nitems\n", summary(m).c_str(), cairn::to_string(m.run).c_str(),
              static_cast<unsigned long long>(m.attempt));
  for (const auto& item : m.content.items)
    if (wanted(item)) print_item(checkpoint, item);
  std::printf("\nfiles\n");
  for (const auto& record : m.records) {
    const auto& files = checkpoint.record_of(record.rank).content().files;
    for (std::uint32_t f = 0; f < record.files; ++f)
      std::printf("%s  %llu bytes\n", cairn::data_key(record.step, record.rank, record.attempt, f).c_str(),
                  static_cast<unsigned long long>(files[f].bytes));
  }
}

/// Reads all of the checkpoints of these steps; false if one of them is damaged.
bool verify(reader_type& reader, const std::vector<std::int64_t>& steps) {
  bool whole = true;
  for (const auto step : steps) {
    try {
      const auto begin = std::chrono::steady_clock::now();
      auto checkpoint = open(reader, step);
      const auto bytes = reader.verify(checkpoint, cairn::deadline::never());
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
      std::printf("step %lld  verified: %s read in %.2f s, every digest is right\n",
                  static_cast<long long>(step), size_text(bytes).c_str(), seconds.count());
    } catch (const cairn::error& error) {
      whole = false;
      std::fflush(stdout);
      std::fprintf(stderr, "inspect: step %lld is damaged: %s\n", static_cast<long long>(step), error.what());
    }
    std::fflush(stdout);
  }
  return whole;
}

volatile std::sig_atomic_t interrupted = 0;
void on_signal(int) {
  interrupted = 1;
}

/// Looks once a second and prints a line for each change, until SIGINT or for so many seconds (0: no limit).
void watch(const std::string& directory, store_type& store, reader_type& reader, std::uint64_t seconds) {
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
  std::printf("watching %s; end with Ctrl-C\n", directory.c_str());
  const auto begin = std::chrono::steady_clock::now();
  std::map<std::int64_t, std::string> told;  // what was said last about a step
  const auto tell = [&](std::int64_t step, const std::string& line) {
    if (std::exchange(told[step], line) != line) std::printf("%s\n", line.c_str());
  };
  while (interrupted == 0) {
    const auto steps = reader.list();
    for (const auto step : steps) {
      try {
        tell(step, summary(open(reader, step).manifest()));
      } catch (const cairn::corrupt_error& error) {
        tell(step, "step " + std::to_string(step) + "  damaged: " + error.what());
      } catch (const cairn::storage_error& error) {
        // Removed since it was listed: the next round no longer sees it.
        if (error.id() != cairn::error_id::storage_not_committed) throw;
      }
    }
    for (const auto step : uncommitted_steps(store, steps)) {
      const auto why = interruption(store, step);
      if (!why.empty()) tell(step, "step " + std::to_string(step) + "  " + why);
    }
    std::fflush(stdout);
    if (seconds != 0 && std::chrono::steady_clock::now() - begin >= std::chrono::seconds(seconds)) break;
    // A signal does not end this sleep, so it is taken in short ones.
    for (int i = 0; i < 10 && interrupted == 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

int inspect(const inspect_options& options) {
  const cairn::safetensors_storage storage{cairn::file_store{options.directory}};
  store_type& store = storage.store();
  reader_type reader = storage.reader();
  if (options.watch) {
    watch(options.directory, store, reader, options.watch_seconds);
    return 0;
  }
  const bool one = options.step >= 0 || !options.items.empty();
  if (!one && !options.verify) return print_list(options.directory, store, reader) ? 0 : 1;
  auto steps = reader.list();
  if (options.step >= 0) steps = {options.step};
  if (steps.empty()) throw std::runtime_error("there is no checkpoint in " + options.directory);
  if (!one) return verify(reader, steps) ? 0 : 1;
  print_checkpoint(reader, steps.back(), options.items);
  if (!options.verify) return 0;
  std::printf("\n");
  return verify(reader, {steps.back()}) ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  inspect_options options;
  CLI::App app{
      "Shows what a directory of checkpoints holds. Without options: a line for each checkpoint. Changes "
      "nothing.",
      "inspect"};
  app.footer("Exit status: 0 all is well, 1 damage or another failure, 2 wrong options.");
  app.add_option("checkpoints", options.directory, "directory of the checkpoints")
      ->required()
      ->check(CLI::ExistingDirectory);
  auto* step =
      app.add_option("--step", options.step,
                     "show one checkpoint: items with kind, dtype, shape, size; chunks with place and "
                     "digest; files")
          ->check(CLI::NonNegativeNumber);
  auto* items =
      app.add_option("--items", options.items,
                     "show only items whose name matches, such as 'model.*' (default step: the newest)");
  auto* verify =
      app.add_flag("--verify", options.verify,
                   "read every byte of all checkpoints, or of that of --step, and check the digests");
  auto* watch =
      app.add_flag("--watch", options.watch,
                   "print a line for each checkpoint that is committed, and for each interrupted save")
          ->excludes(step)
          ->excludes(items)
          ->excludes(verify);
  app.add_option("--watch-seconds", options.watch_seconds,
                 "end --watch after so many seconds; 0: with Ctrl-C")
      ->needs(watch);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    return inspect(options);
  } catch (const std::exception& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "inspect: %s\n", error.what());
    return 1;
  }
}
