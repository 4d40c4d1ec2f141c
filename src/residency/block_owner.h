// SPDX-License-Identifier: Apache-2.0
// The interface by which residency tells the owner of blocks (the store's deletions) what happened to them.
// Calls go down the folders; this is the one way for news to go up.
#pragma once

#include <cstdint>

#include "catalog/forest.h"

namespace cistern::residency {

enum class LossReason : std::uint8_t {
  kDropped,
  kExpired,
  kBad,     // a body or a seal is damaged, or a device lost it
  kNoRoom,  // the lower tier has no room for a block that others descend from
};

class BlockOwner {
 public:
  // The block is lost with its descendants: no match or lookup finds them from now on.
  virtual void Lose(catalog::BlockId block, LossReason reason) = 0;
  // An empty block was freed; its id may soon be another block's.
  virtual void Freed(catalog::BlockId block, catalog::BlockId parent) = 0;
  // Collects a slice of the lost blocks; true: there are more.
  virtual bool Collect() = 0;

 protected:
  ~BlockOwner() = default;
};

}  // namespace cistern::residency
