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
  Task<Result<tier::FetchedRecord>> Fetch(tier::Location location, std::span<std::byte> into,
                                          const tier::Tier::Arrived* arrived);
  // Without a body the record is only checked or moved: that is nothing that flash served.
  Task<Result<tier::FetchedRecord>> FetchSome(tier::Location location, std::uint64_t record_bytes,
                                              std::span<std::byte> trailer, std::uint64_t offset,
                                              std::span<std::byte> body);
  void ReportBad(const tier::Location& location);

 private:
  class Reading;
  // Of the record of so many bytes there; none but kMiss where it cannot lie, or kIoError.
  Status CheckPlace(const tier::Location& location, std::uint64_t record_bytes) const;
  void Served(std::uint64_t bytes);
  // The record in the bytes of a read that ended with `status` while its region had `epoch`, checked.
  Result<tier::FetchedRecord> Check(const tier::Location& location, std::span<const std::byte> trailer,
                                    std::uint64_t record_bytes, std::uint64_t epoch, Status status);

  Media& media_;
};

}  // namespace cistern::flash
