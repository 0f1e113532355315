// SPDX-License-Identifier: Apache-2.0
// test: --bytes 4MiB --turns 1
// Saves of a state of which most never changes, by file_store with fsync: flagged cairn::frozen, found by link_unchanged, and
// written whole. All three in turns, from the same memory; `bytes written` is beside the bytes of what changes.
#include <cairn/cairn.hpp>

#include <CLI/CLI.hpp>
#include <support/bench.hpp>
#include <support/program.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

struct frozen_options {
  std::uint64_t bytes = std::uint64_t{1} << 30;
  double frozen = 0.95;
  int turns = 7;
  std::string directory = ".";
  std::string json;
};

void measure(cairn_bench::report& out, const frozen_options& o) {
  const auto frozen_floats = static_cast<std::size_t>(static_cast<double>(o.bytes) * o.frozen / 4);
  std::vector<float> base(frozen_floats, 0.5F), learns(o.bytes / 4 - frozen_floats);
  const auto n = static_cast<std::int64_t>(base.size()), m = static_cast<std::int64_t>(learns.size());
  cairn::state_dict flagged, plain;
  flagged.tensor("base", base, {n}, cairn::frozen);
  flagged.tensor("learns", learns, {m});
  plain.tensor("base", base, {n});
  plain.tensor("learns", learns, {m});

  const auto root = std::filesystem::path(o.directory) / "bench-frozen";
  std::filesystem::remove_all(root);
  std::filesystem::create_directories(root);
  const auto store = [&](const char* name) { return cairn::file_store{(root / name).string()}; };
  {
    const cairn::checkpointer_options quiet{.quiet = true}, finds{.link_unchanged = true, .quiet = true};
    cairn::checkpointer by_flag{store("flag"), cairn::keep_last{2}, quiet};
    cairn::checkpointer by_search{store("search"), cairn::keep_last{2}, finds};
    cairn::checkpointer whole{store("whole"), cairn::keep_last{2}, quiet};
    std::int64_t step = 0;
    cairn::save_report report;
    const auto save = [&](auto& ckpt, const cairn::state_dict& state) {
      return cairn_bench::seconds_of([&] {
        const auto handle = ckpt.save(state, step);
        handle.wait();
        report = handle.report();
      });
    };
    const auto train = [&] {
      ++step;
      for (std::size_t i = 0; i < learns.size(); i += 256) learns[i] = static_cast<float>(step);
    };
    for (int i = 0; i < 3; ++i) {  // the first ones write all; what is unchanged is known after two
      train();
      for (const auto seconds : {save(by_flag, flagged), save(by_search, plain), save(whole, plain)})
        cairn_bench::keep(seconds);
    }
    std::vector<double> flag, search, all, flag_bytes, search_bytes, changed;
    for (int turn = 0; turn < o.turns; ++turn) {
      train();
      for (int k = 0; k < 3; ++k) switch ((k + turn) % 3) {
          case 0:
            flag.push_back(save(by_flag, flagged));
            flag_bytes.push_back(static_cast<double>(report.bytes));
            break;
          case 1:
            search.push_back(save(by_search, plain));
            search_bytes.push_back(static_cast<double>(report.bytes));
            if (report.linked_bytes == 0) throw std::runtime_error("nothing was found to be unchanged");
            break;
          default:
            all.push_back(save(whole, plain));
        }
      changed.push_back(static_cast<double>(learns.size() * sizeof(float)));
    }
    const auto wanted = cairn_bench::at_most(0.1 + 0.02 / cairn_bench::samples(all).median());
    out.add("frozen vs whole/until committed", cairn_bench::make_pairs(flag, all), "s", wanted);
    out.add("unchanged vs whole/until committed", cairn_bench::make_pairs(search, all), "s");
    out.add("frozen/bytes written", cairn_bench::make_pairs(flag_bytes, changed), "B",
            cairn_bench::at_most(1.02));
    out.add("unchanged/bytes written", cairn_bench::make_pairs(search_bytes, changed), "B",
            cairn_bench::at_most(1.02));
  }
  std::filesystem::remove_all(root);
}

}  // namespace

int main(int argc, char** argv) {
  frozen_options o;
  CLI::App app{"Saves of a state of which most never changes, beside saves that write it whole",
               "bench_frozen"};
  app.option_defaults()->always_capture_default();
  app.add_option("--bytes", o.bytes, "Size of the state, such as 1GiB")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(std::uint64_t{1} << 20, std::uint64_t{1} << 40));
  app.add_option("--frozen", o.frozen, "The part of it that never changes")->check(CLI::Range(0.01, 0.99));
  app.add_option("--turns", o.turns, "Turns of all three")->check(CLI::Range(1, 10'000));
  app.add_option("--directory", o.directory, "Where to save, with room for eight states")
      ->check(CLI::ExistingDirectory);
  app.add_option("--json", o.json,
                 "File for the figures: an array of {name, value, unit, against, ratio, ...}");
  return cairn_bench::run_program(app, argc, argv, [&] {
    cairn_bench::report out("frozen");
    measure(out, o);
    out.write(o.json);
  });
}
