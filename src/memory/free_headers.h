// SPDX-License-Identifier: Apache-2.0
// The headers that belong to no chunk, as runs of a power of two that lie at a multiple of their length: a
// run that is given back joins its neighbour, one that is too long is halved. All calls cost at most a few
// steps for each power of two.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace cistern::memory {

class FreeHeaders final {
 public:
  // Of [0, header_count), the first `free` are free.
  FreeHeaders(std::uint32_t header_count, std::uint32_t free);
  explicit FreeHeaders(std::uint32_t header_count) : FreeHeaders(header_count, header_count) {}

  // Whether Take would find a run of `count` headers.
  bool Has(std::uint32_t count) const;
  // A run of `count` headers, a power of two; none where no free run is as long.
  std::optional<std::uint32_t> Take(std::uint32_t count);
  // The run at `first`, a multiple of `count`; false where not all of it is free.
  bool TakeAt(std::uint32_t first, std::uint32_t count);
  // `count` is a power of two and `first` a multiple of it.
  void Give(std::uint32_t first, std::uint32_t count);

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  static constexpr int kOrders = 32;

  void Push(std::uint32_t first, int order);
  void Remove(std::uint32_t first);
  bool IsRun(std::uint32_t first, int order) const;
  // Takes the run and gives back what of it is not [first, first + 2^order).
  void Split(std::uint32_t run, int run_order, std::uint32_t first, int order);

  struct Node {
    int order = -1;  // of the free run that begins here; -1: none does
    std::uint32_t next = kNone, previous = kNone;
  };
  std::vector<Node> nodes_;
  std::uint32_t lists_[kOrders];
};

}  // namespace cistern::memory
