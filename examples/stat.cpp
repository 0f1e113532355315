// SPDX-License-Identifier: Apache-2.0
// uses: cairn::s3 cairn::zstd
//
// Measures the numbers of a checkpoint: smallest, largest, mean, spread, norm, zeros, NaNs and infinities of each item.
// Changes nothing.
#include <CLI/CLI.hpp>
#include <cairn/manage/statistics.hpp>
#include <cairn/manage/stop_signal.hpp>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

#include "tools/checkpoint.hpp"
#include "tools/json.hpp"
#include "tools/numbers.hpp"
#include "tools/program.hpp"
#include "tools/status.hpp"
#include "tools/store.hpp"
#include "tools/terminal.hpp"

namespace {

struct stat_arguments {
  std::string url;
  std::int64_t step = -1;
  std::string fail_on = "nan";
  bool json = false;
  std::uint64_t memory_megabytes = 128;
  cairn::statistics_options options;
};

std::string padded(std::string text, std::size_t width) {
  text.resize(std::max(text.size(), width), ' ');
  return text + " ";
}
std::string line_of(const std::string& name, const std::string& type, const std::string& shape,
                    const cairn::value_statistics& v) {
  char numbers[200];
  std::snprintf(numbers, sizeof numbers, "%12.5g %12.5g %12.5g %12.5g %12.5g %10llu %6llu %6llu", v.min,
                v.max, v.mean, v.deviation(), v.norm(), static_cast<unsigned long long>(v.zeros),
                static_cast<unsigned long long>(v.nan), static_cast<unsigned long long>(v.infinite));
  // Names may be longer than any line.
  return padded(name, 36) + padded(type, 8) + padded(shape, 14) + numbers;
}
void add_numbers(tools::json_object& o, const cairn::value_statistics& v) {
  o.number("numbers", v.numbers).number("finite", v.finite).number("nan", v.nan).number("inf", v.infinite);
  o.number("zeros", v.zeros).real("min", v.min).real("max", v.max).real("mean", v.mean);
  o.real("std", v.deviation()).real("norm", v.norm());
}

tools::exit_status measure(stat_arguments& arguments, tools::terminal& lines) {
  const cairn::stop_signal stop{SIGINT, SIGTERM};
  auto checkpoint = tools::open_checkpoint(arguments.url, arguments.step);
  const auto name = "step " + std::to_string(checkpoint.step());
  auto& options = arguments.options;
  options.memory_bytes = arguments.memory_megabytes << 20;
  bool headed = arguments.json;
  options.found = [&](const cairn::item_statistics& item) {
    if (!headed) {
      char head[240];
      std::snprintf(head, sizeof head, "%-36s %-8s %-14s %12s %12s %12s %12s %12s %10s %6s %6s", name.c_str(),
                    "dtype", "shape", "min", "max", "mean", "std", "norm", "zeros", "NaN", "Inf");
      lines.say(head);
      headed = true;
    }
    const auto shape = cairn::to_string(item.shape);
    if (arguments.json) {
      tools::json_object o;
      o.text("item", item.name).text("dtype", name_of(item.type)).raw("shape", shape);
      if (item.ranks != 0) o.number("ranks", item.ranks);
      add_numbers(o, item.values);
      lines.say(o.line());
    } else {
      lines.say(line_of(item.name, std::string(name_of(item.type)), shape, item.values));
    }
  };
  options.progress = [&](std::uint64_t done, std::uint64_t all) {
    lines.progress(name + "  reading", done, all);
  };
  options.stop = [&] { return stop.requested(); };
  const auto report = cairn::measure_checkpoint(checkpoint, options);
  lines.end_progress();
  if (!report.complete) {
    lines.complain("ended by a signal; the items of no line were not measured");
    return tools::failed;
  }
  if (report.items == 0 && report.left_out == 0) {
    lines.complain("no item of " + name + " is to be measured");
    return tools::nothing_there;
  }
  if (arguments.json) {
    tools::json_object o;
    o.step("step", checkpoint.step()).number("items", report.items).number("left_out", report.left_out);
    o.number("nan_items", report.nan_items).number("inf_items", report.infinite_items);
    add_numbers(o, report.values);
    lines.say(o.line());
  } else {
    lines.say(line_of(tools::count_text(report.items, "item"), "", "", report.values));
    if (report.left_out != 0)
      lines.say(tools::count_text(report.left_out, "item") + " left out, since bytes are no numbers");
  }
  const bool bad = arguments.fail_on != "none" &&
                   (report.nan_items != 0 || (arguments.fail_on == "inf" && report.infinite_items != 0));
  if (bad)
    lines.complain(tools::count_text(report.nan_items, "item") + " with NaN, " +
                   tools::count_text(report.infinite_items, "item") + " with infinities");
  return bad ? tools::not_finite : tools::fine;
}

}  // namespace

int main(int argc, char** argv) {
  stat_arguments arguments;
  CLI::App app{
      "Measures the numbers of each item of a checkpoint: min, max, mean, standard deviation, L2 norm, "
      "zeros,\n"
      "NaNs and infinities. Every block is verified. NaNs and infinities are counted and are in none of the\n"
      "other numbers. Changes nothing.",
      "stat"};
  app.footer(std::string(tools::url_help) + tools::checkpoint_help + tools::status_help +
             "\n7 there is a NaN, or what --fail-on says.");
  app.option_defaults()->always_capture_default();
  app.add_option("url", arguments.url, "where the checkpoint is")->required()->option_text("URL");
  app.add_option("--step", arguments.step, "which checkpoint (default: the newest)")
      ->transform(tools::whole_number(0))
      ->option_text("N");
  app.add_option("--items,--only", arguments.options.items,
                 "only items whose name matches, such as 'model.*' (default: all)")
      ->option_text("GLOB ...");
  app.add_option(
         "--fail-on", arguments.fail_on,
         "what ends with status 7: a NaN, a NaN or an infinity, or nothing (masks are often infinite)")
      ->check(CLI::IsMember({"nan", "inf", "none"}))
      ->option_text("nan|inf|none=nan");
  app.add_flag("--json", arguments.json, tools::json_help);
  app.add_option("--memory", arguments.memory_megabytes, "MiB of buffers, about")
      ->check(CLI::Range(4, 65536));
  return tools::run_program(app, argc, argv,
                            [&](tools::terminal& lines) { return measure(arguments, lines); });
}
