// SPDX-License-Identifier: Apache-2.0
// A lease of blocks that stay here while others of their chain are on their way to or from another member.
#pragma once

#include "store/block_store.h"

namespace cistern::mesh {

class HeldChain final {
 public:
  // The store is borrowed. Lease 0: nothing is held.
  HeldChain(store::BlockStore& store, const catalog::Caller& caller, catalog::LeaseId lease)
      : store_(store), caller_(caller), lease_(lease) {}
  ~HeldChain() {
    if (lease_ != 0) (void)store_.Release(caller_, lease_);
  }
  HeldChain(const HeldChain&) = delete;
  HeldChain& operator=(const HeldChain&) = delete;

 private:
  store::BlockStore& store_;
  const catalog::Caller caller_;
  const catalog::LeaseId lease_;
};

}  // namespace cistern::mesh
