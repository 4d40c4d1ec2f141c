// SPDX-License-Identifier: Apache-2.0
// The inside of BlockStore, for the folder's .cc files alone, each of which holds one idea: read.cc (attach,
// match, leases, touches), write.cc (puts on their way), publish.cc (what becomes visible), evict.cc (room),
// drop.cc (what goes for good), recover.cc and recover_flash.cc (what comes back), down.cc, fetch.cc,
// pass.cc and reclaim.cc (to flash, from there, past memory, and what there is given up), scrub.cc.
//
// A step of the core counts what it touches (R16): whoever loops asks Spent() and yields. Ids of records and
// puts may be reused across a yield, so who kept one over it compares serials, or counts as a user of the
// put.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "arena/protocol.h"
#include "base/event.h"
#include "base/task_group.h"
#include "flash/tier.h"
#include "memory/movers.h"
#include "memory/recovery.h"
#include "memory/slots.h"
#include "policy/evict.h"
#include "policy/lower.h"
#include "record/seal_copy.h"
#include "store/block_store.h"
#include "store/conversations.h"
#include "store/due.h"
#include "store/journal.h"
#include "store/leases.h"
#include "store/matched_runs.h"
#include "store/names.h"
#include "store/passages.h"
#include "store/pending.h"
#include "store/tree.h"

namespace cistern {

// Below kStepTouches by what the longest indivisible piece may touch.
inline constexpr std::uint32_t kSpentTouches = 300;
inline constexpr std::uint32_t kStandingLooks = 192;
inline constexpr std::uint32_t kMovesATouch = 8;  // of the table of blocks: they are asked for in waves
// Windows of more blocks are ordered like full groups: finding what fell behind costs a look a block.
inline constexpr std::uint32_t kMaxWindowLooks = 64;
// How long what comes up looks for room; who waits for it has a deadline of its own.
inline constexpr std::int64_t kRoomUs = 5'000'000;
inline constexpr std::uint64_t kStretchBytes = 4u << 20;         // of a part, for one mover
inline constexpr std::uint64_t kSequencesReserved = 1ull << 32;  // at a time; see docs/formats/journal.md

class BlockStore::Impl {
 public:
  Impl(const Parts& parts, const BlockStoreOptions& options);
  ~Impl() { lower_.Drop(); }

  Executor& executor() { return executor_; }

  // What BlockStore says, arguments by value where a task outlives the call.
  Task<Status> Recover();
  Task<Result<Attached>> Attach(NamespaceSpec spec);
  Status CheckNamespace(std::uint32_t slot, std::uint64_t incarnation) const;
  Task<Result<std::vector<MatchedRun>>> MatchRest(std::uint32_t slot, std::uint32_t matched,
                                                  std::span<const BlockKey> rest);
  Task<Result<LeaseId>> Hold(Caller caller, std::uint32_t slot, std::span<const BlockKey> chain,
                             std::int64_t hold_us);
  Task<Result<AcquireGrant>> Acquire(Caller caller, std::uint32_t slot, std::span<const BlockName> blocks,
                                     std::int64_t lease_us, Instant deadline, std::int64_t worth_us);
  Status Release(const Caller& caller, LeaseId lease) { return leases_.End(caller, lease); }
  Task<std::vector<PartOutcome>> Write(Caller caller, std::uint32_t slot, std::vector<PartWrite> parts,
                                       Instant deadline);
  Task<Result<std::uint32_t>> EndHeld(Caller caller, std::uint32_t slot, std::span<const PutId> puts,
                                      bool publish);
  Task<std::uint32_t> Touch(std::uint32_t slot, std::span<const BlockKey> keys, std::uint64_t conversation);
  void TouchPlace(std::uint32_t place, std::uint32_t generation_low);
  Task<Result<std::uint64_t>> Drop(std::uint32_t slot, std::span<const BlockKey> keys);
  Task<Result<std::uint64_t>> EndConversation(std::uint32_t slot, std::uint64_t conversation);
  Task<Result<std::pair<std::uint64_t, std::uint64_t>>> DropNamespace(std::uint32_t slot);
  Task<Status> ReportBad(std::uint32_t slot, std::span<const BlockName> blocks);
  Task<void> SessionEnded(Caller caller, bool last_of_owner);
  bool Tick();
  Task<void> Close();
  Tier* tier() { return tier_.get(); }
  Occupancy occupancy() const;
  const StoreCounters& counters() const { return counters_; }
  std::uint32_t TakeLongestStep();

