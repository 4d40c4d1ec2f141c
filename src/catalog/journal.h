// SPDX-License-Identifier: Apache-2.0
// The small log of what must not come back (R10): which lists are namespaces and under which incarnation, the
// tombstones of dropped keys, which conversations ended whose blocks stay, up to where sequence numbers may
// have been used, which devices of flash its tombstones have waited for, and how far the drops of a cell are
// in it. docs/formats/journal.md describes its files: it lies there twice, so that what damages one copy does
// not take what was acknowledged. It is bounded by what it says now: it keeps that in memory as well and
// rewrites the files when history is more than half of them.
//
// Nothing is durable before its task ends with ok: then both copies have it. Appends that come together share
// one write and one sync of each copy, as far as a batch goes (kJournalBatchBytes). A namespace whose append
// failed is not in the file when it is written again: what was there before it is. Files that another program
// removed are written anew. Work on much of it goes on from step to step (R16).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/event.h"
#include "base/task.h"
#include "catalog/namespace_table.h"
#include "cistern/key.h"
#include "cistern/status.h"
#include "io/loop.h"
#include "tier/journal_view.h"

namespace cistern::catalog {

inline constexpr std::uint64_t kJournalMagic = 0x4c4e5255'4f4a4943;  // "CIJOURNL" in memory
inline constexpr std::uint64_t kJournalVersion = 2;                  // and 1 is read
// Of records in one batch, but for a single record that is longer.
inline constexpr std::size_t kJournalBatchBytes = 16u << 10;

// A key of an incarnation was dropped: no record of it or below it counts that was born before.
struct Tombstone {
  std::uint64_t sequence = 0;  // at the drop; also its number
  std::uint64_t incarnation = 0;
  BlockKey key;
  friend bool operator==(const Tombstone&, const Tombstone&) = default;
};

// A conversation of an incarnation ended, and blocks that it wrote stay because others use them: a stamp from
// before says of these that they are its own.
struct ConversationEnd {
  std::uint64_t sequence = 0;  // at the end; also its number
  std::uint64_t incarnation = 0;
  std::uint64_t conversation = 0;
  friend bool operator==(const ConversationEnd&, const ConversationEnd&) = default;
};

// How far a member of a cell had come; docs/formats/cell.md has what each number means.
struct CellStanding {
  std::uint64_t history = 0;  // 0: it never was in a cell
  std::uint64_t cluster_id = 0;
  std::uint64_t highest_revision = 0;
  std::uint64_t applied = 0;  // every drop of the cell up to this revision is in the journal
  std::uint64_t last_revision = 0, last_hash = 0;  // of the last batch up to there
  friend bool operator==(const CellStanding&, const CellStanding&) = default;
};

class Journal final {
 public:
  // Past it the earliest is forgotten: what it left is its writer's again after a restart, and leaves as any
  // other block does.
  static constexpr std::size_t kMostConversationEnds = 16'384;

  // The files are `<directory>/journal` and `<directory>/journal.copy`; the directory exists. The loop is
  // borrowed. `new_id` is random: who the journal is, should there be none yet.
  Journal(io::Loop& loop, std::string directory, std::uint64_t new_id);
  // No task may be under way, or all of them were dropped.
  ~Journal() = default;
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  Executor& executor() { return loop_.executor(); }

  struct Contents {
    std::vector<NamespaceEntry> namespaces;
    std::vector<Tombstone> tombstones;
    std::vector<ConversationEnd> conversation_ends;  // rising
    std::uint64_t sequences_below = 0;               // no sequence number from here on was ever used
    std::vector<std::uint64_t>
        devices;  // of flash, by id: the tombstones of what was dropped on them are here
    // Both copies are damaged before their end: tombstones may be lost, so nothing from before may be
    // believed.
    bool damaged = false;
    std::uint64_t time_s = 0;  // what the time was at least when it was last written
    // How far it had come; state 0: there was none, or one of version 1.
    tier::JournalMark mark;
    // The highest sequence of a tombstone that has ended: no medium had anything older then.
    std::uint64_t ended = 0;
    // What an operator should know of a copy whose place the other one took.
    std::vector<std::string> notes;
  };
  // Reads what is there, to be awaited first: what either copy has. What neither has at the end was never
  // acknowledged. kMismatch: another format version, or no journal at all.
  Task<Result<Contents>> Open();

  // What of the contents still counts; replaces the files. Awaited once, after Open and before the others.
  Task<Status> Start(std::vector<NamespaceEntry> namespaces, std::uint64_t sequences_below,
                     std::vector<Tombstone> tombstones = {}, std::vector<std::uint64_t> devices = {},
                     const std::vector<ConversationEnd>& conversation_ends = {});

