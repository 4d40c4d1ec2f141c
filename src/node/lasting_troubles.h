// SPDX-License-Identifier: Apache-2.0
// What is wrong with other members, of which the log says nothing before it has lasted for a while, and then
// that it is over as well.
#pragma once

#include <cstdint>
#include <map>

#include "base/clock.h"

namespace cistern::node {

class LastingTroubles final {
 public:
  static constexpr std::int64_t kLastsUs = 5'000'000;

  enum class Say : std::uint8_t { kNothing, kTrouble, kOver };
  // To be told again and again of each start of a member that is there.
  Say Note(std::uint64_t process, bool trouble, Instant now) {
    const auto at = troubles_.find(process);
    if (!trouble) {
      const bool over = at != troubles_.end() && at->second.said;
      if (at != troubles_.end()) troubles_.erase(at);
      return over ? Say::kOver : Say::kNothing;
    }
    Trouble& noted =
        at != troubles_.end() ? at->second : troubles_.try_emplace(process, Trouble{now}).first->second;
    if (noted.said || now.UsSince(noted.since) < kLastsUs) return Say::kNothing;
    noted.said = true;
    return Say::kTrouble;
  }
  // Of all others nothing is said any more.
  template <class IsThere>
  void KeepOnly(IsThere&& is_there) {
    std::erase_if(troubles_, [&](const auto& one) { return !is_there(one.first); });
  }

 private:
  struct Trouble {
    Instant since;
    bool said = false;
  };
  std::map<std::uint64_t, Trouble> troubles_;
};

}  // namespace cistern::node
