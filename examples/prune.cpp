// SPDX-License-Identifier: Apache-2.0
// uses: cairn::s3
//
// Removes the checkpoints that no policy keeps, or says which it would remove; pins checkpoints that are to stay.
#include <CLI/CLI.hpp>
#include <cairn/concepts/any_storage.hpp>
#include <cairn/concepts/any_writer.hpp>
#include <cairn/manage/prune.hpp>
#include <cairn/manage/stop_signal.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "tools/json.hpp"
#include "tools/numbers.hpp"
#include "tools/program.hpp"
#include "tools/status.hpp"
#include "tools/store.hpp"
#include "tools/terminal.hpp"

namespace {

struct prune_arguments {
  std::string url;
  std::uint64_t last = 0;
  std::vector<std::int64_t> every;
  std::vector<std::string> best;
  double hours = 0;
  double live_hours = 24;
  std::vector<std::int64_t> pin, unpin;
  bool pins = false, remove = false, json = false;
};

/// "loss:3", "accuracy:3:highest"
cairn::keep_best best_of(const std::string& text) {
  const auto refuse = [&] {
    cairn::fail(cairn::error_id::usage_bad_option,
                "--keep-best takes a name, how many, and which, such as loss:3 or accuracy:3:highest",
                {.got = text});
  };
  auto order = cairn::best::lowest;
  std::string rest = text;
  const auto cut = [&](const std::string& end) {
    if (!rest.ends_with(end)) return false;
    rest.resize(rest.size() - end.size());
    return true;
  };
  if (cut(":highest"))
    order = cairn::best::highest;
  else
    (void)cut(":lowest");
  const auto colon = rest.rfind(':');
  const auto digits = colon == std::string::npos ? std::string() : rest.substr(colon + 1);
  if (digits.empty() || digits.size() > 9 || digits.find_first_not_of("0123456789") != std::string::npos)
    refuse();
  return {rest.substr(0, colon), static_cast<std::size_t>(std::stoul(digits)), order};
}

cairn::retention_policy policy_of(const prune_arguments& arguments, const CLI::App& app) {
  cairn::retention_policy policy;
  if (app.count("--keep-last") != 0) policy = policy | cairn::keep_last(arguments.last);
  for (const auto n : arguments.every) policy = policy | cairn::keep_every(n);
  for (const auto& text : arguments.best) policy = policy | best_of(text);
  if (app.count("--keep-within") != 0)
    policy = policy | cairn::keep_within(std::chrono::duration<double, std::ratio<3600>>(arguments.hours));
  return policy;
}

/// --pin, --unpin, --pins
tools::exit_status change_pins(const prune_arguments& arguments, const tools::storage_type& storage,
                               tools::terminal& lines) {
  cairn::any_writer writer(storage.writer());
  const auto steps = storage.reader().list();
  const auto pinned = writer.pinned();
  if (steps.empty() && pinned.empty()) {
    lines.complain(tools::no_checkpoint_in(arguments.url));
    return tools::nothing_there;
  }
  auto status = tools::fine;
  for (const auto step : arguments.pin) {
    writer.pin(step, cairn::deadline::in(std::chrono::minutes(1)));
    if (!arguments.json) lines.say("step " + std::to_string(step) + "  pinned");
  }
  const auto among = [](const std::vector<std::int64_t>& all, std::int64_t step) {
    return std::find(all.begin(), all.end(), step) != all.end();
  };
  for (const auto step : arguments.unpin) {
    if (!among(steps, step) && !among(pinned, step)) {
      lines.complain("there is no step " + std::to_string(step) + " in " + arguments.url);
      status = tools::nothing_there;
      continue;
    }
    writer.unpin(step);
    if (!arguments.json) lines.say("step " + std::to_string(step) + "  not pinned any more");
  }
  if (arguments.pins || arguments.json)
    for (const auto step : writer.pinned())
      lines.say(arguments.json ? tools::json_object().step("step", step).truth("pinned", true).line()
                               : "step " + std::to_string(step) + "  is pinned");
  return status;
}

tools::exit_status status_of(const std::exception_ptr& fault) {
  try {
    std::rethrow_exception(fault);
  } catch (const cairn::error& error) {
    return tools::status_of(error);
  }
}

tools::exit_status run(const prune_arguments& arguments, const CLI::App& app, tools::terminal& lines) {
  const tools::storage_type storage{tools::open_store(arguments.url)};
  if (arguments.pins || !arguments.pin.empty() || !arguments.unpin.empty())
    return change_pins(arguments, storage, lines);
  const auto policy = policy_of(arguments, app);
  if (policy.empty()) {
    lines.complain(
        "say what stays: --keep-last, --keep-every, --keep-best, --keep-within, or several of them; --help "
        "tells more");
    return tools::wrong_options;
  }
  const cairn::stop_signal stop{SIGINT, SIGTERM};
  std::uint64_t freed = 0, going = 0;
  auto status = tools::fine;
  const auto report = cairn::prune(
      cairn::any_storage(storage), policy,
      {.remove = arguments.remove,
       .live_seconds = 3600 * arguments.live_hours,
       .told =
           [&](const cairn::pruned_checkpoint& c) {
             const bool goes = c.kept.empty();
             const auto* verb = !goes ? "stays" : c.removed ? "removed" : "would go";
             if (goes) freed += c.bytes, ++going;
             if (c.fault) status = tools::worse(status, status_of(c.fault));
             if (arguments.json)
               lines.say(tools::json_object()
                             .step("step", c.step)
                             .text("verdict", verb)
                             .text("why", c.kept)
                             .number("bytes", c.bytes)
                             .line());
             else
               lines.say("step " + std::to_string(c.step) + "  " + verb +
                         (goes ? "  " + tools::size_text(c.bytes) : ": " + c.kept));
           },
       .progress = [&](std::uint64_t done,
                       std::uint64_t all) { lines.progress_counted("reading manifests", done, all); },
       .stop = [&] { return stop.requested(); }});
  lines.end_progress();
  if (!report.complete) {
    lines.complain(
        "ended by a signal; what was removed is gone, the rest is whole. Run the same command again");
    return tools::worse(status, tools::failed);
  }
  if (report.checkpoints.empty()) {
    lines.complain(tools::no_checkpoint_in(arguments.url));
    return tools::nothing_there;
  }
  if (!arguments.json)
    lines.say(tools::count_text(going, "checkpoint") + (arguments.remove ? " removed, " : " would go, ") +
              tools::size_text(freed) +
              (arguments.remove || going == 0 ? "" : "; nothing was changed: --remove removes them"));
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  prune_arguments arguments;
  CLI::App app{
      "Says which checkpoints no policy keeps, and with --remove removes them, the oldest first. A "
      "checkpoint stays if\n"
      "any policy keeps it. The newest, pinned ones, those that somebody reads, that a run resumed from or "
      "loaded and\n"
      "has committed nothing since, or whose manifest cannot be read stay always. A job may train meanwhile; "
      "saves\n"
      "that are under way are not touched.",
      "prune"};
  app.footer(std::string(tools::url_help) + tools::status_help);
  app.add_option("url", arguments.url, "where the checkpoints are")->required()->option_text("URL");
  app.add_option("--keep-last", arguments.last, "the newest N stay")
      ->transform(tools::whole_number(1))
      ->option_text("N");
  app.add_option("--keep-every", arguments.every,
                 "steps that N divides stay; may be given several times, as the next ones")
      ->transform(tools::whole_number(1))
      ->allow_extra_args(false)
      ->option_text("N ...");
  app.add_option("--keep-best", arguments.best,
                 "the N checkpoints stay whose annotation NAME is the lowest number, or the highest: loss:3, "
                 "accuracy:3:highest")
      ->allow_extra_args(false)
      ->option_text("NAME:N[:highest] ...");
  app.add_option("--keep-within", arguments.hours, "what was committed in the last so many hours stays")
      ->check(tools::amount())
      ->option_text("HOURS");
  app.add_option(
         "--live-within", arguments.live_hours,
         "the newest checkpoint of a run stays that committed it in the last so many hours (24); pin what "
         "a run has gone back to")
      ->check(tools::amount())
      ->option_text("HOURS");
  auto* remove = app.add_flag("--remove", arguments.remove, "remove them; without it nothing is changed");
  const auto alone = [&](CLI::Option* option) {
    return option->excludes(remove)
        ->excludes("--keep-last")
        ->excludes("--keep-every")
        ->excludes("--keep-best")
        ->excludes("--keep-within");
  };
  alone(
      app.add_option("--pin", arguments.pin, "pin these checkpoints: they stay until --unpin, whoever prunes")
          ->transform(tools::whole_number(0))
          ->allow_extra_args(false)
          ->option_text("STEP ..."));
  alone(app.add_option("--unpin", arguments.unpin, "take their pins off")
            ->transform(tools::whole_number(0))
            ->allow_extra_args(false)
            ->option_text("STEP ..."));
  alone(app.add_flag("--pins", arguments.pins, "list what is pinned"));
  app.add_flag("--json", arguments.json, tools::json_help);
  return tools::run_program(app, argc, argv,
                            [&](tools::terminal& lines) { return run(arguments, app, lines); });
}
