// SPDX-License-Identifier: Apache-2.0
// Slots of pending puts, and the end of a put that does not become visible.
#pragma once

#include <cstdint>

#include "cistern/status.h"
#include "residency/context.h"
#include "residency/removal.h"

namespace cistern::store {

class OpenPuts final {
 public:
  OpenPuts(const residency::StoreContext& context, residency::Removal& removal)
      : context_(context), removal_(removal) {}
  OpenPuts(const OpenPuts&) = delete;
  OpenPuts& operator=(const OpenPuts&) = delete;

  // The put has the slot from now on; the slot is freed where the put ended meanwhile.
  void GiveSlot(catalog::PutIndex put, arena::Place place);
  // Frees the slot once no copy into it is under way.
  void FreeSlot(catalog::PutIndex put);
  // Ends an open put that does not become visible; kOk: its block is present already.
  void End(catalog::PutIndex put, Code why);
  // One user of the put ends.
  void Leave(catalog::PutIndex put);
  // Blocks of one key hash, and as many open puts: an honest namespace never has two, and each look-up goes
  // through all of them. kBusy: so many have that of `key`.
  static constexpr std::uint32_t kMostOfOneHash = 32;
  Status CheckHash(catalog::TreeId tree, const BlockKey& key) const;
  // Bytes of the put's future record.
  std::uint64_t RecordBytesOf(const catalog::Put& put) const {
    return record::RecordBytes(put.body_bytes, static_cast<std::uint32_t>(put.crcs.size()),
                               static_cast<std::uint32_t>(put.part_bytes.size()),
                               context_.slots.arena().geometry().alignment);
  }

 private:
  const residency::StoreContext context_;
  residency::Removal& removal_;
};

}  // namespace cistern::store
