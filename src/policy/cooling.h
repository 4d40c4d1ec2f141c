// SPDX-License-Identifier: Apache-2.0
// Which residents have cooled: have not been used for half as long as their like were when they left. Their
// like stand on one shelf of the order (of one class of reuse, size and quota), and one shelf's life is many
// times another's: a document leaves while conversations of an hour ago stay.
//
// Ages are the order's, in uses. A shelf's life is the least that one of it left at lately: it falls at once,
// and rises by a part in kRise with each that leaves later. Where nothing has left nothing has cooled.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "policy/order.h"

namespace cistern::policy {

class Cooling final {
 public:
  // The id, which is in the order yet, leaves it for want of room.
  void NoteLeaves(const Order& order, EntryId id) {
    Shelved& on = Of(order.shelf(id));
    const std::uint64_t age = order.Age(id);
    on.life = on.life == 0 ? std::max<std::uint64_t>(age, 1)
                           : std::clamp<std::uint64_t>(age, 1, on.life + on.life / kRise + 1);
  }
  // Cooled names from now on what has cooled up to this call and was not settled. False: nothing can have.
  bool Advance(const Order& order) {
    bool any = false;
    for (Shelved& on : shelves_) {
      if (on.life != 0) on.before = std::max(on.before, order.uses() - std::min(order.uses(), on.life / 2));
      any = any || on.before > on.after;
    }
    return any;
  }
  // Ids that Cooled names now are not named again, unless they are used and cool once more.
  void Settle() {
    for (Shelved& on : shelves_) on.after = on.before;
  }
  // Whether the id, which is in the order, has cooled as of the last Advance.
  bool Cooled(const Order& order, EntryId id) const {
    const Shelf shelf = order.shelf(id);
    if (shelf >= shelves_.size()) return false;
    const std::uint64_t used = order.uses() - std::min(order.uses(), order.Age(id));
    return used >= shelves_[shelf].after && used < shelves_[shelf].before;
  }

 private:
  static constexpr std::uint64_t kRise = 64;
  struct Shelved {
    std::uint64_t life = 0;               // 0: nothing has left
    std::uint64_t after = 0, before = 0;  // by when it was used last, in uses
  };
  Shelved& Of(Shelf shelf) {
    if (shelf >= shelves_.size()) shelves_.resize(shelf + std::size_t{1});
    return shelves_[shelf];
  }

  std::vector<Shelved> shelves_;
};

}  // namespace cistern::policy
