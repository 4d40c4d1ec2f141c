// SPDX-License-Identifier: Apache-2.0
#include "mesh/chain_taker.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "mesh/chain_offers.h"
#include "mesh/held_chain.h"
#include "mesh/shared_names.h"

namespace cistern::mesh {
namespace {

// Whose leases those of the chains are that offered blocks stand on.
constexpr catalog::Caller kTaker{~std::uint64_t{0} - 1, store::kSourceOwner};

// Who uses a namespace between its making and its first block. Its share of all that may be is an owner's.
constexpr OwnerToken kBringer = {std::byte{'b'}, std::byte{'r'}, std::byte{'i'}, std::byte{'n'},
                                 std::byte{'g'}, std::byte{'e'}, std::byte{'r'}};

using NotTaken = OfferReply::Refusal;

}  // namespace

Task<void> ChainTaker::Close() {
  closed_ = true;
  while (under_way_ > 0) co_await ended_.Wait();
}

Task<Result<Offer>> ChainTaker::Read(net::ConstPiece payload) {
  net::ConstPiece behind;
  std::optional<MatchRequest> chain = co_await DecodeQuestion(executor(), payload, &behind);
  Offer offer;
  if (chain) offer.chain = std::move(*chain);
  if (!chain || !TakeRest(behind, &offer)) co_return Error(Code::kInvalid, "no offer of a chain");
  co_return offer;
}

Task<Result<std::vector<std::byte>>> ChainTaker::Answer(std::uint64_t peer, net::ConstPiece payload,
                                                        Instant deadline) {
  if (!parts_.rule.Answering() || closed_) co_return Error(Code::kGone, "this member answers nobody now");
  if (under_way_ >= HandOverLimits::kTaken) co_return Error(Code::kBusy, "enough is being taken already");
  struct Counted {
    ChainTaker& taker;
    ~Counted() {
      if (--taker.under_way_ == 0) taker.parts_.store.namespaces().OwnerEnded(kBringer);
      taker.ended_.Pulse();
    }
  };
  ++under_way_;
  const Counted counted{*this};
  Result<Offer> offer = co_await Read(payload);
  if (!offer) co_return std::unexpected(std::move(offer.error()));
  // The history alone: each block meets the drops as it comes.
  const std::optional<Answered> now = parts_.rule.Answering();
  if (!now || now->history != offer->chain.history) co_return Error(Code::kMismatch, "another history");
  const std::size_t offered = offer->chain.keys.size();
  OfferReply reply{.refusal = NotTaken::kDrains};
  if (!draining_) reply = co_await Take(peer, std::move(*offer), deadline);
  reply.history = now->history;
  if (reply.here < offered) counters_.refused.Add();
  co_return Encode(reply);
}

std::size_t ChainTaker::CountHere(std::uint32_t slot, std::uint16_t group, std::span<const BlockKey> chain) {
  const auto here = [&](const BlockKey& key) { return parts_.store.source_puts().Here(slot, key, group); };
  return static_cast<std::size_t>(std::ranges::partition_point(chain, here) - chain.begin());
}

Task<Result<std::uint32_t>> ChainTaker::SlotFor(const Offer& offer) {
  if (const auto slot = parts_.names.SlotOf(offer.chain.name)) co_return *slot;
  const Status unknown(Code::kMiss, "there is no such namespace here");
  if (offer.list.empty()) co_return std::unexpected(unknown);
  const std::optional<catalog::NamespaceEntry> entry = DecodeNamespace(offer.list);
  // One that was said under another's name would answer for that one's drops.
  if (!entry || parts_.names.NameOf(*entry) != offer.chain.name) co_return std::unexpected(unknown);
  co_await Yield();
  NamespaceSpec spec = catalog::NamespaceTable::SpecOf(*entry);
  spec.mesh.reset();  // its users here may keep it to this node
  const catalog::Caller bringer{kTaker.session, kBringer};
  // Of one that came meanwhile its users say what goes to flash.
  auto attached = co_await parts_.store.Attach(spec, bringer, store::IfNew::kRefuse);
  if (!attached && attached.error().code() == Code::kMiss) {
    attached = co_await parts_.store.Attach(spec, bringer);
    if (attached) counters_.namespaces.Add();
  }
  if (!attached) co_return std::unexpected(attached.error());
  // Now it is known by its name, if others may have it.
  if (parts_.names.NameAt(attached->slot) != offer.chain.name) co_return std::unexpected(unknown);
  co_return attached->slot;
}

Task<OfferReply> ChainTaker::Take(std::uint64_t peer, Offer offer, Instant deadline) {
  OfferReply reply;
  const Result<std::uint32_t> slot = co_await SlotFor(offer);
  if (!slot && slot.error().code() == Code::kBusy) reply.refusal = NotTaken::kNoRoom;
  if (!slot && slot.error().code() == Code::kBusy) co_return reply;
  const catalog::NamespaceEntry* entry = slot ? parts_.store.NamespaceAt(*slot) : nullptr;
  reply.refusal = NotTaken::kUnknownNamespace;
  if (entry == nullptr || entry->first_full == catalog::kNoGroup) co_return reply;
  co_await parts_.store.namespaces().NoteNames(*slot, std::move(offer.names));
  entry = parts_.store.NamespaceAt(*slot);
  if (entry == nullptr || parts_.names.NameAt(*slot) != offer.chain.name) co_return reply;
  const auto free_groups = static_cast<std::size_t>(std::ranges::count_if(
      entry->groups, [](const catalog::Group& group) { return group.part_bytes.empty(); }));
  const std::size_t blocks = offer.chain.keys.size(), before = offer.chain.matched;
  reply.refusal = NotTaken::kFailed;
  if (offer.body_bytes.size() != blocks * free_groups) co_return reply;
  const std::size_t here = CountHere(*slot, entry->first_full, offer.chain.keys);
  reply.here = reply.had = static_cast<std::uint32_t>(here);
  reply.refusal = NotTaken::kNone;
  if (here == blocks) co_return reply;
  auto run = std::make_shared<PeerRun>();
  run->peer = peer;
  run->slot = *slot;
  run->incarnation = entry->incarnation;
  run->name = std::move(offer.chain.name);
  run->chain = std::move(offer.chain.keys);
  run->first = here;
  run->count = blocks - here;
  const auto skipped = static_cast<std::ptrdiff_t>(here * free_groups);
  run->body_bytes.assign(offer.body_bytes.begin() + skipped, offer.body_bytes.end());
  // What the offered blocks stand on is used whenever they are. Where nothing but this is ever used, what
  // comes is as young as anything, but for what is to take free room alone.
  for (std::size_t block = here; block < blocks; ++block) {
    const std::uint32_t age = offer.ages[block < before ? 0 : block - before];
    run->ages.push_back(parts_.role == Role::kStore && age != UINT32_MAX ? 0 : age);
  }
  std::uint64_t fixed = 0;  // of a block, in the groups that say how long one is
  for (const catalog::Group& group : entry->groups) fixed += group.body_bytes;
  catalog::LeaseId lease = 0;
  if (here > 0) {
    const auto held =
        co_await parts_.store.Hold(kTaker, *slot, std::span(run->chain).first(here),
                                   std::max<std::int64_t>(deadline.UsSince(parts_.clock.Now()), 1));
    if (held) lease = *held;
  }
  const HeldChain held(parts_.store, kTaker, lease);
  // The answer has its way before it: without one the giver knows of nothing that came.
  const std::int64_t left_us = std::max<std::int64_t>(deadline.UsSince(parts_.clock.Now()), 0);
  const Instant until = parts_.clock.Now().PlusUs(left_us - left_us / 8);
  Status why_no_more;
  const Result<std::size_t> read =
      co_await parts_.reader.Read(run, here, blocks - here, 0, until, &why_no_more);
  const std::size_t came = read.value_or(0);
  const Code code = read ? why_no_more.code() : read.error().code();
  // What was read of the chain before them another offer counts.
  for (std::size_t block = std::max(here, before); block < here + came; ++block) {
    counters_.blocks.Add();
    const auto free = std::span(run->body_bytes).subspan((block - here) * free_groups, free_groups);
    counters_.bytes.Add(std::accumulate(free.begin(), free.end(), fixed));
  }
  reply.here = static_cast<std::uint32_t>(here + came);
  if (came == blocks - here) co_return reply;
  // What the giver itself was too busy to send may come later, as may what was late. Of that there may be a
  // refusal of an earlier read.
  const Refusal* why = parts_.reader.RefusalOf(run->incarnation, run->chain[here + came]);
  const bool no_room = code == Code::kBusy && why != nullptr && why->own;
  reply.refusal = no_room ? NotTaken::kNoRoom : NotTaken::kFailed;
  co_return reply;
}

}  // namespace cistern::mesh
