// SPDX-License-Identifier: Apache-2.0
// Movers for work that is nobody's hurry: its jobs go to other movers one at a time, in order, so that who
// needs one of those beside it waits for one such job at most. Belongs to the core.
#pragma once

#include "base/event.h"
#include "memory/movers.h"

namespace cistern::memory {

class SerialMovers final : public Movers {
 public:
  // Borrows the movers.
  explicit SerialMovers(Movers& movers) : movers_(movers), relay_(*this) {}
  // No job may be under way.
  ~SerialMovers() override { CISTERN_ASSERT(now_ == nullptr); }
  SerialMovers(const SerialMovers&) = delete;
  SerialMovers& operator=(const SerialMovers&) = delete;

  void Submit(MoverJob& job) override;
  // Ends when no job is under way, nor any that those submit when they are done.
  Task<void> Quiet(Executor& executor);

 private:
  class Relay final : public MoverJob {
   public:
    explicit Relay(SerialMovers& movers) : movers_(movers) {}
    ~Relay() override = default;
    void Move(arena::Words& words) override { movers_.now_->Move(words); }
    void Run() override { movers_.Done(); }
    const std::byte* WorksOn() const override { return movers_.now_->WorksOn(); }

   private:
    SerialMovers& movers_;
  };
  void Start(MoverJob& job);
  void Done();

  Movers& movers_;
  Relay relay_;
  MoverJob* now_ = nullptr;  // set by the core while no mover has the relay
  List<Work> waiting_;
  Event quiet_;
};

}  // namespace cistern::memory