 private:
  // ---- steps ----
  // What became of a piece of work: kSpent asks for another step of the core, then it goes on.
  enum class Step : std::uint8_t { kDone, kWaits, kSpent };
  void Count(std::uint32_t touches = 1) {
    if (step_ != executor_.steps()) {
      step_ = executor_.steps();
      touches_ = 0;
      copied_ = 0;
    }
    touches_ += touches;
    longest_step_ = std::max(longest_step_, touches_);
  }
  bool Spent() {
    Count(0);
    return touches_ >= kSpentTouches;
  }

  // ---- finding (read.cc) ----
  std::uint64_t NowS() { return AdvanceTime(words_, slots_.arena(), clock_.Wall().seconds); }
  RealmId RealmOf(std::uint32_t slot) const { return slot < realms_.size() ? realms_[slot] : kNoId; }
  // The namespace of a realm that is current; null for one that was dropped.
  const NamespaceEntry* EntryOf(RealmId realm) const;
  LowerPolicy LowerOf(const Record& record) const;
  // The block of a key that stands; kNoId for none. `unsure`, when not null, is set where that could not be
  // told within a step because something is being collected: then it is kNoId as well.
  BlockId Find(RealmId realm, const BlockKey& key, bool* unsure = nullptr) {
    return IfStanding(tree_.Find(realm, key), unsure);
  }
  BlockId IfStanding(BlockId block, bool* unsure = nullptr);
  static constexpr std::size_t kFoundAhead = 32;
  void FindAhead(RealmId realm, std::span<const BlockName> names, std::span<BlockId, kFoundAhead> found);
  // Of how many blocks before a key the groups' records follow each other without a gap, `*run` one a group,
  // as far as the namespace's windows ask, and at most `most`.
  Task<void> LookBack(RealmId realm, Tag tag, std::uint32_t most, std::vector<std::uint64_t>* run);
  // The block of a tag that stands, after a yield: whoever had it found it by its key.
  BlockId FindTag(RealmId realm, Tag tag) { return IfStanding(tree_.FindTag(realm, tag)); }
  // Whether its record of the group may be read now, wherever it is; and that record, or kNoId.
  bool Readable(BlockId block, std::uint16_t group, std::uint64_t now_s) const;
  RecordId ReadableRecord(BlockId block, std::uint16_t group, std::uint64_t now_s);
  static bool Expired(std::uint32_t expiry, std::uint64_t now_s) { return expiry != 0 && now_s >= expiry; }
  void AddHold(RecordId record);
  enum class Used : bool { kNo, kYes };
  void DropHold(Held held, Used used = Used::kYes);
  Held HeldOf(RecordId record) const { return {record, tree_.record(record).serial}; }
  bool Lives(Held held) const { return tree_.record(held.record).serial == held.serial; }
  // Whether it is sound and was here when that was known: who awaits it goes on later and asks Lives.
  Task<bool> Verify(Held held);
  // What its index entry says.
  static Found FoundOf(const Record& record) {
    return {.place = record.place,
            .body_bytes = record.body_bytes,
            .expiry = record.expiry,
            .generation_low = static_cast<std::uint32_t>(record.generation) & kGenerationLowMask};
  }
  void RepairEntry(RecordId record);
  void UseBlock(BlockId block);
  void NoteUse(RecordId record);
  struct Coming;
  bool StartComing(const BlockName& asked, Instant worth, Coming* coming, ViewGrant* view);
  Task<Status> Arrive(const Coming& coming, const BlockKey& key, Instant worth, ViewGrant* view);

