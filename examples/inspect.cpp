// SPDX-License-Identifier: Apache-2.0
// uses: cairn::s3 cairn::zstd
//
// Shows what a store of checkpoints holds, whoever wrote it: the checkpoints, and of one the items with
// their shards, files and digests; of a local tier, the saves that it holds. Reads everything and checks it, or
// waits for new checkpoints. Changes nothing.
#include <CLI/CLI.hpp>
#include <cairn/cairn.hpp>
#include <cairn/manage/chosen_names.hpp>
#include <cairn/manage/removed_step.hpp>
#include <cairn/plan/glob.hpp>
#include <cairn/storage/commit/pins.hpp>
#include <cairn/storage/load/stored_record.hpp>
#include <cairn/storage/manifest/manifest.hpp>
#include <cairn/storage/manifest/names.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "inspect/json.hpp"
#include "inspect/steps.hpp"
#include "inspect/tier.hpp"
#include "inspect/watch.hpp"
#include "tools/annotations.hpp"
#include "tools/numbers.hpp"
#include "tools/program.hpp"
#include "tools/status.hpp"
#include "tools/store.hpp"
#include "tools/terminal.hpp"

namespace {

using inspecting::damage_listed;
using inspecting::interruption;
using inspecting::open;
using inspecting::summary;
using inspecting::uncommitted_steps;
using tools::count_text;
using tools::exit_status;
using tools::reader_type;
using tools::size_text;
using tools::store_type;

struct inspect_options {
  std::string url;
  std::int64_t step = -1;
  bool verify = false;
  bool json = false;
  bool watch = false;
  inspecting::watch_options watching;
  std::vector<std::string> items;
};

/// "rank 2", "ranks 0-3", "ranks 0-1, 3"
std::string ranks_text(const cairn::chunk_set& chunks) {
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

/// One line for each checkpoint.
exit_status print_list(const std::string& url, store_type& store, reader_type& reader, bool json,
                       tools::terminal& lines) {
  const auto steps = reader.list();
  const auto pinned = cairn::detail::step_pins(cairn::any_store::lent(store)).steps();
  exit_status status = steps.empty() ? tools::nothing_there : tools::fine;
  if (!json) lines.say(count_text(steps.size(), "checkpoint") + " in " + url);
  std::uint64_t looked_at = 0;
  for (const auto step : steps) {
    lines.progress_counted("reading manifests", looked_at++, steps.size());
    try {
      const auto [checkpoint, manifest_digest] = open(reader, step);
      const auto damage = damage_listed(store, checkpoint.manifest());
      if (!damage.empty()) cairn::detail::require_committed(reader.store(), step, manifest_digest);
      const bool is_pinned = std::binary_search(pinned.begin(), pinned.end(), step);
      if (!damage.empty()) status = tools::worse(status, tools::damaged);
      if (json) {
        lines.say(inspecting::json_of(checkpoint.manifest(), damage).truth("pinned", is_pinned).line());
        continue;
      }
      lines.say(summary(checkpoint.manifest()) + (is_pinned ? "  pinned" : "") +
                (damage.empty() ? "" : "  damaged: " + damage));
    } catch (const cairn::error& error) {
      if (error.id() == cairn::error_id::storage_not_committed) {
        if (!json) lines.say("step " + std::to_string(step) + "  is not there any more");
        continue;
      }
      status = tools::worse(status, tools::status_of(error));  // newer ones may be whole
      lines.say(inspecting::fault_line(step, error, json));
    }
  }
  lines.end_progress();
  if (json) return status;
  inspecting::attempt_view attempts(store, tools::directory_of(url));
  for (const auto step : uncommitted_steps(store, steps)) {
    const bool writes = attempts.is_directory() && attempts.files_of(step).alive;
    const auto why = writes ? std::string() : interruption(store, step, attempts.is_directory());
    std::printf("step %lld  %s\n", static_cast<long long>(step),
                why.empty() ? "is not committed: being saved, or interrupted" : why.c_str());
  }
  return status;
}

void print_item(const reader_type::checkpoint_type& checkpoint, const cairn::stored_item& item, bool json) {
  std::uint64_t bytes = 0;
  for (const auto& chunk : item.chunks) bytes += checkpoint.find(item, chunk).bytes;
  if (json) return inspecting::print_json(inspecting::json_of(item, bytes));
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

/// What annotate() said, a line each. Texts of several lines go on one.
void print_annotations(const cairn::metadata& content) {
  if (content.state_version != 0)
    std::printf("version of the state %lld\n", static_cast<long long>(content.state_version));
  if (!content.annotations.empty()) std::printf("\nannotations\n");
  for (const auto& a : content.annotations)
    std::printf("%-28s %s\n", a.name.c_str(), tools::annotation_text(a.value).c_str());
}

/// Everything about one checkpoint, or about those of its items that match a pattern. @throws cairn::usage_error where one
/// matches none
void print_checkpoint(store_type& store, reader_type& reader, std::int64_t step,
                      const std::vector<std::string>& patterns, bool json) {
  auto opened = open(reader, step);
  auto& checkpoint = opened.checkpoint;
  cairn::detail::read_committed(reader.store(), step, opened.manifest_digest,
                                [&] { return reader.load_records(checkpoint, cairn::deadline::never()); });
  const cairn::manifest& m = checkpoint.manifest();
  const auto wanted = [&](const auto& item) { return cairn::is_wanted(patterns, item.name); };
  cairn::detail::chosen_names chosen(patterns);
  for (const auto& item : m.content.items) static_cast<void>(chosen.take(item.name));
  chosen.require_all_used([&](auto tell) {
    for (const auto& item : m.content.items) tell(item.name);
  });
  if (json) {
    inspecting::print_json(inspecting::json_of(m, ""));
  } else {
    std::printf("%s\nrun %s, attempt %016llx\n", summary(m).c_str(), cairn::to_string(m.run).c_str(),
                static_cast<unsigned long long>(m.attempt));
    print_annotations(m.content);
    std::printf("\nitems\n");
  }
  for (const auto& item : m.content.items)
    if (wanted(item)) print_item(checkpoint, item, json);
  if (json) return;
  std::printf("\nfiles\n");
  const bool encoded = std::any_of(m.codecs.begin(), m.codecs.end(), [](auto codec) { return codec != 0; });
  for (const auto& record : m.records) {
    if (record.rank != m.placement.first_of(record.rank)) continue;  // those of the first rank
    const auto& files = checkpoint.record_of(record.rank).content().files;
    for (std::uint32_t f = 0; f < record.files; ++f) {
      const auto key = cairn::data_key(record.step, record.rank, record.attempt, f, m.placement);
      const auto compressed = encoded ? store.size(cairn::compressed_key(key)) : std::nullopt;
      std::printf("%s  %llu bytes%s\n", compressed ? cairn::compressed_key(key).c_str() : key.c_str(),
                  static_cast<unsigned long long>(files[f].bytes),
                  compressed ? (", compressed to " + std::to_string(*compressed)).c_str() : "");
    }
  }
}

/// A signal has ended a verify.
struct stopped {};

/// Reads all of the checkpoints of these steps. `listed`: nobody asked for one of them by its number.
exit_status verify(reader_type& reader, const std::vector<std::int64_t>& steps, bool listed, bool json,
                   tools::terminal& lines) {
  const cairn::stop_signal stop{SIGINT, SIGTERM};
  exit_status status = tools::fine;
  std::size_t whole = 0;
  for (const auto step : steps) {
    const auto name = "step " + std::to_string(step);
    try {
      const auto begin = std::chrono::steady_clock::now();
      auto opened = open(reader, step);
      auto& checkpoint = opened.checkpoint;
      std::uint64_t all = 0;
      std::atomic<std::uint64_t> done{0};
      for (const auto& record : checkpoint.manifest().records)
        if (record.rank == checkpoint.manifest().placement.first_of(record.rank)) all += record.data_bytes;
      const auto bytes = cairn::detail::read_committed(reader.store(), step, opened.manifest_digest, [&] {
        return reader.verify(checkpoint, cairn::deadline::never(), [&](std::uint64_t next) {
          if (stop.requested()) throw stopped();
          lines.progress(name + "  reading", done.fetch_add(next), all);
        });
      });
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
      char text[40];
      std::snprintf(text, sizeof text, " read in %.2f s", seconds.count());
      lines.say(json ? tools::json_object()
                           .step("step", step)
                           .truth("good", true)
                           .number("bytes", bytes)
                           .real("seconds", seconds.count())
                           .line()
                     : name + "  verified: " + size_text(bytes) + text + ", every digest is right");
      ++whole;
    } catch (const stopped&) {
      lines.complain("ended by a signal after " + std::to_string(whole) + " of " +
                     count_text(steps.size(), "checkpoint") + "; go on with --step " + std::to_string(step) +
                     " and those behind it");
      return tools::worse(status, tools::failed);
    } catch (const cairn::error& error) {
      // One that a running job removed meanwhile is none that is missing.
      if (listed && error.id() == cairn::error_id::storage_not_committed) {
        if (!json) lines.say(name + "  is not there any more");
        continue;
      }
      const auto found = tools::status_of(error);
      status = tools::worse(status, found);
      if (json)
        lines.say(
            tools::json_object().step("step", step).truth("good", false).text("why", error.what()).line());
      lines.complain(name + (found == tools::damaged ? " is " : " ") + tools::fault_of(error).text + ": " +
                     error.what());
    }
  }
  return status;
}

exit_status inspect(const inspect_options& options, tools::terminal& lines) {
  if (const auto directory = tools::directory_of(options.url)) {
    std::error_code unknown;
    const auto there = std::filesystem::status(*directory, unknown).type();
    if (there == std::filesystem::file_type::not_found && !options.watch) {
      lines.complain(options.url + " does not exist");
      return tools::nothing_there;
    }
    if (there == std::filesystem::file_type::regular) {
      lines.complain(options.url + " is a file; give the directory that holds the checkpoints");
      return tools::wrong_options;
    }
    if (const auto job = inspecting::job_of_tier(*directory); !job.empty()) {
      if (!options.watch && options.step < 0 && options.items.empty())
        return inspecting::print_tier(*directory, job, options.verify, options.json, lines);
      lines.complain(options.url + " is a local tier, of which only --verify and --json can be asked");
      return tools::wrong_options;
    }
  }
  const tools::storage_type storage{tools::open_store(options.url)};
  store_type& store = storage.store();
  reader_type reader = storage.reader();
  if (options.watch) return inspecting::watch(options.url, store, reader, options.watching);
  const bool one = options.step >= 0 || !options.items.empty();
  if (!one && !options.verify) return print_list(options.url, store, reader, options.json, lines);
  auto steps = reader.list();
  if (options.step >= 0) steps = {options.step};
  if (steps.empty()) {
    lines.complain(tools::no_checkpoint_in(options.url));
    return tools::nothing_there;
  }
  if (!one) return verify(reader, steps, true, options.json, lines);
  print_checkpoint(store, reader, steps.back(), options.items, options.json);
  if (!options.verify) return tools::fine;
  if (!options.json) std::printf("\n");
  return verify(reader, {steps.back()}, false, options.json, lines);
}

}  // namespace

int main(int argc, char** argv) {
  inspect_options options;
  CLI::App app{
      "Shows what a store of checkpoints holds. Without options: a line for each checkpoint. Changes "
      "nothing.",
      "inspect"};
  app.footer(std::string(tools::url_help) + tools::status_help +
             "\n6 --watch ended before --until was reached.");
  app.add_option("url", options.url, "where the checkpoints are")->required()->option_text("URL");
  auto* step =
      app.add_option("--step", options.step,
                     "show one checkpoint: items with kind, dtype, shape, size; chunks with place and "
                     "digest; files")
          ->transform(tools::whole_number(0));
  auto* items =
      app.add_option("--items", options.items,
                     "show only items whose name matches, such as 'model.*' (default step: the newest)");
  auto* verify =
      app.add_flag("--verify", options.verify,
                   "read every byte of all checkpoints, or of that of --step, and check the digests");
  app.add_flag("--json", options.json,
               std::string(tools::json_help) +
                   ": a checkpoint, or that of --step and its items; with --verify, what was found of it");
  auto* watch = app.add_flag("--watch", options.watch,
                             "follow a run: a line for each checkpoint, each save in progress, each stale "
                             "attempt, and the age of\nthe newest checkpoint; ends with Ctrl-C or SIGTERM")
                    ->excludes(step)
                    ->excludes(items)
                    ->excludes(verify)
                    ->excludes("--json");
  app.add_option("--until", options.watching.until,
                 "end --watch when this step, or a later one, is committed")
      ->transform(tools::whole_number(0))
      ->needs(watch);
  app.add_option("--for", options.watching.seconds, "end --watch after so many seconds; 0: no limit")
      ->check(tools::amount())
      ->needs(watch);
  app.add_option("--age-every", options.watching.age_seconds,
                 "say how old the newest checkpoint is at least every so many seconds (60)")
      ->check(tools::amount(true))
      ->needs(watch);
  app.add_option("--stale-after", options.watching.stale_seconds,
                 "an attempt whose files were written completely and that is not committed counts as stale\n"
                 "after so many seconds (60)")
      ->check(tools::amount())
      ->needs(watch);
  return tools::run_program(app, argc, argv, [&](tools::terminal& lines) { return inspect(options, lines); });
}
