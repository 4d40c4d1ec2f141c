// SPDX-License-Identifier: Apache-2.0
#include "store/source_puts.h"

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "store/namespaces.h"
#include "store/shared_uses.h"

namespace cistern::store {
namespace {

constexpr std::uint64_t kLanding = 1;                      // bit of Put::writing: the slot is not freed
constexpr std::uint32_t kLookTouches = kSpentTouches / 2;  // of an admission in one step

}  // namespace

SourcePut::~SourcePut() {
  if (puts_ != nullptr) puts_->LetGo(put_);
}

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

Status SourcePuts::Check(const catalog::NamespaceEntry& entry, const SourceBlock& block) const {
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
  return context_.slots.CheckBody(block.body_bytes);
}

std::optional<bool> SourcePuts::Present(catalog::TreeId tree, const SourceBlock& block) {
  bool unsure = false;
  const catalog::BlockId found = context_.catalog.Find(tree, block.key, &unsure);
  if (unsure) return std::nullopt;
  if (found == catalog::kNoId) return false;
  const auto copy = context_.forest.See(found, block.group);
  return copy && !context_.catalog.Expired(copy->expiry);
}

bool SourcePuts::Here(std::uint32_t slot, const BlockKey& key, std::uint16_t group) {
  const catalog::TreeId tree = context_.catalog.TreeOf(slot);
  if (context_.catalog.EntryOf(tree) == nullptr) return false;
  return Present(tree, {.key = key, .group = group}).value_or(false);
}

Task<Result<SourcePut>> SourcePuts::Begin(std::uint32_t slot, SourceBlock block, Instant deadline) {
  const catalog::TreeId tree = context_.catalog.TreeOf(slot);
  if (context_.sequences.low()) co_await context_.sequences.Reserve();
  if (context_.steps.Spent()) co_await Yield();
  const catalog::NamespaceEntry* entry = context_.catalog.EntryOf(tree);
  if (entry == nullptr) co_return std::unexpected(UnknownNamespace(slot));
  if (Status status = Check(*entry, block); !status.ok()) co_return std::unexpected(std::move(status));
  if (!switches_.on(Switch::kWrites, slot)) co_return Error(Code::kBusy, "put of a source: writes are off");
  std::optional<bool> present = Present(tree, block);
  while (!present) {
    Status collected = co_await deletions_.NextCollected(deadline);
    if (!collected.ok()) co_return std::unexpected(std::move(collected));
    present = Present(tree, block);
  }
  if (*present) co_return SourcePut();
  entry = context_.catalog.EntryOf(tree);
  if (entry == nullptr) co_return std::unexpected(UnknownNamespace(slot));
  const std::uint64_t record_bytes = context_.catalog.RecordBytesOf(*entry, block.group, block.body_bytes);
  if (!context_.pending.HasRoom(kSourceOwner, record_bytes)) {
    context_.counters.busy.Add();
    co_return Error(Code::kBusy, Text("put of a source: ", context_.pending.size(), " puts are pending of ",
                                      context_.pending.bound().puts, " that may be"));
  }
  // The id is this put's alone until its source's comes: it never meets another of the same block.
  const catalog::PutIndex put =
      context_.pending.Add({kSourceOwner, tree, block.group, block.key, {~std::uint64_t{0}, ++made_}},
                           block.parent, record_bytes, deadline);
  catalog::Put& p = context_.pending[put];
  p.part_bytes = entry->groups[block.group].part_bytes;
  if (p.part_bytes.empty()) p.part_bytes = {static_cast<std::uint32_t>(block.body_bytes)};
  p.body_bytes = block.body_bytes;
  p.crcs.resize(record::SegmentCount(p.part_bytes));
  p.age = block.age;
  p.made = context_.catalog.NextEvent();
  p.after_drop = context_.forest.tree(tree)->last_drop;
  p.writing = kLanding;
  p.users = 1;
  context_.steps.Count(3);
  SourcePut made(*this, put, {});
  const residency::SlotFill fill(residents_);
  const residency::RoomFor whom{.group = context_.catalog.GroupOf(tree), .age = block.age};
  const auto place = co_await room_.Make(fill, puts_.RecordBytesOf(p), deadline, whom);
  if (!place) co_return std::unexpected(place.error());
  puts_.GiveSlot(put, *place);
  const catalog::Put& now = context_.pending[put];
  if (now.state != catalog::Put::State::kOpen)
    co_return Error(now.end == Code::kTooLate ? Code::kTooLate : Code::kMiss,
                    "put of a source: it was dropped or given up");
  made.body_ = std::span(context_.slots.arena().slot(now.place), now.body_bytes);
  co_return std::move(made);
}

bool SourcePuts::OverQuota(const catalog::Put& put) const {
  return put.age && context_.options.quotas.Over(context_.catalog.GroupOf(put.name.tree), residents_.used(),
                                                 put.body_bytes);
}

Status SourcePuts::TakeFacts(catalog::Put& put, SourceFacts& facts) {
  if (facts.part_bytes != put.part_bytes)
    return Status(Code::kInvalid, Text("block ", put.name.key.ToHex(), ": its source says other parts than ",
                                       "the namespace has"));
  if (facts.segment_crcs.size() != put.crcs.size())
    return Status(Code::kInvalid,
                  Text("block ", put.name.key.ToHex(), ": its source says ", facts.segment_crcs.size(),
                       " checksums and it has ", put.crcs.size(), " segments"));
  put.crcs = std::move(facts.segment_crcs);
  put.put_id = facts.put_id;
  put.expiry =
      facts.ttl_s == 0
          ? 0
          : static_cast<std::uint32_t>(std::min<std::uint64_t>(facts.asked_at_s + facts.ttl_s, UINT32_MAX));
  return Status();
}

Task<Status> SourcePuts::Finish(SourcePut given, SourceFacts facts, Admission& admission) {
  const SourcePut put = std::move(given);
  const catalog::PutIndex index = put.put_;
  Status status = TakeFacts(context_.pending[index], facts);
  bool refused = !status.ok();
  if (refused && context_.pending[index].state == catalog::Put::State::kOpen)
    puts_.End(index, Code::kInvalid);
  while (context_.pending[index].state == catalog::Put::State::kOpen) {
    if (context_.steps.Spent()) {
      co_await Yield();
      continue;
    }
    // What follows is one step: nothing is dropped between the look and the publication.
    catalog::Put& p = context_.pending[index];
    std::uint32_t left = kLookTouches;
    const Admission::Answer answer = admission.Look(&left);
    context_.steps.Count(kLookTouches - left);
    if (answer == Admission::Answer::kMore) {
      co_await Yield();
      continue;
    }
    if (answer == Admission::Answer::kRefuse || context_.catalog.Expired(p.expiry)) {
      refused = true;
      puts_.End(index, Code::kMiss);
      break;
    }
    if (OverQuota(p)) {
      status = Status(Code::kBusy, std::string(residency::kNoSpareRoom));
      puts_.End(index, Code::kBusy);
      break;
    }
    p.also = admission.Notes();
    p.conversation = p.also.empty() ? 0 : p.also.front();
    if (!p.also.empty()) p.also.erase(p.also.begin());
    p.written = ~std::uint64_t{0} >> (64 - p.part_bytes.size());
    p.writing = 0;
    const residency::Step step = publisher_.TryPublish(index);
    if (context_.pending[index].state != catalog::Put::State::kOpen) break;
    if (step == residency::Step::kWaits) {
      puts_.End(index, Code::kMiss);
      break;
    }
    context_.pending[index].written = 0;
    context_.pending[index].writing = kLanding;
    context_.pending.SetReady(index, false);
    co_await Yield();
  }
  const catalog::Put& ended = context_.pending[index];
  if (ended.state == catalog::Put::State::kPublished && publisher_.cascade_waits())
    co_await publisher_.Cascade();
  if (context_.conversations.sharing())
    co_await ShareUses(context_.executor, context_.catalog, context_.steps);
  if (context_.pending[index].state == catalog::Put::State::kPublished) co_return Status();
  const Code end = context_.pending[index].end;
  if (end == Code::kOk || !status.ok()) co_return status;
  co_return Status(end == Code::kGone ? Code::kMiss : end,
                   refused ? "put of a source: a drop covers it, or its time has passed"
                           : "put of a source: it was dropped meanwhile, or its parent is not here");
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
    const catalog::BlockId block = context_.catalog.Find(tree, key);
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