  // ---- puts (write.cc) ----
  struct PartJob;  // one PartWrite on its way
  struct WriteCall;
  Status CheckPart(const NamespaceEntry& entry, const PartWrite& part) const;
  // Finds or makes the put; kWaits where something is being collected that hides whether the block is here.
  Step JoinPut(const Caller& caller, RealmId realm, PartJob& job);
  Task<void> JoinWhenSure(Caller caller, RealmId realm, PartJob& job, Instant deadline);
  std::uint64_t RecordBytesOf(const Put& put) const;
  void GiveSlot(PutSlot put, Place place);
  Task<void> FindSlot(PartJob& job, Instant deadline);
  // Whether there is anything to copy: its put still open, with a slot, the part not there yet.
  bool BeginCopy(PartJob& job);
  Task<void> CopyByCore(PartJob& job);
  Task<void> CopyByMover(PartJob& job);
  void Commit(PartJob& job);
  void Leave(PutSlot put);
  // Its writer is done with it: what came of it.
  // Whether it may join a put; else its outcome says why not.
  bool Admit(const WriteCall& call, PartJob& job) const;
  // Commits what was copied, and publishes the put if that was the last.
  Task<void> Finish(WriteCall& call, PartJob& job);
  void NoteRefused(WriteCall& call, const PartJob& job);
  void Settled(PartJob& job);
  // An open put ends without becoming visible; kOk: its block was there already.
  void EndPut(PutSlot put, Code why);
  void LetGoOfSlot(PutSlot put);

  // ---- publishing (publish.cc) ----
  // As Tree::Add.
  BlockId AddBlock(RealmId realm, Tag tag, BlockId parent) {
    const std::uint64_t moved = tree_.moved();
    const BlockId block = tree_.Add(realm, tag, parent);
    Count(static_cast<std::uint32_t>(tree_.moved() - moved) / kMovesATouch);
    return block;
  }
  // kDone: published, or ended. kWaits: not whole, held back, or its parent is not reachable.
  Step TryPublish(PutSlot put);
  Step TryPublishOpen(PutSlot put);
  // Sets aside more sequence numbers before they run out.
  Task<void> ReserveSequences();
  bool LowOnSequences() const { return sequence_ + kSequencesReserved / 2 > sequences_below_; }
  // kDone and a parent of kNoId: it is not there and need not be.
  Step FindParent(PutSlot put, const NamespaceEntry& entry, BlockId* parent);
  // kDone: the put may go in; its block, if that is here as a ghost or with other groups.
  Step FindPresent(PutSlot put, BlockId parent, BlockId* block);
  // What is being collected hides the put's parent or block: it is looked at again when that is over.
  Step WaitUntilSure(PutSlot put);
  bool MayBeBelowDropped(const Put& put, BlockId parent, const NamespaceEntry& entry) const;
  // kUnknown where the answer is further away than a step may look.
  Tree::Answer HangsBelow(BlockId block, BlockId top);
  // Where there is no room, a record goes that may, of another block.
  bool EnterIndex(const Fingerprint& fingerprint, const Found& found, BlockId block, std::uint32_t* number);
  BlockId BlockFor(PutSlot put);
  void MakeVisible(PutSlot put, BlockId block, std::uint32_t index_number, const NamespaceEntry& entry);
  void MarkBehind(BlockId block, std::uint16_t group, const NamespaceEntry& entry);
  // Whether there is something for CascadeSlice.
  bool CascadeWaits() const { return !cascade_.empty() || (!unsure_.empty() && !tree_.collecting()); }
  // Publishes what waits below what was published, and what waits below that; a slice of it. Whether there is
  // more.
  bool CascadeSlice();
  Task<void> Cascade();

  // ---- room (evict.cc) ----
  bool MayGo(RecordId record) const;
  // kDone: one went, the coldest of all or of a shelf. kWaits: nothing may go.
  Step EvictOne(std::optional<Shelf> shelf = std::nullopt);
  // From whose slots room comes for a record of a size; none when there are none that may go.
  std::optional<Shelf> ShelfToGo(Shelf wanted) const;
  Task<Result<Place>> MakeRoom(std::uint64_t record_bytes, Instant deadline);
  // `idle_only`: one look, for one whose records all fit elsewhere.
  Task<bool> EmptyAChunk(std::uint64_t record_bytes, Instant deadline, bool idle_only);
  Task<bool> EmptyRange(HeadRange range);
  void LoseBad(RecordId record);
  // Moves a record to another slot of its size; false where it stays, or is gone.
  Task<bool> Move(RecordId record);
  // `to` has been filled with its body.
  void Relocate(RecordId record, const SealView& seal, Place to, std::uint64_t generation);
  // Ends a record: index entry, generation, slot. Its block may be freed with it.
  void Remove(RecordId record);
  void RemoveRecordOnly(RecordId record);
  // The block becomes a ghost.
  void RemoveRecordsOf(BlockId block);
  // Its part in memory alone.
  void LeaveMemory(RecordId record);
  // Makes room of one that may go: out of memory, or for good where that was its last copy.
  void Evict(RecordId record);
  // A block lost a record or a child: frees it if it is empty, lets it go first if it may go now.
  void Settle(BlockId block);
  void Unpark(BlockId block);
  void Reap();
  bool EndOneLease(Instant now);  // whose time is over
  bool LetGoOfEnded();
  // Past a bound of leases: those whose time is over end now, not at the next tick.
  Task<void> LetGoOfAllEnded();
  void BeginIo(Place place) { ++io_[place].users; }
  void EndIo(Place place);
  void FreeSlot(Place place);

