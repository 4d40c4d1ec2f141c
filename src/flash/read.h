// SPDX-License-Identifier: Apache-2.0
// Reads of records: how long one would take, and whether what a device gave is what was written there.
#pragma once

#include <cstdint>
#include <span>

#include "base/task.h"
#include "flash/media.h"
#include "tier/tier.h"

namespace cistern::flash {

class RecordReader final {
 public:
  explicit RecordReader(Media& media) : media_(media) {}

  Executor& executor() const { return media_.executor(); }

  std::int64_t EstimateUs(const tier::Location& location, std::uint64_t bytes) const;
  Task<Result<tier::FetchedRecord>> FetchSome(tier::Location location, std::uint64_t record_bytes,
                                              std::span<std::byte> trailer, std::uint64_t offset,
                                              std::span<std::byte> body);
  void ReportBad(const tier::Location& location);

 private:
  class Reading;

  Media& media_;
};

}  // namespace cistern::flash
