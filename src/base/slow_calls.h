// SPDX-License-Identifier: Apache-2.0
// Calls that took longer than a bound: each is logged with where its time went, counted, and the last few are
// kept to be looked at. Nothing of a call's content is kept: no key, no field, no byte.
//
// Belongs to the core's thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "base/call_stations.h"
#include "base/log.h"
#include "base/metrics.h"
#include "cistern/status.h"

namespace cistern {

class MetricRegistry;

enum class CallKind : std::uint8_t {
  kMatch,
  kHold,
  kAcquire,
  kWrite,
  kPublish,
  kTouch,
  kDrop,
  kAttach,
  kFetch,
};

struct CallText {
  std::string_view name, of, help;
};
inline constexpr std::array<CallText, 9> kCallKinds = {{
    {"match", "blocks", "the rest of a chain, which memory's index did not have"},
    {"hold", "blocks", "a match that leases what it found"},
    {"acquire", "blocks", "views, and reads of what is not in memory"},
    {"write", "parts", "puts"},
    {"publish", "puts", "held puts that become visible, or are given up"},
    {"touch", "blocks", "uses in order"},
    {"drop", "keys", "of blocks, a namespace or a conversation"},
    {"attach", "lists", "of a namespace"},
    {"fetch", "blocks", "a block from flash into memory, whoever waits for it"},
}};

struct SlowCall {
  CallKind kind = CallKind::kMatch;
  CallStations stations;
  Instant ended;
  Code code = Code::kOk;
  std::uint64_t count = 0;  // of what CallText::of says
  // Who asked, and in which namespace (its list's fingerprint); 0: nobody, none.
  std::uint64_t session = 0, process = 0, namespace_fingerprint = 0;
  std::string engine = {};  // by its name, where it has one

  std::int64_t took_ns() const { return ended.NsSince(stations.began()); }
};

// "flash 290ms, turn 12ms": the longest first, what is under a thousandth of the call left out.
std::string StationsText(const SlowCall& call);

class SlowCalls final {
 public:
  static constexpr std::int64_t kDefaultBoundUs = 100'000;
  static constexpr std::size_t kKept = 16;

  // Borrowed. A bound of 0: no call is slow.
  SlowCalls(const Clock& clock, Logger& log) : clock_(clock), log_(log) {}
  SlowCalls(const SlowCalls&) = delete;
  SlowCalls& operator=(const SlowCalls&) = delete;

  void SetBound(std::int64_t us) { bound_ns_ = us * 1'000; }
  bool Slow(std::int64_t took_ns) const { return bound_ns_ > 0 && took_ns > bound_ns_; }
  // One that is slow, and has ended.
  void Note(SlowCall call);

  // Is handed each from now on; it must not keep the core.
  using Listener = std::function<void(const SlowCall&)>;
  void ListenTo(Listener listener) { listener_ = std::move(listener); }

  // The latest first.
  const std::deque<SlowCall>& last() const { return last_; }
  std::uint64_t count(CallKind kind) const { return by_kind_[static_cast<std::size_t>(kind)].value(); }
  std::uint64_t count(Station station) const {
    return by_station_[static_cast<std::size_t>(station)].value();
  }

  // Null: for the names alone.
  static void AddMetrics(MetricRegistry& registry, const SlowCalls* calls);

 private:
  const Clock& clock_;
  Logger& log_;
  std::int64_t bound_ns_ = kDefaultBoundUs * 1'000;
  Listener listener_;
  std::deque<SlowCall> last_;
  std::array<Counter, kCallKinds.size()> by_kind_;
  std::array<Counter, kStations.size()> by_station_;  // where they were longest
};

}  // namespace cistern
