// SPDX-License-Identifier: Apache-2.0
#include "policy/reuse.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/assert.h"

namespace cistern::policy {
namespace {

constexpr std::uint32_t kNone = 0xffff'ffff;
constexpr std::uint64_t kLeastRuns = 16'384;
constexpr std::uint32_t kFirstAgeMs = 1'024;
// Runs that a class must have seen at an age and the two beside it to be believed as much as what it leans
// on.
constexpr double kAllWeight = 60, kPaceWeight = 150, kClassWeight = 300;
// Of all runs that reach an age, those that return at it, before any was seen. The same at each age, as ages
// widen: the longer not used, the less it is worth, which is Lru.
constexpr double kPrior = 0.05;
constexpr std::size_t kRefreshes = 4;  // classes a request, beside its own
constexpr std::uint32_t kGapUnitMs = 64;

std::uint16_t GapOf(std::uint32_t ms) {
  return static_cast<std::uint16_t>(std::min<std::uint32_t>(ms / kGapUnitMs, 0xfffe));
}

std::size_t LengthOf(std::size_t added) {
  const auto log2 = static_cast<std::size_t>(std::bit_width(std::max<std::size_t>(added, 1)) - 1);
  return std::min<std::size_t>(log2 / 2, 3);
}

}  // namespace

Reuse::Reuse(std::uint64_t blocks)
    : runs_(std::max(kLeastRuns, blocks / 4)), buckets_(std::bit_ceil(runs_.size()), kNone) {
  for (std::size_t on = 0; on < kClasses; ++on) Refresh(static_cast<Class>(on));
}

std::size_t Reuse::AgeOf(std::uint32_t age_ms) {
  if (age_ms < kFirstAgeMs) return 0;
  const auto octave = static_cast<std::size_t>(std::bit_width(age_ms / kFirstAgeMs) - 1);
  if (octave >= kOctaves) return kAges - 1;
  const std::uint32_t eighths = age_ms >> (std::bit_width(kFirstAgeMs) - 1 + octave - 3);
  return 1 + 3 * octave + (eighths >= 10) + (eighths >= 13);
}

std::uint32_t Reuse::AgeStart(std::size_t age) {
  if (age == 0) return 0;
  constexpr std::uint32_t kEighths[] = {8, 10, 13};
  return (kFirstAgeMs / 8 * kEighths[(age - 1) % 3]) << ((age - 1) / 3);
}

// 0: none. Then below 16 s, an octave each, and from 8.7 min on.
std::size_t Reuse::PaceOf(std::uint16_t gap) {
  if (gap == kNoGap) return 0;
  return std::min<std::size_t>(1 + static_cast<std::size_t>(std::bit_width(gap / 256u)), kPaces - 1);
}

void Reuse::Begin(const Prompt& prompt) {
  now_ms_ = static_cast<std::uint32_t>(prompt.now_ms);
  PassAges();
  Classify(prompt, Recognize(prompt));
  Remember(prompt);
  for (std::size_t i = 0; i < kRefreshes; ++i) {
    Refresh(static_cast<Class>(refreshed_));
    refreshed_ = (refreshed_ + 1) % kClasses;
  }
}

// Runs of earlier requests that this one uses again have returned. It is a session's next turn if the last of
// its blocks that are known was the end of a prompt, and no other prompt went on from there.
Reuse::Known Reuse::Recognize(const Prompt& prompt) {
  Known known{.blocks = prompt.resident.size()};
  std::size_t end = 0;  // blocks of the prompt that this one extends
  std::uint32_t end_ms = 0;
  for (std::size_t i = 0; i < prompt.keys.size(); ++i) {
    const std::uint32_t at = FindRun(prompt.keys[i]);
    if (at == kNone) continue;
    Run& run = runs_[at];
    Count(run.in, AgeOf(now_ms_ - run.when_ms), 0, run.weight);
    known.blocks = std::max(known.blocks, i + 1);
    if (run.end) {
      end = i + 1;
      end_ms = run.when_ms;
    }
    Unlink(at);
  }
  if (end != 0 && end == known.blocks &&
      (end > prompt.resident.size() || !entries_[prompt.resident[end - 1]].shared())) {
    known.gap = GapOf(now_ms_ - end_ms);
  }
  return known;
}

void Reuse::Classify(const Prompt& prompt, const Known& known) {
  const std::size_t size = prompt.keys.size();
  resident_ = prompt.resident.size();
  if (known.blocks == resident_ && resident_ > 0 && resident_ < size) {
    Entry& last = entries_[prompt.resident.back()];
    last.extensions = static_cast<std::uint8_t>(std::min(last.extensions + 1, 255));
  }
  const std::size_t own = 4 * static_cast<std::size_t>(prompt.outlook) + LengthOf(size - known.blocks);
  classes_.resize(size);
  gaps_.resize(size);
  for (std::size_t i = 0; i < size; ++i) {
    const Entry* entry = i < resident_ ? &entries_[prompt.resident[i]] : nullptr;
    std::size_t shape = own;
    gaps_[i] = known.gap;
    if (entry && entry->shared()) {
      shape = 12 + (entry->extensions >= 4) + (entry->extensions >= 16);
      const std::uint16_t gap = GapOf(now_ms_ - entry->last_ms);
      gaps_[i] = entry->gap == kNoGap ? gap : static_cast<std::uint16_t>((entry->gap + gap) / 2);
    }
    classes_[i] = static_cast<Class>(shape * kPaces + PaceOf(gaps_[i]));
  }
  if (prompt.partial && size > 0) classes_[size - 1] = kPartial;
}

// A run weighs the fourth root of its length: blocks that return together say little more than one alone.
void Reuse::Remember(const Prompt& prompt) {
  const std::size_t size = prompt.keys.size();
  const std::size_t whole = size - (prompt.partial && size > 0);
  std::size_t blocks = 0;
  for (std::size_t i = 0; i < size; ++i) {
    ++blocks;
    if (i + 1 < size && classes_[i + 1] == classes_[i]) continue;
    const auto at = static_cast<std::uint32_t>(next_run_ % runs_.size());
    if (runs_[at].live) Unlink(at);
    std::uint32_t& bucket = buckets_[prompt.keys[i] % buckets_.size()];
    runs_[at] = {.key = prompt.keys[i],
                 .when_ms = now_ms_,
                 .weight = std::sqrt(std::sqrt(static_cast<float>(blocks))),
                 .next = bucket,
                 .in = classes_[i],
                 .live = true,
                 .end = i + 1 == whole && classes_[i] < 12 * kPaces};
    bucket = at;
    ++next_run_;
    Count(classes_[i], 0, runs_[at].weight, 0);
    Refresh(classes_[i]);
    blocks = 0;
  }
}

// Each run that is now past the start of an age has reached it.
void Reuse::PassAges() {
  const std::uint64_t oldest = next_run_ > runs_.size() ? next_run_ - runs_.size() : 0;
  for (std::size_t age = 1; age < kAges; ++age) {
    std::uint64_t& next = passed_[age];
    next = std::max(next, oldest);
    for (; next < next_run_; ++next) {
      const Run& run = runs_[next % runs_.size()];
      if (now_ms_ - run.when_ms < AgeStart(age)) break;
      if (run.live) Count(run.in, age, run.weight, 0);
    }
  }
}

void Reuse::Count(Class on, std::size_t age, double reached, double returned) {
  for (Returns* returns : {&all_, &paces_[PaceIn(on)], &returns_[on]}) {
    returns->reached[age] += reached;
    returns->returned[age] += returned;
  }
}

// A share of returns is taken over an age and the two beside it: few runs return at just one.
// From the last age back: a block kept to the next age is kept beyond it if the ages after are worth more
// than those up to there.
void Reuse::Refresh(Class on) {
  struct Stay {
    double hits, seconds;
  };
  std::array<Stay, kAges> stays;
  std::size_t later = 0;  // of stays, the last of them the next in time
  const Returns& pace = paces_[PaceIn(on)];
  const auto rate = [](const Returns& of, std::size_t age, double weight, double otherwise) {
    double returned = of.returned[age] + weight * otherwise;
    double reached = of.reached[age] + weight;
    for (const std::size_t beside : {age - std::min<std::size_t>(age, 1), std::min(age + 1, kAges - 1)}) {
      returned += of.returned[beside];
      reached += of.reached[beside];
    }
    return returned / reached;
  };
  for (std::size_t age = kAges; age-- > 0;) {
    double q = rate(all_, age, kAllWeight, kPrior);
    q = rate(pace, age, kPaceWeight, q);
    q = std::min(1.0, rate(returns_[on], age, kClassWeight, q));
    const std::uint32_t from_ms = AgeStart(age);
    const std::uint32_t width_ms = age + 1 < kAges ? AgeStart(age + 1) - from_ms : from_ms;
    Stay stay{q, (1 - q / 2) * width_ms / 1'000};
    while (later > 0 && stays[later - 1].hits * stay.seconds > stay.hits * stays[later - 1].seconds) {
      const double survives = 1 - stay.hits;
      stay.hits += survives * stays[later - 1].hits;
      stay.seconds += survives * stays[later - 1].seconds;
      --later;
    }
    stays[later++] = stay;
    value_[on][age] = stay.hits / stay.seconds;
  }
}

std::uint32_t Reuse::FindRun(std::uint64_t key) const {
  std::uint32_t at = buckets_[key % buckets_.size()];
  while (at != kNone && runs_[at].key != key) at = runs_[at].next;
  return at;
}

void Reuse::Unlink(std::uint32_t run) {
  std::uint32_t* at = &buckets_[runs_[run].key % buckets_.size()];
  while (*at != run) at = &runs_[*at].next;
  *at = runs_[run].next;
  runs_[run].live = false;
}

bool Reuse::Outranks(std::size_t position, EntryId resident) const {
  return value_[classes_[position]][0] >= ValueOf(resident);
}

void Reuse::Insert(EntryId id, std::size_t position) {
  if (id >= entries_.size()) entries_.resize(std::size_t{id} + 1);
  entries_[id] = {};
  order_.Insert(id, classes_[position]);
}

void Reuse::Touch(EntryId id, std::size_t position) {
  Entry& entry = entries_[id];
  entry.last_ms = now_ms_;
  entry.gap = gaps_[position];
  if (order_.size_class(id) == classes_[position]) {
    order_.Touch(id);
  } else {
    order_.Remove(id);
    order_.Insert(id, classes_[position]);
  }
}

std::optional<EntryId> Reuse::Coldest() const {
  std::optional<EntryId> coldest;
  double least = 0;
  for (std::size_t on = 0; on < kClasses; ++on) {
    const std::optional<EntryId> id = order_.Coldest(static_cast<Class>(on));
    if (!id) continue;
    const double value = ValueOf(*id);
    if (coldest && (value > least || (value == least && order_.Age(*id) <= order_.Age(*coldest)))) continue;
    coldest = id;
    least = value;
  }
  return coldest;
}

}  // namespace cistern::policy
