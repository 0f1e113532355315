// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace cairn_bench {

/// One line of a chart; dashed where its points are extrapolated.
struct chart_line {
  std::string name;
  std::string colour;
  std::vector<std::pair<double, double>> points;
  bool dashed = false;
};

/// Writes a chart with two logarithmic axes as SVG. @throws std::runtime_error if it cannot.
inline void write_log_chart(const std::string& path, const std::string& title, const std::string& x_name,
                            const std::string& y_name, const std::vector<chart_line>& lines) {
  double x0 = 1e300, x1 = 0, y0 = 1e300, y1 = 0;
  for (const auto& l : lines)
    for (const auto& [x, y] : l.points)
      x0 = std::min(x0, x), x1 = std::max(x1, x), y0 = std::min(y0, y), y1 = std::max(y1, y);
  if (x1 <= 0 || y1 <= 0) throw std::runtime_error("a chart of nothing");
  y0 = std::pow(10, std::floor(std::log10(y0)));
  y1 = std::pow(10, std::ceil(std::log10(y1)));
  if (x1 == x0) x1 = x0 * 2;
  constexpr double width = 760, height = 440, left = 80, right = 190, top = 40, bottom = 50;
  const auto px = [&](double x) {
    return left + (width - left - right) * std::log(x / x0) / std::log(x1 / x0);
  };
  const auto py = [&](double y) {
    return height - bottom - (height - top - bottom) * std::log(y / y0) / std::log(y1 / y0);
  };
  std::string out =
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 760 440\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"760\" height=\"440\" fill=\"#ffffff\"/>\n";
  char text[400];
  const auto add = [&](const char* format, auto... values) {
    std::snprintf(text, sizeof text, format, values...);
    out += text;
  };
  add("<text x=\"%.0f\" y=\"24\" font-size=\"15\">%s</text>\n", left, title.c_str());
  for (double y = y0; y <= y1 * 1.001; y *= 10) {
    add("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#dddddd\"/>\n", left, py(y),
        width - right, py(y));
    add("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n", left - 6, py(y) + 4, y);
  }
  for (double x = x0; x <= x1 * 1.001; x *= 4)
    add("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%g</text>\n", px(x), height - bottom + 18, x);
  add("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n", (left + width - right) / 2,
      height - 10, x_name.c_str());
  add("<text x=\"18\" y=\"%.1f\" transform=\"rotate(-90 18 %.1f)\" text-anchor=\"middle\">%s</text>\n",
      (top + height - bottom) / 2, (top + height - bottom) / 2, y_name.c_str());
  double legend = top + 10;
  for (const auto& l : lines) {
    if (l.points.empty()) continue;
    out += "<polyline fill=\"none\" stroke=\"" + l.colour + "\" stroke-width=\"2\"" +
           (l.dashed ? " stroke-dasharray=\"6 4\"" : "") + " points=\"";
    for (const auto& [x, y] : l.points) add("%.1f,%.1f ", px(x), py(y));
    out += "\"/>\n";
    add("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" stroke-width=\"2\"%s/>\n",
        width - right + 12, legend - 4, width - right + 36, legend - 4, l.colour.c_str(),
        l.dashed ? " stroke-dasharray=\"6 4\"" : "");
    add("<text x=\"%.1f\" y=\"%.1f\">%s</text>\n", width - right + 42, legend, l.name.c_str());
    legend += 18;
  }
  out += "</svg>\n";
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) throw std::runtime_error("cannot open " + path);
  const bool written = std::fwrite(out.data(), 1, out.size(), file) == out.size();
  if (std::fclose(file) != 0 || !written) throw std::runtime_error("cannot write " + path);
}

}  // namespace cairn_bench
