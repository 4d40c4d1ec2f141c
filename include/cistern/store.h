// SPDX-License-Identifier: Apache-2.0
// Cistern's calls. A Store is a node in this process (Open) or the node of this host (Connect); both give
// the same calls and the same guarantees:
//
//   - A hit is bit-exact or it is a miss.
//   - Nothing is visible before it is whole: all parts of one put committed, and the parent reachable.
//   - No call without a deadline; nothing grows without a bound (kBusy instead).
//
// A handle may be used by any number of threads. It refuses to work in a forked child (kDenied). After the
// node went away every call says kGone; connect again, nothing published is lost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cistern/key.h"
#include "cistern/lease.h"
#include "cistern/namespace.h"
#include "cistern/options.h"
#include "cistern/status.h"
#include "cistern/ticket.h"
#include "cistern/where.h"

namespace cistern {

// A namespace as attached by one store; cheap to copy.
class Namespace {
 public:
  Namespace() = default;
  Namespace(std::uint32_t slot, std::uint64_t incarnation, std::shared_ptr<const NamespaceSpec> spec)
      : slot_(slot), incarnation_(incarnation), spec_(std::move(spec)) {}
  std::uint32_t slot() const { return slot_; }
  std::uint64_t incarnation() const { return incarnation_; }
  const NamespaceSpec& spec() const { return *spec_; }

 private:
  std::uint32_t slot_ = 0;
  std::uint64_t incarnation_ = 0;
  std::shared_ptr<const NamespaceSpec> spec_;
};

struct BlockRef {
  BlockKey key;
  std::uint16_t group = 0;
};

// `bytes` from `offset` of a part go to `to`, or where there are `pieces`, to these one after the other:
// their sizes add up to `bytes`. Each segment (64 KiB) of a part that a range touches is checked once a
// range, so one range in pieces is cheaper than a range a piece. A range past the part's end is kInvalid.
struct ReadRange {
  std::uint16_t part = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  void* to = nullptr;
  std::span<const std::span<std::byte>> pieces{};
};

struct BlockRead {
  BlockKey key;
  std::uint16_t group = 0;
  std::span<const ReadRange> ranges;  // all from one and the same record, or none
};

struct ReadResult {
  std::uint32_t leading_hits = 0;  // blocks before the first that was not a hit
  // One a block: kOk, kMiss, kInvalid; of blocks below memory also kTooLate, and kBusy where there was no
  // room to fetch them into. What is not kOk left anything where it should have gone.
  std::vector<Code> outcomes;
};

struct MatchResult {
  std::uint32_t blocks = 0;    // the longest reachable prefix over all groups together
  std::vector<MatchRun> runs;  // from block 0 on; their counts add up to `blocks`
  Lease hold;                  // with hold_us: keeps what matched, and its ancestors, where they are
};

// Shared memory of the node's making that a put starts from. Must outlive the write's ticket; a dropped
// Staging is given back when the last write from it has completed.
class Staging {
 public:
  Staging() = default;
  Staging(std::shared_ptr<void> keep, std::byte* data, std::uint64_t bytes, std::uint64_t offset)
      : keep_(std::move(keep)), data_(data), bytes_(bytes), offset_(offset) {}
  std::byte* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t offset() const { return offset_; }  // within the session's staging; what the node is told

 private:
  std::shared_ptr<void> keep_;
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  std::uint64_t offset_ = 0;
};

// One part of a block. `data` is either the caller's own memory, which is copied to staging before Write
// returns (and its checksums travel along), or lies within a Staging, which must not change until the write
// completed. Where there are `pieces`, they are the part instead, one after the other, from the caller's own
// memory.
struct BlockWrite {
  BlockKey key;
  std::optional<BlockKey> parent;  // none for the chain's first block
  std::uint16_t group = 0;
  std::uint16_t part = 0;
  PutId put_id;
  std::span<const std::byte> data;
  std::span<const std::span<const std::byte>> pieces{};
};

struct WriteOutcome {
  Code code = Code::kOk;
  enum class State : std::uint8_t {
    kNone = 0,   // not ok
    kPublished,  // visible now
    kPresent,    // the block was there already; the first published wins
    kPending,    // waits for its other parts, its parent, or Publish
  } state = State::kNone;
};

struct WriteResult {
  std::vector<WriteOutcome> outcomes;  // one a BlockWrite
  std::string message;                 // of the first that is not ok
};

// What an engine knows of its use of the store and the store does not: added up in the node's metrics, where
// it says whether the cache pays.
struct EngineReport {
  std::uint64_t promised_tokens = 0;   // that a match said need not be computed, and were not scheduled
  std::uint64_t delivered_tokens = 0;  // of these, whose KV came; the others were computed after all
  std::uint64_t saved_us = 0;          // what computing those that came would have taken, by its own estimate
  std::uint64_t spent_us = 0;          // what its requests waited for them
};

class Store {
 public:
  // The one call without a deadline: it waits for the directories and devices of the options, and for what
  // they hold, as long as these take, as a node's start does.
  static Result<Store> Open(const OpenOptions& options);
  static Result<Store> Connect(const ConnectOptions& options);

