// SPDX-License-Identifier: Apache-2.0
// links: cairn::interprocess
// uses: cairn::s3 cairn::parity
//
// Saves what dead jobs left in local tiers into a store, at the end of an allocation: the newest step that the tiers of
// all hosts hold together, with images that are lost rebuilt from what the others keep.
#include <CLI/CLI.hpp>
#include <cairn/manage/copy.hpp>
#include <cairn/manage/stop_signal.hpp>
#include <cairn/manage/verify.hpp>
#include <cairn/redundancy/lost_images.hpp>
#include <cairn/redundancy/partner_copies.hpp>
#ifdef CAIRN_USES_PARITY
#include <cairn/redundancy/parity.hpp>
#endif

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/json.hpp"
#include "tools/numbers.hpp"
#include "tools/program.hpp"
#include "tools/status.hpp"
#include "tools/store.hpp"
#include "tools/terminal.hpp"

namespace {

struct scavenge_arguments {
  std::vector<std::string> places;  // the directories, and the store last
  std::vector<int> parity;
  std::int64_t step = -1;
  bool dry_run = false;
  bool json = false;
};

/// The name of the job whose local tier lies in a directory; empty where none does.
std::string job_of_tier(const std::string& directory) {
  std::ifstream file(directory + "/job");
  std::string kind;
  std::string job;
  if (!std::getline(file, kind) || !std::getline(file, job) || kind != "cairn local tier 2") return {};
  return job;
}
/// Whether a process is a rank of a job in this directory.
bool is_in_use(const std::string& directory) {
  for (const auto& each : std::filesystem::directory_iterator(directory)) {
    const auto name = each.path().filename().string();
    if (!name.starts_with("rank-") || !name.ends_with(".lock")) continue;
    const int file = ::open(each.path().c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0 && errno == ENOENT) continue;
    if (file < 0)
      cairn::fail(
          cairn::error_id::storage_io,
          std::string("it cannot be seen whether a job uses this local tier: ") + std::strerror(errno),
          {.file = each.path().string()});
    const bool free = ::flock(file, LOCK_EX | LOCK_NB) == 0;
    ::close(file);
    if (!free) return true;
  }
  return false;
}

cairn::any_redundancy redundancy_of(const scavenge_arguments& arguments) {
  if (arguments.parity.empty()) return cairn::any_redundancy(cairn::partner_copies{});
#ifdef CAIRN_USES_PARITY
  return cairn::any_redundancy(
      cairn::parity{.data = arguments.parity.at(0), .losses = arguments.parity.at(1)});
#else
  cairn::fail(cairn::error_id::usage_bad_option, "this program was built without cairn::parity (ISA-L)");
#endif
}

/// Whether a resume would go on from the step: another run may have committed since to the store, from an older one.
bool leads_on(const cairn::held_step& which, const std::optional<cairn::run_id>& newest) {
  return !newest || which.run == *newest || !which.runs ||
         std::find(which.runs->begin(), which.runs->end(), *newest) != which.runs->end();
}
/// Who saved the newest checkpoint of a store that can be read; nothing where there is none.
std::optional<cairn::run_id> newest_run(const tools::storage_type& store,
                                        const std::vector<std::int64_t>& stored) {
  for (auto step = stored.rbegin(); step != stored.rend(); ++step) try {
      return store.reader().run_of(*step);
    } catch (const cairn::corrupt_error&) {
    }
  return std::nullopt;
}

/// What is found of a step in the store: tiers are removed by what this program says of it.
enum class stored_state { whole, damaged, unknown };
/// Reads all of a checkpoint of the store, and tells what is damaged. Unknown: a signal ended it.
stored_state verify_stored(const tools::storage_type& store, std::int64_t step,
                           const cairn::stop_signal& stop, tools::terminal& lines) {
  const auto name = "step " + std::to_string(step) + " of the store";
  cairn::verify_options options;
  options.found = [&](const cairn::damage& d) { lines.complain(name + ": " + cairn::to_string(d)); };
  options.progress = [&](std::uint64_t done, std::uint64_t all) {
    lines.progress(name + "  reading", done, all);
  };
  options.stop = [&] { return stop.requested(); };
  auto reader = store.reader();
  const auto report = cairn::verify_checkpoint(reader, step, options);
  lines.end_progress();
  if (report.damages != 0) return stored_state::damaged;
  return report.complete ? stored_state::whole : stored_state::unknown;
}

tools::exit_status run(scavenge_arguments& arguments, tools::terminal& lines) {
  const cairn::stop_signal stop{SIGINT, SIGTERM};
  const auto store_name = arguments.places.back();
  std::vector<std::string> directories;
  std::string job;
  for (std::size_t i = 0; i + 1 < arguments.places.size(); ++i) {
    const auto directory = std::filesystem::absolute(arguments.places[i]).lexically_normal().string();
    const auto of = job_of_tier(directory);
    if (of.empty()) {
      lines.complain(directory + " has no local tier");
      continue;
    }
    if (!job.empty() && of != job) {
      lines.complain(directory + " has the tier of another job, which saved to " + of);
      return tools::wrong_options;
    }
    if (is_in_use(directory)) {
      lines.complain(directory + " is in use: end the job first, or let it resume");
      return tools::unreadable;
    }
    job = of;
    directories.push_back(directory);
  }
  if (directories.empty()) return tools::nothing_there;
  const auto told = [&](const std::string& text, const tools::json_object& object) {
    lines.say(arguments.json ? object.line() : text);
  };
  told("the job saved to " + job, tools::json_object().text("job", job));
  const auto by = redundancy_of(arguments);
  std::vector<std::string> notes;
  const auto look = [&] {
    notes.clear();
    auto steps = cairn::find_surviving_steps(directories, by, notes);
    for (const auto& note : notes) lines.complain(note);
    return steps;
  };
  auto steps = look();
  for (const auto& s : steps)
    told("step " + std::to_string(s.which.step) + "  " +
             (!s.missing.empty() ? "cannot be saved: " + s.missing
              : s.lost.empty()   ? "whole"
                                 : tools::count_text(s.lost.size(), "image") + " lost, which can be rebuilt"),
         tools::json_object()
             .step("step", s.which.step)
             .number("lost_images", s.lost.size())
             .text("cannot_be_saved", s.missing));
  if (arguments.dry_run) return steps.empty() ? tools::nothing_there : tools::fine;

  const tools::storage_type to{tools::open_store(store_name)};
  const auto stored = to.reader().list();
  const auto newest = newest_run(to, stored);
  for (auto s = steps.rbegin(); s != steps.rend(); ++s) {
    if (!s->missing.empty() || (arguments.step >= 0 && s->which.step != arguments.step)) continue;
    const auto step = s->which.step;
    const auto name = "step " + std::to_string(step);
    bool damaged = false;  // this step in the store
    for (auto in_store = stored.rbegin(); in_store != stored.rend() && *in_store >= step; ++in_store) {
      if (arguments.step >= 0 && *in_store != step) continue;
      const auto found = verify_stored(to, *in_store, stop, lines);
      if (found == stored_state::unknown) {
        lines.complain("ended by a signal; " + name + " was not saved");
        return tools::failed;
      }
      damaged = found == stored_state::damaged && *in_store == step;
      if (found == stored_state::damaged) continue;
      if (arguments.step >= 0) break;  // the copy says whether it is the same one
      told("step " + std::to_string(*in_store) + "  is the newest of the store already; nothing was saved",
           tools::json_object().step("newest_of_store", *in_store));
      return tools::fine;
    }
    if (damaged) {
      lines.complain(name +
                     " is damaged in the store, and nothing was saved: keep the tiers, which hold it, "
                     "move what the store has of this step away, and run the same command again");
      return tools::damaged;
    }
    if (arguments.step < 0 && !leads_on(s->which, newest)) {
      lines.complain(name + ": the job went on elsewhere since, and another run committed step " +
                     std::to_string(stored.back()) + " of the store; --step " + std::to_string(step) +
                     " saves it all the same");
      continue;
    }
    try {
      for (const auto& why : cairn::give_up_damaged_images(directories, *s)) lines.complain(why);
      auto now = look();
      const auto same = [&](const cairn::surviving_step& each) {
        return each.which.step == s->which.step && each.which.run == s->which.run &&
               each.which.attempt == s->which.attempt && each.which.world_size == s->which.world_size;
      };
      const auto found = std::find_if(now.begin(), now.end(), same);
      if (found == now.end() || !found->missing.empty()) continue;
      if (!found->lost.empty()) {
        notes.clear();
        cairn::rebuild_lost_images(directories, by, *found, directories.front(), notes);
        for (const auto& note : notes) lines.complain(note);
        told(name + "  " + tools::count_text(found->lost.size(), "image") + " rebuilt",
             tools::json_object().step("step", step).number("rebuilt_images", found->lost.size()));
      }
      auto from = cairn::surviving_store(directories, *found);
      cairn::copy_options options;
      options.found = [&](const cairn::damage& d) { lines.complain(name + ": " + cairn::to_string(d)); };
      options.progress = [&](cairn::copy_phase phase, std::uint64_t done, std::uint64_t all) {
        lines.progress(name + (phase == cairn::copy_phase::send ? "  sending" : "  reading back"), done, all);
      };
      options.stop = [&] { return stop.requested(); };
      const auto report = cairn::copy_checkpoint(from, to, step, options);
      using outcome = cairn::copy_report::outcome;
      if (report.ended == outcome::stopped) {
        lines.complain("ended by a signal; " + name + " is not committed. The same command goes on");
        return tools::failed;
      }
      const bool was_there = report.ended == outcome::was_there;
      told(name + (was_there ? "  is there already"
                             : "  saved and verified: " + tools::size_text(report.sent_bytes)),
           tools::json_object()
               .step("step", step)
               .truth("saved", !was_there)
               .number("sent_bytes", report.sent_bytes));
      return tools::fine;
    } catch (const cairn::corrupt_error& e) {
      lines.complain(name + ": " + e.what());
    } catch (const cairn::peer_error& e) {  // too much is lost
      lines.complain(name + ": " + e.what());
    }
  }
  lines.complain("no step could be saved");
  return steps.empty() ? tools::nothing_there : tools::damaged;
}

}  // namespace

