// SPDX-License-Identifier: Apache-2.0
#include "memory/movers.h"

#include <condition_variable>
#include <mutex>

#include "arena/reader.h"
#include "base/clock.h"
#include "base/format.h"
#include "base/spin.h"
#include "memory/memory_nodes.h"

namespace cistern::memory {

void VerifyTask::Move(arena::Words& words) {
  arena::OpenRecord record;
  sound_ = arena::OpenAt(words, arena_, place_, body_bytes_, parts_, record) == arena::ReadOutcome::kHit &&
           arena::BodySound(words, arena_, record);
}

void VerifyBodyTask::Move(arena::Words& words) {
  sound_ = record::SegmentsSound(
      seal_, record::Segments(seal_, segments_),
      [&](std::uint64_t offset, std::uint64_t bytes) { return words.Checksum(body_ + offset, bytes, 0); });
}

void ChecksumTask::Move(arena::Words& words) {
  for (std::size_t i = 0; i < segments_.size(); ++i)
    crcs_[i] = words.Checksum(body_ + segments_[i].offset, segments_[i].bytes, 0);
}

Status ThreadMoversOptions::Validate() const {
  if (threads < 1 || threads > 64) {
    return Status(Code::kInvalid, Text("movers: ", threads, " threads, and 1 to 64 can be"));
  }
  if (poll_us < 0 || poll_us > 1'000'000) {
    return Status(Code::kInvalid, Text("poll_us: ", poll_us, ", and 0 to 1,000,000 can be"));
  }
  return Status();
}

class ThreadMovers::Body {
 public:
  Body(arena::Words& words, const Clock& clock, const ThreadMoversOptions& options, Done done)
      : words_(words),
        clock_(clock),
        poll_us_(options.poll_us),
        processors_(options.processors),
        done_(std::move(done)) {
    try {
      for (std::uint32_t i = 0; i < options.threads; ++i) threads_.emplace_back([this] { Serve(); });
    } catch (const std::system_error&) {
      End();  // those that there are
      throw;
    }
  }

  ~Body() { End(); }

  void Submit(MoverJob& job) {
    bool wake;
    {
      std::lock_guard lock(mutex_);
      jobs_.PushBack(job);
      waiting_.store(waiting_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
      wake = sleepers_ > 0;
    }
    // A mover that polls finds it; the system call is for one that sleeps.
    if (wake) work_.notify_one();
  }

 private:
  void End() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void Serve() {
    // Where that is refused they run anywhere: slower, and right.
    if (!processors_.empty()) static_cast<void>(RunOn(processors_));
    while (MoverJob* job = NextJob()) {
      job->Move(words_);
      done_(*job);
    }
  }

  // Null at the end.
  MoverJob* NextJob() {
    const Instant until = clock_.Now().PlusUs(poll_us_);
    PoliteSpin spin(32);
    for (;;) {
      if (waiting_.load(std::memory_order_acquire) > 0) {
        std::lock_guard lock(mutex_);
        if (MoverJob* job = Pop()) return job;
      }
      if (clock_.Now() >= until) break;
      spin.Turn();
    }
    std::unique_lock lock(mutex_);
    sleepers_++;
    work_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
    sleepers_--;
    return Pop();
  }

  MoverJob* Pop() {
    auto* job = static_cast<MoverJob*>(jobs_.PopFront());
    if (job != nullptr)
      waiting_.store(waiting_.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
    return job;
  }

  arena::Words& words_;
  const Clock& clock_;
  const std::int64_t poll_us_;
  const std::vector<std::uint32_t> processors_;
  Done done_;
  std::mutex mutex_;
  std::condition_variable work_;
  List<Work> jobs_;                        // under mutex_
  std::atomic<std::uint32_t> waiting_{0};  // how many are in jobs_; written under mutex_
  std::uint32_t sleepers_ = 0;             // under mutex_
  bool stop_ = false;                      // under mutex_
  std::vector<std::thread> threads_;
};

ThreadMovers::ThreadMovers(arena::Words& words, const Clock& clock, const ThreadMoversOptions& options,
                           Done done)
    : body_(std::make_unique<Body>(words, clock, options, std::move(done))) {}

ThreadMovers::~ThreadMovers() = default;

void ThreadMovers::Submit(MoverJob& job) { body_->Submit(job); }

}  // namespace cistern::memory
