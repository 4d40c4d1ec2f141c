// SPDX-License-Identifier: Apache-2.0
#include "endpoint/plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "base/format.h"

namespace cistern {

constexpr std::string_view kPlotsStyle = R"css(
*{box-sizing:border-box}
body{margin:0 auto;max-width:1180px;padding:32px 20px 48px;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h2{font-size:17px;margin:32px 0 10px}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr));gap:20px}
figure{margin:0;border:1px solid var(--line);border-radius:6px;padding:12px 12px 4px}
figcaption{font-weight:600;margin:0 0 6px 4px}
figure p{color:var(--soft);font-size:13px;margin:4px 4px 8px}
svg{display:block;width:100%;height:auto}
svg text{fill:var(--soft);font-size:11.5px;font-variant-numeric:tabular-nums}
svg .grid{stroke:var(--line);stroke-width:1}
svg .axis{stroke:var(--soft)}
svg .stairs{fill:none;stroke-width:2}
.key{display:flex;gap:18px;margin:0 0 12px;flex-wrap:wrap}
.key i{display:inline-block;width:11px;height:11px;border-radius:50%;background:var(--hue);margin-right:6px}
.scroll{overflow-x:auto}
)css";

namespace {

constexpr double kWidth = 640, kHeight = 300;
constexpr double kLeft = 58, kRight = 14, kTop = 12, kBottom = 44;
constexpr double kLogarithmicFrom = 20;

std::string Short(double value, int digits) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.*g", digits, value);
  return text;
}

std::string TickText(double value) {
  if (value >= 1e6) return Text(Short(value / 1e6, 4), "M");
  if (value >= 1e4) return Text(Short(value / 1e3, 4), "k");
  return Short(value, 6);
}

// Where a value lies on its axis, from 0 to 1.
double At(const Axis& axis, double value) {
  if (axis.logarithmic) {
    return std::log(std::max(value, axis.low) / axis.low) / std::log(axis.high / axis.low);
  }
  return (value - axis.low) / (axis.high - axis.low);
}

double X(const Plot& plot, double value) { return kLeft + At(plot.x, value) * (kWidth - kLeft - kRight); }
double Y(const Plot& plot, double value) {
  return kHeight - kBottom - At(plot.y, value) * (kHeight - kTop - kBottom);
}

std::string Coordinate(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f", value);
  return text;
}

void DrawAxes(const Plot& plot, std::string& svg) {
  const std::string left = Coordinate(kLeft), right = Coordinate(kWidth - kRight);
  const std::string bottom = Coordinate(kHeight - kBottom), top = Coordinate(kTop);
  for (const double tick : Ticks(plot.y, 5)) {
    const std::string y = Coordinate(Y(plot, tick));
    svg += Text("<line class=\"grid\" x1=\"", left, "\" x2=\"", right, "\" y1=\"", y, "\" y2=\"", y,
                "\"/><text x=\"", Coordinate(kLeft - 8), "\" y=\"", y, "\" dy=\".35em\" text-anchor=\"end\">",
                TickText(tick), "</text>");
  }
  for (const double tick : Ticks(plot.x, 7)) {
    const std::string x = Coordinate(X(plot, tick));
    svg += Text("<line class=\"grid\" x1=\"", x, "\" x2=\"", x, "\" y1=\"", top, "\" y2=\"", bottom,
                "\"/><text x=\"", x, "\" y=\"", Coordinate(kHeight - kBottom + 17),
                "\" text-anchor=\"middle\">", TickText(tick), "</text>");
  }
  svg += Text("<line class=\"axis\" x1=\"", left, "\" x2=\"", right, "\" y1=\"", bottom, "\" y2=\"", bottom,
              "\"/><text class=\"label\" x=\"", Coordinate((kLeft + kWidth - kRight) / 2), "\" y=\"",
              Coordinate(kHeight - 8), "\" text-anchor=\"middle\">", Escaped(plot.x.label), "</text>",
              "<text class=\"label\" transform=\"translate(13 ", Coordinate((kTop + kHeight - kBottom) / 2),
              ") rotate(-90)\" text-anchor=\"middle\">", Escaped(plot.y.label), "</text>");
}