  // ---- down (down.cc) ----
  // One record of a batch, with what its seal borrows.
  struct DownItem {
    Held held;
    Place place = 0;
    std::uint64_t record_bytes = 0;
    std::uint64_t devices_lost = 0;  // when it was taken
    std::optional<SealCopy> seal;
    Outgoing outgoing;  // borrows the seal; its sequence comes last
  };
  static constexpr std::size_t kBatchRecords = 128;  // looked at once more in one step
  std::uint64_t RecordBytesOf(const NamespaceEntry& entry, std::uint16_t group,
                              std::uint64_t body_bytes) const;
  std::uint64_t RecordBytesOf(RealmId realm, std::uint16_t group, std::uint64_t body_bytes) const;
  // It is not looked for on flash any more: the tier's accounting.
  void ForgetFlash(RealmId realm, const Tree::Copy& copy);
  void WantBelow(RecordId record);
  void QueueDown(RecordId record);
  void WantWithAncestors(RecordId record);
  bool MayWriteMore() const;
  void StartWriters();
  Task<void> WriteDown();
  Task<void> GatherDown(std::deque<DownItem>& items);
  bool AddToBatch(Held held, std::uint64_t record_bytes, std::deque<DownItem>& items);
  std::vector<Outgoing> LeaveOutTheDead(std::deque<DownItem>& items);
  void BeginWriting(const DownItem& item);
  void EndWriting(const DownItem& item);
  void WrittenDown(const DownItem& item, FlashPlace flash);
  // The coldest are written before somebody needs their room; whether there is more to look at.
  bool CleanSome();
  bool TendLower();
  Task<void> NoteTime();
  void Demote(RecordId record);
  Step EvictUnwritten(std::optional<Shelf> shelf);

  // ---- up (fetch.cc) ----
  struct Fetching {
    Event done;
    Status status;
  };
  std::int64_t ReadyInUs(const FlashPlace& place, std::uint64_t bytes) const;
  void DecidePassing(RecordId record);
  // Of a record that is not in memory; all who ask meanwhile share it.
  std::shared_ptr<Fetching> StartFetch(RecordId record);
  Task<void> Fetch(Held held, std::shared_ptr<Fetching> fetching);
  Task<Status> BringUp(Held held);
  Task<Status> Enter(Held held, FlashPlace from, Place place, std::uint64_t generation, Fetched fetched);
  // Seal and stamp of what lies in a slot for the record.
  std::vector<std::byte> TrailerAt(Place place, const Record& record) const;
  // Whether a seal that was read from below is that of the record's block.
  bool IsSealOf(const Record& record, const SealView& seal) const;
  void LostBelow(RecordId record, const Status& status);
  void ReadAhead(RealmId realm, std::span<const BlockKey> chain);

