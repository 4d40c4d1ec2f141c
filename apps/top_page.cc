// SPDX-License-Identifier: Apache-2.0
#include "top_page.h"

#include <algorithm>
#include <array>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cmath>
#include <cstdio>
#include <functional>

#include "base/call_stations.h"
#include "base/format.h"
#include "base/units.h"

namespace cistern {
namespace {

namespace json = boost::json;

constexpr std::array<TopFigure, 12> kFigures = {{
    {"blocks read", "/store/touches_applied"},
    {"leases", "/store/leases_granted"},
    {"blocks put", "/store/published"},
    {"put, but there", "/store/present"},
    {"evicted", "/store/evicted"},
    {"fetched", "/store/fetched"},
    {"fetched bytes", "/flash/fetched_bytes", true},
    {"flash written", "/flash/device_written_bytes", true},
    {"too late", "/store/fetch_refused"},
    {"busy", "/store/busy"},
    {"dropped", "/store/dropped"},
    {"calls", "/door/calls"},
}};

std::uint64_t At(const json::value& status, std::string_view pointer) {
  boost::system::error_code error;
  const json::value* value = status.find_pointer(pointer, error);
  return value == nullptr ? 0 : value->to_number<std::uint64_t>(error);
}

std::string RateText(double rate, bool bytes) {
  if (bytes) return RoughSizeText(static_cast<std::uint64_t>(rate)) + "/s";
  char text[32];
  std::snprintf(text, sizeof(text), rate < 100 ? "%.1f/s" : "%.0f/s", rate);
  return text;
}

std::string Bar(std::uint64_t used, std::uint64_t all, std::size_t width) {
  const std::size_t full =
      all == 0 ? 0
               : static_cast<std::size_t>(static_cast<double>(used) / static_cast<double>(all) *
                                          static_cast<double>(width));
  return "[" + std::string(std::min(full, width), '#') + std::string(width - std::min(full, width), '.') +
         "]";
}

// Cut to `width` characters; a sparkline's take three bytes each.
std::string Cut(std::string line, std::size_t width) {
  std::size_t characters = 0;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const bool begins = (static_cast<unsigned char>(line[i]) & 0xc0) != 0x80;
    if (begins && characters++ == width) {
      line.resize(i);
      break;
    }
  }
  return line;
}

std::string Padded(std::string text, std::size_t width, bool right = false) {
  if (text.size() >= width) return text;
  const std::string space(width - text.size(), ' ');
  return right ? space + text : text + space;
}

constexpr std::size_t kSlowCallsShown = 3;

std::vector<TopEngine> EnginesOf(const json::value& status) {
  std::vector<TopEngine> engines;
  boost::system::error_code error;
  const json::value* rows = status.find_pointer("/by_engine", error);
  if (rows == nullptr || !rows->is_array()) return engines;  // a node of before
  for (const json::value& row : rows->get_array()) {
    if (!row.is_object()) continue;
    const auto is_off = [&](std::string_view which) {
      const json::value* on = row.get_object().if_contains(which);
      return on != nullptr && on->is_bool() && !on->get_bool();
    };
    const json::value* name = row.get_object().if_contains("engine");
    if (name == nullptr || !name->is_string()) continue;
    engines.push_back(
        {std::string(name->get_string()), At(row, "/sessions"), is_off("reads_on"), is_off("writes_on")});
  }
  return engines;
}

std::vector<TopSlowCall> SlowCallsOf(const json::value& status) {
  std::vector<TopSlowCall> calls;
  boost::system::error_code error;
  const json::value* rows = status.find_pointer("/slow_calls", error);
  if (rows == nullptr || !rows->is_array()) return calls;  // a node of before
  for (const json::value& row : rows->get_array()) {
    if (!row.is_object()) continue;
    TopSlowCall call{
        .ago_us = At(row, "/ago_us"), .took_us = At(row, "/took_us"), .count = At(row, "/count")};
    if (const json::value* name = row.get_object().if_contains("call"); name != nullptr && name->is_string())
      call.call = name->get_string();
    for (const StationText& station : kStations) {
      const std::uint64_t us = At(row, "/" + std::string(station.us));
      if (us > call.took_us / 100) call.stations_us.emplace_back(station.name, us);
    }
    std::ranges::sort(call.stations_us, std::greater<>(), &std::pair<std::string, std::uint64_t>::second);
    calls.push_back(std::move(call));
  }
  return calls;
}

std::string MillisecondsText(std::uint64_t us) {
  char text[32];
  std::snprintf(text, sizeof(text), us < 10'000 ? "%.1f ms" : "%.0f ms", static_cast<double>(us) / 1e3);
  return text;
}

std::string LineOf(const TopSlowCall& call) {
  return Text("slow   ", call.call, " of ", call.count, ", ", call.ago_us / 1'000'000, " s ago, took ",
              MillisecondsText(call.took_us), ": ", Joined(call.stations_us, ", ", [](const auto& station) {
                return Text(station.first, " ", MillisecondsText(station.second));
              }));
}

}  // namespace

std::vector<TopFigure> TopFigures() { return {kFigures.begin(), kFigures.end()}; }

Result<TopSample> ParseTopSample(std::string_view status_json, std::int64_t at_us) {
  boost::system::error_code error;
  const json::value status = json::parse(status_json, error);
  if (error || !status.is_object() || !status.get_object().contains("node"))
    return Error(Code::kMismatch, "the node's status is not JSON; is it another version?");
  TopSample sample{.at_us = at_us};
  for (const TopFigure& figure : kFigures) sample.counters.push_back(At(status, figure.pointer));
  sample.memory_bytes = At(status, "/memory/bytes");
  sample.wanted_bytes = At(status, "/memory/wanted_bytes");
  sample.used_bytes = At(status, "/memory/used_bytes");
  sample.flash_bytes = At(status, "/flash/bytes");
  sample.live_bytes = At(status, "/flash/live_bytes");
  sample.sessions = At(status, "/door/sessions");
  sample.in_flight = At(status, "/door/in_flight");
  sample.leases = At(status, "/now/leases");
  sample.pending = At(status, "/now/pending");
  sample.blocks = At(status, "/now/blocks");
  sample.pid = At(status, "/node/pid");
  sample.uptime_us = At(status, "/node/uptime_us");
  sample.slow_calls = SlowCallsOf(status);
  sample.engines = EnginesOf(status);
  return sample;
}

std::string Sparkline(const std::deque<double>& values, std::size_t most) {
  constexpr std::array<std::string_view, 8> kHeights = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const std::size_t count = std::min(values.size(), most);
  const auto first = values.end() - static_cast<std::ptrdiff_t>(count);
  const double greatest = count == 0 ? 0 : *std::max_element(first, values.end());
  std::string line;
  for (auto value = first; value != values.end(); ++value) {
    std::size_t height = 0;
    if (*value > 0)
      height = std::clamp<std::size_t>(static_cast<std::size_t>(std::ceil(*value / greatest * 7)), 1, 7);
    line += kHeights[height];
  }
  return line;
}

void TopPage::Add(TopSample sample) {
  if (!last_.empty() && (last_.back().pid != sample.pid || last_.back().uptime_us > sample.uptime_us)) {
    last_.clear();
    curves_.clear();
  }
  last_.push_back(std::move(sample));
  if (last_.size() > 2) last_.erase(last_.begin());
  const std::vector<double> rates = Rates();
  curves_.resize(kFigures.size());
  for (std::size_t i = 0; i < rates.size(); ++i) {
    curves_[i].push_back(rates[i]);
    if (curves_[i].size() > kMostKept) curves_[i].pop_front();
  }
}

void TopPage::SetNamespaces(std::vector<ListedNamespace> namespaces) {
  namespaces_ = std::move(namespaces);
  std::ranges::sort(namespaces_, [](const ListedNamespace& a, const ListedNamespace& b) {
    const std::uint64_t of_a = a.memory_bytes + a.flash_bytes, of_b = b.memory_bytes + b.flash_bytes;
    return of_a != of_b ? of_a > of_b : a.title() < b.title();
  });
}

std::vector<double> TopPage::Rates() const {
  if (last_.size() < 2 || last_[1].at_us <= last_[0].at_us) return {};
  const double seconds = static_cast<double>(last_[1].at_us - last_[0].at_us) / 1e6;
  std::vector<double> rates;
  for (std::size_t i = 0; i < kFigures.size(); ++i)
    rates.push_back(static_cast<double>(last_[1].counters[i] - last_[0].counters[i]) / seconds);
  return rates;
}

std::string TopPage::Draw(std::size_t width, std::size_t height) const {
  if (last_.empty()) return "";
  const TopSample& now = last_.back();
  std::vector<std::string> lines;
  lines.push_back(Text("node ", now.pid, "  up ", now.uptime_us / 1'000'000, " s  ", now.blocks, " blocks  ",
                       now.sessions, " sessions  ", now.in_flight, " calls in flight  ", now.leases,
                       " leases  ", now.pending, " pending"));
  lines.push_back(Text(
      "memory ", Bar(now.used_bytes, now.memory_bytes, 30), " ", RoughSizeText(now.used_bytes), " of ",
      RoughSizeText(now.memory_bytes),
      now.wanted_bytes <= now.memory_bytes ? "" : ", which grows to " + RoughSizeText(now.wanted_bytes)));
  if (now.flash_bytes > 0) {
    lines.push_back(Text("flash  ", Bar(now.live_bytes, now.flash_bytes, 30), " ",
                         RoughSizeText(now.live_bytes), " of ", RoughSizeText(now.flash_bytes)));
  }
  for (const TopEngine& engine : now.engines) {
    if (!engine.reads_off && !engine.writes_off) continue;
    lines.push_back(Text(
        "off    ", engine.reads_off ? "reads" : "", engine.reads_off && engine.writes_off ? " and " : "",
        engine.writes_off ? "writes" : "", " of engine ", engine.name, ", ", engine.sessions, " sessions"));
  }
  for (std::size_t i = 0; i < std::min(kSlowCallsShown, now.slow_calls.size()); ++i)
    lines.push_back(LineOf(now.slow_calls[i]));
  lines.emplace_back();
  const std::vector<double> rates = Rates();
  const std::size_t beside = 34;
  for (std::size_t i = 0; i < kFigures.size() && i < rates.size(); ++i) {
    lines.push_back(Padded(std::string(kFigures[i].name), 18) +
                    Padded(RateText(rates[i], kFigures[i].bytes), 14, true) + "  " +
                    Sparkline(curves_[i], width > beside ? width - beside : 0));
  }
  if (rates.empty()) lines.push_back("rates come with the second look");
  if (!namespaces_.empty()) {
    lines.emplace_back();
    lines.push_back(Padded("namespace", 26) + Padded("blocks", 10, true) + Padded("memory", 12, true) +
                    Padded("flash", 12, true) + Padded("uses", 12, true) + Padded("engines", 9, true));
  }
  for (const ListedNamespace& ns : namespaces_) {
    lines.push_back(Padded(Cut(ns.shown(), 25), 26) + Padded(Text(ns.blocks), 10, true) +
                    Padded(RoughSizeText(ns.memory_bytes), 12, true) +
                    Padded(RoughSizeText(ns.flash_bytes), 12, true) + Padded(Text(ns.uses), 12, true) +
                    Padded(Text(ns.owners), 9, true));
  }
  std::string page;
  for (std::size_t i = 0; i < lines.size() && i < height; ++i) page += Cut(lines[i], width) + "\n";
  return page;
}

std::string TopPage::Json() const {
  json::object rates;
  const std::vector<double> values = Rates();
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::string name(kFigures[i].pointer.substr(1));
    name[name.find('/')] = '.';
    rates[name] = values[i];
  }
  json::array namespaces;
  for (const ListedNamespace& ns : namespaces_) {
    namespaces.push_back(json::object{{"fingerprint", ns.fingerprint},
                                      {"name", ns.title()},
                                      {"labels", LabelsText(ns)},
                                      {"blocks", ns.blocks},
                                      {"memory_bytes", ns.memory_bytes},
                                      {"flash_bytes", ns.flash_bytes},
                                      {"uses", ns.uses},
                                      {"owners", ns.owners}});
  }
  json::array slow_calls;
  if (!last_.empty()) {
    for (const TopSlowCall& call : last_.back().slow_calls) {
      json::object stations;
      for (const auto& [name, us] : call.stations_us) stations[name] = us;
      slow_calls.push_back(json::object{{"call", call.call},
                                        {"ago_us", call.ago_us},
                                        {"took_us", call.took_us},
                                        {"count", call.count},
                                        {"stations_us", std::move(stations)}});
    }
  }
  const double seconds = last_.size() < 2 ? 0.0 : static_cast<double>(last_[1].at_us - last_[0].at_us) / 1e6;
  return json::serialize(json::object{{"seconds", seconds},
                                      {"memory_bytes", last_.empty() ? 0 : last_.back().memory_bytes},
                                      {"used_bytes", last_.empty() ? 0 : last_.back().used_bytes},
                                      {"flash_bytes", last_.empty() ? 0 : last_.back().flash_bytes},
                                      {"live_bytes", last_.empty() ? 0 : last_.back().live_bytes},
                                      {"rates_per_s", std::move(rates)},
                                      {"slow_calls", std::move(slow_calls)},
                                      {"namespaces", std::move(namespaces)}});
}

}  // namespace cistern
