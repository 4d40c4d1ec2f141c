// SPDX-License-Identifier: Apache-2.0
#include "mesh/chain_spreader.h"

#include <algorithm>
#include <utility>

namespace cistern::mesh {
namespace {

// For each all members are drawn and put in order.
constexpr std::size_t kPartsAStep = 16;

}  // namespace

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
  std::erase_if(newcomers_, [&](const Newcomer& one) { return one.number == number; });
  newcomers_.push_back({.number = number});
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
  for (int passes = 0;;) {
    (void)co_await SleepUntil(parts_.clock.Now().PlusUs(PauseUs(passes)));
    if (!NoteUses() || !GoesOn() || !parts_.store.any_fresh() ||
        parts_.offers.Takers(ChainOffers::Whom::kAll).empty())
      continue;
    const bool last = passes + 1 == SpreadLimits::kPasses;
    Pass pass{.last = last, .blocks = &counters_.copied_blocks, .bytes = &counters_.copied_bytes};
    pass.walk = parts_.offers.WalkOfShared(
        [this](const catalog::NamespaceEntry& entry) { return CopiesOf(entry) > 1; });
    pass.walk.fresh = true;
    // Others have it by design already.
    pass.walk.taken = false;
    pass.copies = [this](const catalog::NamespaceEntry& entry) { return CopiesOf(entry) - std::size_t{1}; };
    pass.to = parts_.offers.Among(ChainOffers::Whom::kAll);
    const Ended ended = co_await Go(std::move(pass));
    if (ended != Ended::kNobody) passes = ended == Ended::kRefused && !last ? passes + 1 : 0;
  }
}

Task<void> ChainSpreader::HandOnFromTimeToTime() {
  for (int passes = 0;;) {
    (void)co_await SleepUntil(parts_.clock.Now().PlusUs(PauseUs(passes)));
    // From the first on that left: a burst may take what has cooled since, all of it at once.
    if (!GoesOn() || Gone() == 0 || parts_.offers.Takers(ChainOffers::Whom::kStores).empty() ||
        !parts_.store.TakeCooled())
      continue;
    Pass pass{.blocks = &counters_.stored_blocks, .bytes = &counters_.stored_bytes};
    pass.walk = parts_.offers.WalkOfShared();
    pass.walk.cooled = true;
    pass.copies = [](const catalog::NamespaceEntry&) { return std::size_t{1}; };
    pass.to = parts_.offers.Among(ChainOffers::Whom::kStores);
    // What was given is offered again with the rest, and costs its keys.
    const Ended ended = co_await Go(std::move(pass));
    if (ended == Ended::kNobody || (ended == Ended::kRefused && ++passes < SpreadLimits::kPasses)) continue;
    parts_.store.SettleCooled();
    passes = 0;
  }
}

// One after the other: the one to which nothing was offered for longest.
Task<void> ChainSpreader::WarmNewcomers() {
  for (;;) {
    const auto next = std::ranges::min_element(newcomers_, {}, &Newcomer::from);
    if (next == newcomers_.end() || parts_.clock.Now() < next->from) {
      const Instant until = next == newcomers_.end() ? Instant::Never() : next->from;
      (void)co_await joined_.Wait(until);
      continue;
    }
    const std::uint64_t number = next->number;
    const Ended ended = co_await Warm(number);
    const auto newcomer = std::ranges::find(newcomers_, number, &Newcomer::number);
    if (newcomer == newcomers_.end()) continue;
    if (ended == Ended::kRefused) ++newcomer->passes;
    newcomer->from = parts_.clock.Now().PlusUs(PauseUs(newcomer->passes));
    if (ended == Ended::kSettled || newcomer->passes == SpreadLimits::kPasses) newcomers_.erase(newcomer);
  }
}

Task<ChainSpreader::Ended> ChainSpreader::Warm(std::uint64_t newcomer) {
  const auto away = [this, newcomer] {
    std::vector<std::uint64_t> all = parts_.offers.Away(ChainOffers::Whom::kAll);
    std::erase_if(all, [&](std::uint64_t peer) { return peer != newcomer; });
    return all;
  };
  if (!GoesOn() || !away().empty()) co_return Ended::kNobody;
  Pass pass{.free_room = true, .blocks = &counters_.warmed_blocks, .bytes = &counters_.warmed_bytes};
  pass.walk = parts_.offers.WalkOfShared();
  pass.copies = [](const catalog::NamespaceEntry&) { return std::size_t{1}; };
  // It alone is offered anything: what the rendezvous of all, this member too, gives it.
  pass.to.order = [this, newcomer](std::uint64_t branch) {
    std::vector<policy::Taker> takers = parts_.offers.Takers(ChainOffers::Whom::kAll);
    takers.push_back({parts_.process_number, memory_bytes_});
    const std::vector<std::uint64_t> order = policy::TakersOf(branch, takers);
    if (order.empty() || order.front() != newcomer) return std::vector<std::uint64_t>();
    return std::vector<std::uint64_t>{newcomer};
  };
  pass.to.away = away;
  co_return co_await Go(std::move(pass));
}

Task<ChainSpreader::Ended> ChainSpreader::Go(Pass pass) {
  Ended ended = Ended::kSettled;
  std::size_t others = 0;  // parts of newcomers that are another's
  const std::unique_ptr<store::WholeChains> walk = parts_.store.WalkChains(std::move(pass.walk));
  while (GoesOn()) {
    std::optional<store::WholeChain> chain = co_await walk->Next();
    if (!chain) co_return ended;
    for (ChainPart& part : PartsOf(std::move(*chain))) {
      if (pass.to.order(part.branch).empty()) {
        // Of a newcomer's: it is another's.
        if (pass.free_room && pass.to.away().empty()) {
          if (++others % kPartsAStep == 0) co_await Yield();
          continue;
        }
        ended = Ended::kNobody;
        walk->Again(*part.chain, part.begin, part.end);
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
        const OfferOutcome outcome = co_await Offer(pass, offered);
        if (pass.free_room && outcome.no_room) co_return Ended::kSettled;
        if (outcome.passing) {
          // Some of the last pass was not offered at all, as the node drains.
          if (!pass.last || !GoesOn()) walk->Again(*part.chain, offered.begin, offered.end);
          if (ended == Ended::kSettled) ended = Ended::kRefused;
        }
        if (pass.free_room && outcome.failed > 0) co_return Ended::kRefused;
        part.begin = offered.end;
      }
    }
  }
  co_return Ended::kNobody;
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
  plan.to = pass.to;
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