void DrawStairs(const Plot& plot, const Series& series, std::string& svg) {
  svg += Text("<path class=\"stairs run", series.colour, "\" d=\"");
  for (std::size_t i = 0; i < series.points.size(); ++i) {
    const std::string x = Coordinate(X(plot, series.points[i].first));
    const std::string y = Coordinate(Y(plot, series.points[i].second));
    svg += i == 0 ? Text("M", x, " ", Coordinate(Y(plot, plot.y.low)), "V", y) : Text("H", x, "V", y);
  }
  svg += Text("\"><title>", Escaped(series.name), "</title></path>");
}

void DrawLine(const Plot& plot, const Series& series, std::string& svg) {
  svg += Text("<path class=\"stairs run", series.colour, "\" d=\"");
  char command = 'M';
  for (const auto& [x, y] : series.points) {
    svg += Text(std::exchange(command, 'L'), Coordinate(X(plot, x)), " ", Coordinate(Y(plot, y)));
  }
  svg += "\"/>";
}

void DrawDots(const Plot& plot, const Series& series, std::string& svg) {
  for (const auto& [x, y] : series.points) {
    svg += Text("<circle class=\"run", series.colour, "\" r=\"3\" cx=\"", Coordinate(X(plot, x)), "\" cy=\"",
                Coordinate(Y(plot, y)), "\"><title>", Escaped(series.name), ": ", Short(y, 4), " ",
                Escaped(plot.y.label), " at ", Short(x, 4), " ", Escaped(plot.x.label), "</title></circle>");
  }
}

}  // namespace

Axis AxisFor(std::string label, const std::vector<double>& values) {
  Axis axis{.label = std::move(label)};
  double low = 0, high = 0;
  for (const double value : values) {
    if (value > 0) low = low > 0 ? std::min(low, value) : value;
    high = std::max(high, value);
  }
  if (high <= 0) return axis;
  axis.logarithmic = high > kLogarithmicFrom * low;
  axis.low = axis.logarithmic ? low / 1.15 : 0;
  axis.high = axis.logarithmic ? high * 1.15 : high * 1.05;
  return axis;
}

std::vector<double> Ticks(const Axis& axis, int count) {
  std::vector<double> ticks;
  if (axis.logarithmic) {
    // Powers of ten where they are enough, otherwise 1, 2 and 5 of each.
    for (const bool fine : {false, true}) {
      ticks.clear();
      for (double power = std::pow(10, std::floor(std::log10(axis.low))); power <= axis.high; power *= 10) {
        for (const double step : {1.0, 2.0, 5.0}) {
          const double tick = power * step;
          if ((fine || step == 1.0) && tick >= axis.low && tick <= axis.high) ticks.push_back(tick);
        }
      }
      if (ticks.size() >= 3) break;
    }
    return ticks;
  }
  const double raw = (axis.high - axis.low) / count;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  const double step = raw / power <= 1   ? power
                      : raw / power <= 2 ? 2 * power
                      : raw / power <= 5 ? 5 * power
                                         : 10 * power;
  const auto first = static_cast<std::int64_t>(std::ceil(axis.low / step - 1e-9));
  const auto last = static_cast<std::int64_t>(std::floor(axis.high / step + 1e-9));
  for (std::int64_t i = first; i <= last; ++i) ticks.push_back(static_cast<double>(i) * step);
  return ticks;
}

std::string DrawPlot(const Plot& plot) {
  std::string svg =
      Text("<figure><figcaption>", Escaped(plot.title), "</figcaption><svg viewBox=\"0 0 ", Short(kWidth, 4),
           " ", Short(kHeight, 4), "\" role=\"img\" aria-label=\"", Escaped(plot.about), "\">");
  DrawAxes(plot, svg);
  for (const Series& series : plot.series) {
    if (series.points.empty()) continue;
    if (plot.mark == Mark::kLines) DrawLine(plot, series, svg);
    plot.mark == Mark::kStairs ? DrawStairs(plot, series, svg) : DrawDots(plot, series, svg);
  }
  return svg += Text("</svg><p>", Escaped(plot.about), "</p></figure>\n");
}

std::string Escaped(std::string_view text) {
  std::string safe;
  safe.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&': safe += "&amp;"; break;
      case '<': safe += "&lt;"; break;
      case '>': safe += "&gt;"; break;
      case '"': safe += "&quot;"; break;
      case '\'': safe += "&#39;"; break;
      default: safe.push_back(c);
    }
  }
  return safe;
}

}  // namespace cistern