  // Marks are further than `mark` from the next Start on: another copy of this journal has come so far.
  void Pass(const tier::JournalMark& mark) { state_ = std::max(state_, mark.state); }
  // `call` from Start on, whenever mark() or ended() has changed: of the mark before anyone is told that it
  // is durable, of ended() before that is written.
  void OnChange(std::function<void()> call) { changed_ = std::move(call); }
  // How far it has come durably.
  const tier::JournalMark& mark() const { return mark_; }
  std::uint64_t ended() const { return ended_; }

  // Which journal this is: what was written under another one knows nothing of its drops. From Open on.
  std::uint64_t id() const { return id_; }
  // Of a namespace, from a sequence number of its own: never that of another journal's.
  std::uint64_t IncarnationOf(std::uint64_t sequence) const;

  // Numbers below `below` may be used once this is durable.
  Task<Status> ReserveSequences(std::uint64_t below);
  // A new namespace, or one with another name, window or incarnation.
  Task<Status> PutNamespace(const NamespaceEntry& entry);
  Task<Status> AddTombstone(Tombstone tombstone);
  Task<Status> AddConversationEnd(ConversationEnd end);
  // The devices that tombstones wait for from now on. To be durable before one ends that a device would need
  // which is not among them.
  Task<Status> PutDevices(std::vector<std::uint64_t> devices);
  // Nothing older than the tombstone is left. Written with the next append: until then it does no harm.
  void EndTombstone(std::uint64_t sequence);
  // It is as late as that: what has expired by then stays so, should the clock go back (R10).
  Task<Status> PutTime(std::uint64_t time_s);

  // ---- what takes effect whatever becomes of the files: durable with the next Settle that ends with ok ----
  void NoteTombstone(const Tombstone& tombstone);
  void NoteConversationEnd(const ConversationEnd& end);
  // No append of the same namespace may be under way: one that fails goes back to what was there before it.
  void NoteNamespace(const NamespaceEntry& entry);
  // All that was noted before, and behind it the standing where there is one: never the standing alone.
  Task<Status> Settle(const CellStanding* standing = nullptr);
  // As of the last Settle that said one, or of the start. From Open on.
  const CellStanding& standing() const { return standing_; }

  std::size_t tombstones() const { return tombstones_.size(); }
  std::size_t conversation_ends() const { return conversation_ends_.size(); }
  std::uint64_t file_bytes() const { return end_; }  // of one copy

  // ---- what an operator should know, from Start on ----
  // Why the last write failed, with the way out; ok: it did not.
  const Status& trouble() const { return trouble_; }
  std::uint64_t failures() const { return failures_; }  // of writes
  // Kept for writing it anew on a full disk; 0: there was no room for it, and a restart may fail.
  std::uint64_t spare_bytes() const { return spare_bytes_; }
  // Whether another program removed a file of it: the next write makes both anew.
  bool removed() const;
  // Its directory is no longer this node's: nothing is written there any more, and what would be ends with
  // `status` at once. ok: nobody is to find what it says.
  void GiveUp(Status status) {
    trouble_ = status;
    given_up_ = std::move(status);
  }

 private:
  enum class Kind : std::uint8_t {
    kSequences = 1,
    kNamespace = 2,
    kTombstone = 3,
    kTombstoneEnd = 4,
    kId = 5,
    kDevices = 6,
    kTime = 7,
    kWhole = 8,
    kEnded = 9,
    kCell = 10,
    kLabels = 11,
    kConversationEnd = 12,
  };
  using Files = std::array<io::File, 2>;  // the journal, its copy
  // A copy as it was found.
  struct Found {
    std::string path;
    std::vector<std::byte> bytes;  // empty: there is none
    Status status;                 // why it cannot be read
    std::uint64_t version = 0, id = 0, state = 0;
    bool readable() const { return status.ok() && !bytes.empty(); }
    std::size_t head_bytes() const;
  };

  // A namespace as the files have it: its record, and where it has labels theirs behind it.
  struct Named {
    std::vector<std::byte> list, labels;  // no list: there is none
    // Of their payloads in one batch, with the head between two.
    std::size_t payload_bytes() const;
  };
  static Named NamedOf(const NamespaceEntry& entry);

  // Somebody who waits for an append.
  struct Asked {
    bool done = false;
    Status status;
    Event told;  // done, or its turn to flush
    // What a namespace's slot held before, to go back to.
    bool names = false;
    std::uint32_t slot = 0;
    Named before;
  };
  using AskedPtr = std::shared_ptr<Asked>;
  struct Batch {
    std::vector<std::byte> bytes;  // room for its header, then records
    std::vector<AskedPtr> asked;
  };

