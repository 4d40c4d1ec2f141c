// SPDX-License-Identifier: Apache-2.0
#include "store/source_puts.h"

#include <algorithm>
#include <array>
#include <utility>

#include "arena/index.h"
#include "base/format.h"
#include "base/spin.h"
#include "store/namespaces.h"

namespace cistern::store {
namespace {

constexpr std::uint64_t kLanding = 1;                      // bit of Put::writing: the slot is not freed
constexpr std::uint32_t kLookTouches = kSpentTouches / 2;  // of an admission in one step

}  // namespace

SourcePut::~SourcePut() {
  if (puts_ != nullptr) puts_->LetGo(put_);
}

void SourcePut::BeginLanding() { fill_.emplace(puts_->residents_); }

void SourcePuts::LetGo(catalog::PutIndex put) {
  if (residents_.abandoned()) return;
  catalog::Put& p = context_.pending[put];
  p.writing = 0;
  if (p.state == catalog::Put::State::kOpen) {
    puts_.End(put, Code::kGone);
  } else {
    puts_.FreeSlot(put);
  }
  puts_.Leave(put);
}

// Whatever else there is of the block here.
Status SourcePuts::Check(std::uint32_t slot, const SourceBlock& block) const {
  const catalog::NamespaceEntry* known = context_.catalog.EntryOf(context_.catalog.TreeOf(slot));
  if (known == nullptr) return UnknownNamespace(slot);
  const catalog::NamespaceEntry& entry = *known;
  if (block.incarnation != 0 && block.incarnation != entry.incarnation)
    return Status(Code::kMiss, "put of a source: another namespace has its slot by now");
  const auto invalid = [&](std::string message) {
    return Status(Code::kInvalid, Text("block ", block.key.ToHex(), ": ", message));
  };
  if (block.key.none() || block.key == block.parent) return invalid("has no key, or is its own parent");
  if (block.group >= entry.groups.size())
    return invalid(Text("group ", block.group, " is not in the namespace, which has ", entry.groups.size()));
  const catalog::Group& group = entry.groups[block.group];
  if (group.body_bytes != 0 && group.body_bytes != block.body_bytes)
    return invalid(Text("has ", block.body_bytes, " bytes and in group ", group.name, " blocks have ",
                        group.body_bytes));
  if (block.body_bytes == 0) return invalid("has no bytes");
  if (Status fits = context_.slots.CheckBody(block.body_bytes); !fits.ok()) return fits;
  if (!switches_.on(Switch::kWrites, slot)) return Status(Code::kBusy, "put of a source: writes are off");
  return Status();
}

std::optional<bool> SourcePuts::Present(catalog::TreeId tree, const SourceBlock& block) {
  bool unsure = false;
  const catalog::BlockId found = context_.catalog.Find(tree, block.key, &unsure);
  if (unsure) return std::nullopt;
  if (found == catalog::kNoId) return false;
  const auto copy = context_.forest.See(found, block.group);
  if (!copy) return false;
  if (context_.catalog.Expired(copy->expiry)) {
    deletions_.Cut(found, residency::LossReason::kExpired);
    return false;
  }
  return !removal_.LoseGone(found, block.group, *copy);
}

bool SourcePuts::Here(std::uint32_t slot, const BlockKey& key, std::uint16_t group) {
  const catalog::TreeId tree = context_.catalog.TreeOf(slot);
  if (context_.catalog.EntryOf(tree) == nullptr) return false;
  const catalog::BlockId found = context_.catalog.Find(tree, key);
  if (found == catalog::kNoId) return false;
  const auto copy = context_.forest.See(found, group);
  return copy && !context_.catalog.Expired(copy->expiry) && !removal_.Gone(*copy);
}

Result<SourcePut> SourcePuts::Add(catalog::TreeId tree, const SourceBlock& block, Instant deadline) {
  const catalog::NamespaceEntry* entry = context_.catalog.EntryOf(tree);
  if (entry == nullptr) return Error(Code::kMiss, "put of a source: its namespace was dropped meanwhile");
  const std::uint64_t record_bytes = context_.catalog.RecordBytesOf(*entry, block.group, block.body_bytes);
  if (!context_.pending.HasRoom(kSourceOwner, record_bytes)) {
    context_.counters.busy.Add();
    return Error(Code::kBusy, Text("put of a source: ", context_.pending.size(), " puts are pending of ",
                                   context_.pending.bound().puts, " that may be"));
  }
  if (Status status = puts_.CheckHash(tree, block.key); !status.ok())
    return std::unexpected(std::move(status));
  // The id is this put's alone until its source's comes: nobody asks for it.
  const catalog::PutIndex put =
      context_.pending.Add({kSourceOwner, tree, block.group, block.key, {~std::uint64_t{0}, ++made_}},
                           block.parent, record_bytes, deadline, catalog::PendingPuts::Named::kNo);
  catalog::Put& p = context_.pending[put];
  p.part_bytes = entry->groups[block.group].part_bytes;
  if (p.part_bytes.empty()) p.part_bytes = {static_cast<std::uint32_t>(block.body_bytes)};
  p.body_bytes = block.body_bytes;
  p.age = block.age;
  p.made = context_.catalog.NextEvent();
  p.after_drop = context_.forest.tree(tree)->last_drop;
  p.parent_stood = publisher_.ParentStands(tree, block.parent);
  p.writing = kLanding;
  p.users = 1;
  context_.steps.Count(4);
  return SourcePut(*this, put, deadline);
}

Result<SourcePut> SourcePuts::Place(SourcePut put, arena::Place place) {
  puts_.GiveSlot(put.put_, place);
  const catalog::Put& p = context_.pending[put.put_];
  if (p.state != catalog::Put::State::kOpen)
    return Error(p.end == Code::kTooLate ? Code::kTooLate : Code::kMiss,
                 "put of a source: it was dropped or given up");
  put.body_ = std::span(context_.slots.arena().slot(p.place), p.body_bytes);
  return put;
}

void SourcePuts::BeginAhead(std::uint32_t slot, std::span<const BlockKey> keys) const {
  const catalog::TreeId tree = context_.catalog.TreeOf(slot);
  for (const BlockKey& key : keys) {
    const catalog::KeyHash key_hash = catalog::KeyHashOf(tree, key);
    context_.forest.PrefetchBucket(key_hash);
    context_.pending.Prefetch(key_hash);
  }
}

void SourcePuts::FinishAhead(std::span<const SourcePut* const> some) const {
  const arena::ArenaSpace& arena = context_.slots.arena();
  std::array<arena::Fingerprint, kAhead> fingerprints;
  std::size_t count = 0;
  for (const SourcePut* put : some.first(std::min(some.size(), kAhead))) {
    const catalog::Put& p = context_.pending[put->put_];
    const catalog::NamespaceEntry* entry = context_.catalog.EntryOf(p.name.tree);
    if (entry == nullptr || !p.has_slot) continue;
    context_.forest.PrefetchBucket(catalog::KeyHashOf(p.name.tree, p.name.key));
    fingerprints[count++] = arena::FingerprintOf(entry->incarnation, p.name.group, p.name.key);
    const auto parts = static_cast<std::uint32_t>(p.part_bytes.size());
    PrefetchLines(arena.slot(p.place) + record::TrailerOffset(p.body_bytes, arena.geometry().alignment),
                  record::TrailerBoundBytes(p.body_bytes, parts), true);
    PrefetchLines(arena.directory(p.place), sizeof(arena::DirectoryEntry), true);
  }
  // One after the other: each waits for its page, and several pages are looked for at a time.
  for (std::size_t i = 0; i < count; ++i) residents_.index().index().Prefetch(fingerprints[i]);
}

std::optional<Result<SourcePut>> SourcePuts::BeginAtOnce(std::uint32_t slot, const SourceBlock& block,
                                                         Instant deadline) {
  if (context_.sequences.low() || context_.steps.Spent()) return std::nullopt;
  if (Status status = Check(slot, block); !status.ok()) return std::unexpected(std::move(status));
  const catalog::TreeId tree = context_.catalog.TreeOf(slot);
  const std::optional<bool> present = Present(tree, block);
  if (!present) return std::nullopt;
  if (*present) return SourcePut();
  const std::uint64_t record_bytes = context_.catalog.RecordBytesOf(tree, block.group, block.body_bytes);
  const auto place = room_.MakeAtOnce(record_bytes, RoomOf(tree, block));
  if (!place) return std::nullopt;
  Result<SourcePut> made = Add(tree, block, deadline);
  if (made) return Place(std::move(*made), *place);
  context_.slots.Free(*place);
  return made;
}

Task<Result<SourcePut>> SourcePuts::Begin(std::uint32_t slot, SourceBlock block, Instant deadline) {
  if (context_.sequences.low()) co_await context_.sequences.Reserve();
  if (context_.steps.Spent()) co_await Yield();
  if (Status status = Check(slot, block); !status.ok()) co_return std::unexpected(std::move(status));
  const catalog::TreeId tree = context_.catalog.TreeOf(slot);
  std::optional<bool> present = Present(tree, block);
  if (!present) {
    co_await context_.catalog.LearnStanding(tree, catalog::KeyHashOf(tree, block.key));
    present = Present(tree, block);
  }
  while (!present) {
    if (!block.waits)
      co_return Error(Code::kBusy, "put of a source: what is collected hides whether the block is here");
    Status collected = co_await deletions_.NextCollected(deadline);
    if (!collected.ok()) co_return std::unexpected(std::move(collected));
    present = Present(tree, block);
  }
  if (*present) co_return SourcePut();
  Result<SourcePut> made = Add(tree, block, deadline);
  if (!made) co_return made;
  const residency::SlotFill fill(residents_);
  const std::uint64_t record_bytes = context_.catalog.RecordBytesOf(tree, block.group, block.body_bytes);
  const auto place = co_await room_.Make(fill, record_bytes, deadline, RoomOf(tree, block));
  if (!place) co_return std::unexpected(place.error());
  co_return Place(std::move(*made), *place);
}

bool SourcePuts::OverQuota(const catalog::Put& put) const {
  return put.age && context_.options.quotas.Over(context_.catalog.GroupOf(put.name.tree), residents_.used(),
                                                 put.body_bytes);
}

Status SourcePuts::TakeFacts(catalog::Put& put, SourceFacts& facts) {
  if (facts.part_bytes != put.part_bytes)
    return Status(Code::kInvalid, Text("block ", put.name.key.ToHex(), ": its source says other parts than ",
                                       "the namespace has"));
  const std::uint32_t segments = record::SegmentCount(put.part_bytes);
  if (facts.segment_crcs.size() != segments)
    return Status(Code::kInvalid,
                  Text("block ", put.name.key.ToHex(), ": its source says ", facts.segment_crcs.size(),
                       " checksums and it has ", segments, " segments"));
  put.crcs = std::move(facts.segment_crcs);
  put.put_id = facts.put_id;
  put.expiry =
      facts.ttl_s == 0
          ? 0
          : static_cast<std::uint32_t>(std::min<std::uint64_t>(facts.asked_at_s + facts.ttl_s, UINT32_MAX));
  return Status();
}

std::optional<Status> SourcePuts::FinishAtOnce(SourcePut& put, SourceFacts& facts, Admission& admission) {
  const catalog::PutIndex index = put.put_;
  catalog::Put& p = context_.pending[index];
  const auto ended = [&](Status status) {
    put = SourcePut();
    return status;
  };
  if (!std::exchange(put.told_, true)) {
    if (Status status = TakeFacts(p, facts); !status.ok()) {
      if (p.state == catalog::Put::State::kOpen) puts_.End(index, Code::kInvalid);
      return ended(std::move(status));
    }
  }
  std::string_view why = "put of a source: it was dropped meanwhile, or its parent is not here";
  if (p.state == catalog::Put::State::kOpen) {
    if (context_.steps.Spent()) return std::nullopt;
    // What follows is one step: nothing is dropped between the look and the publication.
    std::uint32_t left = kLookTouches;
    const Admission::Answer answer = admission.Look(&left);
    context_.steps.Count(kLookTouches - left);
    if (answer == Admission::Answer::kMore) return std::nullopt;
    if (answer == Admission::Answer::kRefuse || context_.catalog.Expired(p.expiry)) {
      why = "put of a source: a drop covers it, or its time has passed";
      puts_.End(index, Code::kMiss);
    } else if (OverQuota(p)) {
      why = residency::kNoSpareRoom;
      puts_.End(index, Code::kBusy);
    } else if (!Publish(put, admission.Notes())) {
      return std::nullopt;
    }
  }
  if (p.state == catalog::Put::State::kPublished || p.end == Code::kOk) return ended(Status());
  return ended(Status(p.end == Code::kGone ? Code::kMiss : p.end, std::string(why)));
}

// False: the step did not suffice.
bool SourcePuts::Publish(const SourcePut& source_put, std::vector<std::uint64_t> notes) {
  const catalog::PutIndex put = source_put.put_;
  catalog::Put& p = context_.pending[put];
  p.also = std::move(notes);
  p.conversation = p.also.empty() ? 0 : p.also.front();
  if (!p.also.empty()) p.also.erase(p.also.begin());
  p.written = ~std::uint64_t{0} >> (64 - p.part_bytes.size());
  p.writing = 0;
  const residency::Step step = publisher_.TryPublish(put);
  if (p.state == catalog::Put::State::kOpen && step == residency::Step::kWaits && !Unsure(source_put))
    puts_.End(put, Code::kMiss);
  if (p.state != catalog::Put::State::kOpen) return true;
  p.written = 0;
  p.writing = kLanding;
  context_.pending.SetReady(put, false);
  return false;
}

bool SourcePuts::Unsure(const SourcePut& put) const {
  const catalog::Put& p = context_.pending[put.put_];
  return p.unsure && (!put.learned_ || deletions_.Concern(context_.forest.tree(p.name.tree)->slot));
}

Task<void> SourcePuts::AwaitSure(SourcePut& put) {
  const catalog::PutName name = context_.pending[put.put_].name;
  if (!std::exchange(put.learned_, true)) {
    const catalog::KeyHash parent = catalog::KeyHashOf(name.tree, context_.pending[put.put_].parent);
    co_await context_.catalog.LearnStanding(name.tree, parent);
    co_return;
  }
  const Status collected = co_await deletions_.NextCollected(put.deadline_);
  if (!collected.ok() && context_.pending[put.put_].state == catalog::Put::State::kOpen)
    puts_.End(put.put_, Code::kTooLate);
}

Task<Status> SourcePuts::Finish(SourcePut put, SourceFacts facts, Admission& admission) {
  std::optional<Status> ended = FinishAtOnce(put, facts, admission);
  while (!ended) {
    if (Unsure(put)) {
      co_await AwaitSure(put);
    } else {
      co_await Yield();
    }
    ended = FinishAtOnce(put, facts, admission);
  }
  co_await Settle();
  co_return std::move(*ended);
}

// From its last block up: what descends from it is what the forest has above it.
Task<bool> SourcePuts::IsChain(std::uint32_t slot, std::span<const BlockKey> chain, std::size_t known) {
  const catalog::TreeId tree = context_.catalog.TreeOf(slot);
  catalog::BlockId block = catalog::kNoId;
  for (std::size_t i = chain.size(); i > known; --i) {
    const bool anew = block == catalog::kNoId || context_.steps.Spent();
    if (context_.steps.Spent()) co_await Yield();
    context_.steps.Count();
    const catalog::KeyHash key_hash = catalog::KeyHashOf(tree, chain[i - 1]);
    if (anew) {
      bool unsure = false;
      block = context_.catalog.Find(tree, chain[i - 1], &unsure);
      if (unsure) {
        co_await context_.catalog.LearnStanding(tree, key_hash);
        block = context_.catalog.Find(tree, chain[i - 1]);
      }
      if (block == catalog::kNoId) co_return false;
    }
    // A standing block has a parent: the root, at last.
    if (context_.forest.block(block).key_hash() != key_hash) co_return false;
    block = context_.forest.block(block).parent;
    if (i - 1 > known) continue;
    co_return known == 0
        ? block == context_.forest.tree(tree)->root
        : context_.forest.block(block).key_hash() == catalog::KeyHashOf(tree, chain[known - 1]);
  }
  co_return true;
}

Task<void> SourcePuts::AwaitEnds(std::uint32_t slot) {
  const catalog::TreeId tree = context_.catalog.TreeOf(slot);
  const std::uint64_t begun = context_.conversations.endings_begun();
  while (context_.conversations.IsEnding(tree, begun)) co_await context_.conversations.ended().Wait();
}

Task<std::vector<std::uint32_t>> SourcePuts::BodyBytes(std::uint32_t slot, std::span<const BlockKey> chain) {
  std::vector<std::uint32_t> bytes;
  const catalog::TreeId tree = context_.catalog.TreeOf(slot);
  for (const BlockKey& key : chain) {
    if (context_.steps.Spent()) co_await Yield();
    const catalog::NamespaceEntry* entry = context_.catalog.EntryOf(tree);
    if (entry == nullptr) co_return std::vector<std::uint32_t>();
    // Mostly all groups have a fixed size, and no block is looked up.
    if (std::ranges::none_of(entry->groups, [](const auto& group) { return group.part_bytes.empty(); }))
      co_return bytes;
    bool unsure = false;
    catalog::BlockId block = context_.catalog.Find(tree, key, &unsure);
    if (unsure) {
      co_await context_.catalog.LearnStanding(tree, catalog::KeyHashOf(tree, key));
      entry = context_.catalog.EntryOf(tree);
      if (entry == nullptr) co_return std::vector<std::uint32_t>();
      block = context_.catalog.Find(tree, key);
    }
    for (std::uint16_t g = 0; g < entry->groups.size(); ++g) {
      if (!entry->groups[g].part_bytes.empty()) continue;
      const auto copy = block == catalog::kNoId ? std::nullopt : context_.forest.See(block, g);
      bytes.push_back(copy ? copy->body_bytes : 0);
      context_.steps.Count();
    }
  }
  co_return bytes;
}

}  // namespace cistern::store
