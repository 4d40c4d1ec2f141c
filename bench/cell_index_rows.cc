// SPDX-License-Identifier: Apache-2.0
// What a member of a cell of eight keeps of the other seven: the most bytes that its index ever takes.
#include <algorithm>
#include <memory>

#include "base/format.h"
#include "base/random.h"
#include "bench.h"
#include "mesh/sample_index.h"

namespace cistern {
namespace {

constexpr mesh::MemberNumber kOthers = 7;
constexpr std::uint64_t kChainTokens = 32'768;  // that its samples are of
constexpr std::uint64_t kAddsAStep = 256;       // as a node's steps take them in, and sweep
constexpr std::uint32_t kShardsAStep = 16;

// Samples of so many blocks of a member.
std::uint64_t SamplesOf(std::uint64_t blocks, std::uint32_t block_tokens) {
  return blocks / mesh::SampleGrid(block_tokens).stride();
}

BenchRow IndexRow(BenchOptions& options, std::uint32_t block_tokens, double limit_mib) {
  const std::uint64_t blocks = 10 * options.million;
  options.progress(
      Text("an index of ", kOthers, " members with ", blocks, " blocks of ", block_tokens, " tokens"));
  const std::uint64_t samples = SamplesOf(blocks, block_tokens);
  const std::uint64_t of_a_chain = kChainTokens / block_tokens / mesh::SampleGrid(block_tokens).stride();
  const auto index = std::make_unique<mesh::SampleIndex>(mesh::SampleIndex::Options());
  std::uint64_t most = 0;
  for (std::uint64_t n = 0; n < samples * kOthers; ++n) {
    const auto number = static_cast<std::uint32_t>(n / kOthers % of_a_chain);
    index->Add(static_cast<mesh::MemberNumber>(n % kOthers), {SplitMix(n), number});
    if (n % kAddsAStep != 0) continue;
    most = std::max(most, index->bytes());
    index->Sweep(kShardsAStep);
  }
  const double mib = static_cast<double>(most) / (1u << 20);
  return {.name = Text("cell_index_of_7_times_", blocks, "_blocks_of_", block_tokens, "_tokens"),
          .value = mib,
          .unit = "MiB",
          .limit = "the index's budget",
          .limit_value = limit_mib,
          .ratio = mib / limit_mib,
          .ratio_low = mib / limit_mib,
          .ratio_high = mib / limit_mib};
}

}  // namespace

Status BenchCellIndex(BenchOptions& options) {
  options.row(IndexRow(options, 16, 64));
  options.row(IndexRow(options, 512, 256));
  return Status();
}

}  // namespace cistern
