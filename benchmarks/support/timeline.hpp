// SPDX-License-Identifier: Apache-2.0
#pragma once
// A picture of a trace that cairn::trace_file wrote: processes and what goes on in them, over time.
#include <rapidjson/document.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn_bench {

/// The slices and counters of a trace between two times, in microseconds.
struct timeline {
  struct slice {
    std::string name;
    double begin = 0;
    double end = 0;
  };
  struct sample {
    double at = 0;
    double value = 0;
  };
  struct process {
    std::string name;
    std::map<int, std::string> tracks;
    std::map<int, std::vector<slice>> slices;
    std::map<std::string, std::vector<sample>> counters;
  };
  std::vector<std::pair<std::int64_t, process>> processes;  ///< in the order of their introduction

  /// @throws std::runtime_error if the file is no trace.
  explicit timeline(const std::string& path) {
    std::ifstream file(path);
    std::string text((std::istreambuf_iterator<char>(file)), {});
    text += "{}]";  // the list of a trace has no end
    rapidjson::Document all;
    all.Parse(text.c_str());
    if (all.HasParseError() || !all.IsArray()) throw std::runtime_error(path + " is no trace");
    for (const auto& event : all.GetArray()) {
      if (!event.IsObject() || !event.HasMember("ph")) continue;
      const std::string_view phase = event["ph"].GetString();
      const std::string name = event["name"].GetString();
      auto& in = of(event["pid"].GetInt64());
      const int track = event["tid"].GetInt();
      const double at = event["ts"].GetDouble();
      if (phase == "M" && name == "process_name") in.name = event["args"]["name"].GetString();
      if (phase == "M" && name == "thread_name") in.tracks[track] = event["args"]["name"].GetString();
      if (phase == "X") in.slices[track].push_back({name, at, at + event["dur"].GetDouble()});
      if (phase == "C") in.counters[name].push_back({at, event["args"]["value"].GetDouble()});
    }
    for (auto& [id, each] : processes)
      for (auto& [name, samples] : each.counters)
        std::stable_sort(samples.begin(), samples.end(),
                         [](const sample& a, const sample& b) { return a.at < b.at; });
  }
  /// When the slice of that name began first; 0 where there is none.
  [[nodiscard]] double begin_of(std::string_view name) const { return bound(name, &slice::begin, false); }
  /// When the last slice of that name ended.
  [[nodiscard]] double end_of(std::string_view name) const { return bound(name, &slice::end, true); }

 private:
  process& of(std::int64_t id) {
    for (auto& [each, p] : processes)
      if (each == id) return p;
    return processes.emplace_back(id, process{}).second;
  }
  [[nodiscard]] double bound(std::string_view name, double slice::*which, bool last) const {
    double found = 0;
    for (const auto& [id, p] : processes)
      for (const auto& [track, slices] : p.slices)
        for (const auto& s : slices)
          if (s.name == name && (found == 0 || (last ? s.*which > found : s.*which < found)))
            found = s.*which;
    return found;
  }
};

