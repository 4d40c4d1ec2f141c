// SPDX-License-Identifier: Apache-2.0
// The slots of an arena of twelve headers, for this folder's tests.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "arena/protocol.h"
#include "arena/test_arena.h"
#include "memory/slots.h"

namespace cistern::memory {

inline constexpr std::uint64_t kKiB = 1024, kMiB = 1024 * kKiB;

class SlotsTest : public testing::Test {
 protected:
  SlotsTest() { arena::Uncarve(words_, node_.arena, 0, 1); }

  // Records whose chunks are of one header, 31 slots, and of two, 9 slots.
  static constexpr std::uint64_t kSmall = record::RecordBytes(1 * kMiB, 4096),
                                 kLarge = record::RecordBytes(7 * kMiB, 4096);

  static std::vector<arena::Place> Fill(Slots& slots, std::uint64_t record_bytes) {
    std::vector<arena::Place> places;
    while (const Result<arena::Place> place = slots.Allocate(record_bytes)) places.push_back(*place);
    return places;
  }
  // Frees `count` of the places in the headers [first, end), or as many as there are.
  static std::uint64_t FreeIn(Slots& slots, std::vector<arena::Place>& places, std::uint32_t first,
                              std::uint32_t end, std::uint64_t count = ~0ull) {
    std::uint64_t freed = 0;
    std::erase_if(places, [&](arena::Place place) {
      const std::uint32_t header = slots.arena().geometry().header_of(place);
      if (header < first || header >= end || freed == count) return false;
      slots.Free(place);
      freed++;
      return true;
    });
    return freed;
  }

  arena::RealWords words_;
  arena::TestArena<arena::RealWords> node_{words_, 8192, {4096, 12}};
  Slots slots_{words_, node_.arena};
};

}  // namespace cistern::memory
