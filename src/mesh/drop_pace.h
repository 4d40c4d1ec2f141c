// SPDX-License-Identifier: Apache-2.0
// How fast a member writes drops, and how long they are kept: plain arithmetic on times that are handed in.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>

#include "base/clock.h"

namespace cistern::mesh {

// A member's share of what the cell writes to etcd. What it has saved up goes at once, so that a call of ten
// thousand keys in a quiet cell does.
class WriteShare final {
 public:
  static constexpr std::int64_t kCellBytesPerS = 320 << 10;
  static constexpr std::int64_t kSavedBytes = 512 << 10;

  // When so many bytes may be written at the earliest, as one of `members`; the caller writes no sooner.
  Instant ReadyAt(std::size_t bytes, std::size_t members, Instant now) {
    Save(members, now);
    const auto wanted = std::min(static_cast<std::int64_t>(bytes), kSavedBytes);
    if (saved_bytes_ >= wanted) return now;
    return now.PlusUs((wanted - saved_bytes_) * 1'000'000 / Rate(members) + 1);
  }
  void Written(std::size_t bytes) { saved_bytes_ -= static_cast<std::int64_t>(bytes); }

 private:
  static std::int64_t Rate(std::size_t members) {
    return kCellBytesPerS / static_cast<std::int64_t>(std::max<std::size_t>(1, members));
  }
  void Save(std::size_t members, Instant now) {
    const std::int64_t rate = Rate(members);
    const std::int64_t us = std::min<std::int64_t>(now.UsSince(saved_at_), kSavedBytes * 1'000'000 / rate);
    const std::int64_t bytes = us * rate / 1'000'000;
    if (bytes <= 0) return;
    saved_bytes_ = std::min(kSavedBytes, saved_bytes_ + bytes);
    // The time of less than a byte counts at the next look.
    saved_at_ = now.PlusUs(bytes * 1'000'000 / rate - us);
  }

  std::int64_t saved_bytes_ = kSavedBytes;
  Instant saved_at_;
};

// Up to which revision drops need not be kept: by their age since they were seen here, and by their bytes.
// Hosts' clocks are never compared, so a member that has just started counts from its start.
class Retention final {
 public:
  Retention(std::int64_t keep_us, std::uint64_t keep_bytes) : keep_us_(keep_us), keep_bytes_(keep_bytes) {}

  // `bytes` of drops at this revision, of no earlier one than the last.
  void Add(Instant now, std::int64_t revision, std::uint64_t bytes) {
    bytes_ += bytes;
    // One mark for all that came within a short time.
    if (!marks_.empty() && now.UsSince(marks_.back().at) < std::min(kMarkUs, keep_us_ / 1000) &&
        marks_.back().bytes + bytes <= keep_bytes_ / 1000) {
      Mark& mark = marks_.back();
      mark.last_at = now;
      mark.revision = revision;
      mark.bytes += bytes;
    } else {
      marks_.push_back({now, now, revision, bytes});
    }
  }
  // Everything up to the result may go; 0: nothing may.
  std::int64_t FloorAt(Instant now) const {
    std::int64_t floor = 0;
    std::uint64_t left = bytes_;
    for (const Mark& mark : marks_) {
      if (left <= keep_bytes_ && now.UsSince(mark.at) < keep_us_) break;
      floor = mark.revision;
      left -= mark.bytes;
    }
    return floor;
  }
  // The last revision that has been here for so long; 0: none has.
  std::int64_t HereFor(std::int64_t us, Instant now) const {
    std::int64_t revision = 0;
    for (const Mark& mark : marks_) {
      if (now.UsSince(mark.last_at) < us) break;
      revision = mark.revision;
    }
    return revision;
  }
  // They are gone.
  void Trimmed(std::int64_t floor) {
    while (!marks_.empty() && marks_.front().revision <= floor) {
      bytes_ -= marks_.front().bytes;
      marks_.pop_front();
    }
  }
  void Clear() {
    marks_.clear();
    bytes_ = 0;
  }
  std::uint64_t bytes() const { return bytes_; }
  // The last revision that it was told of and that was not trimmed; 0: there is none.
  std::int64_t last() const { return marks_.empty() ? 0 : marks_.back().revision; }

 private:
  static constexpr std::int64_t kMarkUs = 2'000'000;
  struct Mark {
    Instant at, last_at;    // of the first of it, of the last
    std::int64_t revision;  // of the last of it
    std::uint64_t bytes;
  };
  const std::int64_t keep_us_;
  const std::uint64_t keep_bytes_;
  std::deque<Mark> marks_;
  std::uint64_t bytes_ = 0;
};

}  // namespace cistern::mesh
