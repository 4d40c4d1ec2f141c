// SPDX-License-Identifier: Apache-2.0
// A region: what it is in the middle of, and how far it is used. Its state changes by the methods of
// DeviceRegions alone, whose sets agree with it.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/event.h"
#include "base/list.h"
#include "flash/buffer.h"
#include "flash/format.h"

namespace cistern::flash {

// The sizes of all regions of a tier.
struct Geometry {
  std::uint32_t unit = 0;
  std::uint64_t region_bytes = 0;

  std::uint32_t units() const { return static_cast<std::uint32_t>(region_bytes / unit); }
  std::uint32_t TableUnits(std::uint32_t entries) const {
    return static_cast<std::uint32_t>(RoundUp(TableBytes(entries), unit) / unit);
  }
};

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

// The state of a region that is being written, kept until its table is on the media.
struct Writing {
  Event header;               // it is durable, or the device is out of service
  List<Batch> batches;        // not yet decided, in the order of their units
  std::vector<Buffer> pages;  // of the table, what was acknowledged
  std::uint32_t writers = 0;  // tasks that will look at this
};

class Region final {
 public:
  enum class State : std::uint8_t {
    kFree,  // with a Writing: its header is on its way or there
    kOpen,
    kClosing,  // its last appends and its table are on their way
    kClosed,
    kTaken,      // reclaim asks what stays of it
    kReleasing,  // nothing lives in it; its empty header is on its way
  };

  State state() const { return state_; }
  bool is(State state) const { return state_ == state; }
  // Closed by a recovery: power may have been lost under its records, and a bad one tells nothing of the
  // device.
  bool scanned() const { return scanned_; }
  std::uint32_t used() const { return used_; }        // units, the header's too; then where the table lies
  std::uint32_t entries() const { return entries_; }  // in the table
  std::uint64_t epoch() const { return epoch_; }
  std::uint64_t first_sequence() const {
    return first_sequence_;
  }  // when its header was made: regions' order
  std::uint64_t least_sequence() const { return least_sequence_; }  // of its records
  std::uint64_t live_bytes() const { return live_bytes_; }
  bool has_readers() const { return readers_ > 0; }
  Writing* writing() const { return writing_.get(); }
  const std::vector<Buffer>& pages() const { return pages_; }  // of a table that could not be written

  // Whether a batch of so many units and records finds room, with the table that it makes larger.
  bool Fits(const Geometry& geometry, std::uint32_t units, std::uint32_t records) const {
    return used_ + std::uint64_t{units} + geometry.TableUnits(reserved_ + records) + 1 <= geometry.units();
  }
  // The next units are a batch's; where they begin.
  std::uint32_t Reserve(std::uint32_t units, std::uint32_t records) {
    reserved_ += records;
    return std::exchange(used_, used_ + units);
  }
  void AddEntries(std::uint32_t count) { entries_ += count; }
  // As a locator says, or as its batches were found to be.
  void FoundTable(std::uint32_t used, std::uint32_t entries, bool scanned) {
    used_ = used;
    entries_ = reserved_ = entries;
    scanned_ = scanned;
  }
  void KeepPages() { pages_ = std::move(writing_->pages); }

 private:
  friend class DeviceRegions;

  void Pass(State from, State to) {
    CISTERN_ASSERT(state_ == from);
    state_ = to;
  }
  void Open() {
    CISTERN_ASSERT(readers_ == 0 && live_bytes_ == 0 && writing_ != nullptr);
    Pass(State::kFree, State::kOpen);
    scanned_ = false;
    used_ = 1;
    reserved_ = entries_ = 0;
  }
  void BeginClosing() { Pass(State::kOpen, State::kClosing); }
  void Closed() { Pass(State::kClosing, State::kClosed); }
  void Take() { Pass(State::kClosed, State::kTaken); }
  void GiveBack() { Pass(State::kTaken, State::kClosed); }
  void BeginRelease() {
    CISTERN_ASSERT(live_bytes_ == 0);
    Pass(State::kTaken, State::kReleasing);
  }
  void Free() {
    Pass(State::kReleasing, State::kFree);
    pages_.clear();
    entries_ = 0;
  }
  // After a start.
  void Found(std::uint64_t epoch, std::uint64_t first_sequence) {
    Pass(State::kFree, State::kClosed);
    epoch_ = epoch;
    first_sequence_ = first_sequence;
  }
  void FoundEmpty() { Pass(State::kClosed, State::kFree); }

  State state_ = State::kFree;
  bool scanned_ = false;
  std::uint32_t used_ = 0;
  std::uint32_t reserved_ = 0;  // entries that the table must have room for
  std::uint32_t entries_ = 0;
  std::uint32_t readers_ = 0;
  std::uint64_t epoch_ = 0;
  std::uint64_t first_sequence_ = 0;
  std::uint64_t least_sequence_ = UINT64_MAX;
  std::uint64_t live_bytes_ = 0;
  std::unique_ptr<Writing> writing_;
  std::vector<Buffer> pages_;
};

}  // namespace cistern::flash
