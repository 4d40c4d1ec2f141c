// SPDX-License-Identifier: Apache-2.0
// What the tier keeps of a region and of a device's regions.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/event.h"
#include "base/list.h"
#include "flash/buffer.h"
#include "flash/device.h"
#include "flash/format.h"

namespace cistern::flash {

// An append in its region's order, in the frame of its task.
struct Batch final : ListNode<Batch> {
  const std::byte* entries = nullptr;  // encoded, once it has ended
  std::uint32_t count = 0;
  std::uint64_t record_bytes = 0;
  bool ended = false;
  bool written = false;
  bool counted = false;  // acknowledged: all before it in the region were
  Event decided;
};

// What a region has besides until its table is on the media.
struct Writing {
  Event header;               // it is durable, or the region has failed
  List<Batch> batches;        // not yet decided, in the order of their places
  std::vector<Buffer> pages;  // of the table, what was acknowledged
  bool failed = false;        // nothing is acknowledged any more
  std::uint32_t writers = 0;  // tasks that will look at this
};

struct Region {
  enum class State : std::uint8_t {
    kFree,  // with a Writing: its header is on its way or there
    kOpen,
    kClosing,  // its last appends and its table are on their way
    kClosed,
    kTaken,  // the caller's, to be given up
    kReleasing,
  };
  State state = State::kFree;
  bool scanned = false;  // power may have been lost under its records: a bad one tells nothing of the device
  std::uint32_t used = 0;      // units, the header's too; then where the table lies
  std::uint32_t reserved = 0;  // entries that the table must have room for
  std::uint32_t entries = 0;   // in the table
  std::uint32_t readers = 0;
  std::uint64_t epoch = 0;
  std::uint64_t first_sequence = 0;           // when its header was made: the order of regions
  std::uint64_t least_sequence = UINT64_MAX;  // of its records
  std::uint64_t live_bytes = 0;
  std::unique_ptr<Writing> writing;
  std::vector<Buffer> pages;  // of a table that could not be written
};

// A device with its regions, which are [first, first + count) of the tier's.
struct Member {
  Member(Loop& loop, std::string path, Device::Limits limits, std::function<void()> out)
      : device(loop, std::move(path), limits, std::move(out)) {}

  Device device;
  std::string file_path;  // what is opened; empty until it was found
  bool block_device = false;
  std::uint64_t size_bytes = 0;
  std::uint64_t id = 0;
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  std::uint64_t live_bytes = 0;
  std::uint32_t open = kNoRegion;
  std::deque<std::uint32_t> free;                            // first in, first out: wear is levelled
  std::vector<std::uint32_t> writing;                        // regions that have a Writing
  std::set<std::pair<std::uint64_t, std::uint32_t>> closed;  // oldest first
  std::set<std::uint32_t> empty;                             // of the closed, those in which nothing lives
  std::multiset<std::uint64_t> sequences;                    // the least of each region that is not free
  std::uint32_t users = 0;                                   // tasks that hold on to it
  bool forgotten = true;                                     // no place on it is known above any more
  Event readers_left;
};

}  // namespace cistern::flash
