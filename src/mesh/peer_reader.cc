// SPDX-License-Identifier: Apache-2.0
#include "mesh/peer_reader.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "mesh/landing.h"

namespace cistern::mesh {
namespace {

constexpr std::size_t kBegunAhead = 8;  // blocks for which what Begin looks at is prefetched together

// A namespace's groups as a read of blocks needs them.
struct GroupWanted {
  std::uint16_t group = 0;
  bool required = false;
  std::uint64_t body_bytes = 0;
};

// Full groups first: the others' records stand on theirs.
void TakeGroups(const catalog::NamespaceEntry& entry, const PeerRun& run, std::size_t block,
                std::vector<GroupWanted>& wanted) {
  std::vector<GroupWanted> others;
  wanted.clear();
  const std::size_t end = run.first + run.count;
  std::size_t free_groups = 0, free_number = 0;
  for (const catalog::Group& group : entry.groups) free_groups += group.part_bytes.empty() ? 1 : 0;
  for (std::uint16_t g = 0; g < entry.groups.size(); ++g) {
    const catalog::Group& group = entry.groups[g];
    const bool full = group.reach == Reach::kFull;
    std::uint64_t bytes = group.body_bytes;
    if (group.part_bytes.empty()) {
      const std::size_t at = (block - run.first) * free_groups + free_number++;
      bytes = at < run.body_bytes.size() ? run.body_bytes[at] : 0;
    }
    // A window reaches so far back from the run's end.
    if (!full && block + std::max(1u, group.window_blocks) < end) continue;
    (full ? wanted : others).push_back({g, full, bytes});
  }
  wanted.insert(wanted.end(), others.begin(), others.end());
}

// Of so many that are left, those of a batch that begins with one of so many bytes.
std::size_t MostBlocks(std::size_t blocks, std::uint64_t bytes) {
  return std::min<std::size_t>(
      {blocks, std::max<std::uint64_t>(PeerReadLimits::kBatchBytes / std::max<std::uint64_t>(bytes, 1), 1),
       net::RailLimits::kBatchItems});
}

}  // namespace

// One record of a batch.
struct PeerReader::BatchItem {
  std::size_t block = 0;  // in the chain
  bool required = false;
  BlockRequest asked;
  BlockKey parent;
  store::SourcePut put;
  Landing landing;
  Status status;
  bool ended = false;
  store::SourceFacts facts;  // of what landed
};

// Some blocks of a run on their way, as one batch of a rail.
class PeerReader::Batch final : public net::RailSink {
 public:
  using Item = BatchItem;

  Batch(PeerReader& reader, Peer& peer, bool on_flash) : from_flash(on_flash), reader_(reader), peer_(peer) {
    ++peer_.batches;
  }
  ~Batch() {
    Uncount(bytes_);
    --peer_.batches;
  }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  void Count(std::uint64_t bytes) {
    if (from_flash && bytes_ == 0 && bytes > 0) ++peer_.flash_batches;
    bytes_ += bytes;
    reader_.landing_bytes_ += bytes;
    peer_.landing_bytes += bytes;
    if (from_flash) peer_.landing_from_flash_bytes += bytes;
  }
  void Uncount(std::uint64_t bytes) {
    bytes_ -= bytes;
    if (from_flash && bytes_ == 0 && bytes > 0) --peer_.flash_batches;
    reader_.landing_bytes_ -= bytes;
    peer_.landing_bytes -= bytes;
    if (from_flash) peer_.landing_from_flash_bytes -= bytes;
    reader_.landed_.Pulse();
  }

