// SPDX-License-Identifier: Apache-2.0
#include "mesh/finder.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/event.h"
#include "base/format.h"

namespace cistern::mesh {
namespace {

// Each is looked for in the index by itself, at 20 places, or some more where it samples less.
constexpr std::size_t kMembersAStep = 8;
// No call waits for so long; whoever says more may say anything.
constexpr double kMostReadyUs = 3'600e6;

std::size_t FreeGroups(const catalog::NamespaceEntry& entry) {
  return static_cast<std::size_t>(std::ranges::count_if(
      entry.groups, [](const catalog::Group& group) { return group.part_bytes.empty(); }));
}

// Bytes of the run's blocks [from, from + count), counted from its first.
std::uint64_t BytesOf(const catalog::NamespaceEntry& entry, const PeerRun& run, std::size_t from,
                      std::size_t count) {
  std::uint64_t fixed = 0, bytes = 0;
  for (const catalog::Group& group : entry.groups)
    fixed += group.reach == Reach::kFull ? group.body_bytes : 0;
  const std::size_t free_groups = FreeGroups(entry);
  for (std::size_t i = from * free_groups; i < (from + count) * free_groups; ++i) bytes += run.body_bytes[i];
  return bytes + fixed * count;
}

}  // namespace

bool Finder::MayAsk(MemberNumber member) const {
  const Peer& peer = parts_.peers.Of(parts_.streams.ProcessOf(member));
  return peer.breaker.Allows(parts_.clock.Now()) && peer.matches < kQueued;
}

SampleIndex::Deepest Finder::DeepestToAsk(std::uint64_t seed, std::span<const BlockKey> chain,
                                          std::size_t local, std::uint32_t block_tokens,
                                          MemberSet* among) const {
  SampleIndex::Deepest deepest = parts_.index.Find(seed, chain, local, block_tokens, *among);
  const auto may_be_asked = [&](MemberSet members) {
    for (std::size_t number = 0; number < members.size() && members.any(); ++number) {
      if (members[number] && !MayAsk(static_cast<MemberNumber>(number))) members.reset(number);
    }
    return members;
  };
  if (may_be_asked(deepest.holders) == deepest.holders) return deepest;
  *among = may_be_asked(*among);
  return parts_.index.Find(seed, chain, local, block_tokens, *among);
}

MemberNumber Finder::Choose(const MemberSet& holders) {
  std::vector<MemberNumber> near, all, drain;
  for (std::size_t number = 0; number < holders.size(); ++number) {
    if (!holders[number]) continue;
    const auto member = static_cast<MemberNumber>(number);
    const std::uint64_t peer = parts_.streams.ProcessOf(member);
    if (parts_.peers.Of(peer).drains) {
      drain.push_back(member);
      continue;
    }
    all.push_back(member);
    if (parts_.links.SameZone(peer)) near.push_back(member);
  }
  const std::vector<MemberNumber>& among = !near.empty() ? near : !all.empty() ? all : drain;
  const MemberNumber one = among[random_.Below(among.size())], other = among[random_.Below(among.size())];
  const auto load = [&](MemberNumber member) {
    const Peer& peer = parts_.peers.Of(parts_.streams.ProcessOf(member));
    return (peer.matches + 1) * peer.answer_us +
           static_cast<double>(peer.landing_bytes) / peer.bytes_per_us(parts_.clock.Now());
  };
  return load(other) < load(one) ? other : one;
}

std::optional<Finder::Search> Finder::SearchOf(std::uint32_t slot) const {
  const std::optional<Answered> own = parts_.rule.Answering();
  const catalog::NamespaceEntry* entry = parts_.store.NamespaceAt(slot);
  if (!own || entry == nullptr || entry->first_full == catalog::kNoGroup) return std::nullopt;
  std::optional<SharedNamespace> name = parts_.names.NameAt(slot);
  if (!name) return std::nullopt;
  const std::uint64_t seed = SampleSeed(own->history, *name);
  return Search{std::move(*name), seed, entry->incarnation, entry->block_tokens};
}

bool Finder::MayFind(std::uint32_t slot, std::span<const BlockKey> chain, std::size_t local) {
  const std::optional<Search> search = SearchOf(slot);
  if (!search) return false;
  MemberSet among = parts_.streams.Askable();
  const bool may = DeepestToAsk(search->seed, chain, local, search->block_tokens, &among).blocks > local;
  if (!may) ++counters_.unknown;
  return may;
}

Task<PeerMatch> Finder::Find(std::uint32_t slot, std::span<const BlockKey> chain, std::size_t local,
                             Instant deadline) {
  PeerMatch match;
  const std::optional<Search> search = SearchOf(slot);
  if (!search) co_return match;
  MemberSet among = parts_.streams.Askable();
  for (int asked = 0; asked < kAsked; ++asked) {
    const SampleIndex::Deepest deepest =
        DeepestToAsk(search->seed, chain, local, search->block_tokens, &among);
    if (deepest.blocks <= local) {
      if (asked == 0) ++counters_.unknown;
      break;
    }
    const MemberNumber number = Choose(deepest.holders);
    among.reset(number);
    const std::uint64_t peer = parts_.streams.ProcessOf(number);
    const auto run = std::make_shared<PeerRun>();
    run->peer = peer;
    run->slot = slot;
    run->incarnation = search->incarnation;
    run->name = search->name;
    const std::size_t end = std::min({chain.size(), deepest.reach, local + PeerMessageLimits::kKeys});
    run->first = local;
    run->chain.reserve(end);
    for (std::size_t from = 0; from < end; from += PeerMessageLimits::kKeysAStep) {
      if (from > 0) co_await Yield();
      const std::span<const BlockKey> some =
          chain.subspan(from, std::min(PeerMessageLimits::kKeysAStep, end - from));
      run->chain.insert(run->chain.end(), some.begin(), some.end());
    }
    // Whoever is asked first leaves time for another one.
    const std::int64_t left_us = deadline.UsSince(parts_.clock.Now());
    if (left_us <= 0) break;
    const Instant until =
        asked + 1 < kAsked ? parts_.clock.Now().PlusUs(std::max<std::int64_t>(left_us / 2, 1)) : deadline;
    const Status status = co_await Ask(peer, until, run, &match);
    if (status.ok()) break;
    const catalog::NamespaceEntry* now = parts_.store.NamespaceAt(slot);
    if (now == nullptr || now->incarnation != search->incarnation) break;
  }
  co_return match;
}

Task<Status> Finder::Ask(std::uint64_t number, Instant deadline, std::shared_ptr<PeerRun> run,
                         PeerMatch* match) {
  if (!parts_.rule.Answering()) co_return Status(Code::kGone, "this member is in no cell now");
  const Instant began = parts_.clock.Now();
  const std::span<const BlockKey> keys = std::span(run->chain).subspan(run->first);
  const std::size_t asked = keys.size();
  const Result<MatchReply> reply = co_await Question(number, run->name, keys, run->first, deadline);
  const Status status = reply ? Take(*reply, asked, std::move(run), match) : reply.error();
  Note(number, status, began);
  if (!status.ok()) *match = PeerMatch();
  co_return status;
}

Task<Result<MatchReply>> Finder::Question(std::uint64_t number, const SharedNamespace& name,
                                          std::span<const BlockKey> keys, std::size_t matched,
                                          Instant deadline) {
  const std::uint64_t history = parts_.rule.Answering()->history;
  MatchRequest request{.history = history, .name = name, .matched = static_cast<std::uint32_t>(matched)};
  std::vector<std::byte> question = co_await EncodeQuestion(executor(), std::move(request), keys);
  ++counters_.asked;
  struct Counted {
    Peer& peer;
    explicit Counted(Peer& of) : peer(of) { ++peer.matches; }
    ~Counted() { --peer.matches; }
  };
  Peer& peer = parts_.peers.Of(number);
  const Counted counted(peer);
  peer.breaker.Asked(parts_.clock.Now());
  auto payload = co_await parts_.links.Ask(number, kMatchQuestion, std::move(question), deadline);
  if (!payload) co_return Error(std::move(payload.error()));
  std::optional<MatchReply> reply = DecodeMatchReply(*payload);
  if (!reply) co_return Error(Code::kInvalid, "it answered a match with what is no answer");
  if (reply->history != history) co_return Error(Code::kMismatch, "it answered under another history");
  co_return std::move(*reply);
}

void Finder::Note(std::uint64_t number, const Status& status, Instant began) {
  Peer& peer = parts_.peers.Of(number);
  const Instant now = parts_.clock.Now();
  if (status.ok()) Peer::Blend(&peer.answer_us, static_cast<double>(now.UsSince(began)));
  peer.Note(status, now, now.UsSince(began));
  switch (status.code()) {
    case Code::kOk: ++counters_.answered; break;
    case Code::kMiss: ++counters_.stale; break;
    case Code::kBusy: ++counters_.busy; break;
    default: ++counters_.failed; break;
  }
}

Task<Status> Finder::AskOne(const SharedNamespace& name, std::span<const BlockKey> keys, std::size_t matched,
                            Instant deadline, Holding& holding) {
  const Instant began = parts_.clock.Now();
  Result<MatchReply> reply = co_await Question(holding.peer, name, keys, matched, deadline);
  Status status = reply ? Status() : reply.error();
  if (reply && reply->blocks() > keys.size())
    status = Status(Code::kInvalid,
                    Text("it answered a match of ", keys.size(), " blocks with ", reply->blocks()));
  Note(holding.peer, status, began);
  holding.how = status.ok() ? Holding::How::kAnswered : Holding::How::kFailed;
  holding.why = status;
  if (status.ok()) {
    holding.runs = std::move(reply->runs);
    holding.a = reply->a;
  }
  co_return status;
}

Task<std::vector<Holding>> Finder::AskAll(std::uint32_t slot, std::span<const BlockKey> chain,
                                          std::size_t matched, bool every, Instant deadline) {
  std::vector<Holding> all;
  const std::optional<Search> search = SearchOf(slot);
  if (!search) co_return all;
  std::map<std::uint64_t, std::size_t> sampled;
  const MemberSet known = parts_.streams.Askable();
  for (std::size_t number = 0; number < known.size(); ++number) {
    if (number > 0 && number % kMembersAStep == 0) co_await Yield();
    if (known[number])
      sampled[parts_.streams.ProcessOf(static_cast<MemberNumber>(number))] =
          parts_.index.Find(search->seed, chain, 0, search->block_tokens, MemberSet().set(number)).blocks;
  }
  for (const std::uint64_t process : parts_.links.Reachable()) {
    Holding& one = all.emplace_back();
    one.peer = process;
    one.sampled = sampled[process];
    const Peer& peer = parts_.peers.Of(process);
    if (one.sampled == 0 && !every) continue;
    one.how = !peer.breaker.Allows(parts_.clock.Now()) ? Holding::How::kClosed
              : peer.matches >= kQueued                ? Holding::How::kBusy
                                                       : Holding::How::kFailed;
  }
  const std::span<const BlockKey> keys =
      chain.subspan(matched, std::min(chain.size() - matched, PeerMessageLimits::kKeys));
  std::vector<Task<Status>> asking;
  for (Holding& one : all) {
    if (one.how != Holding::How::kFailed) continue;
    if (!asking.empty()) co_await Yield();
    if (!parts_.rule.Answering()) break;
    asking.push_back(AskOne(search->name, keys, matched, deadline, one));
  }
  for (Task<Status>& one : asking) (void)co_await one;
  co_return all;
}

Status Finder::Take(const MatchReply& reply, std::size_t keys, std::shared_ptr<PeerRun> run,
                    PeerMatch* match) {
  const catalog::NamespaceEntry* entry = parts_.store.NamespaceAt(run->slot);
  if (entry == nullptr || entry->incarnation != run->incarnation)
    return Status(Code::kMiss, "the namespace was dropped meanwhile");
  const std::uint64_t blocks = reply.blocks();
  if (blocks > keys || reply.body_bytes.size() != blocks * FreeGroups(*entry))
    return Status(Code::kInvalid, Text("it answered a match of ", keys, " blocks with ", blocks));
  if (blocks == 0) return Status(Code::kMiss, "it has none of them any more");
  run->count = blocks;
  run->body_bytes = reply.body_bytes;
  run->chain.resize(run->first + blocks);
  const Peer& peer = parts_.peers.Of(run->peer);
  const Instant now = parts_.clock.Now();
  const double bytes_per_us = parts_.peers.BytesPerUs(peer, now);
  double us = peer.answer_us + parts_.peers.QueueUs(peer, now);
  std::size_t at = 0;
  for (const MatchRun& said : reply.runs) {
    us += static_cast<double>(BytesOf(*entry, *run, at, said.blocks)) / bytes_per_us;
    run->on_flash.insert(run->on_flash.end(), said.blocks, said.where == Where::kFlash);
    at += said.blocks;
    us = std::min(std::max(us, static_cast<double>(said.ready_in_us) + peer.answer_us), kMostReadyUs);
    match->runs.push_back({said.blocks, Where::kPeer, static_cast<std::int64_t>(us)});
  }
  match->run = std::move(run);
  return Status();
}

Task<Result<std::vector<std::byte>>> Finder::Answer(net::ConstPiece payload) {
  net::ConstPiece behind;
  const std::optional<MatchRequest> request = co_await DecodeQuestion(executor(), payload, &behind);
  if (!request) co_return Error(Code::kInvalid, "no question for a match");
  const std::optional<Answered> answered = parts_.rule.Answering();
  if (!answered) co_return Error(Code::kGone, "this member answers nobody now");
  if (answered->history != request->history) co_return Error(Code::kMismatch, "another history");
  MatchReply reply{.history = answered->history, .a = answered->a};
  if (const std::optional<std::uint32_t> slot = parts_.names.SlotOf(request->name)) {
    auto runs = co_await parts_.store.MatchRest(*slot, request->matched, request->keys);
    if (runs) {
      reply.runs = std::move(*runs);
      if (reply.runs.size() > PeerMessageLimits::kRuns) reply.runs.resize(PeerMessageLimits::kRuns);
      reply.body_bytes = co_await parts_.store.source_puts().BodyBytes(
          *slot, std::span(request->keys).first(reply.blocks()));
      // Dropped meanwhile.
      if (parts_.store.NamespaceAt(*slot) == nullptr) reply = {.history = reply.history, .a = reply.a};
    }
  }
  co_return Encode(reply);
}

}  // namespace cistern::mesh
