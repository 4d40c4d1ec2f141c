// SPDX-License-Identifier: Apache-2.0
// What a tier is told of the journal that its records are believed by, and keeps of it on its media, so that
// an older copy of the journal is noticed: docs/formats/journal.md.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

namespace cistern::tier {

// How far a journal has come: how often it was written anew, and how long it is since. A durable append or a
// journal written anew has a higher one.
struct JournalMark {
  std::uint64_t state = 0;
  std::uint64_t bytes = 0;
  friend auto operator<=>(const JournalMark&, const JournalMark&) = default;
};

// As a start finds it.
struct JournalView {
  std::uint64_t id = 0;
  std::vector<std::uint64_t> known;  // media by id: its tombstones have waited for what these hold
  JournalMark mark;
  bool missed_drops = false;  // a node had another journal meanwhile: nothing on the media is believed
};

}  // namespace cistern::tier