/// The picture (SVG) from `begin` to `end`.
inline std::string picture_of(const timeline& trace, double begin, double end, const std::string& title) {
  const double left = 150;
  const double width = 980;
  const auto x = [&](double at) { return left + width * (at - begin) / (end - begin); };
  const auto colour_of = [](std::string_view name) {
    static const std::map<std::string_view, const char*> known{
        {"plan", "#8e44ad"},          {"wait", "#c0392b"},           {"stage", "#e67e22"},
        {"before_update", "#c0392b"}, {"copy", "#f0b429"},           {"write", "#2980b9"},
        {"sync", "#1f618d"},          {"record", "#5dade2"},         {"copy and hash", "#f0b429"},
        {"commit", "#27ae60"},        {"hash", "#d4ac0d"},           {"gather", "#d4ac0d"},
        {"remove old", "#a569bd"},    {"wait for bytes", "#d5d8dc"}, {"step", "#ecf0f1"},
        {"save", "#d6eaf8"}};
    const auto found = known.find(name.substr(0, name.find(" step")));
    if (found != known.end()) return found->second;
    return name.starts_with("step") ? "#ecf0f1" : "#bdc3c7";
  };
  std::ostringstream out;
  out.precision(7);
  double y = 40;
  const auto text = [&](double at, double line, std::string_view anchor, std::string_view what) {
    out << "<text x=\"" << at << "\" y=\"" << line << "\" text-anchor=\"" << anchor << "\">" << what
        << "</text>\n";
  };
  std::vector<double> updates;      // where steps end
  std::vector<std::string> legend;  // what is often too narrow for its name
  for (const auto& [id, p] : trace.processes) {
    out << "<text x=\"8\" y=\"" << y + 14 << "\" font-weight=\"bold\">" << p.name << "</text>\n";
    y += 22;
    for (const auto& [track, slices] : p.slices) {
      // One slice inside another lies on it: the widest are drawn first.
      auto shown = slices;
      std::erase_if(shown, [&](const auto& s) { return s.end < begin || s.begin > end; });
      if (shown.empty()) continue;
      std::stable_sort(shown.begin(), shown.end(),
                       [](const auto& a, const auto& b) { return a.end - a.begin > b.end - b.begin; });
      const auto name = p.tracks.find(track);
      text(left - 8, y + 14, "end", name != p.tracks.end() ? name->second : "");
      for (const auto& s : shown) {
        const double from = x(std::max(s.begin, begin));
        const double wide = std::max(1.0, x(std::min(s.end, end)) - from);
        out << "<rect x=\"" << from << "\" y=\"" << y << "\" width=\"" << wide << "\" height=\"19\" fill=\""
            << colour_of(s.name) << "\" stroke=\"white\" stroke-width=\"0.5\"><title>" << s.name << ": "
            << (s.end - s.begin) / 1000 << " ms</title></rect>\n";
        if (s.name.starts_with("step") && s.end <= end) updates.push_back(s.end);
        if (!s.name.starts_with("step") && !s.name.starts_with("save") &&
            std::find(legend.begin(), legend.end(), s.name) == legend.end())
          legend.push_back(s.name);
      }
      for (const auto& s : shown) {
        const double from = x(std::max(s.begin, begin));
        const double wide = x(std::min(s.end, end)) - from;
        // A name is shown where it fits and nothing lies on it.
        const bool covered = s.name.starts_with("save") && track >= 5;
        if (!covered && wide > 7.0 * static_cast<double>(s.name.size()))
          text(from + wide / 2, y + 14, "middle", s.name);
      }
      y += 21;
    }
    for (const auto& [name, samples] : p.counters) {
      double most = 0;
      for (const auto& s : samples)
        if (s.at >= begin && s.at <= end) most = std::max(most, s.value);
      if (most <= 0) continue;
      text(left - 8, y + 20, "end", name);
      out << "<path fill=\"#d5f5e3\" stroke=\"#27ae60\" stroke-width=\"0.8\" d=\"M" << left << ' ' << y + 28;
      double value = 0;
      double last = begin;
      const auto go = [&](double at, double next) {
        out << " L" << x(at) << ' ' << y + 28 - 26 * value / most << " L" << x(at) << ' '
            << y + 28 - 26 * next / most;
        value = next, last = at;
      };
      for (const auto& s : samples)
        if (s.at < begin)
          value = s.value;
        else if (s.at <= end)
          go(s.at, s.value);
      if (last < end) go(end, value);
      out << " L" << x(end) << ' ' << y + 28 << " Z\"/>\n";
      char label[40];
      std::snprintf(label, sizeof label, most < 10 ? "%.1f" : "%.0f", most);
      text(left + width + 4, y + 10, "start", label);
      y += 32;
    }
    y += 6;
  }
  std::ostringstream page;
  page.precision(7);
  page << "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 1190 " << y + 56
       << "\" font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"1190\" height=\"" << y + 56
       << "\" fill=\"white\"/>\n<text x=\"8\" y=\"22\" font-size=\"14\">" << title << "</text>\n";
  for (const double at : updates)
    page << "<line x1=\"" << x(at) << "\" x2=\"" << x(at) << "\" y1=\"40\" y2=\"" << y
         << "\" stroke=\"#7f8c8d\" stroke-dasharray=\"3 3\"/>\n";
  page << out.str();
  const double milliseconds = (end - begin) / 1000;
  const double unit = std::pow(10, std::floor(std::log10(milliseconds / 4)));
  const double step = unit * (milliseconds / unit > 20 ? 5 : milliseconds / unit > 8 ? 2 : 1);
  for (double at = 0; at <= milliseconds; at += step)
    page << "<line x1=\"" << x(begin + at * 1000) << "\" x2=\"" << x(begin + at * 1000) << "\" y1=\"" << y
         << "\" y2=\"" << y + 5 << "\" stroke=\"black\"/><text x=\"" << x(begin + at * 1000) << "\" y=\""
         << y + 18 << "\" text-anchor=\"middle\">" << at << " ms</text>\n";
  double at = left;
  for (const auto& name : legend) {
    page << "<rect x=\"" << at << "\" y=\"" << y + 34 << "\" width=\"11\" height=\"11\" fill=\""
         << colour_of(name) << "\"/><text x=\"" << at + 16 << "\" y=\"" << y + 44 << "\">" << name
         << "</text>\n";
    at += 40 + 7.0 * static_cast<double>(name.size());
  }
  page << "</svg>\n";
  return page.str();
}

}  // namespace cairn_bench
