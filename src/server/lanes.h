// SPDX-License-Identifier: Apache-2.0
// The order of the sessions' work (promise 5). The tasks of a session's calls are in a lane of its own; of
// the lanes that have something to run the one that has used least runs its next step (policy::FairOrder). So
// a step of a call waits for one step of each other session at most, whatever that one asks and however much.
// What the other members of a cell ask shares one lane, whose work counts kPeersWeight times: beside a
// session that always has something to run they have a quarter of the work of both, beside several less.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>

#include "base/executor.h"
#include "policy/fair_order.h"

namespace cistern::server {

class Lanes;

inline constexpr std::uint64_t kPeersWeight = 3;

// One session's, or what comes in together.
class ServedLane final : public Lane, private policy::FairOrder::Customer {
 public:
  ServedLane(Lanes& lanes, std::uint64_t weight) : lanes_(lanes), weight_(weight) {}
  void Post(Work& work) override;
  void Join() override { ++users_; }
  void Leave() override;
  void Charge(std::uint64_t work) override;

  // Whether that many steps are ready and wait for their turn.
  bool HasReady(std::size_t count) const { return ready_.Holds(count); }
  // The session is gone: the lane goes with its last task.
  void End();

 private:
  friend class Lanes;
  Lanes& lanes_;
  const std::uint64_t weight_;
  List<Work> ready_;
  std::size_t users_ = 0;
  bool waits_ = false;  // or is being served
  bool ended_ = false;
  std::list<ServedLane>::iterator self_;
};

class Lanes final {
 public:
  explicit Lanes(Executor& executor) : executor_(executor) {}
  // All lanes have ended and their tasks are gone.
  ~Lanes();
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  // Until it is told to End. Its work counts `weight` times.
  ServedLane& Make(std::uint64_t weight = 1);

 private:
  friend class ServedLane;
  // What a step costs beside what it touches.
  static constexpr std::uint64_t kStepWork = 8;

  // A place in the executor's queue. There are as many as lanes that wait, and each is for the one whose
  // turn it then is.
  class Turn final : public Work {
   public:
    explicit Turn(Lanes& lanes) : lanes_(lanes) {}
    ~Turn() override = default;
    void Run() override { lanes_.Serve(*this); }

   private:
    Lanes& lanes_;
  };

  void Wait(ServedLane& lane);
  void Serve(Turn& turn);

  Executor& executor_;
  policy::FairOrder order_;
  std::list<ServedLane> lanes_;
  std::deque<Turn> turns_;
  List<Work> unused_;  // of turns_
};

}  // namespace cistern::server
