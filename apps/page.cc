// SPDX-License-Identifier: Apache-2.0
#include "page.h"

#include "base/format.h"

namespace cistern {

const std::string_view kPageStyle = R"css(
:root{color-scheme:light dark;--paper:#fff;--ink:#1c2128;--soft:#59636e;--line:#d8dee4;
--run0:#59636e;--run1:#0969da;--run2:#d4590b;--run3:#1a7f37;--run4:#8250df;--run5:#bf3989;--run6:#9a6700}
@media(prefers-color-scheme:dark){:root{--paper:#0f1318;--ink:#e6eaef;--soft:#98a2ad;--line:#30373f;
--run0:#98a2ad;--run1:#58a6ff;--run2:#ff9a52;--run3:#56d364;--run4:#bc8cff;--run5:#f778ba;--run6:#e3b341}}
h1{font-size:24px;margin:0 0 16px}
.run0{--hue:var(--run0)}.run1{--hue:var(--run1)}.run2{--hue:var(--run2)}.run3{--hue:var(--run3)}
.run4{--hue:var(--run4)}.run5{--hue:var(--run5)}.run6{--hue:var(--run6)}
svg path{stroke:var(--hue)}
svg circle{fill:var(--hue)}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:5px 14px 5px 0;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
td:nth-child(2){white-space:nowrap;font-weight:600}
td:nth-child(3){color:var(--soft);font-size:13px;overflow-wrap:anywhere}
ul{padding-left:20px;margin:8px 0 0;color:var(--soft);font-size:13px}
)css";

Plot Lines(std::string title, std::string about, std::string x, std::string y, std::vector<Series> series) {
  Plot plot{.title = std::move(title), .about = std::move(about), .mark = Mark::kLines};
  std::vector<double> xs, ys;
  for (const Series& one : series) {
    for (const auto& [at, value] : one.points) {
      xs.push_back(at);
      ys.push_back(value);
    }
  }
  plot.x = AxisFor(std::move(x), xs);
  plot.y = AxisFor(std::move(y), ys);
  plot.series = std::move(series);
  return plot;
}

std::string Key(const std::vector<Series>& series) {
  std::string html = "<div class=\"key\">";
  for (const Series& one : series)
    html += Text("<span class=\"run", one.colour, "\"><i></i>", Escaped(one.name), "</span>");
  return html += "</div>\n";
}

}  // namespace cistern
