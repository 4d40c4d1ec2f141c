// SPDX-License-Identifier: Apache-2.0
#include "catalog/sequences.h"

namespace cistern::catalog {

Task<void> Sequences::Reserve() {
  if (reserving_) co_return;
  reserving_ = true;
  const std::uint64_t end = next_ + kReserved;
  const Status reserved = co_await journal_.ReserveSequences(end);
  if (reserved.ok()) end_ = end;
  reserving_ = false;
}

}  // namespace cistern::catalog
