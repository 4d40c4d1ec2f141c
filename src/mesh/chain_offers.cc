// SPDX-License-Identifier: Apache-2.0
#include "mesh/chain_offers.h"

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "mesh/held_chain.h"
#include "mesh/shared_names.h"
#include "net/control_connection.h"

namespace cistern::mesh {
namespace {

// Whose leases those of blocks are that are on offer: no client's session has such a number.
constexpr catalog::Caller kGiver{~std::uint64_t{0}, store::kSourceOwner};

constexpr int kChanged = 4;

std::uint64_t BytesOf(const store::WholeChain& chain, std::size_t begin, std::size_t end) {
  std::uint64_t bytes = 0;
  for (std::size_t block = begin; block < end; ++block) bytes += chain.blocks[block - chain.first].body_bytes;
  return bytes;
}

}  // namespace

std::uint64_t ChainPart::bytes() const { return BytesOf(*chain, begin, end); }

std::vector<ChainPart> PartsOf(store::WholeChain whole) {
  const auto chain = std::make_shared<const store::WholeChain>(std::move(whole));
  std::vector<ChainPart> parts;
  const std::vector<std::size_t>& branches = chain->branches;
  for (std::size_t i = 0; i < branches.size(); ++i) {
    const std::size_t begin = std::max(branches[i], chain->first);
    const std::size_t end = i + 1 < branches.size() ? branches[i + 1] : chain->keys.size();
    if (begin < end) parts.push_back({chain, begin, end, chain->keys[branches[i]].Hash()});
  }
  return parts;
}

std::vector<policy::Taker> ChainOffers::Takers(Whom whom) const {
  std::vector<policy::Taker> takers;
  const Instant now = parts_.clock.Now();
  for (const std::uint64_t number : parts_.links.Reachable()) {
    const Peer* peer = parts_.peers.Find(number);
    if (peer == nullptr || peer->room_bytes == 0 || peer->drains || !peer->breaker.Allows(now)) continue;
    if (whom == Whom::kStores && peer->role != Role::kStore) continue;
    takers.push_back({number, peer->room_bytes});
  }
  return takers;
}

std::vector<std::uint64_t> ChainOffers::Away(Whom whom) const {
  std::vector<std::uint64_t> away;
  const Instant now = parts_.clock.Now();
  const std::vector<std::uint64_t> reachable = parts_.links.Reachable();
  for (const auto& [number, peer] : parts_.peers.all()) {
    if (!peer.greeted || peer.drains || (whom == Whom::kStores && peer.role != Role::kStore)) continue;
    const bool reached = std::ranges::find(reachable, number) != reachable.end();
    if (!reached || (peer.room_bytes > 0 && !peer.breaker.Allows(now))) away.push_back(number);
  }
  return away;
}

Candidates ChainOffers::Among(Whom whom) const {
  return {[this, whom](std::uint64_t branch) { return policy::TakersOf(branch, Takers(whom)); },
          [this, whom] { return Away(whom); }};
}

store::WalkOrder ChainOffers::WalkOfShared(
    const std::function<bool(const catalog::NamespaceEntry&)>& wanted) const {
  store::WalkOrder walk;
  for (std::uint32_t slot = 0; slot < parts_.store.namespace_slots(); ++slot) {
    const catalog::NamespaceEntry* entry = parts_.store.NamespaceAt(slot);
    const bool shared = entry != nullptr && parts_.names.NameAt(slot);
    walk.wanted.push_back(shared && (wanted == nullptr || wanted(*entry)));
  }
  return walk;
}

Task<OfferOutcome> ChainOffers::OfferPart(ChainPart part, OfferPlan plan) {
  OfferOutcome outcome;
  Asked asked;
  for (std::size_t copy = 0; copy < plan.copies; ++copy) {
    ChainPart of_copy = part;
    co_await OfferOnce(of_copy, plan, asked, outcome);
    if (of_copy.begin == of_copy.end) continue;
    const std::vector<std::uint64_t> away = plan.to.away();
    outcome.passing = asked.passing || std::ranges::any_of(away, [&](std::uint64_t peer) {
                        return std::ranges::find(asked.members, peer) == asked.members.end();
                      });
    break;  // nobody is left
  }
  co_return outcome;
}

Task<void> ChainOffers::OfferOnce(ChainPart& part, const OfferPlan& plan, Asked& asked,
                                  OfferOutcome& outcome) {
  while (part.begin < part.end && asked.refused < HandOverLimits::kMembers && plan.goes_on() &&
         parts_.clock.Now() < plan.deadline) {
    const std::vector<std::uint64_t> order = plan.to.order(part.branch);
    if (order.empty()) asked.passing = true;
    const auto next = std::ranges::find_if(order, [&](std::uint64_t peer) {
      return std::ranges::find(asked.members, peer) == asked.members.end();
    });
    if (next == order.end()) co_return;
    const std::uint64_t peer = *next;
    // What was dropped meanwhile takes along what stands on it, and nothing before it.
    part.end = std::min(part.end, CountHere(*part.chain));
    if (part.end <= part.begin) co_return;
    ChainPart offered = part;
    offered.end = std::min(part.end, part.begin + HandOverLimits::kOfferBlocks);
    const Result<OfferReply> reply = co_await OfferTo(peer, offered, plan.deadline, plan.free_room);
    const std::size_t until =
        reply ? std::clamp<std::size_t>(reply->here, part.begin, offered.end) : part.begin;
    if (until > part.begin) {
      const std::size_t lacked = std::clamp<std::size_t>(reply->had, part.begin, until);
      plan.given(*part.chain, {part.begin, until, until - lacked, BytesOf(*part.chain, lacked, until)});
    }
    if (!reply && reply.error().code() == Code::kMiss && ++asked.changed < kChanged) continue;
    if (!reply) ++outcome.failed;
    if (reply && reply->refusal == OfferReply::Refusal::kNoRoom) outcome.no_room = true;
    if (until < offered.end) {
      if (!reply || reply->refusal == OfferReply::Refusal::kFailed) asked.passing = true;
      ++outcome.refused;
      ++asked.refused;
      asked.members.push_back(peer);
    }
    part.begin = until;
    if (part.begin == part.end) asked.members.push_back(peer);
  }
}

std::size_t ChainOffers::CountHere(const store::WholeChain& chain) const {
  const catalog::NamespaceEntry* entry = parts_.store.NamespaceAt(chain.slot);
  if (entry == nullptr || entry->incarnation != chain.incarnation) return 0;
  const auto here = [&](const BlockKey& key) {
    return parts_.store.source_puts().Here(chain.slot, key, entry->first_full);
  };
  return static_cast<std::size_t>(std::ranges::partition_point(chain.keys, here) - chain.keys.begin());
}

Task<Result<OfferReply>> ChainOffers::OfferTo(std::uint64_t number, ChainPart part, Instant until,
                                              bool free_room) {
  const store::WholeChain& chain = *part.chain;
  const std::optional<Answered> own = parts_.rule.Answering();
  if (!own) co_return Error(Code::kGone, "offer: this member is in no cell now");
  if (Status there = parts_.store.CheckNamespace(chain.slot, chain.incarnation); !there.ok())
    co_return std::unexpected(std::move(there));
  std::optional<SharedNamespace> name = parts_.names.NameAt(chain.slot);
  if (!name) co_return Error(Code::kMiss, "offer: the namespace stays on this node");
  const Instant began = parts_.clock.Now();
  const auto for_bytes = static_cast<std::int64_t>(part.bytes() / HandOverLimits::kBytesAUs);
  const Instant deadline = std::min(until, began.PlusUs(HandOverLimits::kOfferUs + for_bytes));
  const auto lease = co_await parts_.store.Hold(kGiver, chain.slot, std::span(chain.keys).first(part.end),
                                                std::max<std::int64_t>(deadline.UsSince(began), 1));
  const HeldChain held(parts_.store, kGiver, lease.value_or(0));  // until the answer is here
  // Past a bound of leases it is offered all the same.
  if (!lease && lease.error().code() != Code::kBusy) co_return std::unexpected(lease.error());
  std::vector<std::byte> question = co_await Question(part, *name, own->history, free_room);
  AppendWho(question, chain.slot, {});
  auto reply = co_await Ask(number, std::move(question), own->history, deadline);
  const catalog::NamespaceEntry* entry = parts_.store.NamespaceAt(chain.slot);
  if (reply && reply->refusal == OfferReply::Refusal::kUnknownNamespace && entry != nullptr &&
      entry->incarnation == chain.incarnation) {
    // Once more, with what makes the namespace there. It has up to 64 KiB.
    const std::vector<std::byte> list = EncodeNamespace(*entry);
    question = co_await Question(part, std::move(*name), own->history, free_room);
    AppendWho(question, chain.slot, list);
    reply = co_await Ask(number, std::move(question), own->history, deadline);
  }
  if (Peer* peer = parts_.peers.Find(number);
      peer != nullptr && reply && reply->refusal == OfferReply::Refusal::kDrains)
    peer->drains = true;
  co_return reply;
}

void ChainOffers::AppendWho(std::vector<std::byte>& question, std::uint32_t slot,
                            std::span<const std::byte> list) const {
  // Labels first: sixteen names would leave no room for them.
  std::vector<std::string> names;
  if (const catalog::NamespaceEntry* entry = parts_.store.NamespaceAt(slot))
    for (const auto& [name, value] : entry->labels) names.push_back(Text(name, '=', value));
  const std::span<const std::string> called = parts_.store.namespaces().NamesOf(slot);
  names.insert(names.end(), called.begin(), called.end());
  names.resize(std::min(names.size(), catalog::kMaxNamesOfList));
  AppendNamespace(question, list, names);
}

Task<Result<OfferReply>> ChainOffers::Ask(std::uint64_t number, std::vector<std::byte> question,
                                          std::uint64_t history, Instant deadline) {
  if (question.size() > net::ControlLimits::kPayloadBytes)
    co_return Error(Code::kInvalid, Text("offer: takes ", question.size(), " bytes and may take ",
                                         net::ControlLimits::kPayloadBytes));
  parts_.peers.Of(number).breaker.Asked(parts_.clock.Now());
  const Instant asked = parts_.clock.Now();
  auto payload = co_await parts_.links.Ask(number, kOfferQuestion, std::move(question), deadline);
  const Instant now = parts_.clock.Now();
  Status status = payload ? Status() : std::move(payload.error());
  std::optional<OfferReply> reply;
  if (status.ok()) {
    reply = DecodeOfferReply(*payload);
    if (!reply) status = Status(Code::kInvalid, "it answered an offer with what is no answer");
    if (reply && reply->history != history)
      status = Status(Code::kMismatch, "it answered under another history");
  }
  // It may be no more by now.
  if (Peer* peer = parts_.peers.Find(number)) peer->Note(status, now, now.UsSince(asked));
  if (!status.ok()) co_return std::unexpected(std::move(status));
  co_return *reply;
}

Task<std::vector<std::byte>> ChainOffers::Question(ChainPart part, SharedNamespace name,
                                                   std::uint64_t history, bool free_room) {
  const store::WholeChain& chain = *part.chain;
  const std::span<const BlockKey> keys = std::span(chain.keys).first(part.end);
  MatchRequest asked{
      .history = history, .name = std::move(name), .matched = static_cast<std::uint32_t>(part.begin)};
  std::vector<std::byte> question = co_await EncodeQuestion(executor(), std::move(asked), keys);
  Offer offer;
  offer.body_bytes = co_await parts_.store.source_puts().BodyBytes(chain.slot, keys);
  for (std::size_t block = part.begin; block < part.end; ++block)
    offer.ages.push_back(free_room ? UINT32_MAX : chain.blocks[block - chain.first].age);
  AppendRest(question, offer);
  co_return question;
}

}  // namespace cistern::mesh
