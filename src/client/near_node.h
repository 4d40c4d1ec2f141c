// SPDX-License-Identifier: Apache-2.0
// The node of the client's own process, for what needs neither its ring nor its core's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "cistern/store.h"
#include "wire/protocol.h"

namespace cistern::client {

// Empty where the node is another process. The calls may come from any thread, until the client is gone.
struct NearNode {
  static constexpr std::size_t kMostBlocks = 128;

  // Op::kAcquire of at most kMostBlocks on the caller's thread. The lease (0: nothing was leased) and an item
  // a block; none where that is not possible now: then the ring is asked.
  std::function<std::optional<std::uint64_t>(std::uint64_t session, std::uint32_t slot,
                                             std::uint64_t incarnation, std::span<const BlockRef> blocks,
                                             std::int64_t lease_us, std::span<wire::ViewItem> views)>
      acquire;
  // Op::kRelease; false where that is not possible now.
  std::function<bool(std::uint64_t session, std::uint64_t lease)> release;

  explicit operator bool() const { return acquire != nullptr; }
};

}  // namespace cistern::client
