// SPDX-License-Identifier: Apache-2.0
// What a measurement's node has on flash, what that node says of itself, and blocks on it.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "cistern/cistern.h"
#include "fill.h"
#include "measure.h"
#include "scratch_directory.h"

namespace cistern {

// The tier's file, wherever below the directory it lies.
std::string FlashFileIn(const std::string& directory);

// Waits until nothing more is written to flash.
Status AwaitWritten(Store& store);
// Fills no faster than it is written down: nothing of it is lost on the way.
Result<FilledBlocks> FillDown(Store& store, std::size_t count, std::uint64_t block_bytes,
                              std::size_t chain_blocks);

// Blocks in an order in which each has long left memory when its turn comes again.
class FlashOrder {
 public:
  explicit FlashOrder(std::size_t blocks) : order_(blocks) {
    for (std::size_t i = 0; i < blocks; ++i) order_[i] = static_cast<std::uint32_t>(i);
    Random random(5);
    Shuffle(order_, random);
  }
  std::size_t Next() { return order_[at_++ % order_.size()]; }

 private:
  std::vector<std::uint32_t> order_;
  std::size_t at_ = 0;
};

}  // namespace cistern
