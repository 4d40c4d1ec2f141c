// SPDX-License-Identifier: Apache-2.0
#include "mesh/peer_blocks.h"

#include <algorithm>
#include <utility>

#include "base/event.h"
#include "base/limits.h"

namespace cistern::mesh {
namespace {

constexpr std::size_t kBlocksAStep = kStepTouches / 8;
constexpr std::size_t kAhead = 32;  // blocks that are prefetched together

}  // namespace

Task<std::vector<MatchRun>> PeerBlocks::Match(std::uint32_t slot, std::span<const BlockKey> chain,
                                              std::size_t local, Instant deadline) {
  const Instant began = parts_.clock.Now();
  // The answer has its way to the client before it.
  const std::int64_t left_us = std::max<std::int64_t>(deadline.UsSince(began), 0);
  const Instant until = began.PlusUs(std::min(left_us - left_us / 8, kMatchUs));
  PeerMatch match = co_await parts_.finder.Find(slot, chain, local, until);
  if (match.run == nullptr || match.runs.empty()) co_return std::vector<MatchRun>();
  const auto kept = runs_.Begin(match.run, match.runs.back().ready_in_us, parts_.clock.Now());
  const std::size_t end = match.run->first + match.run->count;
  for (std::size_t from = match.run->first; from < end; from += kBlocksAStep) {
    if (from > match.run->first) co_await Yield();
    runs_.Add(*kept, from, std::min(end, from + kBlocksAStep));
  }
  // Twice what it brought: the rest of what is too old is left to those that come.
  for (std::size_t paid = 0; paid < 2 * match.run->chain.size() && runs_.Trim(began, kBlocksAStep);
       paid += kBlocksAStep)
    co_await Yield();
  counters_.found.Add(match.run->count);
  co_return std::move(match.runs);
}

bool PeerBlocks::Found(std::uint32_t slot, std::span<const catalog::BlockName> blocks) const {
  const catalog::NamespaceEntry* entry = runs_.empty() ? nullptr : parts_.store.NamespaceAt(slot);
  if (entry == nullptr || !entry->in_mesh()) return false;
  const Instant now = parts_.clock.Now();
  for (const catalog::BlockName& block : blocks) runs_.Prefetch(entry->incarnation, block.key);
  return std::ranges::any_of(blocks, [&](const catalog::BlockName& block) {
    return runs_.Find(entry->incarnation, block.key, now).has_value();
  });
}

Task<std::vector<PeerBlocks::Wanted>> PeerBlocks::Collect(std::uint32_t slot,
                                                          std::span<const catalog::BlockName> blocks) {
  std::vector<Wanted> all;
  if (runs_.empty()) co_return all;
  const Instant now = parts_.clock.Now();
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (i > 0 && i % kBlocksAStep == 0) co_await Yield();
    const catalog::NamespaceEntry* entry = parts_.store.NamespaceAt(slot);
    // Its users may have said so since it was found.
    if (entry == nullptr || !entry->in_mesh()) break;
    if (i % kAhead == 0) {
      for (const catalog::BlockName& block : blocks.subspan(i, std::min(kAhead, blocks.size() - i)))
        runs_.Prefetch(entry->incarnation, block.key);
    }
    auto found = runs_.Find(entry->incarnation, blocks[i].key, now);
    if (!found || parts_.store.source_puts().Here(slot, blocks[i].key, blocks[i].group)) continue;
    auto of = std::ranges::find(all, found->kept, &Wanted::kept);
    if (of == all.end()) of = all.insert(all.end(), {std::move(found->kept), found->block, found->block, {}});
    of->begin = std::min(of->begin, found->block);
    of->end = std::max(of->end, found->block + 1);
    if (of->at.empty()) of->at.reserve(blocks.size() - i);
    of->at.push_back({i, found->block});
  }
  co_return all;
}

std::size_t PeerBlocks::FirstMissing(const Wanted& wanted) const {
  const PeerRun& run = *wanted.kept->run;
  const catalog::NamespaceEntry* entry = parts_.store.NamespaceAt(run.slot);
  if (entry == nullptr) return wanted.begin;
  const auto here = [&](const BlockKey& key) {
    return parts_.store.source_puts().Here(run.slot, key, entry->first_full);
  };
  const auto first = run.chain.begin() + static_cast<std::ptrdiff_t>(run.first);
  const auto last = run.chain.begin() + static_cast<std::ptrdiff_t>(wanted.begin);
  return static_cast<std::size_t>(std::partition_point(first, last, here) - run.chain.begin());
}

Task<std::vector<store::RemoteMiss>> PeerBlocks::Bring(std::uint32_t slot,
                                                       std::span<const catalog::BlockName> blocks,
                                                       Instant worth) {
  std::vector<Wanted> all = co_await Collect(slot, blocks);
  std::vector<store::RemoteMiss> misses;
  // From a block of the run's chain on.
  const auto miss = [&](const Wanted& wanted, std::size_t from, Code code, std::int64_t ready_in_us) {
    for (const auto& [asked, block] : wanted.at) {
      if (block < from) continue;
      misses.push_back({asked, code, ready_in_us});
      const catalog::NamespaceEntry* entry = parts_.store.NamespaceAt(slot);
      if (code == Code::kTooLate && entry != nullptr && catalog::Counts(*entry, blocks[asked]))
        counters_.late.Add();
    }
  };
  // All of them are under way before the first is waited for.
  std::vector<RunRead> reads;
  reads.reserve(all.size());
  for (const Wanted& wanted : all) {
    const std::int64_t left_us = worth.UsSince(parts_.clock.Now());
    // What others wait for already is not waited for here, unless it might take too long.
    const bool follows = Follows(wanted) && left_us >= ReadyInUs(wanted, wanted.kept->run->first);
    const std::size_t from = follows ? wanted.begin : FirstMissing(wanted);
    if (left_us < ReadyInUs(wanted, from)) {
      miss(wanted, wanted.begin, Code::kTooLate, ReadyInUs(wanted, from));
      continue;
    }
    reads.push_back(Read(wanted, from, worth));
  }
  for (RunRead& read : reads) {
    const Wanted& wanted = *read.wanted;
    Result<std::size_t> came = co_await read.read;
    std::size_t from = read.from;
    if (!came && read.from == wanted.begin && parts_.clock.Now() < worth) {
      // Who waited for what these stand on had less time for it, or displaced less.
      if (const std::size_t first = FirstMissing(wanted); first < wanted.begin) {
        from = first;
        RunRead anew = Read(wanted, from, worth);
        came = co_await anew.read;
        read.why_no_more = std::move(anew.why_no_more);
      }
    }
    const Code why = came ? read.why_no_more->code() : came.error().code();
    if (why == Code::kTooLate || why == Code::kBusy) miss(wanted, from + came.value_or(0), why, 0);
  }
  std::ranges::sort(misses, {}, &store::RemoteMiss::at);
  co_return misses;
}

}  // namespace cistern::mesh
