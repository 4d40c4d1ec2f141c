// SPDX-License-Identifier: Apache-2.0
#include "mesh/chain_giver.h"

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "base/limits.h"
#include "net/control_connection.h"

namespace cistern::mesh {
namespace {

constexpr std::size_t kKeysAStep = kStepBytes / 2 / sizeof(BlockKey);
// Whose leases those of blocks are that are on offer: no client's session has such a number.
constexpr catalog::Caller kGiver{~std::uint64_t{0}, store::kSourceOwner};

// Times that a part is looked at anew because some of it was dropped meanwhile.
constexpr int kChanged = 4;

// The blocks on offer, until the answer is here.
class Held final {
 public:
  Held(store::BlockStore& store, catalog::LeaseId lease) : store_(store), lease_(lease) {}
  ~Held() { (void)store_.Release(kGiver, lease_); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

 private:
  store::BlockStore& store_;
  const catalog::LeaseId lease_;
};

std::uint64_t BytesOf(const store::WholeChain& chain, std::size_t begin, std::size_t end) {
  std::uint64_t bytes = 0;
  for (std::size_t block = begin; block < end; ++block) bytes += chain.blocks[block - chain.first].body_bytes;
  return bytes;
}

}  // namespace

void ChainGiver::Stop() {
  ++number_;
  moved_.Pulse();
}

Task<void> ChainGiver::Close() {
  Stop();
  while (gives_ > 0) co_await moved_.Wait();
  tasks_.Drop();
}

std::vector<policy::Taker> ChainGiver::Takers() const {
  std::vector<policy::Taker> takers;
  const Instant now = parts_.clock.Now();
  for (const std::uint64_t number : parts_.links.Reachable()) {
    const Peer* peer = parts_.peers.Find(number);
    if (peer == nullptr || peer->room_bytes == 0 || peer->drains || !peer->breaker.Allows(now)) continue;
    takers.push_back({number, peer->room_bytes});
  }
  return takers;
}

std::vector<ChainGiver::Part> ChainGiver::PartsOf(std::shared_ptr<const store::WholeChain> chain) {
  std::vector<Part> parts;
  const std::vector<std::size_t>& branches = chain->branches;
  for (std::size_t i = 0; i < branches.size(); ++i) {
    const std::size_t begin = std::max(branches[i], chain->first);
    const std::size_t end = i + 1 < branches.size() ? branches[i + 1] : chain->keys.size();
    if (begin < end) parts.push_back({chain, begin, end, chain->keys[branches[i]].Hash()});
  }
  return parts;
}

Task<store::HandedOver> ChainGiver::Give(Instant deadline) {
  struct Counted {
    ChainGiver& giver;
    ~Counted() {
      --giver.gives_;
      giver.moved_.Pulse();
    }
  };
  ++gives_;
  const Counted counted{*this};
  const auto work = std::make_shared<Work>();
  Stop();
  work->number = number_;
  work->deadline = deadline;
  std::vector<bool> shared;
  for (std::uint32_t slot = 0; slot < parts_.store.namespace_slots(); ++slot)
    shared.push_back(parts_.names.NameAt(slot).has_value());
  work->walk = parts_.store.WalkChains(std::move(shared));
  store::HandedOver handed{.members = Takers().size()};
  while (GoesOn(*work) && !Takers().empty()) {
    std::optional<store::WholeChain> chain = co_await work->walk->Next();
    if (!chain) break;
    for (Part& part : PartsOf(std::make_shared<const store::WholeChain>(std::move(*chain)))) {
      while (GoesOn(*work) && work->under_way >= HandOverLimits::kOffers)
        (void)co_await moved_.Wait(deadline);
      if (!GoesOn(*work)) break;
      ++work->under_way;
      tasks_.Spawn(OfferPart(work, std::move(part)));
    }
  }
  // By the deadline each has ended.
  while (work->under_way > 0 && work->number == number_) co_await moved_.Wait();
  handed.blocks = work->blocks;
  handed.bytes = work->bytes;
  if (work->number == number_) handed.left = co_await work->walk->CountLeft();
  counters_.left.Add(handed.left);
  co_return handed;
}

Task<void> ChainGiver::OfferPart(std::shared_ptr<Work> work, Part part) {
  std::vector<std::uint64_t> asked;  // that took no more
  int changed = 0;
  while (part.begin < part.end && asked.size() < HandOverLimits::kMembers && GoesOn(*work)) {
    const std::vector<std::uint64_t> order = policy::TakersOf(part.branch, Takers());
    const auto next = std::ranges::find_if(
        order, [&](std::uint64_t peer) { return std::ranges::find(asked, peer) == asked.end(); });
    if (next == order.end()) break;
    const std::uint64_t peer = *next;
    // What was dropped meanwhile takes along what stands on it, and nothing before it.
    part.end = std::min(part.end, CountHere(*part.chain));
    if (part.end <= part.begin) break;
    Part offered = part;
    offered.end = std::min(part.end, part.begin + HandOverLimits::kOfferBlocks);
    const Result<std::size_t> here = co_await OfferTo(peer, work, offered);
    const std::size_t until = here ? std::clamp(*here, part.begin, offered.end) : part.begin;
    const std::uint64_t bytes = BytesOf(*part.chain, part.begin, until);
    work->blocks += until - part.begin;
    work->bytes += bytes;
    work->walk->NoteGiven(*part.chain, part.begin, until);
    counters_.blocks.Add(until - part.begin);
    counters_.bytes.Add(bytes);
    if (!here && here.error().code() == Code::kMiss && ++changed < kChanged) continue;
    if (!here) counters_.failed.Add();
    if (until < offered.end) {
      counters_.refused.Add();
      asked.push_back(peer);
    }
    part.begin = until;
  }
  --work->under_way;
  moved_.Pulse();
}

std::size_t ChainGiver::CountHere(const store::WholeChain& chain) const {
  const catalog::NamespaceEntry* entry = parts_.store.NamespaceAt(chain.slot);
  if (entry == nullptr || entry->incarnation != chain.incarnation) return 0;
  const auto here = [&](const BlockKey& key) {
    return parts_.store.source_puts().Here(chain.slot, key, entry->first_full);
  };
  return static_cast<std::size_t>(std::ranges::partition_point(chain.keys, here) - chain.keys.begin());
}

Task<Result<std::size_t>> ChainGiver::OfferTo(std::uint64_t number, std::shared_ptr<Work> work, Part part) {
  const store::WholeChain& chain = *part.chain;
  const std::optional<Answered> own = parts_.rule.Answering();
  if (!own) co_return Error(Code::kGone, "offer: this member is in no cell now");
  if (Status there = parts_.store.CheckNamespace(chain.slot, chain.incarnation); !there.ok())
    co_return std::unexpected(std::move(there));
  std::optional<SharedNamespace> name = parts_.names.NameAt(chain.slot);
  if (!name) co_return Error(Code::kMiss, "offer: the namespace stays on this node");
  const Instant began = parts_.clock.Now();
  const auto for_bytes =
      static_cast<std::int64_t>(BytesOf(chain, part.begin, part.end) / HandOverLimits::kBytesAUs);
  const Instant deadline = std::min(work->deadline, began.PlusUs(HandOverLimits::kOfferUs + for_bytes));
  const auto lease = co_await parts_.store.Hold(kGiver, chain.slot, std::span(chain.keys).first(part.end),
                                                std::max<std::int64_t>(deadline.UsSince(began), 1));
  std::optional<Held> held;
  if (lease) held.emplace(parts_.store, *lease);
  // Past a bound of leases it is offered all the same.
  if (!lease && lease.error().code() != Code::kBusy) co_return std::unexpected(lease.error());
  auto question = co_await Question(part, std::move(*name), own->history);
  if (!question) co_return std::unexpected(std::move(question.error()));
  parts_.peers.Of(number).breaker.Asked(parts_.clock.Now());
  const Instant asked = parts_.clock.Now();
  auto payload = co_await parts_.links.Ask(number, kOfferQuestion, std::move(*question), deadline);
  const Instant now = parts_.clock.Now();
  Status status = payload ? Status() : std::move(payload.error());
  std::optional<OfferReply> reply;
  if (status.ok()) {
    reply = DecodeOfferReply(*payload);
    if (!reply) status = Status(Code::kInvalid, "it answered an offer with what is no answer");
    if (reply && reply->history != own->history)
      status = Status(Code::kMismatch, "it answered under another history");
  }
  Peer& peer = parts_.peers.Of(number);
  peer.Note(status, now, now.UsSince(asked));
  if (!status.ok()) co_return std::unexpected(std::move(status));
  if (reply->refusal == OfferReply::Refusal::kDrains) peer.drains = true;
  co_return reply->here;
}

Task<Result<std::vector<std::byte>>> ChainGiver::Question(Part part, SharedNamespace name,
                                                          std::uint64_t history) {
  const store::WholeChain& chain = *part.chain;
  const std::span<const BlockKey> keys = std::span(chain.keys).first(part.end);
  Offer offer;
  offer.chain = {
      .history = history, .name = std::move(name), .matched = static_cast<std::uint32_t>(part.begin)};
  std::vector<std::byte> question = EncodeHead(offer.chain, keys.size());
  for (std::size_t from = 0; from < keys.size(); from += kKeysAStep) {
    if (from > 0) co_await Yield();
    AppendKeys(question, keys.subspan(from, std::min(kKeysAStep, keys.size() - from)));
  }
  offer.body_bytes = co_await parts_.store.source_puts().BodyBytes(chain.slot, keys);
  for (std::size_t block = part.begin; block < part.end; ++block)
    offer.ages.push_back(chain.blocks[block - chain.first].age);
  AppendRest(question, offer);
  if (question.size() > net::ControlLimits::kPayloadBytes)
    co_return Error(Code::kInvalid, Text("offer: takes ", question.size(), " bytes and may take ",
                                         net::ControlLimits::kPayloadBytes));
  co_return question;
}

}  // namespace cistern::mesh
