// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace cairn_bench {

/// Seconds that a call takes.
template <class Work>
[[nodiscard]] double seconds_of(Work&& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Keeps a result from being optimised away.
template <class T>
inline void keep(const T& value) noexcept {
  asm volatile("" : : "g"(&value) : "memory");
}

/// Some measurements of one thing.
struct samples {
  std::vector<double> sorted;  ///< ascending

  samples() = default;
  explicit samples(std::vector<double> values) : sorted(std::move(values)) {
    std::sort(sorted.begin(), sorted.end());
  }
  /// A quantile in [0, 1], interpolated. @throws std::logic_error where nothing was measured.
  [[nodiscard]] double quantile(double q) const {
    if (sorted.empty()) throw std::logic_error("a quantile of no measurements");
    const double at = q * static_cast<double>(sorted.size() - 1);
    const auto low = static_cast<std::size_t>(at);
    const auto high = std::min(low + 1, sorted.size() - 1);
    return sorted[low] + (sorted[high] - sorted[low]) * (at - static_cast<double>(low));
  }
  [[nodiscard]] double median() const { return quantile(0.5); }
  [[nodiscard]] double least() const { return quantile(0); }
  [[nodiscard]] double most() const { return quantile(1); }
};

/// `work()` `times` times; it returns what it measured (seconds, usually), or nothing: then it is timed.
template <class Work>
[[nodiscard]] samples measure(int times, Work&& work) {
  std::vector<double> values;
  for (int i = 0; i < times; ++i) {
    if constexpr (std::is_void_v<decltype(work())>)
      values.push_back(seconds_of(work));
    else
      values.push_back(static_cast<double>(work()));
  }
  return samples(std::move(values));
}
/// The median of `times` calls; see measure.
template <class Work>
[[nodiscard]] double median_of(int times, Work&& work) {
  return measure(times, std::forward<Work>(work)).median();
}

/// Measurements of a thing and of its hand-written twin, taken in turns so that noise of the machine meets
/// both.
struct pairs {
  samples ours;
  samples twin;
  samples ratios;  ///< ours / twin of each turn

  /// The median of the ratios of each turn: what a slow drift of the machine changes least.
  [[nodiscard]] double ratio() const { return ratios.median(); }
};

/// Pairs from measurements in the order of their turns. @throws std::logic_error unless there are as many of
/// either.
[[nodiscard]] inline pairs make_pairs(const std::vector<double>& ours, const std::vector<double>& twin) {
  if (ours.size() != twin.size()) throw std::logic_error("a turn measures both sides");
  std::vector<double> ratios;
  for (std::size_t i = 0; i < ours.size(); ++i) ratios.push_back(twin[i] > 0 ? ours[i] / twin[i] : 0);
  return {samples(ours), samples(twin), samples(std::move(ratios))};
}

/// Runs ours and twin in turns, `times` each, beginning with either alternately. Each returns what it
/// measured, or nothing: then it is timed.
template <class Ours, class Twin>
[[nodiscard]] pairs interleaved_pairs(Ours&& ours, Twin&& twin, int times) {
  std::vector<double> a;
  std::vector<double> b;
  for (int i = 0; i < times; ++i) {
    if (i % 2 == 0) a.push_back(measure(1, ours).median());
    b.push_back(measure(1, twin).median());
    if (i % 2 != 0) a.push_back(measure(1, ours).median());
  }
  return make_pairs(a, b);
}

/// Measurements of the same turns, of any number of rivals: seconds[rival][turn]. Each rival begins a turn as
/// often as the others.
template <class... Rival>
[[nodiscard]] std::vector<std::vector<double>> interleaved(int times, Rival&&... rivals) {
  const std::function<double()> calls[] = {[&] { return measure(1, rivals).median(); }...};
  constexpr auto count = sizeof...(Rival);
  std::vector<std::vector<double>> seconds(count);
  for (std::size_t turn = 0; turn < static_cast<std::size_t>(times); ++turn)
    for (std::size_t k = 0; k < count; ++k)
      seconds[(turn + k) % count].push_back(calls[(turn + k) % count]());
  return seconds;
}

/// Bytes a second from seconds.
[[nodiscard]] inline std::vector<double> rates(std::uint64_t bytes, const std::vector<double>& seconds) {
  std::vector<double> out;
  for (const double s : seconds) out.push_back(s > 0 ? static_cast<double>(bytes) / s : 0);
  return out;
}

/// What a ratio is wanted to be.
struct goal {
  double least = 0;  ///< 0: no such bound
  double most = 0;
};
[[nodiscard]] inline goal at_least(double ratio) {
  return {ratio, 0};
}
[[nodiscard]] inline goal at_most(double ratio) {
  return {0, ratio};
}

/// Collects the rows of a benchmark, prints each as it comes, and writes them as a JSON array of objects:
///
///   [{"name": "write/1GiB", "value": 2.7e9, "unit": "B/s", "against": 2.8e9, "ratio": 0.96, "least": ...,
///     "most": ..., "samples": 7, "goal": ">= 0.9"}, ...]
///
/// `value` is the median of the samples, least and most their range. `against` is the twin's median, or a
/// limit; both it and `ratio` are null where there is nothing to compare with. `ratio` is always value
/// divided by against (for pairs the median of the turns' ratios), in the unit of the row: of rates (B/s) a
/// larger ratio is better, 1 is as fast as the twin and 0.9 a tenth slower; of times (s) and sizes (B) a
/// smaller one is better, 1.15 takes 15 % more than the twin. `goal` is null where none was set; goals are
/// printed, not judged.
class report {
 public:
  explicit report(std::string benchmark) : benchmark_(std::move(benchmark)) {
    std::printf("# %s\n", benchmark_.c_str());
  }

  /// A value by itself.
  void add(std::string name, const samples& s, std::string unit) {
    push({std::move(name),
          s.median(),
          std::move(unit),
          0,
          0,
          false,
          s.least(),
          s.most(),
          s.sorted.size(),
          {}});
  }
  void add(std::string name, double value, std::string unit) {
    add(std::move(name), samples({value}), std::move(unit));
  }
  /// A value against a limit.
  void add_against(std::string name, const samples& s, std::string unit, double against, goal wanted = {}) {
    push({std::move(name), s.median(), std::move(unit), against, against != 0 ? s.median() / against : 0,
          true, s.least(), s.most(), s.sorted.size(), wanted});
  }
  /// A value against its twin.
  void add(std::string name, const pairs& p, std::string unit, goal wanted = {}) {
    push({std::move(name), p.ours.median(), std::move(unit), p.twin.median(), p.ratio(), true, p.ours.least(),
          p.ours.most(), p.ours.sorted.size(), wanted});
  }

  [[nodiscard]] std::string json() const {
    std::string text = "[";
    bool first = true;
    for (const auto& r : rows_) {
      text.append(first ? "\n" : ",\n").append("  {\"name\": ").append(quoted(r.name));
      text.append(", \"value\": ").append(number(r.value)).append(", \"unit\": ").append(quoted(r.unit));
      text.append(", \"against\": ").append(r.compared ? number(r.against) : "null");
      text.append(", \"ratio\": ").append(r.compared ? number(r.ratio) : "null");
      text.append(", \"least\": ").append(number(r.least)).append(", \"most\": ").append(number(r.most));
      text.append(", \"samples\": ").append(std::to_string(r.count));
      const auto wanted = text_of(r.wanted);
      text.append(", \"goal\": ").append(wanted.empty() ? "null" : quoted(wanted)).append("}");
      first = false;
    }
    return text + "\n]\n";
  }
  /// Writes json() to a file; an empty path writes nothing. @throws std::runtime_error if it cannot.
  void write(const std::string& path) const {
    if (path.empty()) return;
    const auto text = json();
    std::FILE* file = std::fopen(path.c_str(), "w");
    if (file == nullptr) throw std::runtime_error("cannot open " + path);
    const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
    if (std::fclose(file) != 0 || !written) throw std::runtime_error("cannot write " + path);
  }

 private:
  struct row {
    std::string name;
    double value;
    std::string unit;
    double against;
    double ratio;
    bool compared;
    double least;
    double most;
    std::size_t count;
    goal wanted;
  };
  static std::string text_of(const goal& g) {
    if (g.least <= 0 && g.most <= 0) return {};
    char text[40];
    std::snprintf(text, sizeof text, g.least > 0 ? ">= %g" : "<= %g", g.least > 0 ? g.least : g.most);
    return text;
  }
  void push(row r) {
    std::printf("%-44s %12.6g %-4s [%.4g .. %.4g, n=%zu]", r.name.c_str(), r.value, r.unit.c_str(), r.least,
                r.most, r.count);
    if (r.compared) std::printf("  against %.6g: %.3f", r.against, r.ratio);
    if (const auto wanted = text_of(r.wanted); !wanted.empty()) {
      const bool met = (r.wanted.least <= 0 || r.ratio >= r.wanted.least) &&
                       (r.wanted.most <= 0 || r.ratio <= r.wanted.most);
      std::printf(" (%s: %s)", wanted.c_str(), met ? "met" : "MISSED");
    }
    std::printf("\n");
    std::fflush(stdout);
    rows_.push_back(std::move(r));
  }
  static std::string number(double value) {
    if (!std::isfinite(value)) return "null";
    char text[40];
    std::snprintf(text, sizeof text, "%.9g", value);
    return text;
  }
  static std::string quoted(std::string_view text) {
    std::string out = "\"";
    for (const char c : text) {
      if (c == '"' || c == '\\') out += '\\';
      out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
    return out + "\"";
  }

  std::string benchmark_;
  std::vector<row> rows_;
};

/// `--name value` among the arguments of main, or the default.
[[nodiscard]] inline std::string argument(int argc, char** argv, std::string_view name,
                                          std::string_view otherwise = "") {
  for (int i = 1; i + 1 < argc; ++i)
    if (argv[i] == name) return argv[i + 1];
  return std::string(otherwise);
}
[[nodiscard]] inline std::int64_t argument(int argc, char** argv, std::string_view name,
                                           std::int64_t otherwise) {
  const auto text = argument(argc, argv, name, std::string_view{});
  return text.empty() ? otherwise : std::strtoll(text.c_str(), nullptr, 10);
}

}  // namespace cairn_bench