  Status Begin(std::uint32_t number, net::ConstPiece head, std::uint64_t body_bytes) override {
    Item& item = items[asked[number]];
    item.landing = Landing(item.put.body());
    return item.landing.Begin(item.asked, item.parent, head, body_bytes);
  }
  void Take(std::uint32_t number, net::ConstPiece bytes) override {
    items[asked[number]].landing.Take(bytes);
  }
  void End(std::uint32_t number, const Status& status) override {
    Item& item = items[asked[number]];
    item.ended = true;
    item.status = status.ok() ? item.landing.Checked() : status;
  }
  // What is said of what landed, for the store.
  void TakeFacts() {
    for (Item& item : items) {
      if (!item.status.ok()) continue;
      BlockHead& head = item.landing.head();
      item.facts = {.part_bytes = std::move(head.part_bytes),
                    .segment_crcs = std::move(head.segment_crcs),
                    .put_id = head.put_id,
                    .ttl_s = head.ttl_s,
                    .asked_at_s = asked_at_s};
    }
  }

  const bool from_flash;  // all of it: what lies in the peer's memory does not wait for that
  std::vector<Item> items;
  std::vector<std::size_t> blocks;   // in the fetch's order
  std::vector<std::uint32_t> asked;  // items, by their number in the question
  bool went_out = false;             // a question, to the peer
  std::uint64_t asked_at_s = 0;
  Event done;
  std::uint64_t bytes() const { return bytes_; }

