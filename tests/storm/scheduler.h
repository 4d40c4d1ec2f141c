// SPDX-License-Identifier: Apache-2.0
// Who goes on next. Actors (the core, the movers, the clients) are fibers; each stops between any two words
// of shared memory, and the scheduler lets one of them go on, drawn from the run's seed. Time is simulated:
// it creeps while anybody runs and jumps when all wait. One thread, so a seed replays exactly.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "fiber.h"
#include "store_buffer.h"

namespace cistern::storm {

class Actor {
 public:
  const std::string& name() const { return name_; }
  bool ended() const { return fiber_ == nullptr; }
  // Killed: it runs to its end without stopping, and nothing that it stores reaches memory.
  bool dead() const { return dead_; }
  bool waiting() const { return waiting_; }
  // Stopped between two words, not where it waits.
  bool midway() const { return midway_; }
  StoreBuffer& stores() { return stores_; }

 private:
  friend class Scheduler;
  Actor(std::string name, std::function<void()> body)
      : name_(std::move(name)), fiber_(std::make_unique<Fiber>(std::move(body))) {}

  std::string name_;
  std::unique_ptr<Fiber> fiber_;
  StoreBuffer stores_;
  std::uint32_t weight_ = 1;
  std::uint32_t words_left_ = 1;
  bool waiting_ = false, midway_ = false, dead_ = false;
  Instant wake_at_ = Instant::Never();
  std::uint64_t stands_until_ = 0;  // which of the scheduler's turns; 0: it does not stand still
};

class Scheduler {
 public:
  Scheduler(std::uint64_t seed, SimulatedClock& clock) : random_(seed), clock_(clock) {}
  // Every actor has ended.
  ~Scheduler();

  Actor* Spawn(std::string name, std::function<void()> body);
  // The one that runs; null outside of all.
  Actor* current() { return current_; }
  Random& random() { return random_; }
  SimulatedClock& clock() { return clock_; }
  std::uint64_t switches() const { return switches_; }

  // ---- from an actor ----
  // Between two words: perhaps somebody else goes on. Does nothing for the dead.
  void Pause();
  // As a process that loses its processor between two words: the others have so many turns, or what they can
  // do before time has to go on.
  void StandStill(std::uint32_t turns);
  // Until Wake or the time comes; whether it was woken. The dead do not wait.
  bool WaitUntil(Instant when);
  bool WaitFor(std::int64_t duration_us) { return WaitUntil(clock_.Now().PlusUs(duration_us)); }

  // ---- from anywhere ----
  void Wake(Actor* actor);
  // The actor dies where it is: its stores so far become orphans, it runs to its end at once. Not from
  // itself.
  void Kill(Actor* actor);
  bool has_orphans() const { return !orphans_.empty(); }
  // The memory that they are for is gone.
  void DropOrphans() { orphans_.clear(); }

  // ---- from outside of all actors ----
  // One actor goes on, or time jumps to the next who waits for it. False: all have ended.
  bool Step();

 private:
  void Resume(Actor& actor);
  Actor* Draw();
  // Ready, and standing still or not.
  bool MayGoOn(const Actor& actor, Instant now, bool standing) const;
  Actor* DrawOf(Instant now, bool standing);
  void DrawWeights();
  void DrainSome();

  Random random_;
  SimulatedClock& clock_;
  std::vector<std::unique_ptr<Actor>> actors_;  // those that have ended too: others may still hold them
  std::vector<Actor*> live_;
  std::vector<StoreBuffer> orphans_;
  Actor* current_ = nullptr;
  std::uint64_t switches_ = 0;
  std::uint32_t until_weights_ = 0;
};

}  // namespace cistern::storm