  static void Append(std::vector<std::byte>& batch, Kind kind, std::span<const std::byte> payload);
  static std::vector<std::byte> PayloadOf(const Tombstone& tombstone);
  static void Append(std::vector<std::byte>& batch, const Named& named);
  static std::vector<std::byte> PayloadOf(const ConversationEnd& end);
  // What the next flushes write last, with room for a record of so many bytes.
  std::vector<std::byte>& BatchFor(std::size_t payload_bytes);
  // Adds a record to what the next flushes write.
  void Append(Kind kind, std::span<const std::byte> payload);
  void Append(const Named& named);
  // What the slot held before; its new record goes into the next flushes.
  Named Replace(const NamespaceEntry& entry);
  Task<Found> Find(std::string path);
  // Which of the copies count, the first of them first, with notes on those that do not; kMismatch or
  // kIoError where there are some and none can be read.
  Result<std::vector<Found>> Choose(std::vector<Found> copies, Contents* contents) const;
  // Whether the batch of `size` bytes of records at `at` checks.
  Task<bool> Checks(std::span<const std::byte> bytes, std::size_t at, std::size_t size);
  // The records of the batch at `at`, from the first copy where it checks; empty: from none.
  Task<std::span<const std::byte>> BatchAt(const std::vector<Found>& copies, std::size_t at,
                                           Contents* contents);
  // What the records so far leave.
  struct Applied {
    std::map<std::uint32_t, NamespaceEntry> namespaces;
    std::map<std::uint64_t, Tombstone> tombstones;
    std::map<std::uint64_t, ConversationEnd> ends;
    bool whole = false;
  };
  void Apply(Kind kind, std::span<const std::byte> payload, Applied* applied, Contents* contents);
  // Applies the batches from `at` on as long as they check; returns where they end.
  Task<std::size_t> Apply(const std::vector<Found>& copies, std::size_t at, Contents* contents);
  // Whether what lies behind the last batch that checks is more than an append that a crash cut off.
  Task<bool> DamagedBehind(std::span<const std::byte> bytes, std::size_t at);
  Task<Status> Both(Task<Status> of_journal, Task<Status> of_copy);
  Task<Status> Write(Files& files, std::span<const std::byte> bytes, std::uint64_t at);
  Task<Status> Sync(Files& files);
  Task<Status> WriteAndSync(io::File& file, std::span<const std::byte> bytes, std::uint64_t at);
  // A file of this name that is empty.
  Result<io::File> MakeAnew(const std::string& path);
  // Writes all that counts to new files; returns where they end.
  Task<Result<std::uint64_t>> WriteAnew(Files& files);
  Task<Status> Rewrite();
  // Room for writing it anew once where the file system has none left, kept by a file beside it.
  Task<void> KeepSpare();
  Task<Status> TakeRoom(io::File& file, std::uint64_t bytes);
  bool GiveUpSpare();
  // Ends when the last record of what was appended so far is durable, or is not.
  Task<Status> Flush(AskedPtr asked);
  Task<Status> Flush() { return Flush(std::make_shared<Asked>()); }
  // Writes a batch, or everything anew; and for whom.
  Task<Status> WriteOut(std::vector<AskedPtr>* asked);
  void TakeAll(std::vector<AskedPtr>* asked);  // of what is pending
  Task<Status> WriteAllAnew();
  void NoteOutcome(Status& status);
  void GoBack(const std::vector<AskedPtr>& failed);
  void Ended(std::uint64_t sequence) { ended_ = std::max(ended_, sequence); }
  void Changed() {
    if (changed_) changed_();
  }

  io::Loop& loop_;
  const std::string directory_;
  Files files_;
  std::uint64_t end_ = 0;          // of the files
  std::uint64_t live_bytes_ = 0;   // of a file when it was last rewritten
  std::uint64_t spare_bytes_ = 0;  // room that is kept for writing it anew
  bool named_ = false;             // the files were, as they were made
  bool broken_ = true;             // an append failed: the file's end is unknown, so it is written anew
  // A node that cannot read a slot's new record can read the one before it and would go by that: the files
  // are written anew, with one record of the slot.
  bool outdated_ = false;

  std::map<std::uint32_t, Named> namespaces_;                   // by slot
  std::map<std::uint64_t, Tombstone> tombstones_;               // by sequence
  std::map<std::uint64_t, ConversationEnd> conversation_ends_;  // by sequence
  std::uint64_t sequences_below_ = 0;
  std::uint64_t id_;
  std::uint64_t state_ = 0;
  std::uint64_t ended_ = 0;
  tier::JournalMark mark_;
  std::function<void()> changed_;
  std::vector<std::uint64_t> devices_;
  std::uint64_t time_s_ = 0;
  CellStanding standing_;

  bool spare_due_ = false;  // with the next append

  Status trouble_;
  std::uint64_t failures_ = 0;
  std::optional<Status> given_up_;

  std::deque<Batch> pending_;  // not yet handed to the file
  bool flushing_ = false;
};

}  // namespace cistern::catalog
