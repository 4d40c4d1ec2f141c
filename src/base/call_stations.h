// SPDX-License-Identifier: Apache-2.0
// Where the time of a call goes. A call is at one station at a time; whoever lets it wait says at which:
//
//   const AtStation at(stations, Station::kRoom);
//   co_await room;
//
// What nobody said is the core's. It costs two looks at the clock a wait, and nothing where there is none.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/clock.h"

namespace cistern {

enum class Station : std::uint8_t {
  kTurn,
  kCore,
  kRoom,
  kMover,
  kFlash,
  kCheck,
  kPeer,
  kJournal,
  kRemoval,
};

struct StationText {
  std::string_view name, us, help;
};
inline constexpr std::array<StationText, 9> kStations = {{
    {"turn", "turn_us", "for its first step, while the core did others'"},
    {"core", "core_us", "its own steps of the core, and others' between them"},
    {"room", "room_us", "for a slot in memory"},
    {"mover", "mover_us", "for movers, which copy and check"},
    {"flash", "flash_us", "for flash to read"},
    {"check", "check_us", "until what flash gave, or a restart found, was checked"},
    {"peer", "peer_us", "for other nodes of the cell, or its etcd"},
    {"journal", "journal_us", "for the journal to be durable"},
    {"removal", "removal_us", "for dropped blocks to be gone, a slice at a time"},
}};

class CallStations final {
 public:
  struct Stay {
    Instant first, last;  // came for the first time, left for the last
    std::int64_t ns = 0;  // of all stays between
  };

  // The clock is borrowed.
  CallStations(const Clock& clock, Instant began) : clock_(&clock), began_(began) {}

  const Clock& clock() const { return *clock_; }
  Instant began() const { return began_; }
  const Stay& at(Station station) const { return stays_[static_cast<std::size_t>(station)]; }

  // Nothing where `until` is not later.
  void Add(Station station, Instant from, Instant until) {
    if (until <= from) return;
    Stay& stay = stays_[static_cast<std::size_t>(station)];
    if (stay.ns == 0) stay.first = from;
    stay.last = until;
    stay.ns += until.NsSince(from);
  }
  // Ends the call: its time that no station was given is kCore's.
  void TakeRest(Instant ended) {
    std::int64_t said = 0;
    for (const Stay& stay : stays_) said += stay.ns;
    stays_[static_cast<std::size_t>(Station::kCore)] = {
        began_, ended, std::max<std::int64_t>(ended.NsSince(began_) - said, 0)};
  }
  // Where it was longest.
  Station longest() const {
    const auto found = std::ranges::max_element(stays_, {}, &Stay::ns);
    return static_cast<Station>(found - stays_.begin());
  }

 private:
  const Clock* clock_;
  Instant began_;
  std::array<Stay, kStations.size()> stays_{};
};

// From here to the end of its scope. Null: nobody asks.
class AtStation final {
 public:
  AtStation(CallStations* call, Station station) : call_(call), station_(station) {
    if (call_ != nullptr) from_ = call_->clock().Now();
  }
  ~AtStation() {
    if (call_ != nullptr) call_->Add(station_, from_, call_->clock().Now());
  }
  AtStation(const AtStation&) = delete;
  AtStation& operator=(const AtStation&) = delete;

 private:
  CallStations* const call_;
  const Station station_;
  Instant from_;
};

}  // namespace cistern