  Store(Store&&) noexcept;
  Store& operator=(Store&&) noexcept;
  ~Store();  // releases leases; ends the node if it was opened

  // kMismatch where the namespace's name is stored with another list: the message has the differing field
  // and both values. kInvalid for a list that is not allowed.
  Result<Namespace> Attach(const NamespaceSpec& spec, std::int64_t deadline_us = kDefaultDeadlineUs);
  // The same for a namespace that the node knows already, by its list or by its name and list: kMiss where it
  // does not, and nothing is made or changed. For what makes no sense of a new one, as a drop: a mistyped
  // name is then an error. A node of before there was this call attaches a new one.
  Result<Namespace> AttachKnown(const NamespaceSpec& spec, std::int64_t deadline_us = kDefaultDeadlineUs);

  // The longest prefix of `chain` (keys from block 0 on) that can be read, from memory, from flash or from
  // another node of the cell. A hint, unless it holds; a hold is of what this node has. What lies on flash
  // begins to come up, as far as the node reads ahead. Another node is asked only where one is known to have
  // more than this one, and waited for 40 ms at most; what it has can be read or acquired by its keys for a
  // minute.
  Ticket<MatchResult> Match(const Namespace& ns, std::span<const BlockKey> chain, const MatchOptions& = {});

  // Copies ranges to the caller, checked. Blocks in memory are read before the call returns, without the
  // node, and where that is all of them, or the node has memory alone, the ticket is ready then. Otherwise
  // the node is asked for the rest: what lies on flash, or was matched at another node, is fetched into
  // memory, all of it beside each other, and Wait copies it from there. Of a read of more than 64 MiB that is
  // in turns: the ticket is ready with the first, and Wait waits for the others. kTooLate for a block that
  // would be ready after `worth_us` (its device is not bothered with it then), or was not ready by then or by
  // the deadline; the others are not held up. The memory that the ranges go to must stay until the ticket was
  // waited for or is gone, and is not touched any more then; the lists that describe it (blocks, ranges,
  // pieces) only until the call returns.
  Ticket<ReadResult> Read(const Namespace& ns, std::span<const BlockRead> blocks, const ReadOptions& = {});

  // Leases views. Blocks that lie on flash, or were matched at another node, are fetched into memory first,
  // all of them beside each other. A block that is not here has a null view, whose code says why: kMiss;
  // kTooLate for one that would be ready after `worth_us`, or was not ready by then or by the deadline; kBusy
  // for one that there was no room to fetch into. Where no block has a view, that is the answer: kTooLate
  // where any is too late, else kBusy where any had no room, otherwise kMiss. All that it leases is in memory
  // at once, so what memory has no room for beside it has no view. kBusy at once where the owner has its
  // share of leases already (docs/bounds.md).
  Ticket<Lease> Acquire(const Namespace& ns, std::span<const BlockRef> blocks, const AcquireOptions& = {});

  // kBusy past the bound of all sessions together, an eighth of the node's memory, or past this owner's share
  // of it (docs/bounds.md). kTooLate where the session has not as much and the node gave it no more by then.
  Result<Staging> AllocateStaging(std::uint64_t bytes, std::int64_t deadline_us = kDefaultDeadlineUs);