  // ---- past memory (pass.cc) ----
  // Where the segments lie in the record's body; all of it where they are none, or it has not so many.
  BodySpan SpanOf(const Record& record, const SegmentSpan& segments) const;
  // The record's passage, with a slot or without; null where there is no room for one, or for a read of so
  // much beside those that are under way.
  PassagePtr OpenPassage(RecordId record, BodySpan asked);
  std::uint64_t PassingBytes(const Record& record, BodySpan span, std::uint64_t record_bytes) const;
  // What of the segments is away is on its way then.
  void AskFor(const PassagePtr& passage, const SegmentSpan& segments);
  // A read for a passage: what lies between the first and the last of its own segments comes along.
  struct PassRead {
    SegmentSpan segments;
    std::vector<bool> own;
    std::uint64_t bytes = 0;
  };
  Task<void> Pass(PassagePtr passage, PassRead read);
  Task<Status> PassOnce(PassagePtr passage, const PassRead& read, FlashPlace from);
  Task<Status> PlacePassage(PassagePtr passage);
  // Copies the read's own segments to the slot; false where one is not what the seal says.
  Task<bool> FillOwn(Place place, const PassRead& read, const SealView& seal, BodySpan span,
                     const std::byte* from);
  // Somebody has seen it fail its seal.
  Task<void> VerifyPassage(PassagePtr passage);
  // Its views are good no more. The record's hold goes without more ado.
  void EndPassage(RecordId record);
  bool EndPassageIfIdle(RecordId record);
  // The first that is, of a record in a slot of this size; whether there was one. Its record may be folded.
  bool EndIdlePassage(std::optional<SlotSize> size = std::nullopt);
  // All of them, or those that something is read for.
  Task<void> EndPassages(bool reading_only);

  // ---- giving up regions (reclaim.cc) ----
  void StartReclaim();
  Task<void> Reclaim();
  Task<void> Evacuate(const std::vector<FlashEntry>& entries);
  std::pair<BlockId, Tree::Copy> FindOnFlash(const FlashEntry& entry);
  Task<void> MoveRecords(const std::vector<const FlashEntry*>& keep);
  Task<void> MoveBatch(std::span<const FlashEntry* const> keep, std::uint64_t bytes);
  void Moved(const FlashEntry& entry, FlashPlace to);
  Task<void> ForgetRegions(std::uint32_t first, std::uint32_t last);
  void DeviceOut(std::uint32_t first, std::uint32_t last);
  Task<void> DeviceLost(std::uint32_t first, std::uint32_t last);
  Task<void> EndTombstones();
  RealmId RealmOfIncarnation(std::uint64_t incarnation) const;

  // ---- looking again (scrub.cc) ----
  void StartScrub();
  Task<void> Scrub();
  Task<void> ScrubBelow(BlockId block, Tree::Copy copy);

  // ---- dropping (drop.cc) ----
  enum class Reason : std::uint8_t { kDropped, kExpired, kBad, kNoRoom };
  struct Grave {
    BlockId top = kNoId;  // kNoId: nothing of it is in the tree
    BlockId at = kNoId;
    RealmId realm = kNoId;  // the key's; all of it goes where `whole_realm`
    bool whole_realm = false;
    PutSlot next_put = 0;
    std::vector<Tag> tags;    // whose puts, and the puts below them, end
    std::uint64_t made = 0;   // puts made later stay
    std::uint64_t since = 0;  // as `made` of the first that it was cut out of, or may have been
    Reason reason = Reason::kDropped;
    std::uint64_t blocks = 0;
    bool done = false;
  };
  // Null where its namespace was dropped.
  std::shared_ptr<Grave> Cut(BlockId block, Reason reason);
  std::shared_ptr<Grave> Bury(Grave grave);
  // One slice of what was cut; whether there is more.
  bool Collect();
  bool EndPutsStep(Grave& grave);
  void CollectNode(Grave& grave);
  void EndGrave(Grave& grave);
  Task<void> Collected(std::shared_ptr<Grave> grave);
  // Tells all ancestors of what is shared.
  Task<void> ShareAll();
  // Takes a block that was cut with an ancestor out of the way of a new one with its key.
  void Disown(BlockId block);

  // ---- coming back (recover.cc) ----
  struct Revival;
  Task<void> ClearIndex();
  Task<void> Scan(Revival& revival);
  void Admit(Revival& revival, const RecoveredBlock& found);
  Task<void> LinkParents(Revival& revival);
  Task<void> KeepReachable(Revival& revival);
  void Judge(Revival& revival, BlockId block);
  Task<void> Refuse(Revival& revival);
  Task<void> FillIndex(Revival& revival);
  Task<Status> SettleNames(Revival& revival);
  void RefuseRecord(RecordId record);
  void RefuseFolded(BlockId block);
  Task<void> FindDropped(Revival& revival);
  Task<void> WantAllBelow(const Revival& revival);
  // recover_flash.cc
  Task<Status> OpenTier(Revival& revival);
  Task<void> TickTier();
  Task<Status> ScanFlash(Revival& revival);
  Task<void> AdmitAll(Revival& revival, std::span<const FlashEntry> found);
  void AdmitFlash(Revival& revival, const FlashEntry& found);
  void AdoptFlash(RealmId realm, const Tree::Copy& copy);

