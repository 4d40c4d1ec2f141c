// SPDX-License-Identifier: Apache-2.0
// What a process does when a file that it has mapped is cut short by another: a touch past the end is SIGBUS,
// which would end it. A guarded mapping becomes zeros from the page that was touched on, private to this
// process, and says so; its owner then believes nothing of it. A page that the memory itself lost (a machine
// check) becomes zeros in the same way.
//
// The first guard installs a handler of SIGBUS for the process. It passes on what is in no guarded mapping to
// the handler that was there before.
#pragma once

#include <cstddef>

#include "base/mapping.h"

namespace cistern {

class MappingGuard final {
 public:
  MappingGuard() = default;
  // Ends before the mapping does. Past kMax guards of a process it guards nothing.
  MappingGuard(const Mapping& mapping, Access access);
  MappingGuard(MappingGuard&& other) noexcept : place_(std::exchange(other.place_, kNone)) {}
  MappingGuard& operator=(MappingGuard&& other) noexcept {
    MappingGuard old(std::move(*this));
    place_ = std::exchange(other.place_, kNone);
    return *this;
  }
  ~MappingGuard();

  // Whether pages became zeros: asked after bytes of the mapping were used, it covers them.
  bool lost() const;

  static constexpr std::size_t kMax = 1024;

 private:
  static constexpr std::size_t kNone = kMax;
  std::size_t place_ = kNone;
};

}  // namespace cistern
