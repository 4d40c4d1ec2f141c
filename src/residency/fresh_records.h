// SPDX-License-Identifier: Apache-2.0
// Which records came to memory, or were used there, since somebody asked last: for who offers these to other
// nodes, whatever has become of their place in the order meanwhile. A record's flag says it; a list of a
// bounded length says where the flags are, and past it all records are to be looked at for theirs.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "catalog/forest.h"

namespace cistern::residency {

class FreshRecords final {
 public:
  static constexpr std::size_t kMostListed = 262'144;

  // False, as at first: nothing is noted. From then on that it is true all that is here counts as noted once.
  void Want(bool wanted) {
    if (wanted != wanted_) taken_ = {.all = wanted};
    wanted_ = wanted;
  }
  void Note(catalog::RecordId id, catalog::Record& record) {
    if (!wanted_ || record.is(catalog::Record::kFresh)) return;
    record.flags |= catalog::Record::kFresh;
    if (taken_.listed.size() < kMostListed) {
      taken_.listed.push_back({id, record.serial});
    } else {
      taken_.more = true;
    }
  }
  // Those noted since the last call, in order, some of which may be gone; whoever looks at one clears its
  // flag. `more`: there are others with the flag; `all`: those without it are meant as well.
  struct Taken {
    std::vector<catalog::RecordHandle> listed;
    bool more = false, all = false;
  };
  Taken Take() { return std::exchange(taken_, Taken()); }
  // Not all of what was taken was looked at.
  void GiveBack(bool all) {
    taken_.more = true;
    taken_.all = taken_.all || all;
  }
  bool any() const { return taken_.more || taken_.all || !taken_.listed.empty(); }

 private:
  bool wanted_ = false;
  Taken taken_;
};

}  // namespace cistern::residency