  // Writes parts of blocks, parents before children. The ticket completes when the node has let go of the
  // bytes.
  Ticket<WriteResult> Write(const Namespace& ns, std::span<const BlockWrite> blocks,
                            const WriteOptions& = {});

  // Makes what was written `held` under these put ids by this owner visible, or drops it. kDenied for
  // another owner's.
  Ticket<std::uint32_t> Publish(const Namespace& ns, std::span<const PutId> puts,
                                std::int64_t deadline_us = kDefaultDeadlineUs);
  Ticket<std::uint32_t> Abandon(const Namespace& ns, std::span<const PutId> puts,
                                std::int64_t deadline_us = kDefaultDeadlineUs);

  // Counts as a use, in the order given; applied when the ticket completes. With a conversation it is that
  // one's use: blocks that another conversation wrote stay when that one is ended.
  Ticket<std::uint32_t> Touch(const Namespace& ns, std::span<const BlockKey> keys,
                              std::int64_t deadline_us = kDefaultDeadlineUs,
                              std::string_view conversation = {});

  // Removes blocks and all that descends from them; complete when durable and nothing of it can be read any
  // more. The count is of blocks removed. At a member of a cell this and the two that follow are the cell's
  // (docs/cell.md): complete when every member of it has done so, with the count of this node.
  // kUnavailable: etcd cannot be reached, or the node has not joined; nothing was dropped. kTooLate: the
  // message says whether it may take effect still.
  Ticket<std::uint64_t> Drop(const Namespace& ns, std::span<const BlockKey> keys,
                             std::int64_t deadline_us = kDefaultDeadlineUs);
  // Removes, as Drop does, the blocks that a conversation wrote (WriteOptions) and of which this is the last
  // to have written, built on or touched them that has not ended, and what descends from them; never one that
  // more than 8 have. Who used what is known since the node's last start only, who wrote it as long as the
  // block is there; the node remembers 262,144 blocks of conversations and forgets those of the quietest ones
  // first. The count is of blocks removed; 0 for a conversation that is not known. To be asked again after
  // kBusy.
  Ticket<std::uint64_t> EndConversation(const Namespace& ns, std::string_view conversation,
                                        std::int64_t deadline_us = kDefaultDeadlineUs);
  // All of a namespace; it stays attached, under a new incarnation.
  Ticket<std::uint64_t> DropNamespace(Namespace& ns, std::int64_t deadline_us = kDefaultDeadlineUs);

  // For people at a prompt: one block of one group with one part.
  Status Put(const Namespace& ns, const BlockKey& key, const std::optional<BlockKey>& parent,
             std::span<const std::byte> bytes, const WriteOptions& = {});
  // kMiss; kTooLate for one on flash, as Read.
  Result<std::vector<std::byte>> Get(const Namespace& ns, const BlockKey& key, const ReadOptions& = {});

  // Adds to what this engine reported before. Costs a few stores; nobody is asked.
  Status Report(const EngineReport& report);

  // The node's state as one JSON object; docs/metrics.md names its fields.
  Result<std::string> StatusJson(std::int64_t deadline_us = kDefaultDeadlineUs);

