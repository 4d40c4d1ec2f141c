// SPDX-License-Identifier: Apache-2.0
#include "mesh/chain_spreader.h"

#include <algorithm>
#include <utility>

namespace cistern::mesh {

void ChainSpreader::Start() {
  if (parts_.role == Role::kStore) return;
  tasks_.Spawn(CopyFromTimeToTime());
  tasks_.Spawn(HandOnFromTimeToTime());
  tasks_.Spawn(WarmNewcomers());
}

void ChainSpreader::Heard(std::uint64_t number, const RoomNotice& room) {
  Peer& peer = parts_.peers.Of(number);
  if (room.memory_bytes == 0 || std::exchange(peer.greeted, true)) return;
  if (parts_.role == Role::kStore || room.free_bytes < room.memory_bytes / SpreadLimits::kFreeShare) return;
  newcomers_.push_back(number);
  joined_.Pulse();
}

std::uint64_t ChainSpreader::Gone() const {
  const catalog::StoreCounters& counted = parts_.store.counters();
  if (parts_.store.tier() == nullptr) return counted.evicted.value();
  return counted.evicted_unwritten.value() + counted.evicted_below.value() +
         counted.evicted_below_over_quota.value() + counted.cut_at_reclaim.value();
}

bool ChainSpreader::NoteUses() {
  bool wanted = std::ranges::any_of(copies_, [](const policy::Copies& one) { return one.members > 1; });
  for (std::uint32_t slot = 0; !wanted && slot < parts_.store.namespace_slots(); ++slot) {
    const catalog::NamespaceEntry* entry = parts_.store.NamespaceAt(slot);
    wanted = entry != nullptr && entry->copies.value_or(1) > 1;
  }
  parts_.store.NoteFresh(wanted);
  return wanted;
}

Task<void> ChainSpreader::CopyFromTimeToTime() {
  for (;;) {
    (void)co_await SleepUntil(parts_.clock.Now().PlusUs(SpreadLimits::kPassUs));
    if (!NoteUses() || !GoesOn() || !parts_.store.any_fresh() ||
        parts_.offers.Takers(ChainOffers::Whom::kAll).empty())
      continue;
    Pass pass{.blocks = &counters_.copied_blocks, .bytes = &counters_.copied_bytes};
    pass.walk = parts_.offers.WalkOfShared(
        [this](const catalog::NamespaceEntry& entry) { return CopiesOf(entry) > 1; });
    pass.walk.fresh = true;
    // Others have it by design already.
    pass.walk.taken = false;
    pass.copies = [this](const catalog::NamespaceEntry& entry) { return CopiesOf(entry) - std::size_t{1}; };
    pass.order = [this](std::uint64_t branch) {
      return policy::TakersOf(branch, parts_.offers.Takers(ChainOffers::Whom::kAll));
    };
    (void)co_await Go(std::move(pass));
  }
}

Task<void> ChainSpreader::HandOnFromTimeToTime() {
  for (int passes = 0;;) {
    (void)co_await SleepUntil(parts_.clock.Now().PlusUs(SpreadLimits::kPassUs));
    // From the first on that left: a burst may take what has cooled since, all of it at once.
    if (!GoesOn() || Gone() == 0 || parts_.offers.Takers(ChainOffers::Whom::kStores).empty() ||
        !parts_.store.TakeCooled())
      continue;
    Pass pass{.blocks = &counters_.stored_blocks, .bytes = &counters_.stored_bytes};
    pass.walk = parts_.offers.WalkOfShared();
    pass.walk.cooled = true;
    pass.copies = [](const catalog::NamespaceEntry&) { return std::size_t{1}; };
    pass.order = [this](std::uint64_t branch) {
      return policy::TakersOf(branch, parts_.offers.Takers(ChainOffers::Whom::kStores));
    };
    // What was given is offered again with the rest, and costs its keys.
    const bool settled = co_await Go(std::move(pass));
    if (!settled && ++passes < SpreadLimits::kPasses) continue;
    parts_.store.SettleCooled();
    passes = 0;
  }
}

Task<void> ChainSpreader::WarmNewcomers() {
  for (;;) {
    while (newcomers_.empty()) co_await joined_.Wait();
    const std::uint64_t newcomer = newcomers_.front();
    Pass pass{.free_room = true, .blocks = &counters_.warmed_blocks, .bytes = &counters_.warmed_bytes};
    pass.walk = parts_.offers.WalkOfShared();
    pass.copies = [](const catalog::NamespaceEntry&) { return std::size_t{1}; };
    // It alone is offered anything: what the rendezvous of all, this member too, gives it.
    pass.order = [this, newcomer](std::uint64_t branch) {
      std::vector<policy::Taker> takers = parts_.offers.Takers(ChainOffers::Whom::kAll);
      takers.push_back({parts_.process_number, memory_bytes_});
      const std::vector<std::uint64_t> order = policy::TakersOf(branch, takers);
      if (order.empty() || order.front() != newcomer) return std::vector<std::uint64_t>();
      return std::vector<std::uint64_t>{newcomer};
    };
    (void)co_await Go(std::move(pass));
    newcomers_.pop_front();
  }
}

Task<bool> ChainSpreader::Go(Pass pass) {
  bool settled = true;
  const std::unique_ptr<store::WholeChains> walk = parts_.store.WalkChains(std::move(pass.walk));
  while (GoesOn()) {
    std::optional<store::WholeChain> chain = co_await walk->Next();
    if (!chain) co_return settled;
    for (ChainPart& part : PartsOf(std::move(*chain))) {
      if (pass.order(part.branch).empty()) {
        settled = false;
        walk->Again(*part.chain);
        continue;
      }
      // In offers of a bounded size, whose answers are waited for one by one.
      while (part.begin < part.end) {
        ChainPart offered = part;
        std::uint64_t bytes = 0;
        for (offered.end = part.begin; offered.end < part.end; ++offered.end) {
          bytes += part.chain->blocks[offered.end - part.chain->first].body_bytes;
          const bool full =
              bytes > SpreadLimits::kOfferBytes || offered.end - part.begin == HandOverLimits::kOfferBlocks;
          if (full && offered.end > part.begin) break;
        }
        part.begin = offered.end;
        const OfferOutcome outcome = co_await Offer(pass, std::move(offered));
        if (outcome.passing) walk->Again(*part.chain);
        settled = settled && !outcome.passing;
        if (pass.free_room && (outcome.no_room || outcome.failed > 0)) co_return false;
      }
    }
  }
  co_return false;
}

Task<OfferOutcome> ChainSpreader::Offer(const Pass& pass, ChainPart part) {
  while (offering_ || parts_.clock.Now() < rests_until_)
    (void)co_await turn_.Wait(offering_ ? Instant::Never() : rests_until_);
  const catalog::NamespaceEntry* entry = parts_.store.NamespaceAt(part.chain->slot);
  if (entry == nullptr) co_return OfferOutcome();
  if (!GoesOn()) co_return OfferOutcome{.passing = true};
  offering_ = true;
  const Instant began = parts_.clock.Now();
  OfferPlan plan{.deadline = began.PlusUs(SpreadLimits::kOfferUs),
                 .copies = pass.copies(*entry),
                 .free_room = pass.free_room};
  plan.goes_on = [this] { return GoesOn(); };
  plan.order = pass.order;
  plan.given = [&pass](const store::WholeChain&, const OfferPlan::Given& given) {
    pass.blocks->Add(given.blocks);
    pass.bytes->Add(given.bytes);
  };
  const OfferOutcome outcome = co_await parts_.offers.OfferPart(std::move(part), std::move(plan));
  counters_.refused.Add(outcome.refused);
  counters_.failed.Add(outcome.failed);
  const Instant ended = parts_.clock.Now();
  rests_until_ = ended.PlusUs(ended.UsSince(began) * SpreadLimits::kRests);
  offering_ = false;
  turn_.Pulse();
  co_return outcome;
}

}  // namespace cistern::mesh
