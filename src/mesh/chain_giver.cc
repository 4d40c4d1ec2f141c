// SPDX-License-Identifier: Apache-2.0
#include "mesh/chain_giver.h"

#include <algorithm>
#include <utility>

namespace cistern::mesh {

void ChainGiver::Stop() {
  ++number_;
  moved_.Pulse();
}

Task<void> ChainGiver::Close() {
  Stop();
  while (gives_ > 0) co_await moved_.Wait();
  tasks_.Drop();
}

Task<void> ChainGiver::Rest(std::shared_ptr<Work> work, std::int64_t us) {
  const Instant until = std::min(work->deadline, clock_.Now().PlusUs(us));
  while (GoesOn(*work) && clock_.Now() < until) (void)co_await moved_.Wait(until);
}

Task<store::HandedOver> ChainGiver::Give(store::GiveOrder order) {
  struct Counted {
    ChainGiver& giver;
    ~Counted() {
      --giver.gives_;
      giver.moved_.Pulse();
    }
  };
  ++gives_;
  const Counted counted{*this};
  const auto work = std::make_shared<Work>();
  Stop();
  work->number = number_;
  work->deadline = order.deadline;
  // Nobody could read the others here.
  store::WalkOrder walk = offers_.WalkOfShared([this](const catalog::NamespaceEntry& entry) {
    return store_.switches().on(store::Switch::kReads, entry.slot);
  });
  walk.lower_tier = order.lower_tier;
  walk.deadline = order.deadline;
  work->walk = store_.WalkChains(std::move(walk));
  const auto takers = [this] { return offers_.Takers(ChainOffers::Whom::kAll).size(); };
  const auto away = [this] { return offers_.Away(ChainOffers::Whom::kAll).size(); };
  store::HandedOver handed{.members = takers() + away()};
  std::int64_t again_us = kAgainUs;
  for (int rounds = 0; GoesOn(*work);) {
    if (takers() == 0) {
      if (away() == 0) break;
      co_await Rest(work, kAgainUs);
      continue;
    }
    std::optional<store::WholeChain> chain = co_await work->walk->Next();
    if (!chain) {
      while (work->under_way > 0 && GoesOn(*work)) (void)co_await moved_.Wait(order.deadline);
      // What they were refused for may have passed by then.
      if (!work->walk->BeginRound() || ++rounds == kRounds) break;
      co_await Rest(work, again_us);
      again_us = std::min(2 * again_us, kMostAgainUs);
      continue;
    }
    for (ChainPart& part : PartsOf(std::move(*chain))) {
      const std::uint64_t bytes = part.bytes();
      const auto fits = [&] {
        return work->under_way == 0 || (work->under_way < HandOverLimits::kOffers &&
                                        work->offered_bytes + bytes <= order.offered_bytes);
      };
      while (GoesOn(*work) && !fits()) (void)co_await moved_.Wait(order.deadline);
      if (!GoesOn(*work)) break;
      ++work->under_way;
      work->offered_bytes += bytes;
      tasks_.Spawn(OfferPart(work, std::move(part)));
    }
  }
  // By the deadline each has ended.
  while (work->under_way > 0 && work->number == number_) co_await moved_.Wait();
  handed.blocks = work->blocks;
  handed.bytes = work->bytes;
  if (work->number == number_) handed.left = co_await work->walk->CountLeft();
  counters_.left.Add(handed.left);
  co_return handed;
}

Task<void> ChainGiver::OfferPart(std::shared_ptr<Work> work, ChainPart part) {
  const std::uint64_t offered_bytes = part.bytes();
  OfferPlan plan{.deadline = work->deadline};
  plan.goes_on = [this, work] { return GoesOn(*work); };
  plan.to = offers_.Among(ChainOffers::Whom::kAll);
  // What another member had already is as good as given.
  plan.given = [this, work](const store::WholeChain& chain, const OfferPlan::Given& given) {
    std::uint64_t blocks = 0, bytes = 0;
    for (std::size_t block = given.begin; block < given.end; ++block) {
      if (work->walk->given(chain, block)) continue;
      ++blocks;
      bytes += chain.blocks[block - chain.first].body_bytes;
    }
    work->blocks += blocks;
    work->bytes += bytes;
    work->walk->NoteGiven(chain, given.begin, given.end);
    counters_.blocks.Add(blocks);
    counters_.bytes.Add(bytes);
  };
  const OfferOutcome outcome = co_await offers_.OfferPart(part, std::move(plan));
  if (outcome.passing) work->walk->Again(*part.chain, part.begin, part.end);
  counters_.refused.Add(outcome.refused);
  counters_.failed.Add(outcome.failed);
  --work->under_way;
  work->offered_bytes -= offered_bytes;
  moved_.Pulse();
}

}  // namespace cistern::mesh
