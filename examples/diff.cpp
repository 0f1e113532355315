// SPDX-License-Identifier: Apache-2.0
// uses: cairn::s3 cairn::zstd
//
// Tells in what two checkpoints differ: items, shapes, dtypes, blocks, and how far numbers are apart. Changes nothing.
#include <CLI/CLI.hpp>
#include <cairn/manage/compare.hpp>
#include <cairn/manage/stop_signal.hpp>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <string>

#include "tools/annotations.hpp"
#include "tools/checkpoint.hpp"
#include "tools/json.hpp"
#include "tools/numbers.hpp"
#include "tools/program.hpp"
#include "tools/status.hpp"
#include "tools/store.hpp"
#include "tools/terminal.hpp"

namespace {

// As diff has them.
enum answer : int { equal = 0, different = 1, trouble = 2 };

struct diff_arguments {
  std::string a, b;
  std::int64_t step_a = -1, step_b = -1;
  bool json = false;
  std::uint64_t memory_megabytes = 128;
  cairn::compare_options options;
};

std::string line_of(const cairn::item_difference& d) {
  std::string text = d.name + "  " + std::string(name_of(d.kind));
  if (d.kind != cairn::difference_kind::content) {
    text += "  " + d.a + (d.a.empty() || d.b.empty() ? "" : " | ") + d.b;
  } else {
    text += "  " + d.b + "  " + std::to_string(d.differing) + " of " + tools::count_text(d.blocks, "block");
  }
  if (!d.has_values) return text;
  const auto& v = d.values;
  char numbers[80];
  std::snprintf(numbers, sizeof numbers, "  largest difference %.6g, relative %.3g", v.largest_absolute,
                v.largest_relative);
  text += "  " + std::to_string(v.differing) + " of " + tools::count_text(v.elements, "element") + numbers;
  if (v.nan != 0) text += ", " + std::to_string(v.nan) + " NaN on one side";
  return text;
}
std::string json_of(const cairn::item_difference& d) {
  tools::json_object o;
  o.text("item", d.name).text("differs", name_of(d.kind)).text("a", d.a).text("b", d.b);
  if (d.kind == cairn::difference_kind::content)
    o.number("blocks", d.blocks).number("differing_blocks", d.differing);
  if (d.has_values)
    o.number("elements", d.values.elements)
        .number("differing_elements", d.values.differing)
        .number("nan_on_one_side", d.values.nan)
        .real("largest_absolute", d.values.largest_absolute)
        .real("largest_relative", d.values.largest_relative);
  return o.line();
}

std::string line_of(const cairn::annotation_difference& d) {
  const auto text = [](const auto& value) { return value ? tools::annotation_text(*value) : "(not said)"; };
  return "annotation " + d.name + "  " + text(d.a) + " | " + text(d.b);
}
std::string json_of(const cairn::annotation_difference& d) {
  tools::json_object o;
  o.text("annotation", d.name);
  if (d.a) tools::add_annotation(o, "a", *d.a);
  if (d.b) tools::add_annotation(o, "b", *d.b);
  return o.line();
}

int compare(diff_arguments& arguments, tools::terminal& lines) {
  const cairn::stop_signal stop{SIGINT, SIGTERM};
  auto a = tools::open_checkpoint(arguments.a, arguments.step_a);
  auto b = tools::open_checkpoint(arguments.b, arguments.step_b);
  arguments.options.memory_bytes = arguments.memory_megabytes << 20;
  arguments.options.progress = [&](std::uint64_t done, std::uint64_t all) {
    lines.progress("comparing", done, all);
  };
  arguments.options.stop = [&] { return stop.requested(); };
  const auto report = cairn::compare_checkpoints(a, b, arguments.options);
  lines.end_progress();
  if (!report.complete) {
    lines.complain("ended by a signal; nothing is known");
    return trouble;
  }
  for (const auto& d : report.annotations) lines.say(arguments.json ? json_of(d) : line_of(d));
  for (const auto& d : report.differences) lines.say(arguments.json ? json_of(d) : line_of(d));
  const auto differing = report.differences.size();
  if (arguments.json)
    lines.say(tools::json_object()
                  .truth("equal", report.equal())
                  .step("step_a", a.step())
                  .step("step_b", b.step())
                  .number("items", report.items)
                  .number("differing_items", differing)
                  .number("differing_annotations", report.annotations.size())
                  .number("bytes_read", report.bytes_read)
                  .line());
  else
    lines.say((differing == 0 ? "equal: " + tools::count_text(report.items, "item")
                              : std::to_string(differing) + " of " + tools::count_text(report.items, "item") +
                                    (differing == 1 ? " differs" : " differ")) +
              "; " + tools::size_text(report.bytes_read) + " read");
  return differing == 0 ? equal : different;
}

}  // namespace

int main(int argc, char** argv) {
  diff_arguments arguments;
  auto& options = arguments.options;
  CLI::App app{
      "Compares two checkpoints: items that only one has, shapes, dtypes, and blocks of 1 MiB. Where both "
      "are\n"
      "cut alike, digests decide and nothing is read; what other numbers of ranks wrote is read and "
      "compared.\n"
      "Tells also in what their annotations differ, which has no part in the exit status.\n"
      "Changes nothing.",
      "diff"};
  app.footer(std::string(tools::url_help) + tools::checkpoint_help +
             "Exit status: 0 the checkpoints are equal; 1 they differ; 2 trouble: wrong options, no such "
             "checkpoint,\n"
             "a damaged one, one that cannot be read, a signal.");
  app.option_defaults()->always_capture_default();
  app.add_option("a", arguments.a, "one checkpoint")->required()->option_text("URL");
  app.add_option("b", arguments.b, "the other one")->required()->option_text("URL");
  app.add_option("--step-a", arguments.step_a, "which checkpoint of A (default: the newest)")
      ->transform(tools::whole_number(0))
      ->option_text("N");
  app.add_option("--step-b", arguments.step_b, "which checkpoint of B (default: the newest)")
      ->transform(tools::whole_number(0))
      ->option_text("N");
  app.add_option("--items,--only", options.items,
                 "only items whose name matches, such as 'model.*' (default: all)")
      ->option_text("GLOB ...");
  app.add_flag("--values", options.values,
               "read what differs, and tell how many numbers do, and the largest differences");
  app.add_flag("--json", arguments.json, tools::json_help);
  app.add_option("--memory", arguments.memory_megabytes, "MiB of buffers, about")
      ->check(CLI::Range(4, 65536));
  int answered = -1;  // what diff ends with, unless something is thrown or its output cannot be written
  const auto status = tools::run_program(
      app, argc, argv, [&](tools::terminal& lines) { return answered = compare(arguments, lines); });
  return status == answered ? answered : status == tools::fine ? equal : trouble;
}
