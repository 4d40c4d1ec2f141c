// SPDX-License-Identifier: Apache-2.0
// A lower tier of a simulated node: a log of blocks in regions, of which the oldest is given up when another
// one is needed, and what its writes cost. It knows numbers of blocks; whose they are and what stays is its
// owner's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "policy/evict.h"
#include "policy/write_price.h"

namespace cistern::workload {

class LowerLog final {
 public:
  using Region = std::uint32_t;

  // Of so many blocks, 0: without end; with a budget of so many an hour, 0: none.
  LowerLog(std::uint64_t blocks, std::uint64_t budget_an_hour);

  void SetNow(std::uint64_t now_ms);
  // The budget pays for one more.
  bool Pays() const { return budget_ == 0 || saved_ >= 1; }
  // Where the block lies from now on. What is moved was there before.
  Region Append(policy::EntryId id, bool moved);

  // The oldest region, whose blocks have to go or to be appended anew: where there are more than fit.
  struct Given {
    Region region;
    std::vector<policy::EntryId> ids;  // in the order of their writes
  };
  std::optional<Given> GiveUp();
  // Blocks of a region.
  std::uint64_t region_blocks() const { return region_blocks_; }

  std::uint64_t written() const { return written_; }
  std::uint64_t moved() const { return moved_; }
  policy::WriteTerms terms() const;

 private:
  struct Open {
    Region region;
    std::uint64_t since_ms;
    std::vector<policy::EntryId> ids;
  };
  const std::uint64_t region_blocks_, regions_;  // 0: without end
  const double budget_;                          // blocks an hour
  double saved_;                                 // an hour's at most
  std::uint64_t now_ms_ = 0;
  bool full_ = false;  // a region was given up
  std::uint64_t written_ = 0, moved_ = 0;
  Region next_ = 0;
  std::deque<Open> log_;
};

}  // namespace cistern::workload
