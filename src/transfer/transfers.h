// SPDX-License-Identifier: Apache-2.0
// Blocks between a store and an engine's pages, in the background: the engine submits, goes on computing, and
// asks what is done. Two threads, one that loads and one that saves, so that neither waits for the other.
//
// Every id that Submit returned is reported exactly once, by Poll or Wait, and by its deadline, even if the
// node is gone or hung: to within one batch (kBatchBytes) that is being copied. After a transfer was reported
// nothing of it touches the pages any more. Transfers of one kind begin in the order submitted. A save for
// which the node has no staging waits for some until its deadline.
//
// Any thread. In a forked child Submit is kDenied and everything else does nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cistern/store.h"
#include "transfer/pages.h"

namespace cistern::transfer {

struct TransfersOptions {
  // Transfers of each kind that may be submitted and not yet reported, 1 to kMaxQueue; past it kBusy.
  std::uint32_t queue = 1024;
  std::uint64_t max_bytes_per_s = 0;  // of each kind; 0: no limit
};

enum class TransferKind : std::uint8_t { kLoad = 0, kSave = 1 };

// Block i is keys[i], its page page_ids[i]. The pages' memory and `keys` stay as they are until the report.
struct PageMove {
  Namespace ns;
  std::shared_ptr<const std::vector<BlockKey>> keys;
  std::uint16_t group = 0;
  std::uint16_t part = 0;
  std::shared_ptr<const Pages> pages;
  std::vector<std::uint32_t> page_ids;
  std::int64_t deadline_us = kDefaultDeadlineUs;
};

struct PageLoad : PageMove {
  // From submit; one that has not begun by then is not begun, and what lies below memory and would be ready
  // later is kTooLate.
  std::int64_t worth_us = kNoWorthLimit;
  bool touch = true;
};

struct PageSave : PageMove {
  std::vector<std::optional<BlockKey>> parents;  // one a key
  std::vector<PutId> put_ids;                    // one a key, or none: the library's own
  std::uint32_t ttl_s = 0;
  bool held = false;
  std::string conversation;  // empty: nobody's
};

struct TransferDone {
  std::uint64_t id = 0;
  TransferKind kind = TransferKind::kLoad;
  // One a block. The page of a loaded block that is not kOk holds anything. kTooLate of a save may have been
  // written all the same.
  std::vector<Code> outcomes;
  std::vector<WriteOutcome::State> states;  // of a save, one a block
  std::uint64_t moved_bytes = 0;            // of the blocks that are ok
  std::int64_t took_us = 0;                 // from submit to report
  std::string message;                      // of the first block that is not ok and has one
};

class Transfers final {
 public:
  static constexpr std::uint32_t kMaxQueue = 65'536;
  static constexpr std::uint64_t kBatchBytes = 4u << 20;  // of pages

  // kBusy: the system has no threads for it.
  static Result<std::unique_ptr<Transfers>> Make(std::shared_ptr<Store> store,
                                                 const TransfersOptions& options);
  ~Transfers();  // closes
  Transfers(const Transfers&) = delete;
  Transfers& operator=(const Transfers&) = delete;

  // The transfer's id, from 1 on. kBusy: the queue is full. kInvalid: counts that differ, a page id out of
  // bounds or twice, a part whose size is not the pages'. kGone: closed. Then nothing was started.
  Result<std::uint64_t> Submit(PageLoad load);
  Result<std::uint64_t> Submit(PageSave save);

  // What is done since the last time, oldest first.
  std::vector<TransferDone> Poll();
  // Where nothing is done yet and something is in flight, waits until something is or `timeout_us` passed.
  std::vector<TransferDone> Wait(std::int64_t timeout_us);
  // Until none of these (none given: none that was submitted before) touches its pages any more: a load is
  // complete, a save has taken its copy. False: `timeout_us` passed first.
  bool WaitPages(std::optional<std::span<const std::uint64_t>> ids, std::int64_t timeout_us);
  // Asks it to end early; it is reported all the same, what was not done yet kTooLate. False: not in flight.
  bool Cancel(std::uint64_t id);
  // Submitted and not yet given out: how many, and whether this one.
  std::size_t in_flight() const;
  bool IsInFlight(std::uint64_t id) const;
  // Readable while Poll has something to give, and at times when it has nothing. Owned by this.
  int event_fd() const;
  // Cancels all, waits until nothing touches the pages any more, ends the threads, and lets go of the store.
  // Poll still gives what is done. Again does nothing.
  void Close();

 private:
  class Shared;
  explicit Transfers(std::unique_ptr<Shared> shared);
  std::unique_ptr<Shared> shared_;
};

}  // namespace cistern::transfer
