// SPDX-License-Identifier: Apache-2.0
// The writer of a member's drops and ends: the first goes to etcd at once, what comes meanwhile together
// behind it, no faster than the member's share; and the wait until every member has applied them.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/event.h"
#include "base/task.h"
#include "etcd/etcd.h"
#include "mesh/cell_drop.h"
#include "mesh/cell_keys.h"
#include "mesh/cell_state.h"

namespace cistern::mesh {

enum class DropWait : std::uint8_t {
  kDurable,  // in etcd: every member will apply it, however long that takes
  kApplied,  // by every member whose membership stands
};

struct DropReceipt {
  std::uint64_t history = 0;
  std::int64_t revision = 0;
  std::size_t applied = 0, members = 0;  // so many of so many have applied it
};

class DropWriter final {
 public:
  static constexpr std::size_t kWaiting = 1024;  // calls; past it kBusy

  // All is borrowed.
  DropWriter(etcd::Etcd& etcd, const CellKeys& keys, std::uint64_t process_number, CellState& state)
      : etcd_(etcd), keys_(keys), process_number_(process_number), state_(state) {}
  DropWriter(const DropWriter&) = delete;
  DropWriter& operator=(const DropWriter&) = delete;

  Executor& executor() { return etcd_.executor(); }

  // kInvalid: the drop; kBusy: too many calls wait, or etcd refuses more; kGone: etcd cannot be reached, or
  // this member has not joined, and nothing was dropped; kDenied: nothing was, as another member writes under
  // this one's process number; kTooLate: the message says whether nothing was dropped, or whether it may have
  // been, or some of its keys have, or it is and m of n members have applied it.
  Task<Result<DropReceipt>> Write(CellDrop drop, DropWait wait, Instant deadline);
  // Writes what waits, for ever.
  Task<void> Run();
  // Ends every Write, now or as soon as etcd has answered what it was asked: with kGone where nothing was
  // dropped, else as at its deadline. No other is taken.
  void End();

 private:
  // A drop, or as much of one as a batch has room for.
  struct Part {
    std::shared_ptr<const CellDrop> drop;
    std::size_t bytes = 0;  // of a batch
  };
  struct Call {
    Part part;
    Instant deadline;
    std::uint64_t history = 0;
    BatchMark batch;           // that it was written in
    bool was_written = false;  // or may have been, under a history that has ended
    bool sent = false;         // it may be in etcd
    bool done = false;
    Status status;
    Event changed;
    bool may_take_effect() const { return was_written || sent; }
  };
  using CallPtr = std::shared_ptr<Call>;
  struct Batch {
    std::vector<CallPtr> calls;
    std::vector<CellDrop> drops;
    std::size_t bytes = 0;
    bool sent = false;  // it may be in etcd
    void SetSent(bool now);
  };

  // A step each.
  Task<std::vector<Part>> Parts(CellDrop drop);
  Task<Status> Written(std::vector<CallPtr> parts, Instant deadline);
  // Ends it: that nothing was dropped is said only of what never can have been.
  static void Refuse(Call& call, const Status& why);
  // Of a drop at this revision that is not acknowledged by its deadline, or by the member's end. `missing`: a
  // member that has not applied it.
  Status Unacknowledged(const DropReceipt& receipt, const std::string& missing) const;
  Batch NextBatch();
  Task<void> Commit(Batch batch);
  // What one attempt came to.
  enum class Attempt : std::uint8_t { kWritten, kAgain, kOtherHistory, kRefused };
  Task<Attempt> Try(const std::string& key, const std::string& value, Batch& batch, Instant last,
                    Status* why);

  etcd::Etcd& etcd_;
  const CellKeys& keys_;
  const std::uint64_t process_number_;
  CellState& state_;
  std::deque<CallPtr> waiting_;
  Event more_;
  WriteShare share_;
  bool ends_ = false;
  std::uint64_t batches_ = 0;
};

}  // namespace cistern::mesh
