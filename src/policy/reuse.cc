// SPDX-License-Identifier: Apache-2.0
#include "policy/reuse.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/assert.h"

namespace cistern::policy {
namespace {

constexpr std::uint64_t kLeastRuns = 16'384;
constexpr UseTime kFirstAgeMs = Reuse::kOneUseMs;
// Runs that a class must have seen at an age and the two beside it to be believed as much as what it leans
// on.
constexpr double kAllWeight = 60, kPaceWeight = 150, kClassWeight = 300;
// Returns of a class at an age or later that prove that it returns.
constexpr double kProof = 10;
// Of all runs that reach an age, those that return at it, before any was seen. The same at each age, as ages
// widen: the longer not used, the less it is worth, which is Lru.
constexpr double kPrior = 0.05;
// The first age is four times as wide as the next: with less, what has just come would be worth less than
// what came a second ago, and stay out of a memory that is filled anew each second.
constexpr double kFirstPrior = 4 * kPrior;
constexpr std::size_t kRefreshes = 3;  // classes a request, beside its own
// Runs that pass the start of an age, counted in one call: after hours without a request it catches up over
// the next ones.
constexpr std::size_t kMostPasses = 512;
constexpr std::uint64_t kReturnsARefresh = 16;  // of those without a prompt
constexpr std::uint32_t kGapUnitMs = 64;

std::uint16_t GapOf(UseTime ms) {
  return static_cast<std::uint16_t>(std::min<std::uint32_t>(ms / kGapUnitMs, 0xfffe));
}

std::size_t LengthOf(std::size_t added) {
  const auto log2 = static_cast<std::size_t>(std::bit_width(std::max<std::size_t>(added, 1)) - 1);
  return std::min<std::size_t>(log2 / 2, Reuse::kLengths - 1);
}

// How much a hit of a shape counts.
double WeightOf(std::size_t shape) {
  if (shape == Reuse::kImportant + static_cast<std::size_t>(Importance::kLow) - 1) return 1.0 / 8;
  return shape == Reuse::kImportant + static_cast<std::size_t>(Importance::kHigh) - 1 ? 8 : 1;
}

}  // namespace

Reuse::Reuse(std::uint64_t blocks)
    : runs_(std::max(kLeastRuns, blocks / 4)),
      buckets_(std::bit_ceil(runs_.size()), kNone),
      expected_(kSets) {
  for (std::size_t on = 0; on < kClasses; ++on) {
    const std::size_t shape = on / kPaces;
    used_[on] = shape < kLengths || shape >= kFans;
    Refresh(static_cast<Class>(on));
  }
}

std::size_t Reuse::AgeOf(UseTime age_ms) {
  if (age_ms < kFirstAgeMs) return 0;
  const auto octave = static_cast<std::size_t>(std::bit_width(age_ms / kFirstAgeMs) - 1);
  if (octave >= kOctaves) return kAges - 1;
  const std::uint32_t eighths = age_ms >> (std::bit_width(kFirstAgeMs) - 1 + octave - 3);
  return 1 + 3 * octave + (eighths >= 10) + (eighths >= 13);
}

constexpr std::array<UseTime, Reuse::kAges> Reuse::kAgeStarts = [] {
  constexpr std::uint32_t kEighths[] = {8, 10, 13};
  std::array<UseTime, kAges> starts{};
  for (std::size_t age = 1; age < kAges; ++age)
    starts[age] = (kFirstAgeMs / 8 * kEighths[(age - 1) % 3]) << ((age - 1) / 3);
  return starts;
}();

// 0: none. Then below 16 s, an octave each, and from 8.7 min on.
std::size_t Reuse::PaceOf(std::uint16_t gap) {
  if (gap == kNoGap) return 0;
  return std::min<std::size_t>(1 + static_cast<std::size_t>(std::bit_width(gap / 256u)), kPaces - 1);
}

std::size_t Reuse::ShapeOf(const PromptHints& hints, std::uint64_t added) {
  if (hints.importance != Importance::kNormal)
    return kImportant + static_cast<std::size_t>(hints.importance) - 1;
  if (hints.next_turn_ms > 0) return kTold;
  if (hints.outlook != Outlook::kUnknown) return kLengths + static_cast<std::size_t>(hints.outlook) - 1;
  return LengthOf(added);
}

void Reuse::Begin(Prompt& prompt, UseTime now) {
  taught_ = true;
  prompt.now = now;
  prompt.known = prompt.asked.resident;
  PassAges(now);
}

// A run of an earlier request that this one uses again has returned.
void Reuse::Look(Prompt& prompt, std::uint64_t position, std::uint64_t key) {
  if (position >= prompt.asked.resident) {
    if (position == prompt.asked.resident) prompt.first = key;
    if (position + 1 + prompt.asked.partial == prompt.asked.blocks) prompt.last_whole = key;
    prompt.end = key;
    for (Expected& one : expected_[key % kSets]) {
      if (one.standing.told && one.key == key) one = {};  // of a prompt whose block stayed out
    }
  }
  const std::uint32_t at = FindRun(key);
  if (at == kNone) return;
  Run& run = runs_[at];
  Count(run.in, AgeOf(prompt.now - run.when), 0, run.weight);
  if (position + 1 >= prompt.known) {
    prompt.known = position + 1;
    prompt.ended = run.end;
    prompt.ended_at = run.when;
  }
  Unlink(at);
}

// It is a session's next turn if the last of its blocks that are known was the end of a prompt, and no other
// prompt went on from there.
void Reuse::Classify(Prompt& prompt, Usage* last) {
  const bool shared = prompt.known == prompt.asked.resident && last != nullptr && last->shared();
  const PromptHints& hints = prompt.asked.hints;
  if (prompt.ended && !shared) prompt.own.gap = GapOf(prompt.now - prompt.ended_at);
  if (hints.next_turn_ms > 0) prompt.own.gap = GapOf(hints.next_turn_ms);
  if (prompt.known == prompt.asked.resident && prompt.asked.resident < prompt.asked.blocks && last != nullptr)
    last->extensions = static_cast<std::uint8_t>(std::min(last->extensions + 1, 255));
  const std::size_t shape = ShapeOf(hints, prompt.asked.blocks - prompt.known);
  prompt.own.in = static_cast<Class>(shape * kPaces + PaceOf(prompt.own.gap));
  prompt.own.told = true;
  if (prompt.asked.resident == prompt.asked.blocks) return;
  const std::uint64_t whole = prompt.asked.blocks - prompt.asked.partial - prompt.asked.resident;
  if (prompt.asked.partial) {
    Remember(prompt, prompt.asked.blocks - 1, prompt.end, kPartial, 1);
    Expect(expected_, prompt.end, {prompt.own.gap, kPartial, true}, prompt.now);
  }
  if (whole == 0) return;
  Remember(prompt, prompt.asked.resident + whole - 1, prompt.last_whole, prompt.own.in, whole);
  Expect(expected_, prompt.first, prompt.own, prompt.now);
}

void Reuse::Use(Prompt& prompt, std::uint64_t position, std::uint64_t key, Usage* usage) {
  Look(prompt, position, key);
  Class in = prompt.own.in;
  std::uint16_t gap = prompt.own.gap;
  if (usage != nullptr && usage->shared()) {
    const std::uint16_t since = GapOf(prompt.now - usage->last);
    gap = usage->gap == kNoGap ? since : static_cast<std::uint16_t>((usage->gap + since) / 2);
    const std::size_t fan = (usage->extensions >= 4) + (usage->extensions >= 16);
    if (!IsKept(in)) in = static_cast<Class>((kFans + fan) * kPaces + PaceOf(gap));
  }
  if (prompt.asked.partial && position + 1 == prompt.asked.blocks) in = kPartial;
  Remember(prompt, position, key, in, 1);
  if (usage == nullptr) {
    if (below_.empty()) below_.resize(kSetsBelow);
    Expect(below_, key, {gap, in, true}, prompt.now);
    return;
  }
  usage->last = prompt.now;
  usage->gap = gap;
  usage->in = in & 0x7f;
  usage->told = 1;
}

void Reuse::End(Prompt& prompt) {
  FlushRun(prompt);
  for (std::size_t i = 0; i < kRefreshes; ++i) {
    do refreshed_ = (refreshed_ + 1) % kClasses;
    while (!used_[refreshed_]);
    Refresh(static_cast<Class>(refreshed_));
  }
}

// The next blocks towards the root, of one class; `position` and `key` are of the deepest of them.
void Reuse::Remember(Prompt& prompt, std::uint64_t position, std::uint64_t key, Class in,
                     std::uint64_t blocks) {
  if (prompt.run_blocks > 0 && prompt.run_in != in) FlushRun(prompt);
  if (prompt.run_blocks == 0) {
    prompt.run_key = key;
    prompt.run_in = in;
    prompt.run_end = position + 1 + prompt.asked.partial == prompt.asked.blocks && IsOwn(in);
  }
  prompt.run_blocks += blocks;
}

// A run weighs the fourth root of its length: blocks that return together say little more than one alone.
void Reuse::FlushRun(Prompt& prompt) {
  if (prompt.run_blocks == 0) return;
  AddRun({.key = prompt.run_key,
          .when = prompt.now,
          .weight = std::sqrt(std::sqrt(static_cast<float>(prompt.run_blocks))),
          .in = prompt.run_in,
          .end = prompt.run_end});
  Refresh(prompt.run_in);
  prompt.run_blocks = 0;
}

void Reuse::AddRun(Run run) {
  const auto at = static_cast<std::uint32_t>(next_run_ % runs_.size());
  if (runs_[at].live) Unlink(at);
  std::uint32_t& bucket = buckets_[run.key % buckets_.size()];
  run.next = bucket;
  run.live = true;
  runs_[at] = run;
  bucket = at;
  used_[run.in] = true;
  ++next_run_;
  Count(run.in, 0, run.weight, 0);
}

void Reuse::Return(Usage& usage, std::uint64_t key, UseTime now) {
  if (now - usage.last < kOneUseMs) return;
  const std::uint32_t at = FindRun(key);
  if (at == kNone) return;
  Run run = runs_[at];
  Count(run.in, AgeOf(now - run.when), 0, run.weight);
  Unlink(at);
  run.when = now;
  AddRun(run);
  if (++returns_seen_ % kReturnsARefresh == 0) Refresh(run.in);
}

Standing Reuse::StandingIn(const ExpectedTable& table, std::uint64_t key, const Standing& parent) {
  for (std::size_t way = 0; !table.empty() && way < kWays; ++way) {
    const Expected& one = table[key % table.size()][way];
    if (one.standing.told && one.key == key) return one.standing;
  }
  if (!parent.told || IsOwn(parent.in)) return parent;
  return {parent.gap, static_cast<Class>(PaceOf(parent.gap)), true};
}

void Reuse::Expect(ExpectedTable& table, std::uint64_t key, const Standing& standing, UseTime now) {
  std::array<Expected, kWays>& set = table[key % table.size()];
  Expected* place = &set[0];
  for (Expected& one : set) {
    if (one.standing.told && one.key == key) {
      place = &one;
      break;
    }
    if (place->standing.told && (!one.standing.told || now - one.when > now - place->when)) place = &one;
  }
  *place = {key, now, standing};
}

// Each run that is now past the start of an age has reached it. When the next one does is kept beside the
// age: most have to wait, and are not looked at.
void Reuse::PassAges(UseTime now) {
  const std::uint64_t oldest = next_run_ > runs_.size() ? next_run_ - runs_.size() : 0;
  std::size_t passes = 0;
  for (std::size_t age = 1; age < kAges && passes < kMostPasses; ++age) {
    Passed& at = passed_[age];
    if (at.next < oldest) at = {.next = oldest};
    if (at.waits && now - at.when < kAgeStarts[age]) continue;
    for (; at.next < next_run_ && passes < kMostPasses; ++at.next, ++passes) {
      const Run& run = runs_[at.next % runs_.size()];
      at.waits = now - run.when < kAgeStarts[age];
      at.when = run.when;
      if (at.waits) break;
      if (run.live) Count(run.in, age, run.weight, 0);
    }
  }
}

void Reuse::Prefetch(std::span<const std::uint64_t> keys) const {
  for (const std::uint64_t key : keys) __builtin_prefetch(&buckets_[key % buckets_.size()]);
  for (const std::uint64_t key : keys) {
    const std::uint32_t at = buckets_[key % buckets_.size()];
    if (at != kNone) __builtin_prefetch(&runs_[at]);
  }
}

void Reuse::Count(Class on, std::size_t age, double reached, double returned) {
  shares_of_all_known_ = false;
  for (Returns* returns : {&all_, &paces_[PaceIn(on)], &returns_[on]}) {
    returns->reached[age] += reached;
    returns->returned[age] += returned;
  }
}

// A share of returns is taken over an age and the two beside it: few runs return at just one.
//
// What was not seen to return is never believed to do so more, a second, at a greater age: else what came
// long ago would be worth more than what has just come, of which it is known that it does not return soon,
// and a memory full of what never returned would keep all else out.
void Reuse::Refresh(Class on) {
  const Returns& pace = paces_[PaceIn(on)];
  const auto share = [](const Returns& of, std::size_t age, double weight, double otherwise) {
    double returned = of.returned[age] + weight * otherwise;
    double reached = of.reached[age] + weight;
    for (const std::size_t beside : {age - std::min<std::size_t>(age, 1), std::min(age + 1, kAges - 1)}) {
      returned += of.returned[beside];
      reached += of.reached[beside];
    }
    return std::min(1.0, returned / reached);
  };
  if (!shares_of_all_known_) {
    double of_all = kFirstPrior;
    for (std::size_t age = 0; age < kAges; ++age) {
      const double before = age == 1 ? of_all * (kPrior / kFirstPrior) : of_all;
      of_all = share(all_, age, kAllWeight, age == 0 ? kFirstPrior : std::min(kPrior, before));
      shares_of_all_[age] = of_all;
    }
    shares_of_all_known_ = true;
  }
  Shares shares;
  for (std::size_t age = 0; age < kAges; ++age)
    shares[age] = share(returns_[on], age, kClassWeight, share(pace, age, kPaceWeight, shares_of_all_[age]));
  unused_[on][0] = 1;
  for (std::size_t age = 0; age < kAges; ++age)
    unused_[on][age + 1] = unused_[on][age] * static_cast<float>(1 - shares[age]);
  const double a_hit = WeightOf(on / kPaces);
  const auto values = HitsASecond(shares);
  double returned = 0;
  for (std::size_t age = kAges; age-- > 0;) {
    returned += returns_[on].returned[age];
    value_[on][age] = {a_hit * values[age], returned >= kProof ? a_hit * values[age] : 0};
  }
}

UseTime Reuse::WidthOf(std::size_t age) {
  return age + 1 < kAges ? kAgeStarts[age + 1] - kAgeStarts[age] : kAgeStarts[age];
}

double Reuse::ReturnsWithin(Class in, double ms) const {
  const auto whole = static_cast<UseTime>(std::min(ms, static_cast<double>(2 * kAgeStarts[kAges - 1] - 1)));
  const std::size_t age = AgeOf(whole);
  const UseTime width = WidthOf(age);
  const float at = unused_[in][age], then = unused_[in][age + 1];
  return 1 - (at + (then - at) * static_cast<float>(whole - kAgeStarts[age]) / static_cast<float>(width));
}

// From the last age back: a block kept to the next age is kept beyond it if the ages after are worth more
// than those up to there.
std::array<double, Reuse::kAges> Reuse::HitsASecond(const Shares& shares) {
  struct Stay {
    double hits, seconds;
  };
  std::array<double, kAges> values;
  std::array<Stay, kAges> stays;
  std::size_t later = 0;  // of stays, the last of them the next in time
  for (std::size_t age = kAges; age-- > 0;) {
    const UseTime width_ms = WidthOf(age);
    Stay stay{shares[age], (1 - shares[age] / 2) * width_ms / 1'000};
    while (later > 0 && stays[later - 1].hits * stay.seconds > stay.hits * stays[later - 1].seconds) {
      const double survives = 1 - stay.hits;
      stay.hits += survives * stays[later - 1].hits;
      stay.seconds += survives * stays[later - 1].seconds;
      --later;
    }
    stays[later++] = stay;
    values[age] = stay.hits / stay.seconds;
  }
  return values;
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

}  // namespace cistern::policy
