// SPDX-License-Identifier: Apache-2.0
// How much is written to a lower tier again of what memory has and the tier gave up for want of room. The
// tier is a log: what is written again takes room, for which more is given up, of which memory may have all.
// Where the tier is little larger than memory that would never end, though nobody puts anything. So each byte
// that is put pays for one that is written again, and the tier is written no more than twice for it.
#pragma once

#include <algorithm>
#include <cstdint>

namespace cistern::policy {

class RewriteAllowance final {
 public:
  // So many bytes were put, into a memory of so many.
  void NotePut(std::uint64_t bytes, std::uint64_t memory_bytes) {
    most_ = static_cast<std::int64_t>(memory_bytes / kSavedShare);
    left_ = std::min(left_ + static_cast<std::int64_t>(bytes), most_);
  }
  // So many bytes were written again; what puts need is, whatever is left.
  void Take(std::uint64_t bytes) { left_ = std::max(left_ - static_cast<std::int64_t>(bytes), -most_); }
  // Whether what leaves memory before long may be written again, where so many bytes are to be already; and
  // what stays there, of which a copy serves after a reboot alone: half is kept from it.
  bool ForLeaving(std::uint64_t queued) const { return left_ > static_cast<std::int64_t>(queued); }
  bool ForStaying(std::uint64_t queued) const {
    return left_ - static_cast<std::int64_t>(queued) > most_ / 2;
  }

 private:
  static constexpr std::uint64_t kSavedShare = 4;  // of memory, at most, is saved up or owed

  std::int64_t left_ = 0, most_ = 0;  // bytes
};

}  // namespace cistern::policy