  Executor& executor_;
  const Clock& clock_;
  Words& words_;
  Slots& slots_;
  IndexWriter<Words> index_;
  Movers& movers_;
  Journal& journal_;
  Logger& log_;
  const BlockStoreOptions options_;
  const OpenTierCall open_tier_;
  const std::uint32_t max_records_;     // in memory
  const std::uint32_t max_record_ids_;  // wherever they are

  Names names_;
  std::vector<RealmId> realms_;                          // by namespace slot
  std::unordered_map<std::uint64_t, RealmId> realm_of_;  // by incarnation, of those that are current
  Tree tree_;
  Pending pending_;
  Leases leases_;
  Lru order_;
  Due expiry_;
  Conversations conversations_;
  std::uint64_t bytes_ = 0;     // of bodies of records in memory
  std::uint64_t resident_ = 0;  // records in memory

  std::uint64_t sequence_ = 1;         // the next
  std::uint64_t sequences_below_ = 0;  // what the journal has set aside
  bool reserving_ = false;
  std::uint64_t last_made_ = 0;  // puts, cuts and drops, in order

  struct Below {
    RealmId realm;
    Tag tag;
    std::uint32_t groups;  // of what waits, a bit each
  };
  std::deque<Below> cascade_;  // published, and what waits below not looked at
  struct Unsure {
    PutSlot put;
    std::uint64_t made;
  };
  std::vector<Unsure> unsure_;  // puts to be looked at when all is collected; at most one each
  std::deque<std::shared_ptr<Grave>> graves_;
  std::multiset<std::uint64_t> since_;  // of all of them
  Event collected_;
  std::vector<BlockId> reap_;

  struct Io {
    std::uint32_t users = 0;
    bool dead = false;  // its record went: the slot is free when the last user is done
  };
  std::unordered_map<Place, Io> io_;
  bool emptying_ = false;
  Event emptied_;
  bool naming_ = false;
  Event named_;

  std::unique_ptr<Tier> tier_;  // null: memory is all there is
  bool recovering_ = true;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> lost_;  // regions, while it recovers
  std::deque<Held> down_;                                      // waits to be written
  std::size_t down_looked_ = 0;                                // in vain, since the last that went
  std::uint32_t writers_ = 0;
  std::uint64_t writing_ = 0;  // records that they write
  std::uint64_t writing_bytes_ = 0;
  std::uint64_t devices_lost_ = 0;    // who waits for one of these may wait forever, and does not count above
  std::optional<RecordId> cleaning_;  // where CleanSome stands
  std::uint32_t clean_looks_ = 0;
  std::unordered_map<RecordId, std::shared_ptr<Fetching>> fetching_;
  Passages passages_;
  const std::uint64_t max_passing_bytes_;
  std::uint64_t passing_bytes_ = 0;  // that are being read for them
  bool reclaiming_ = false;
  std::set<std::uint64_t> collected_tombstones_;  // of what is gone from memory
  std::vector<std::uint64_t> journaled_devices_;
  bool ending_tombstones_ = false;
  bool noting_time_ = false;
  bool expired_something_ = false;  // since the journal was told the time
  std::uint64_t noted_time_s_ = 0;
  bool scrubbing_ = false;
  BlockId scrub_at_ = 0;
  std::int64_t scrub_bytes_ = 0;  // that may be looked at now
  std::optional<Instant> scrubbed_at_;

  std::uint64_t step_ = 0;
  std::uint32_t touches_ = 0;
  std::uint32_t longest_step_ = 0;
  std::uint64_t copied_ = 0;  // in this step, by the core
  StoreCounters counters_;
  TaskGroup lower_;  // what goes on between memory and flash; last, so that it ends first
};

}  // namespace cistern
