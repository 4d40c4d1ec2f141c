// SPDX-License-Identifier: Apache-2.0
// One transfer under way, in batches. One thread drives it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cistern/store.h"
#include "transfer/transfers.h"

namespace cistern::transfer {

enum class Step : std::uint8_t {
  kMoved,  // a batch; there may be more to do at once
  kWaits,  // for the node
  kDone,
};

class Move {
 public:
  virtual ~Move() = default;
  struct Leave {
    std::int64_t deadline_us;  // what is left of it
    std::int64_t worth_us;     // likewise; under 0: it has passed
    bool may_begin;            // a further batch
  };
  // Moves a batch at most.
  virtual Step Go(const Leave& leave) = 0;
  // Touches the pages no more from now on; what has no outcome yet gets `code`.
  virtual void Stop(Code code) = 0;
  // A save whose copy is complete, though the node may not have answered.
  virtual bool left_pages() const { return false; }

  TransferDone& done() { return done_; }
  // Bytes of pages that Go has read or written since the last call of this.
  std::uint64_t TakeCopied() { return std::exchange(copied_, 0); }

 protected:
  TransferDone done_;
  std::uint64_t copied_ = 0;
};

class LoadMove final : public Move {
 public:
  LoadMove(Store& store, const PageLoad& load) : store_(store), load_(load) {
    done_.kind = TransferKind::kLoad;
    done_.outcomes.resize(load.keys->size(), Code::kTooLate);
  }
  Step Go(const Leave& leave) override;
  void Stop(Code code) override;

 private:
  // Batches of blocks below memory that are fetched beside each other: one does not keep a device busy.
  static constexpr std::size_t kBatchesAhead = 4;
  struct Batch {
    Ticket<ReadResult> ticket;
    std::size_t first;
    std::size_t count;
  };
  void Prepare(std::size_t count);
  Step Begin(const Leave& leave);
  Step Finish();

  Store& store_;
  const PageLoad& load_;
  std::size_t next_ = 0;       // the first block of the next batch
  std::size_t finished_ = 0;   // blocks that have an outcome
  std::deque<Batch> reading_;  // in order, from finished_ on
  // What a batch reads, as it is said to the store.
  std::vector<std::span<std::byte>> pieces_;
  std::vector<ReadRange> ranges_;
  std::vector<BlockRead> reads_;
};

// Bytes of staging that saves may use at once, and the writes that were given up while the node still has
// them.
class StagingBudget final {
 public:
  explicit StagingBudget(std::uint64_t bytes) : limit_(bytes) {}
  // One batch always fits where nothing else does.
  bool Take(std::uint64_t bytes) {
    Collect();
    if (used_ > 0 && used_ + bytes > limit_) return false;
    used_ += bytes;
    return true;
  }
  void Give(std::uint64_t bytes) {
    used_ -= bytes;
    given_++;
  }
  // As Give, of what no write had: the node has no more of it than before.
  void Return(std::uint64_t bytes) { used_ -= bytes; }
  // Whether any write has some of it.
  bool in_use() {
    Collect();
    return used_ > 0;
  }
  // Counts what was given back: staging that the node refused is worth another question after the next.
  std::uint64_t given() const { return given_; }
  // Keeps a write that nobody waits for until the node has answered it.
  void Abandon(Ticket<WriteResult> ticket, std::uint64_t bytes) {
    given_up_.push_back({std::move(ticket), bytes});
  }

 private:
  struct GivenUp {
    Ticket<WriteResult> ticket;
    std::uint64_t bytes;
  };
  void Collect() {
    while (!given_up_.empty() && given_up_.front().ticket.ready()) {
      Give(given_up_.front().bytes);
      given_up_.pop_front();
    }
  }
  const std::uint64_t limit_;
  std::uint64_t used_ = 0;
  std::uint64_t given_ = 0;
  std::deque<GivenUp> given_up_;
};

// The longest wait for staging: the thread has other saves too, and whoever closes waits for the thread.
inline constexpr std::int64_t kStagingUs = 5'000'000;

class SaveMove final : public Move {
 public:
  SaveMove(Store& store, StagingBudget& budget, const PageSave& save)
      : store_(store), budget_(budget), save_(save) {
    done_.kind = TransferKind::kSave;
    done_.outcomes.resize(save.keys->size(), Code::kTooLate);
    done_.states.resize(save.keys->size(), WriteOutcome::State::kNone);
  }
  Step Go(const Leave& leave) override;
  void Stop(Code code) override;
  bool left_pages() const override { return next_ == save_.keys->size(); }

 private:
  struct Written {
    Ticket<WriteResult> ticket;
    std::size_t first;
    std::size_t count;
    std::uint64_t bytes;
  };
  // How soon the node is asked again for staging that other sessions have.
  static constexpr std::int64_t kAskAgainUs = 5'000;
  bool CollectAnswers();
  // False: staging was refused, and nothing says yet that there is any.
  bool StagingMayBeFree(const Leave& leave) const;
  // For what `count` blocks take.
  Status AskForStaging(std::size_t count, const Leave& leave);
  Step Refused(Status busy, std::size_t count, const Leave& leave);
  void Take(const Result<WriteResult>& result, std::size_t first, std::size_t count);
  Step WriteBatch(std::size_t count, const Leave& leave);

  Store& store_;
  StagingBudget& budget_;
  const PageSave& save_;
  std::size_t next_ = 0;
  std::size_t most_at_once_ = SIZE_MAX;  // blocks of a batch
  std::deque<Written> written_;          // not answered yet
  // Of the last time that the node had no staging for a batch.
  struct Refusal {
    std::string message;
    std::uint64_t given;        // the budget's, then
    std::int64_t ask_again_us;  // what is left of the deadline by then
  };
  std::optional<Refusal> refusal_;
};

}  // namespace cistern::transfer
