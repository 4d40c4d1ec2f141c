// SPDX-License-Identifier: Apache-2.0
// Write-back of records to the lower tier: gathered in batches and written from their slots in the
// background; no put waits for it. The cleaner writes the coldest records before their room is needed. A
// record in the lower tier may leave memory at any time.
#pragma once

#include <array>
#include <boost/unordered/unordered_flat_set.hpp>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "base/task.h"
#include "policy/rewrite.h"
#include "record/seal_copy.h"
#include "residency/context.h"
#include "residency/evictor.h"
#include "residency/lower_tier.h"
#include "residency/residents.h"
#include "residency/write_queue.h"
#include "residency/write_worth.h"
#include "tier/tier.h"

namespace cistern::residency {

class WriteBack final {
 public:
  WriteBack(const StoreContext& context, LowerTier& lower, Residents& residents, WriteQueue& queue,
            Evictor& evictor, WriteWorth& worth)
      : context_(context),
        lower_(lower),
        residents_(residents),
        queue_(queue),
        evictor_(evictor),
        worth_(worth) {}
  WriteBack(const WriteBack&) = delete;
  WriteBack& operator=(const WriteBack&) = delete;

  Executor& executor() { return context_.executor; }

  // Queues the record for the lower tier, and before it those above it in its chain that are not there
  // either: else a reboot finds blocks without their chain.
  void Want(catalog::RecordId record);
  // The record, in memory, was put, found at a start, or used; or the tier lost its copy, or gave it up for
  // want of room. It is queued if its write is due.
  void NotePut(catalog::RecordId record);
  void NoteFound(catalog::RecordId record);
  void NoteUse(catalog::RecordId record);
  void NoteLost(catalog::RecordId record);
  void NoteGivenUp(catalog::RecordId record);
  // Writes queued records, in as many batches at a time as allowed.
  void Start();
  // A slice of the cleaner's look at the coldest records; true: there are more.
  bool Clean();
  // Of the coldest records in memory, those that the cleaner's last whole look went over, and how many of
  // them may leave at once: the lower tier has them, or is not to have them.
  struct Reserve {
    std::uint32_t looked = 0, ready = 0;
  };
  const Reserve& reserve() const { return reserve_; }
  // A device left service: writers that wait for it may wait for ever, and do not count any more.
  void DeviceOut();
  // Nothing waits to be written, nor is being.
  bool idle() const { return queue_.empty() && writing_.empty(); }
  // Empties the queue.
  void Stop() { queue_.Clear(); }

 private:
  // One record of a batch, with what its seal borrows.
  struct BatchItem {
    RecordReference reference;
    SlotUse use;
    arena::Place place = 0;
    std::uint64_t record_bytes = 0;
    policy::QuotaGroup group = 0;  // whose quota it counts for, with so many bytes
    std::uint32_t body_bytes = 0;
    std::uint64_t devices_out = 0;    // the count when the record joined the batch
    std::uint64_t rewrite_bytes = 0;  // as of a WriteQueue::Entry
    std::optional<record::SealCopy> seal;
    tier::AppendRequest request;  // borrows the seal; its sequence is set last
  };
  static constexpr std::size_t kBatchRecords = 128;  // checked once more in one step
  // Records above one in its chain that neither lie in the lower tier nor are on their way there, from its
  // parent on.
  static constexpr std::size_t kAncestorLooks = 64;
  struct Above {
    std::array<catalog::RecordId, kAncestorLooks> records;
    std::size_t count = 0;
    bool more = false;       // than so many
    bool too_large = false;  // one of them is, so nothing that extends it would be reached
  };
  enum class More : std::uint8_t { kNo, kYes };

  Above AboveOf(catalog::RecordId record) const;
  // Whether records that extend this one may be queued without it: it is queued, written or being written,
  // or will never be there.
  bool Comes(catalog::RecordId record) const;
  // Marks the record as queued.
  bool MayQueue(catalog::RecordId record);
  WriteQueue::Entry EntryOf(catalog::RecordId record, bool more_above) const;
  void Queue(catalog::RecordId record, More more);
  void QueueMoreAbove();
  void WriteHeldUp();
  void WriteGivenUp();
  // What is written takes nobody's room.
  bool RoomLeft() const { return lower_->write_costs().turn_ms == 0; }
  // It takes others' room again: its copy was given up.
  bool Rewrites(const catalog::Record& record) const { return record.given_up && !RoomLeft(); }
  std::uint64_t RewritesToCome() const { return queue_.rewrite_bytes() + writing_rewrites_; }
  // What is to leave memory may be written, though its copy was given up; and what stays there.
  bool MayRewriteLeaving() const { return RoomLeft() || rewrites_.ForLeaving(RewritesToCome()); }
  bool MayRewriteStaying() const { return RoomLeft() || rewrites_.ForStaying(RewritesToCome()); }
  bool MayWriteMore() const;
  // A block in the lower tier extends the record's.
  bool ExtendedBelow(const catalog::Record& record) const;
  bool ReachedBelow(const catalog::Record& record) const;
  // The record's namespaces would pass their quota of the lower tier.
  bool OverQuota(const catalog::Record& record);
  Task<void> WriteBatches();
  Task<void> Gather(std::deque<BatchItem>& items);
  bool AddToBatch(catalog::RecordHandle handle, std::uint64_t record_bytes, std::deque<BatchItem>& items);
  std::vector<tier::AppendRequest> WithoutDead(std::deque<BatchItem>& items);
  void EndWriting(BatchItem& item);
  void Written(BatchItem& item, tier::Location location);

  const StoreContext context_;
  LowerTier& lower_;
  Residents& residents_;
  WriteQueue& queue_;
  Evictor& evictor_;
  WriteWorth& worth_;
  std::uint32_t writers_ = 0;
  boost::unordered_flat_set<std::uint64_t> writing_;  // serials of the records of the batches under way
  std::uint64_t writing_bytes_ = 0;
  std::uint64_t writing_rewrites_ = 0;
  policy::QuotaTable::Used writing_of_{};  // by group, of bodies
  std::uint64_t devices_out_ = 0;
  policy::RewriteAllowance rewrites_;
  // The cleaner's position, a share of its looks for each shelf of the order.
  std::optional<catalog::RecordId> cleaning_;
  std::size_t next_shelf_ = 0;
  std::size_t shelf_looks_ = 0;  // left for this one
  std::size_t looks_a_shelf_ = 0;
  std::uint32_t clean_looks_ = 0;
  Reserve reserve_, looking_;
};

}  // namespace cistern::residency