  // Switches reads, or writes, of namespaces off and on again, for every client of the node: `target` is a
  // name, the 16 digits of a list's fingerprint, or NAME=VALUE of a field or label, with `*` for any
  // characters, and means each that fits; empty: all, those that are attached later too. With
  // reads off nothing is found that is asked for after this returned, in any tier; views that were leased
  // before stay good until they end. With writes off nothing is kept that is written after this returned:
  // each part is kBusy. What is there stays, and it lasts until it is turned back or the node ends. How many
  // namespaces it concerns; kMiss: there is none of that name.
  Result<std::uint32_t> SwitchReads(std::string_view target, bool on,
                                    std::int64_t deadline_us = kDefaultDeadlineUs);
  Result<std::uint32_t> SwitchWrites(std::string_view target, bool on,
                                     std::int64_t deadline_us = kDefaultDeadlineUs);
  // The same of one engine, by the name that its sessions have (ConnectOptions::engine_name): for others what
  // it stored is there as ever. It holds for sessions of that name that come later too, until it is turned
  // back or the node ends. How many sessions have the name now; kMiss: none has, and nothing of it is off;
  // kMismatch: the node is of a release that knows no engines.
  Result<std::uint32_t> SwitchEngineReads(std::string_view engine, bool on,
                                          std::int64_t deadline_us = kDefaultDeadlineUs);
  Result<std::uint32_t> SwitchEngineWrites(std::string_view engine, bool on,
                                           std::int64_t deadline_us = kDefaultDeadlineUs);
  // Drops all of a namespace, whoever uses it, by the 16 digits of its list's fingerprint, or else by its
  // name; it stays, empty. The blocks removed. kMiss: there is none of that name.
  Result<std::uint64_t> DropNamed(std::string_view target, std::int64_t deadline_us = kDefaultDeadlineUs);
  // Sets the node's memory on its way to another size, up to eight times what its arena was made with, and
  // returns at once; the bytes of slots that it will have. StatusJson says how far it is (memory.bytes,
  // memory.held_bytes). Growing, each 32 MiB serves as soon as the host gave it; shrinking, the coldest
  // blocks leave, what is leased stays until its leases end, and the rest stays readable all the time.
  // kInvalid, kBusy: too small, more than there is room for, or than the host has; nothing has changed.
  Result<std::uint64_t> ResizeMemory(std::uint64_t bytes, std::int64_t deadline_us = kDefaultDeadlineUs);
  // Sets the node on its way out of service, or back, and returns at once; StatusJson says how far it is
  // (drain.stage). Puts are refused (kBusy) from then on; what memory alone has is written to flash where
  // memory goes with the host; then nothing is found any more, and leases and puts that wait end by
  // themselves. kInvalid: `then_stop` of a node that is a part of another program.
  Status Drain(const DrainOptions& options, std::int64_t deadline_us = kDefaultDeadlineUs);
  // The namespaces that the node knows, {"namespaces": [...]}, with what each has in each tier and how much
  // it was used; docs/commands.md names the fields. The node walks over all its blocks for it, beside other
  // work. kMismatch: the node is of before there was this call.
  Result<std::string> NamespacesJson(std::int64_t deadline_us = kDefaultDeadlineUs);
  // The node's settings, {"settings": [...]}, with where each comes from and whether a reload changes it.
  Result<std::string> ConfigurationJson(std::int64_t deadline_us = kDefaultDeadlineUs);
  // The members of the node's cell, {"members": [...]}; docs/commands.md names the fields. kMiss: the node is
  // in none.
  Result<std::string> CellJson(std::int64_t deadline_us = kDefaultDeadlineUs);
  // Which member of the node's cell has how much of a prompt's chain (keys from block 0 on, at most 20,000),
  // for who routes requests: {"of": keys, "members": [...]}, most of it first; docs/commands.md names the
  // fields. Members of which something of it is known are asked, at once, and say what they have; the others
  // cost no message. kMiss: the node is in no cell.
  Result<std::string> CellHoldersJson(const Namespace& ns, std::span<const BlockKey> chain,
                                      std::int64_t deadline_us = kDefaultDeadlineUs);
  // Why the last block of a chain (or a block alone, where the chain is not known) is not found at this node
  // or was refused here; every member that can be reached is asked. As one JSON object; docs/commands.md
  // names the fields. kMiss: the node is in no cell.
  Result<std::string> CellExplanationJson(const Namespace& ns, std::span<const BlockKey> chain,
                                          std::int64_t deadline_us = kDefaultDeadlineUs);

  // Takes a device of the node's flash out of service at once, whatever it is doing: what only it had is
  // lost. Or brings one back that was taken out or that failed, formatted anew. `path` is as the node was
  // given it. kMiss: the node has no such device; kBusy: something is still under way there; kIoError.
  Status TakeOutDevice(std::string_view path, std::int64_t deadline_us = kDefaultDeadlineUs);
  Status BringBackDevice(std::string_view path, std::int64_t deadline_us = kDefaultDeadlineUs);

  // This engine's token, for its other processes.
  OwnerToken owner() const;

  // Collects answers of the node; ids of tickets that became ready are appended to `ready`. Returns how many.
  std::size_t Poll(std::vector<std::uint64_t>* ready);
  // Readable while an answer waits to be polled; for epoll and asyncio. Owned by the store.
  int event_fd() const;

 private:
  struct Parts;
  explicit Store(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace cistern
