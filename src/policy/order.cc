// SPDX-License-Identifier: Apache-2.0
#include "policy/order.h"

#include <algorithm>
#include <limits>

#include "base/assert.h"

namespace cistern::policy {
namespace {
constexpr std::uint16_t kUnused = 0xffff;
constexpr std::size_t kSizes = 128;                // of a node
constexpr std::size_t kSizeClasses = 16 * kSizes;  // of all nodes
constexpr UseTime kKeptMs = 3'600'000;
constexpr double kMost = std::numeric_limits<double>::max();
constexpr double kMore = std::numeric_limits<double>::infinity();
constexpr std::size_t kKeptShare = 4;  // of all ids, one in so many
}  // namespace

Order::Order(EvictionPolicy policy, std::uint64_t blocks) : rank_(kSizeClasses, kUnused) {
  if (policy == EvictionPolicy::kReuse) reuse_ = std::make_unique<Reuse>(blocks);
}

void Order::Reserve(EntryId entries) {
  lru_.Reserve(entries);
  if (reuse_ != nullptr) usage_.Reserve(entries);
}

Shelf Order::ShelfOf(SizeClass size_class, std::size_t in, QuotaGroup group) {
  // For the size classes of the first node and no group there is always room. Others that find none stand
  // with these.
  constexpr std::size_t kMostRanks = Lru::kShelves / kStride;
  static_assert(kMostRanks > kSizes);
  std::size_t at = group * kSizeClasses + size_class;
  if (at >= rank_.size()) rank_.resize((group + std::size_t{1}) * kSizeClasses, kUnused);
  if (rank_[at] == kUnused && ranks_.size() >= kMostRanks - kSizes) {
    group = 0;
    size_class %= kSizes;
    at = size_class;
  }
  if (rank_[at] == kUnused) {
    rank_[at] = static_cast<std::uint16_t>(ranks_.size());
    ranks_.push_back({size_class, group});
    grouped_ = grouped_ || group != 0;
  }
  return static_cast<Shelf>(rank_[at] * kStride + in);
}

void Order::Use(Reuse::Prompt& prompt, std::uint64_t position, std::uint64_t key, std::optional<EntryId> id) {
  reuse_->Use(prompt, position, key, UsageOf(id));
  if (id) MoveTo(*id, usage_[*id].in);
}

void Order::TakeIn(Reuse::Asked asked, std::span<const std::uint64_t> keys,
                   std::span<const EntryId> residents) {
  if (reuse_ == nullptr || keys.empty()) return;
  const std::size_t here = residents.size();
  const auto resident = [&](std::size_t i) {
    return residents[i] == kBelow ? std::nullopt : std::optional(residents[i]);
  };
  asked.blocks = keys.size();
  asked.resident = here;
  Reuse::Prompt prompt(asked);
  reuse_->Prefetch(keys);
  Begin(prompt);
  for (std::size_t i = here - std::min<std::size_t>(here, 1); i < keys.size(); ++i) Look(prompt, i, keys[i]);
  Classify(prompt, here > 0 ? resident(here - 1) : std::nullopt);
  for (std::size_t i = here; i-- > 0;) Use(prompt, i, keys[i], resident(i));
  End(prompt);
}

void Order::Follow(EntryId id, EntryId first) {
  usage_[id] = usage_[first];
  MoveTo(id, usage_[id].in);
}

Standing Order::StandingOf(EntryId id) const {
  if (reuse_ == nullptr) return {};
  const Usage& usage = usage_[id];
  return {usage.gap, usage.in, usage.told != 0};
}

bool Order::StaysOut(const Standing& newcomer, EntryId resident) const {
  return reuse_ != nullptr && newcomer.told && ValueOf(newcomer.in, 0).expected < ValueOf(resident).proven;
}

void Order::Insert(EntryId id, SizeClass size_class, const Standing& standing, QuotaGroup group) {
  if (reuse_ != nullptr) {
    usage_.Make(id) = {.last = now_,
                       .gap = standing.gap,
                       .in = static_cast<std::uint8_t>(standing.in & 0x7f),
                       .told = standing.told};
  }
  lru_.Insert(id, ShelfOf(size_class, standing.in, group));
  CountOn(lru_.shelf(id), 1);
}

void Order::Regroup(EntryId id, QuotaGroup group) {
  const Shelf at = lru_.shelf(id);
  const Shelf to = ShelfOf(size_class(id), at % kStride, group);
  if (at != to) lru_.Reshelve(id, to);
}

void Order::Reclass(EntryId id, SizeClass size_class) {
  const Shelf at = lru_.shelf(id);
  const Shelf to = ShelfOf(size_class, at % kStride, group(id));
  if (at != to) lru_.Reshelve(id, to);
}

void Order::MakeColdest(EntryId id, SizeClass size_class) {
  if (!lru_.Contains(id)) {
    Insert(id, size_class, {});
  }
  const Shelf to = ShelfOf(size_class, kCold, group(id));
  Remove(id);
  lru_.InsertCold(id, to);
}

void Order::Touch(EntryId id, std::uint64_t key) {
  if (reuse_ == nullptr) {
    MoveTo(id, 0);
    return;
  }
  Usage& usage = usage_[id];
  reuse_->Return(usage, key, now_);
  usage.last = now_;
  MoveTo(id, usage.in);
}

void Order::MoveTo(EntryId id, std::size_t in) {
  const Shelf at = lru_.shelf(id);
  const auto to = static_cast<Shelf>(at / kStride * kStride + in);
  if (at == to || at % kStride == kHeld) {
    lru_.Touch(id);
  } else {
    Remove(id);
    lru_.Insert(id, to);
    CountOn(to, 1);
  }
}

void Order::Hold(EntryId id) {
  if (reuse_ != nullptr && !Held(id)) Reshelve(id, kHeld);
}

void Order::LetGo(EntryId id) {
  if (Held(id)) Reshelve(id, usage_[id].in);
}

void Order::Reshelve(EntryId id, std::size_t in) {
  const Shelf at = lru_.shelf(id);
  const auto to = static_cast<Shelf>(at / kStride * kStride + in);
  lru_.Reshelve(id, to);
  CountOn(at, -1);
  CountOn(to, 1);
}

std::optional<EntryId> Order::FirstHeld() const {
  for (std::size_t rank = 0; held_ > 0 && rank < ranks_.size(); ++rank) {
    const std::optional<EntryId> id = lru_.Coldest(static_cast<Shelf>(rank * kStride + kHeld));
    if (id) return id;
  }
  return std::nullopt;
}

Reuse::Value Order::ValueOf(EntryId id) const {
  const std::size_t in = lru_.shelf(id) % kStride;
  if (in == kCold) return {-1, -1};
  if (in == kHeld) return {kMore, kMore};
  const Usage& usage = usage_[id];
  return ValueOf(usage.in, now_ - usage.last);
}

// What is to be kept is worth more than all else, but for too much of it and for too long.
Reuse::Value Order::ValueOf(std::size_t in, UseTime age) const {
  const auto on = static_cast<Reuse::Class>(in);
  if (Reuse::IsKept(on) && kept_ <= lru_.size() / kKeptShare && age < kKeptMs) return {kMost, kMost};
  return reuse_->ValueOf(on, age);
}

void Order::LookAmong(std::size_t first, std::size_t end, Coldness& coldest) const {
  if (reuse_ == nullptr) {
    const std::optional<EntryId> id = lru_.ColdestAmong(first, end);
    if (!id) return;
    const Coldness one = ColdnessOf(*id);
    if (coldest.id == kBelow || one < coldest) coldest = one;
    return;
  }
  lru_.ForShelves(first, end, [&](Shelf on) {
    const Coldness one = ColdnessOf(*lru_.Coldest(on));
    if (coldest.id == kBelow || one < coldest) coldest = one;
  });
}

std::uint64_t Order::LeastAge(SizeClass size_class) const {
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  const auto its = [size_class](SizeClass other) { return other == size_class; };
  ForRanks(kAllGroups, its, [&](std::size_t first) {
    lru_.ForShelves(first, first + kStride,
                    [&](Shelf on) { least = std::min(least, lru_.Age(*lru_.Warmest(on))); });
  });
  return least;
}

std::optional<Order::Shelved> Order::FirstOf(std::size_t from) const {
  std::optional<Shelved> found;
  lru_.ForShelves(from, ranks_.size() * kStride, [&](Shelf on) {
    if (!found) found = Shelved{on, *lru_.Coldest(on)};
  });
  return found;
}

std::size_t Order::shelves_in_use() const {
  std::size_t count = 0;
  lru_.ForShelves(0, ranks_.size() * kStride, [&](Shelf) { ++count; });
  return count;
}

}  // namespace cistern::policy