int main(int argc, char** argv) {
  scavenge_arguments arguments;
  CLI::App app{
      "Saves what a job that has ended left in the local tiers of its hosts into a store: the newest step "
      "that\n"
      "they hold together, every block verified, images that are lost rebuilt from what other hosts keep. "
      "For\n"
      "the end of an allocation, when nobody resumes the job on these hosts. The directories stay: remove "
      "them\nwhere the status is 0.",
      "scavenge"};
  app.footer(std::string(tools::url_help) + tools::status_help);
  app.option_defaults()->always_capture_default();
  app.add_option("places", arguments.places, "the directories of the tiers of all hosts, then the store")
      ->required()
      ->expected(2, 100000)
      ->option_text("DIRECTORY ... URL");
  app.add_option("--parity", arguments.parity,
                 "the numbers of the job's parity{DATA, LOSSES} (default: partner_copies)")
      ->expected(2)
      ->option_text("DATA LOSSES");
  app.add_option("--step", arguments.step, "this step (default: the newest that can be saved)")
      ->transform(tools::whole_number(0))
      ->option_text("N");
  app.add_flag("--dry-run", arguments.dry_run, "say what is there, and change nothing");
  app.add_flag("--json", arguments.json, tools::json_help);
  return tools::run_program(app, argc, argv, [&](tools::terminal& lines) { return run(arguments, lines); });
}
