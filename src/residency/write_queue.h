// SPDX-License-Identifier: Apache-2.0
// Records that wait to be written to the lower tier, first in, first out; those that may have to be, or they
// could never leave memory; and those that the tier gave up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "catalog/forest.h"

namespace cistern::residency {

class WriteQueue final {
 public:
  static constexpr std::size_t kMostRecords = 65'536;
  struct Entry {
    catalog::RecordHandle record;
    bool more_above = false;          // ancestors that were not looked at yet are written before it
    std::uint64_t rewrite_bytes = 0;  // that it takes of others' room, where its copy was given up
  };

  bool empty() const { return records_.empty(); }
  std::size_t size() const { return records_.size(); }
  bool full() const { return records_.size() >= kMostRecords; }
  // So that what is queued of one block may not fit.
  bool nearly_full() const { return records_.size() + kMaxGroups > kMostRecords; }
  // Of all that are in it.
  std::uint64_t rewrite_bytes() const { return rewrite_bytes_; }
  void Push(const Entry& entry) {
    records_.push_back(entry);
    rewrite_bytes_ += entry.rewrite_bytes;
  }
  void PushFront(const Entry& entry) {
    records_.push_front(entry);
    rewrite_bytes_ += entry.rewrite_bytes;
  }
  const Entry& front() const { return records_.front(); }
  void Pop() {
    rewrite_bytes_ -= records_.front().rewrite_bytes;
    records_.pop_front();
  }
  void Clear() {
    records_.clear();
    rewrite_bytes_ = 0;
    held_up_.clear();
    given_up_.clear();
  }

  // A record in memory alone, which descendants keep there: the cleaner looks whether these are below.
  void NoteHeldUp(catalog::RecordHandle record) { Note(held_up_, record); }
  std::optional<catalog::RecordHandle> TakeHeldUp() { return TakeOf(held_up_); }
  // A record whose copy in the tier was given up for want of room: it waits until it may be written again.
  void NoteGivenUp(catalog::RecordHandle record) { Note(given_up_, record); }
  std::optional<catalog::RecordHandle> TakeGivenUp() { return TakeOf(given_up_); }

  // Refusals of a search for a record that may be lost unwritten. The search starts at the front, puts each
  // record that it refuses to the back, and may take several steps; the count restarts after each one found.
  std::size_t refused() const { return refused_; }
  void Refuse(const Entry& entry) {
    Push(entry);
    ++refused_;
  }
  void Skip() { ++refused_; }
  void EndLook() { refused_ = 0; }

 private:
  using Handles = std::deque<catalog::RecordHandle>;

  static void Note(Handles& handles, catalog::RecordHandle record) {
    if (handles.size() < kMostRecords) handles.push_back(record);
  }
  static std::optional<catalog::RecordHandle> TakeOf(Handles& handles) {
    if (handles.empty()) return std::nullopt;
    const catalog::RecordHandle record = handles.front();
    handles.pop_front();
    return record;
  }

  std::deque<Entry> records_;
  std::uint64_t rewrite_bytes_ = 0;
  Handles held_up_, given_up_;
  std::size_t refused_ = 0;
};

}  // namespace cistern::residency
