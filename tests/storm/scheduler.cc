// SPDX-License-Identifier: Apache-2.0
#include "scheduler.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace cistern::storm {
namespace {

// How many words until the next stop: often one, often a handful, sometimes a whole operation.
std::uint32_t DrawWords(Random& random) {
  std::uint64_t draw = random.Next();
  switch (draw & 7) {
    case 0: return 1;
    case 1: return 1 + (draw >> 8) % 3;
    case 2:
    case 3: return 1 + (draw >> 8) % 12;
    case 4:
    case 5: return 1 + (draw >> 8) % 60;
    case 6: return 1 + (draw >> 8) % 250;
    default: return 1 + (draw >> 8) % 1500;
  }
}

}  // namespace

Scheduler::~Scheduler() {
  for (auto& actor : actors_) CISTERN_ASSERT(actor->ended());
}

Actor* Scheduler::Spawn(std::string name, std::function<void()> body) {
  actors_.push_back(std::unique_ptr<Actor>(new Actor(std::move(name), std::move(body))));
  live_.push_back(actors_.back().get());
  return live_.back();
}

void Scheduler::Pause() {
  if (current_ == nullptr || current_->dead_) return;
  Actor& self = *current_;
  if (--self.words_left_ > 0) return;
  self.midway_ = true;
  self.fiber_->Suspend();
  self.midway_ = false;
  self.words_left_ = DrawWords(random_);
}

void Scheduler::StandStill(std::uint32_t turns) {
  if (current_ == nullptr || current_->dead_) return;
  Actor& self = *current_;
  self.stands_until_ = switches_ + turns;
  self.midway_ = true;
  self.fiber_->Suspend();
  self.midway_ = false;
  self.stands_until_ = 0;
}

bool Scheduler::WaitUntil(Instant when) {
  Actor& self = *current_;
  if (self.dead_) return false;
  // What an actor did is on its way to memory while it waits, streaming stores too.
  self.waiting_ = true;
  self.wake_at_ = when;
  self.fiber_->Suspend();
  bool woken = !self.waiting_;
  self.waiting_ = false;
  self.wake_at_ = Instant::Never();
  return woken;
}

void Scheduler::Wake(Actor* actor) { actor->waiting_ = false; }

void Scheduler::Kill(Actor* actor) {
  CISTERN_ASSERT(actor != current_);
  if (actor->ended()) return;
  StoreBuffer left = actor->stores_.BecomeGhost();
  if (!left.empty()) orphans_.push_back(std::move(left));
  actor->dead_ = true;
  actor->waiting_ = false;
  Actor* before = std::exchange(current_, nullptr);
  while (!actor->ended()) Resume(*actor);
  current_ = before;
}

void Scheduler::Resume(Actor& actor) {
  current_ = &actor;
  actor.fiber_->Resume();
  current_ = nullptr;
  if (!actor.fiber_->ended()) return;
  actor.fiber_.reset();
  if (!actor.stores_.settled()) orphans_.push_back(std::move(actor.stores_));
  std::erase(live_, &actor);
}

void Scheduler::DrawWeights() {
  until_weights_ = static_cast<std::uint32_t>(random_.Between(200, 2000));
  for (Actor* actor : live_) actor->weight_ = std::uint32_t{1} << random_.Below(5);
}

bool Scheduler::MayGoOn(const Actor& actor, Instant now, bool standing) const {
  if (actor.waiting_ && actor.wake_at_ > now) return false;
  return (actor.stands_until_ > switches_) == standing;
}

Actor* Scheduler::DrawOf(Instant now, bool standing) {
  std::uint64_t total = 0;
  for (Actor* actor : live_) total += MayGoOn(*actor, now, standing) ? actor->weight_ : 0;
  if (total == 0) return nullptr;
  std::uint64_t draw = random_.Below(total);
  for (Actor* actor : live_) {
    if (!MayGoOn(*actor, now, standing)) continue;
    if (draw < actor->weight_) return actor;
    draw -= actor->weight_;
  }
  return nullptr;
}

Actor* Scheduler::Draw() {
  if (until_weights_-- == 0) DrawWeights();
  const Instant now = clock_.Now();
  Actor* next = DrawOf(now, false);
  return next != nullptr ? next : DrawOf(now, true);
}

void Scheduler::DrainSome() {
  if (!orphans_.empty()) {
    StoreBuffer& orphan = orphans_[random_.Below(orphans_.size())];
    orphan.DrainSome(random_);
    if (orphan.empty()) {
      std::swap(orphan, orphans_.back());
      orphans_.pop_back();
    }
  }
  if (live_.empty()) return;
  Actor& actor = *live_[random_.Below(live_.size())];
  if (!actor.dead_ && !actor.stores_.empty()) actor.stores_.DrainSome(random_);
}

bool Scheduler::Step() {
  DrainSome();
  if (live_.empty()) return false;
  clock_.AdvanceNs(static_cast<std::int64_t>(random_.Below(400)));
  Actor* next = Draw();
  if (next == nullptr) {
    Instant earliest = Instant::Never();
    for (Actor* actor : live_) {
      if (actor->waiting_) earliest = std::min(earliest, actor->wake_at_);
    }
    CISTERN_ASSERT(!earliest.IsNever());  // nobody could ever go on
    clock_.AdvanceTo(earliest);
    return true;
  }
  switches_++;
  Resume(*next);
  return true;
}

}  // namespace cistern::storm
