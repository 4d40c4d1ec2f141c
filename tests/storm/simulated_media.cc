// SPDX-License-Identifier: Apache-2.0
// The simulated tier as the lower tier of a world: what it suffers, and what its media hold.
#include <algorithm>
#include <cmath>

#include "base/format.h"
#include "world.h"

namespace cistern::storm {

namespace {

// Half of the time for nothing; else a turn from less than a second to hours, a budget from hardly any to
// more than enough.
tier::Tier::WriteCosts DrawCosts(Random& random) {
  if (random.Below(2) == 0) return {};
  const auto among = [&random](double least, double most) {
    return least * std::pow(most / least, static_cast<double>(random.Below(1'001)) / 1'000);
  };
  return {.turn_ms = random.Below(4) == 0 ? 0 : among(100, 2e7),
          .moved = static_cast<double>(random.Below(3)),
          .budget_bytes_a_ms = random.Below(2) == 0 ? 0 : among(1e-5, 1e5),
          .saved = static_cast<double>(random.Below(11)) / 10};
}

}  // namespace

void World::MakeSimulated() {
  Random& random = scheduler_.random();
  tier::SimulatedTierOptions simulated;
  static constexpr std::uint32_t kUnits[] = {1, 1, 4};
  simulated.unit = geometry_.alignment;
  simulated.room_bytes = (256u << 10) * kUnits[random.Below(3)];
  simulated.rooms = 4 + static_cast<std::uint32_t>(random.Below(12));
  simulated.least_us = 1 + static_cast<std::int64_t>(random.Below(100));
  static constexpr std::uint64_t kMostUs[] = {100, 2'000, 50'000};
  simulated.most_us = simulated.least_us + static_cast<std::int64_t>(random.Below(kMostUs[random.Below(3)]));
  static constexpr std::uint32_t kErrors[] = {0, 3, 8};
  simulated.most_errors = kErrors[random.Below(3)];
  simulated.costs = DrawCosts(random);
  simulated.suffers = [this](tier::TierFault fault, const tier::Location& location) {
    return TierSuffers(fault, location);
  };
  MakeLowerOptions();
  simulated_ = std::move(simulated);
  faults_.set_tier(TierKind::kSimulated, true);
}

void World::ChangeCosts() {
  if (!simulated_ || node() == nullptr || !node()->serving() || random().Below(64) != 0) return;
  simulated_->costs = DrawCosts(random());
  node()->simulated().set_costs(simulated_->costs);
}

bool World::TierSuffers(tier::TierFault fault, const tier::Location& location) {
  // What is left of a dead node's step counts for nothing.
  if (nodes_.empty() || nodes_.back()->gone()) return false;
  static constexpr Fault kKinds[] = {Fault::kReadError, Fault::kWriteError, Fault::kFlipRead,
                                     Fault::kElsewhere, Fault::kNoSpace,    Fault::kNoSpace};
  const Fault kind = kKinds[static_cast<std::size_t>(fault)];
  if (fault == tier::TierFault::kFlip && std::erase(flipped_records_, location) > 0)
    faults_.Seen(Fault::kFlipMedia);
  std::uint32_t& due = deadlines_[static_cast<std::size_t>(kind)];
  if (due == 0 || random().Below(2) == 0) return false;
  --due;
  ++device_faults_;
  faults_.Injected(kind);
  faults_.Seen(kind);
  model_.Trace(FaultName(kind), " at simulated room ", location.high, ", record ", location.low);
  return true;
}

// A bit of each of some records, which stays so: most of them are given up before anybody reads them.
bool World::FlipSimulated() {
  constexpr std::size_t kMostFlipped = 128;
  std::erase_if(flipped_records_, [this](const tier::Location& at) { return !media_.holds(at); });
  bool any = false;
  for (int i = 0; i < 8 && flipped_records_.size() < kMostFlipped; ++i) {
    const auto location = media_.Pick(random().Next());
    if (!location || !media_.Flip(*location, random().Next())) break;
    any = true;
    faults_.Injected(Fault::kFlipMedia);
    flipped_records_.push_back(*location);
    model_.Trace("flip-media: simulated room ", location->high, ", record ", location->low);
  }
  return any;
}

void World::CheckRooms() {
  const tier::SimulatedTier& tier = node()->simulated();
  for (std::uint32_t room = 0; room < simulated_->rooms; ++room) {
    const std::uint64_t live = tier.live_bytes(room), found = media_.bytes(room);
    if (live > found) {
      Violation(Text("simulated room ", room, ": of ", live, " bytes that are acknowledged only ", found,
                     " would be found if the node died now"));
    }
    if (found > simulated_->room_bytes) {
      Violation(Text("simulated room ", room, " holds ", found, " bytes and has ", simulated_->room_bytes));
    }
  }
}

}  // namespace cistern::storm
