// SPDX-License-Identifier: Apache-2.0
#include "measure.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "base/assert.h"

namespace cistern {

Buffer::Buffer(std::size_t bytes) : size_(bytes) {
  constexpr std::size_t kHuge = 2u << 20;
  std::size_t rounded = (bytes + kHuge - 1) / kHuge * kHuge;
  bytes_.reset(static_cast<std::byte*>(std::aligned_alloc(kHuge, rounded)));
  CISTERN_ASSERT(bytes_ != nullptr);
  madvise(bytes_.get(), rounded, MADV_HUGEPAGE);
  std::memset(bytes_.get(), 1, rounded);
}

void Buffer::Free::operator()(std::byte* bytes) const { std::free(bytes); }

namespace {

void FillCalls(const Samples& ours, const Samples& theirs, BenchRow& row) {
  row.p50_us = Quantile(ours.call_us, 0.5);
  row.p99_us = Quantile(ours.call_us, 0.99);
  row.limit_p50_us = Quantile(theirs.call_us, 0.5);
  row.limit_p99_us = Quantile(theirs.call_us, 0.99);
}

}  // namespace

BenchRow RateRow(const std::string& name, const std::string& limit, const Samples& ours,
                 const Samples& theirs) {
  BenchRow row{.name = name,
               .value = Median(ours.rounds),
               .unit = "GB/s",
               .limit = limit,
               .limit_value = Median(theirs.rounds)};
  std::vector<double> ratios;
  if (!theirs.rounds.empty()) {
    for (std::size_t i = 0; i < ours.rounds.size(); ++i) ratios.push_back(ours.rounds[i] / theirs.rounds[i]);
  }
  row.ratio = Median(ratios);
  row.ratio_low = Quantile(ratios, 0);
  row.ratio_high = Quantile(ratios, 1);
  FillCalls(ours, theirs, row);
  return row;
}

BenchRow TimeRow(const std::string& name, const std::string& limit, const Samples& ours,
                 const Samples& theirs) {
  BenchRow row{.name = name, .unit = "us", .limit = limit};
  FillCalls(ours, theirs, row);
  row.value = row.p50_us;
  row.limit_value = row.limit_p50_us;
  if (row.limit_value > 0) row.ratio = row.ratio_low = row.ratio_high = row.value / row.limit_value;
  return row;
}

}  // namespace cistern
