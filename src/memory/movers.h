// SPDX-License-Identifier: Apache-2.0
// Movers move bytes and decide nothing: they get a job, do it, report back. The core awaits a job:
//
//   FillTask fill(movers, {to, pieces, crcs});
//   co_await fill;                               // crcs hold the checksums, the fence of R2 was done
//
// The job, and all memory that it names, stays until the await is over; a task that waits for a mover cannot
// be dropped (asserted), because no call takes bytes from a mover that is copying them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "arena/protocol.h"
#include "arena/words.h"
#include "base/executor.h"
#include "base/task.h"
#include "cistern/status.h"
#include "record/seal.h"
#include "record/segments.h"

namespace cistern::memory {

// One piece of work for a mover: Move on the mover, then Run on the core.
class MoverJob : public Work {
 public:
  // Touches shared memory through `words` alone, and only what the job names.
  virtual void Move(arena::Words& words) = 0;
  // Some of the arena's memory that it works on; null: none, or it does not matter where it is done.
  virtual const std::byte* WorksOn() const { return nullptr; }
};

class Movers {
 public:
  virtual ~Movers() = default;
  // From the core. The job is the movers' until its Run. In the order of submitting, but beside each other.
  virtual void Submit(MoverJob& job) = 0;
};

// A job that a task awaits, once.
class AwaitedJob : public MoverJob {
 public:
  explicit AwaitedJob(Movers& movers) : movers_(movers) {}
  ~AwaitedJob() override { CISTERN_ASSERT(waiter_ == nullptr); }

  bool await_ready() const { return false; }
  template <std::derived_from<PromiseBase> P>
  void await_suspend(std::coroutine_handle<P> handle) {
    waiter_ = &handle.promise();
    movers_.Submit(*this);
  }
  void await_resume() const {}
  void Run() final { std::exchange(waiter_, nullptr)->Wake(); }
  // The job will never be done, and its task may be dropped: for a simulated crash.
  void Abandon() { waiter_ = nullptr; }

 private:
  Movers& movers_;
  PromiseBase* waiter_ = nullptr;
};

// Anything else that takes too long for the core; the await gives the call's result.
template <class F>
class CallJob final : public AwaitedJob {
 public:
  using Result = std::invoke_result_t<F>;
  CallJob(Movers& movers, F call) : AwaitedJob(movers), call_(std::move(call)) {}
  void Move(arena::Words&) override {
    if constexpr (std::is_void_v<Result>) {
      call_();
    } else {
      result_ = call_();
    }
  }
  Result await_resume() {
    if constexpr (!std::is_void_v<Result>) return std::move(result_);
  }

 private:
  F call_;
  std::conditional_t<std::is_void_v<Result>, std::monostate, Result> result_{};
};

// The verified copy into a slot.
class FillTask final : public AwaitedJob {
 public:
  FillTask(Movers& movers, const arena::FillJob& job) : AwaitedJob(movers), job_(job) {}
  void Move(arena::Words& words) override { arena::RunFill(words, job_); }
  const std::byte* WorksOn() const override { return job_.to; }

 private:
  arena::FillJob job_;
};

// Check of the record at a place, which does not change meanwhile: seal, stamp and body.
class VerifyTask final : public AwaitedJob {
 public:
  VerifyTask(Movers& movers, const arena::ArenaView& arena, arena::Place place, std::uint64_t body_bytes,
             std::uint16_t parts)
      : AwaitedJob(movers), arena_(arena), place_(place), body_bytes_(body_bytes), parts_(parts) {}
  void Move(arena::Words& words) override;
  const std::byte* WorksOn() const override { return arena_.slot(place_); }
  bool sound() const { return sound_; }

 private:
  arena::ArenaView arena_;
  arena::Place place_;
  std::uint64_t body_bytes_;
  std::uint16_t parts_;
  bool sound_ = false;
};

// True if a body, or some segments of it, has the checksums of its seal; a mover computes them. The bytes do
// not change meanwhile. The seal borrows bytes that stay until the await is over.
class VerifyBodyTask final : public AwaitedJob {
 public:
  VerifyBodyTask(Movers& movers, const std::byte* body, const record::SealView& seal)
      : VerifyBodyTask(movers, body, seal, {0, seal.segment_count()}) {}
  VerifyBodyTask(Movers& movers, const std::byte* body, const record::SealView& seal,
                 record::SegmentSpan segments)
      : AwaitedJob(movers), body_(body), seal_(seal), segments_(segments) {}
  void Move(arena::Words& words) override;
  const std::byte* WorksOn() const override { return body_; }
  bool sound() const { return sound_; }

 private:
  const std::byte* body_;
  const record::SealView& seal_;
  const record::SegmentSpan segments_;
  bool sound_ = false;
};

// The CRCs of some segments of a body, which does not change meanwhile; `crcs` has one for each.
class ChecksumTask final : public AwaitedJob {
 public:
  ChecksumTask(Movers& movers, const std::byte* body, std::span<const record::Segment> segments,
               std::span<std::uint32_t> crcs)
      : AwaitedJob(movers), body_(body), segments_(segments), crcs_(crcs) {}
  void Move(arena::Words& words) override;
  const std::byte* WorksOn() const override { return body_; }

 private:
  const std::byte* body_;
  const std::span<const record::Segment> segments_;
  const std::span<std::uint32_t> crcs_;
};

struct ThreadMoversOptions {
  std::uint32_t threads = 1;  // 1 to 64
  std::int64_t poll_us = 50;  // how long a mover looks for work before it sleeps; 0 to 1,000,000
  std::vector<std::uint32_t> processors{};  // that they run on; none: on any
  Status Validate() const;
};

// Threads. Done jobs go to `done`, which runs them on the core and wakes it: Loop::PostRemote.
class ThreadMovers final : public Movers {
 public:
  using Done = std::move_only_function<void(Work& job)>;
  // `words`, `clock` and what `done` uses are borrowed and used from all mover threads. Throws
  // std::system_error where the system starts no more threads.
  ThreadMovers(arena::Words& words, const Clock& clock, const ThreadMoversOptions& options, Done done);
  // No job may be under way.
  ~ThreadMovers() override;

  void Submit(MoverJob& job) override;

 private:
  class Body;
  std::unique_ptr<Body> body_;
};

}  // namespace cistern::memory
