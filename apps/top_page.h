// SPDX-License-Identifier: Apache-2.0
// What `cistern top` shows: rates between two looks at a node's status, and how they went, as small curves.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cistern/status.h"
#include "namespace_list.h"

namespace cistern {

struct TopFigure {
  std::string_view name;
  std::string_view pointer;  // of a counter in the status, "/store/published"
  bool bytes = false;
};
// One of the node's slow calls.
struct TopSlowCall {
  std::string call;
  std::uint64_t ago_us = 0, took_us = 0, count = 0;
  std::vector<std::pair<std::string, std::uint64_t>> stations_us;  // the longest first
};
// One that has a name.
struct TopEngine {
  std::string name;
  std::uint64_t sessions = 0;
  bool reads_off = false, writes_off = false;
};
// In the order in which they are shown.
std::vector<TopFigure> TopFigures();

// One look. Counters in the order of TopFigures.
struct TopSample {
  std::int64_t at_us = 0;
  std::vector<std::uint64_t> counters;
  std::uint64_t memory_bytes = 0, wanted_bytes = 0, used_bytes = 0, flash_bytes = 0, live_bytes = 0;
  std::uint64_t sessions = 0, in_flight = 0, leases = 0, pending = 0, blocks = 0;
  std::uint64_t pid = 0, uptime_us = 0;
  std::vector<TopSlowCall> slow_calls;  // the latest first
  std::vector<TopEngine> engines;
};
// kMismatch: the text is no status.
Result<TopSample> ParseTopSample(std::string_view status_json, std::int64_t at_us);

// One of eight heights for each value, the greatest the tallest; a value above 0 is never the lowest.
std::string Sparkline(const std::deque<double>& values, std::size_t most);

class TopPage final {
 public:
  // A node that was started anew begins with new curves: its counters begin at 0.
  void Add(TopSample sample);
  void SetNamespaces(std::vector<ListedNamespace> namespaces);
  // Of the last two looks, a second; of fewer none.
  std::vector<double> Rates() const;
  std::string Draw(std::size_t width, std::size_t height) const;
  std::string Json() const;

 private:
  static constexpr std::size_t kMostKept = 240;
  std::vector<TopSample> last_;  // at most two
  std::vector<std::deque<double>> curves_;
  std::vector<ListedNamespace> namespaces_;
};

}  // namespace cistern