 private:
  PeerReader& reader_;
  Peer& peer_;
  std::uint64_t bytes_ = 0;
};

PeerReader::PeerReader(const Parts& parts)
    : parts_(parts),
      memory_bytes_(parts.memory_bytes),
      transfers_(0, HashOfBlock{parts.seed}),
      tasks_(parts.executor) {}

PeerReader::~PeerReader() { tasks_.Drop(); }

Task<void> PeerReader::Close() {
  EndTurns();
  return tasks_.Close();
}

Task<Result<std::size_t>> PeerReader::Read(std::shared_ptr<const PeerRun> run, std::size_t from,
                                           std::size_t count, std::uint64_t conversation, Instant deadline,
                                           Status* why_no_more) {
  if (from < run->first || from + count > run->first + run->count || run->chain.size() < from + count)
    co_return Error(Code::kInvalid, "read from a peer: blocks that it did not say it has");
  if (tasks_.closed()) co_return Error(Code::kGone, "read from a peer: the node ends");
  std::size_t here = 0;
  int others = 0;
  Status status;
  while (status.ok() && here < count) {
    const std::size_t stretch = std::min(count - here, PeerReadLimits::kStretch);
    const auto transfers = Begin(run, from + here, stretch, conversation, deadline);
    for (const auto& [transfer, own] : transfers) {
      status = co_await transfer->done.Wait(deadline);
      if (!status.ok()) {
        status = Status(Code::kTooLate, "read from a peer: it did not come in time");
      } else {
        status = transfer->status;
        // Another call had less time, would not have displaced what this one does, or asked another peer.
        const bool anew = !own && (status.code() == Code::kTooLate || status.code() == Code::kBusy ||
                                   transfer->peer != run->peer);
        if (anew && ++others <= PeerReadLimits::kOthers) {
          status = Status();
          break;
        }
      }
      if (!status.ok()) break;
      ++here;
    }
  }
  if (here == 0 && !status.ok()) co_return std::unexpected(std::move(status));
  if (why_no_more != nullptr) *why_no_more = std::move(status);
  co_return here;
}

std::vector<PeerReader::Awaited> PeerReader::Begin(const std::shared_ptr<const PeerRun>& run,
                                                   std::size_t from, std::size_t count,
                                                   std::uint64_t conversation, Instant deadline) {
  std::shared_ptr<Fetch> fetch;
  std::vector<Awaited> wanted;
  wanted.reserve(count);
  for (std::size_t block = from; block < from + count; ++block) {
    const auto [known, own] = transfers_.try_emplace({run->incarnation, run->chain[block]});
    if (own) {
      if (fetch == nullptr) {
        fetch = std::make_shared<Fetch>(Fetch{.run = run,
                                              .transfers = std::vector<Transfer>(from + count - block),
                                              .conversation = conversation,
                                              .began = parts_.rule.drops().last(),
                                              .deadline = deadline});
        fetch->blocks.reserve(fetch->transfers.size());
      }
      known->second = std::shared_ptr<Transfer>(fetch, &fetch->transfers[fetch->blocks.size()]);
      known->second->peer = run->peer;
      fetch->blocks.push_back(block);
    }
    wanted.push_back({known->second, own});
  }
  if (fetch == nullptr) return wanted;
  const Executor::InLane in(executor(), nullptr);
  tasks_.Spawn(FetchAll(fetch));
  return wanted;
}

void PeerReader::End(Fetch& fetch, std::size_t block, const Status& status) {
  const auto at = std::ranges::lower_bound(fetch.blocks, block);
  Transfer& transfer = fetch.transfers[static_cast<std::size_t>(at - fetch.blocks.begin())];
  if (transfer.done.is_set()) return;
  transfers_.erase({fetch.run->incarnation, fetch.run->chain[block]});
  transfer.status = status;
  transfer.asked.Set();
  transfer.done.Set();
}

bool PeerReader::FitsPeer(const Room& room) const {
  const std::uint64_t from_flash = room.peer.landing_from_flash_bytes;
  const std::uint64_t landing = room.from_flash ? from_flash : room.peer.landing_bytes - from_flash;
  // The peer keeps in memory what it has read for this member until it is sent.
  const std::uint64_t most = room.from_flash ? std::min(PeerReadLimits::kPeerFlashBytes,
                                                        room.peer.room_bytes / PeerReadLimits::kMemoryShare)
                                             : PeerReadLimits::kPeerBytes;
  if (room.from_flash && room.first && room.peer.flash_batches >= PeerReadLimits::kPeerFlashBatches)
    return false;
  return landing == 0 || landing + room.bytes <= most;
}

bool PeerReader::MayTake(const Room& room) const {
  const bool fits =
      landing_bytes_ == 0 || landing_bytes_ + room.bytes <= memory_bytes_ / PeerReadLimits::kMemoryShare;
  if (!fits || !FitsPeer(room)) return false;
  for (const Room& before : wanted_rooms_) {
    if (&before == &room) break;
    const bool same = &before.peer == &room.peer && before.from_flash == room.from_flash;
    // What its peer leaves no room for takes none from other peers'.
    if (same || FitsPeer(before)) return false;
  }
  return true;
}

// The room is taken in the step that found it: of many who wait, all are woken together.
Task<Status> PeerReader::TakeRoom(Batch& batch, const Peer& peer, std::uint64_t bytes, Instant deadline) {
  struct Waits {
    PeerReader& reader;
    const std::list<Room>::iterator at;
    ~Waits() {
      if (std::next(at) != reader.wanted_rooms_.end()) reader.landed_.Pulse();
      reader.wanted_rooms_.erase(at);
    }
  };
  const Waits waits{*this, wanted_rooms_.insert(wanted_rooms_.end(), Room{peer, batch.from_flash, bytes})};
  while (!MayTake(*waits.at)) {
    const Status waited = co_await landed_.Wait(deadline);
    if (!waited.ok()) co_return Status(Code::kBusy, "read from a peer: enough is on its way already");
  }
  batch.Count(bytes);
  co_return Status();
}

Task<Status> PeerReader::Prepare(Fetch& fetch, std::shared_ptr<Batch> batch, bool waits) {
  const PeerRun& run = *fetch.run;
  store::SourcePuts& puts = parts_.store.source_puts();
  const std::optional<Answered> own = parts_.rule.Answering();
  if (!own) co_return Status(Code::kGone, "read from a peer: this member is in no cell now");
  Peer& peer = parts_.peers.Of(run.peer);
  std::vector<GroupWanted> groups;
  const std::size_t first = fetch.blocks[fetch.next];
  puts.BeginAhead(run.slot,
                  std::span(run.chain).subspan(first, std::min(kBegunAhead, run.first + run.count - first)));
  while (fetch.next < fetch.blocks.size()) {
    const catalog::NamespaceEntry* entry = parts_.store.NamespaceAt(run.slot);
    if (entry == nullptr || entry->incarnation != run.incarnation)
      co_return Status(Code::kMiss, "read from a peer: the namespace was dropped meanwhile");
    const std::size_t block = fetch.blocks[fetch.next];
    // What stands on another fetch's block begins a batch of its own.
    if (!batch->blocks.empty() &&
        (batch->blocks.back() + 1 != block || run.FromFlash(block) != batch->from_flash))
      break;
    TakeGroups(*entry, run, block, groups);
    std::uint64_t bytes = 0;
    for (const GroupWanted& group : groups) {
      if (group.required && group.body_bytes == 0)
        co_return Status(Code::kMiss, "read from a peer: it did not say how long the block is");
      bytes += group.body_bytes;
    }
    if (!batch->items.empty() && (batch->bytes() + bytes > PeerReadLimits::kBatchBytes ||
                                  batch->items.size() + groups.size() > net::RailLimits::kBatchItems))
      break;
    // A batch that has something goes out with that.
    const bool may_take = MayTake({peer, batch->from_flash, bytes, batch->bytes() == 0});
    if (!batch->items.empty() && !may_take) break;
    if (may_take) {
      batch->Count(bytes);
    } else {
      Status room = co_await TakeRoom(*batch, peer, bytes, waits ? fetch.deadline : parts_.clock.Now());
      if (!room.ok()) co_return room;
    }
    if (batch->blocks.empty()) {
      const std::size_t blocks = MostBlocks(fetch.blocks.size() - fetch.next, bytes);
      batch->blocks.reserve(blocks);
      batch->items.reserve(std::min(blocks * groups.size(), net::RailLimits::kBatchItems));
    }
    for (const GroupWanted& group : groups) {
      if (group.body_bytes == 0) continue;
      const BlockKey parent = block == 0 ? BlockKey() : run.chain[block - 1];
      std::optional<std::uint32_t> age;
      if (!run.ages.empty()) age = run.ages[block - run.first];
      const store::SourceBlock asked{.key = run.chain[block],
                                     .parent = parent,
                                     .group = group.group,
                                     .body_bytes = group.body_bytes,
                                     .age = age,
                                     .incarnation = run.incarnation,
                                     .waits = waits && batch->blocks.empty()};
      std::optional<Result<store::SourcePut>> put = puts.BeginAtOnce(run.slot, asked, fetch.deadline);
      if (!put) put = co_await puts.Begin(run.slot, asked, fetch.deadline);
      if (!*put && (group.required || (!asked.waits && put->error().code() == Code::kBusy))) {
        batch->Uncount(bytes);
        while (!batch->items.empty() && batch->items.back().block == block) batch->items.pop_back();
        co_return std::move(put->error());
      }
      // It is here, or is done without: the room is for others.
      if (!*put || !(*put)->wanted()) {
        batch->Uncount(group.body_bytes);
        bytes -= group.body_bytes;
        continue;
      }
      batch->items.push_back(
          {.block = block,
           .required = group.required,
           .asked = {own->history, run.name, group.group, run.chain[block], group.body_bytes, 0},
           .parent = parent,
           .put = std::move(**put),
           .landing = Landing({})});
    }
    batch->blocks.push_back(block);
    fetch.transfers[fetch.next].asked.Set();
    ++fetch.next;
  }
  co_return Status();
}

Task<Status> PeerReader::AwaitTurn(const Batch& batch, std::uint64_t peer, Instant deadline) {
  net::Bandwidth& bandwidth = parts_.peers.bandwidth();
  const Instant now = parts_.clock.Now();
  if (batch.items.empty()) co_return Status();
  if (ended_.is_set()) co_return Status(Code::kGone, "read from a peer: the node ends");
  // What is not asked takes no turn from what is.
  if (!parts_.peers.Of(peer).breaker.Allows(now))
    co_return Status(Code::kGone, "the peer did not answer lately");
  if (bandwidth.BeginAt(now) > deadline)
    co_return Status(Code::kTooLate, "what is read from all peers together is over its bound until then");
  if (const Instant turn = bandwidth.Take(batch.bytes(), now); turn > now) (void)co_await ended_.Wait(turn);
  co_return ended_.is_set() ? Status(Code::kGone, "read from a peer: the node ends") : Status();
}

Task<Status> PeerReader::Ask(Batch& batch, std::uint64_t peer, Instant deadline) {
  parts_.peers.Of(peer).breaker.Asked(parts_.clock.Now());
  std::vector<std::byte> questions;
  std::vector<std::size_t> ends;
  ends.reserve(batch.asked.size());
  const std::int64_t left_us = std::max<std::int64_t>(deadline.UsSince(parts_.clock.Now()), 0);
  for (const std::uint32_t number : batch.asked) {
    Batch::Item& item = batch.items[number];
    item.ended = false;
    item.asked.worth_us = left_us;
    Append(questions, item.asked);
    ends.push_back(questions.size());
    if (ends.size() == 1) questions.reserve(ends.front() * batch.asked.size());
  }
  std::vector<net::ConstPiece> pieces;
  pieces.reserve(ends.size());
  for (std::size_t begin = 0; const std::size_t end : ends) {
    pieces.push_back(std::span(questions).subspan(begin, end - begin));
    begin = end;
  }
  Status status = co_await parts_.rails.Read(peer, pieces, batch, deadline);
  batch.went_out = batch.went_out || status.code() != Code::kBusy;
  co_return status;
}

Task<void> PeerReader::Transport(std::shared_ptr<Batch> batch, std::uint64_t peer_number, Instant deadline) {
  Peer& peer = parts_.peers.Of(peer_number);
  Status status = co_await AwaitTurn(*batch, peer_number, deadline);
  const Instant began = parts_.clock.Now();
  // From before the question: the time that the answer takes counts against the record's.
  batch->asked_at_s = parts_.store.source_puts().NowS();
  if (status.ok() && !peer.breaker.Allows(began))
    status = Status(Code::kGone, "the peer did not answer lately");
  batch->asked.resize(batch->items.size());
  std::iota(batch->asked.begin(), batch->asked.end(), 0u);
  if (status.ok() && !batch->items.empty()) status = co_await Ask(*batch, peer_number, deadline);
  // The peer gave its slot to another record while it was sent, and may have it elsewhere.
  std::erase_if(batch->asked,
                [&](std::uint32_t item) { return batch->items[item].status.code() != Code::kLapsed; });
  if (status.ok() && !batch->asked.empty()) {
    const Status again = co_await Ask(*batch, peer_number, deadline);
    for (const std::uint32_t item : batch->asked) {
      if (!std::exchange(batch->items[item].ended, true)) batch->items[item].status = again;
    }
  }
  Status worst = status;
  std::uint64_t landed = 0;
  bool whole = true;
  for (Batch::Item& item : batch->items) {
    if (!item.ended || (item.status.ok() && !status.ok())) item.status = status;
    whole = whole && item.status.ok();
    if (item.status.ok()) landed += item.put.body().size();
    if (worst.ok() && item.status.code() == Code::kInvalid) worst = item.status;
  }
  const Instant now = parts_.clock.Now();
  // A question that did not go out says nothing of the peer.
  if (batch->went_out) {
    peer.Note(worst, now, now.UsSince(began));
    if (!worst.ok()) counters_.failed.Add();
  }
  // What the peer does not have, or does not send now, comes in no time.
  if (landed > 0) {
    if (whole)
      counters_.batch_ns.Record(static_cast<std::uint64_t>(std::max<std::int64_t>(now.NsSince(began), 0)));
    if (!batch->from_flash) peer.NoteLanded(landed, began, now);
  }
  batch->done.Set();
}

ChainCheck& PeerReader::CheckOf(Fetch& fetch, BatchItem& item) {
  const std::span<const BlockKey> chain = std::span(fetch.run->chain).first(item.block + 1);
  const std::int64_t a = item.landing.head().a;
  if (fetch.check && fetch.check->a() == a) {
    fetch.check->Extend(chain);
  } else {
    fetch.check.emplace(parts_.rule.drops(), fetch.run->name, chain, a);
  }
  return *fetch.check;
}

RuleAdmission PeerReader::AdmissionOf(Fetch& fetch, BatchItem& item) {
  const BlockHead& head = item.landing.head();
  return RuleAdmission(parts_.rule, fetch.run->name, CheckOf(fetch, item), {head.answered(), head.notes},
                       {fetch.conversation, fetch.began});
}

std::optional<Status> PeerReader::PublishAtOnce(Fetch& fetch, BatchItem& item) {
  if (parts_.rule.Behind(item.landing.head().answered())) return std::nullopt;
  RuleAdmission admission = AdmissionOf(fetch, item);
  return parts_.store.source_puts().FinishAtOnce(item.put, item.facts, admission);
}

Task<Status> PeerReader::Publish(Fetch& fetch, BatchItem& item) {
  const Instant until = std::min(fetch.deadline, parts_.clock.Now().PlusUs(PeerReadLimits::kCatchUpUs));
  while (parts_.rule.Behind(item.landing.head().answered())) {
    const Status waited = co_await parts_.rule.Changed(until);
    if (waited.ok()) continue;
    // Who waits for the block with more time reads it anew.
    if (until == fetch.deadline)
      co_return Status(Code::kTooLate, "read from a peer: it has seen drops that this member has yet to see");
    break;
  }
  RuleAdmission admission = AdmissionOf(fetch, item);
  co_return co_await parts_.store.source_puts().Finish(std::move(item.put), std::move(item.facts), admission);
}

Task<Status> PeerReader::CheckChain(const PeerRun& run, std::size_t block) {
  const std::span<const BlockKey> before = std::span(run.chain).first(block);
  const std::size_t known = std::min(run.known, block);
  const bool is_chain = co_await parts_.store.source_puts().IsChain(run.slot, before, known);
  if (!is_chain) co_return Status(Code::kMiss, "read from a peer: what it was asked for by is no chain here");
  run.known = std::max(run.known, block);
  co_return Status();
}

std::shared_ptr<PeerReader::Transfer> PeerReader::ParentOf(const Fetch& fetch, std::size_t block) const {
  if (block == 0 || std::ranges::binary_search(fetch.blocks, block - 1)) return nullptr;
  const auto parent = transfers_.find({fetch.run->incarnation, fetch.run->chain[block - 1]});
  if (parent == transfers_.end()) return nullptr;
  // A run may name a key twice: no fetch waits for itself.
  const auto is_it = [&](const Transfer& own) { return &own == parent->second.get(); };
  return std::ranges::any_of(fetch.transfers, is_it) ? nullptr : parent->second;
}

Task<void> PeerReader::PublishAll(Fetch& fetch, Batch& batch) {
  store::SourcePuts& puts = parts_.store.source_puts();
  batch.TakeFacts();
  auto item = batch.items.begin(), ahead = item;
  const auto look_ahead = [&] {
    std::array<const store::SourcePut*, store::SourcePuts::kAhead> some;
    std::size_t count = 0;
    while (ahead != batch.items.end() && count < some.size()) some[count++] = &ahead++->put;
    puts.FinishAhead(std::span(some).first(count));
  };
  // The others stand on each other. One that failed and is fetched anew may need the room that these have: it
  // is not waited for.
  const auto before = fetch.published_all ? ParentOf(fetch, batch.blocks.front()) : nullptr;
  if (before != nullptr && before->asked.is_set()) (void)co_await before->done.Wait(fetch.deadline);
  for (const std::size_t block : batch.blocks) {
    // Behind one that did not come nothing can be reached.
    Status status = fetch.published_all ? Status() : fetch.failed;
    bool own = false;
    const bool has_items = item != batch.items.end() && item->block == block;
    if (status.ok() && has_items && block > fetch.run->known) status = co_await CheckChain(*fetch.run, block);
    for (; item != batch.items.end() && item->block == block; ++item) {
      if (!status.ok()) continue;
      if (item == ahead) look_ahead();
      std::optional<Status> published;
      if (!item->status.ok()) published = item->status;
      const std::uint64_t bytes = item->put.body().size();
      if (!published) published = PublishAtOnce(fetch, *item);
      if (!published) published = co_await Publish(fetch, *item);
      if (puts.Settles()) co_await puts.Settle();
      if (published->ok()) counters_.bytes.Add(bytes);
      if (!item->required) continue;
      status = std::move(*published);
      own = item->status.ok();
    }
    End(fetch, block, status);
    const BlockKey& key = fetch.run->chain[block];
    if (status.ok()) {
      if (has_items) counters_.blocks.Add();
      refusals_.Forget(fetch.run->incarnation, key);
      continue;
    }
    if (fetch.published_all) refusals_.Note(fetch.run->incarnation, key, {fetch.run->peer, status, own});
    fetch.published_all = false;
    if (fetch.failed.ok()) fetch.failed = status;
  }
}

Task<void> PeerReader::FetchAll(std::shared_ptr<Fetch> shared) {
  Fetch& fetch = *shared;
  std::vector<std::shared_ptr<Batch>> under_way;  // the oldest first
  under_way.reserve(PeerReadLimits::kBatches);
  bool full = false;  // no room for more before something of this has landed
  co_await Yield();
  for (;;) {
    const bool more = fetch.failed.ok() && fetch.next < fetch.blocks.size();
    const auto parent = more ? ParentOf(fetch, fetch.blocks[fetch.next]) : nullptr;
    const bool early = parent != nullptr && !parent->asked.is_set();
    if (early && under_way.empty()) {
      const Status asked = co_await parent->asked.Wait(fetch.deadline);
      if (!asked.ok())
        fetch.failed = Status(Code::kTooLate, "read from a peer: what it stands on was not asked for");
      continue;
    }
    if (more && !full && !early && under_way.size() < PeerReadLimits::kBatches) {
      // Who was found has been asked. A run outlives its member, which nobody would forget again.
      Peer* const peer = parts_.peers.Find(fetch.run->peer);
      if (peer == nullptr) {
        fetch.failed = Status(Code::kGone, "read from a peer: it is no more");
        continue;
      }
      auto batch = std::make_shared<Batch>(*this, *peer, fetch.run->FromFlash(fetch.blocks[fetch.next]));
      const std::size_t from = fetch.next;
      const Status prepared = co_await Prepare(fetch, batch, under_way.empty());
      full = prepared.code() == Code::kBusy && !(under_way.empty() && batch->blocks.empty());
      if (!prepared.ok() && !full) fetch.failed = prepared;
      if (tasks_.closed()) {
        fetch.failed = Status(Code::kGone, "read from a peer: the node ends");
        fetch.next = from;
        continue;
      }
      if (batch->blocks.empty()) continue;
      for (Batch::Item& item : batch->items) item.put.BeginLanding();
      tasks_.Spawn(Transport(batch, fetch.run->peer, fetch.deadline));
      under_way.push_back(std::move(batch));
      continue;
    }
    if (under_way.empty()) break;
    const std::shared_ptr<Batch> batch = std::move(under_way.front());
    under_way.erase(under_way.begin());
    full = false;
    co_await batch->done.Wait();
    co_await PublishAll(fetch, *batch);
  }
  if (fetch.published_all && fetch.next < fetch.blocks.size())
    refusals_.Note(fetch.run->incarnation, fetch.run->chain[fetch.blocks[fetch.next]],
                   {fetch.run->peer, fetch.failed, true});
  for (; fetch.next < fetch.blocks.size(); ++fetch.next) End(fetch, fetch.blocks[fetch.next], fetch.failed);
  parts_.peers.ForgetEnded();
}

}  // namespace cistern::mesh
