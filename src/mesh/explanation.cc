// SPDX-License-Identifier: Apache-2.0
#include "mesh/explanation.h"

#include <algorithm>

#include "base/event.h"
#include "base/format.h"
#include "base/limits.h"

namespace cistern::mesh {
namespace {

constexpr std::size_t kKeysAStep = kStepTouches / 2;

constexpr std::string_view kNames[] = {"here",     "reads_off",     "at_peer", "refused",   "bad_bytes",
                                       "pending",  "being_dropped", "dropped", "evicted",   "expired",
                                       "orphaned", "not_shared",    "alone",   "not_asked", "unknown"};

std::string IdOf(const FindingFacts& facts, std::uint64_t peer) {
  const auto id = facts.ids.find(peer);
  return id == facts.ids.end() ? Text("a member of before (", Hex(peer), ")") : id->second;
}

// Of members that have it.
std::optional<Explanation> AtPeers(const FindingFacts& facts) {
  const PeerSaid *fine = nullptr, *refused = nullptr;
  for (const PeerSaid& said : facts.peers) {
    if (said.holding.blocks() == 0) continue;
    (said.rule == Verdict::kTake ? fine : refused) = &said;
  }
  if (fine != nullptr) {
    std::string id = IdOf(facts, fine->holding.peer);
    if (facts.refusal && facts.refusal->peer == fine->holding.peer &&
        facts.refusal->why.code() == Code::kInvalid)
      return Explanation{Finding::kBadBytes,
                         Text(id, " has it, and what it sent was refused: ", facts.refusal->why.message()),
                         id};
    return Explanation{Finding::kAtPeer,
                       Text(id, " has it in ", ToString(fine->holding.runs.front().where),
                            "; a match of its chain here finds it there"),
                       id};
  }
  if (refused == nullptr) return std::nullopt;
  std::string id = IdOf(facts, refused->holding.peer);
  std::string why = refused->rule == Verdict::kBehind
                        ? Text("it answers with drops applied up to revision ", refused->holding.a,
                               ", and those after that are no longer all listed here")
                        : Text("a drop at revision ", facts.dropped_at, " covers it, and ", id,
                               " has applied drops up to ", refused->holding.a);
  return Explanation{Finding::kRefused, Text(id, " has it, and nothing is taken from there: ", why), id};
}

std::string NamesOf(const FindingFacts& facts) {
  std::string names;
  const auto add = [&](const std::string& name, std::string_view why) {
    names += Text(names.empty() ? "" : ", ", name, " (", why, ")");
  };
  for (const PeerSaid& said : facts.peers) {
    switch (said.holding.how) {
      case Holding::How::kClosed: add(IdOf(facts, said.holding.peer), "did not answer lately"); break;
      case Holding::How::kBusy: add(IdOf(facts, said.holding.peer), "has enough to answer"); break;
      case Holding::How::kFailed: add(IdOf(facts, said.holding.peer), said.holding.why.message()); break;
      default: break;
    }
  }
  for (const std::string& id : facts.unreachable) add(id, "no connection");
  return names;
}

// Of what was here and is not.
std::optional<Explanation> Went(const FindingFacts& facts) {
  using catalog::WentBy;
  if (facts.dropped_at > facts.applied)
    return Explanation{Finding::kBeingDropped,
                       Text("the drop at revision ", facts.dropped_at,
                            " covers it and is not durable here yet: drops up to ", facts.applied, " are"),
                       {}};
  switch (facts.look.went) {
    case WentBy::kEvicted:
      return Explanation{Finding::kEvicted, "it was here, and gave way to other blocks", {}};
    case WentBy::kExpired: return Explanation{Finding::kExpired, "it was here, and its time has passed", {}};
    case WentBy::kBad:
      return Explanation{Finding::kBadBytes, "it was here, and was cut because its checksums failed", {}};
    default: break;
  }
  if (facts.dropped_at > 0)
    return Explanation{Finding::kDropped, Text("it was dropped at revision ", facts.dropped_at), {}};
  if (facts.look.went == WentBy::kDropped) return Explanation{Finding::kDropped, "it was dropped", {}};
  if (facts.look.went == WentBy::kOrphaned)
    return Explanation{Finding::kOrphaned, "it was here, and a block that it stands on went", {}};
  return std::nullopt;
}

// The last drop listed that covers the chain or its namespace.
Task<std::int64_t> DroppedAt(Executor&, const DropList& drops, const SharedNamespace& name,
                             std::span<const BlockKey> chain) {
  std::int64_t revision = drops.LastOf(name, {});
  for (std::size_t from = 0; from < chain.size(); from += kKeysAStep) {
    if (from > 0) co_await Yield();
    const auto some = chain.subspan(from, std::min(kKeysAStep, chain.size() - from));
    revision = std::max(revision, drops.LastOf(name, some));
  }
  co_return revision;
}

Task<Verdict> RuleFor(Executor&, const DropList& drops, const SharedNamespace& name,
                      std::span<const BlockKey> chain, std::int64_t a) {
  ChainCheck check(drops, name, chain, a);
  while (!check.Step(kKeysAStep)) co_await Yield();
  co_return check.verdict();
}

}  // namespace

Task<Result<FindingFacts>> GatherFacts(const FindingParts& parts, std::uint32_t slot,
                                       std::span<const BlockKey> chain, Instant deadline) {
  const std::optional<store::BlockLook> look = parts.store.LookAt(slot, chain.back());
  const catalog::NamespaceEntry* entry = parts.store.NamespaceAt(slot);
  const std::optional<SharedNamespace> name = parts.names.NameAt(slot);
  if (!look || entry == nullptr) co_return Error(Code::kMiss, "the namespace was dropped");
  const std::optional<Answered> own = parts.rule.Answering();
  FindingFacts facts{.look = *look,
                     .shared = entry->first_full != catalog::kNoGroup,
                     .joined = own.has_value(),
                     .applied = own ? own->a : 0};
  if (const Refusal* refusal = parts.reader.RefusalOf(entry->incarnation, chain.back()))
    facts.refusal = *refusal;
  if (!name) {
    facts.shared = false;
    co_return facts;
  }
  std::vector<Holding> all = co_await parts.finder.AskAll(slot, chain, chain.size() - 1, true, deadline);
  const DropList& drops = parts.rule.drops();
  facts.dropped_at = co_await DroppedAt(parts.on, drops, *name, chain);
  for (Holding& one : all) {
    const Verdict rule =
        one.blocks() == 0 ? Verdict::kTake : co_await RuleFor(parts.on, drops, *name, chain, one.a);
    facts.peers.push_back({std::move(one), rule});
  }
  co_return facts;
}

std::string_view ToString(Finding finding) { return kNames[static_cast<std::size_t>(finding)]; }

Explanation Explain(const FindingFacts& facts) {
  if (facts.look.reads_off)
    return {Finding::kReadsOff, "reads of its namespace are off here, or this node drains", {}};
  if (facts.look.strict)
    return {Finding::kReadsOff,
            "its namespace is strict, and this node's membership of its cell does not stand",
            {}};
  if (facts.look.here) return {Finding::kHere, Text("it is here, in ", ToString(*facts.look.here)), {}};
  if (auto at = AtPeers(facts)) return std::move(*at);
  if (facts.look.pending)
    return {
        Finding::kPending,
        "a put of it waits here, for its parent or for what else belongs to it; nothing of it is readable",
        {}};
  if (auto went = Went(facts)) return std::move(*went);
  if (facts.refusal)
    return {
        facts.refusal->why.code() == Code::kInvalid ? Finding::kBadBytes : Finding::kRefused,
        Text("read from ", IdOf(facts, facts.refusal->peer), ", and refused: ", facts.refusal->why.message()),
        IdOf(facts, facts.refusal->peer)};
  if (!facts.shared)
    return {
        Finding::kNotShared,
        "it is not here, and its namespace is not shared: it has no full group, or its users keep it to this "
        "node (mesh off)",
        {}};
  if (!facts.joined)
    return {Finding::kAlone, "it is not here, and this node is in no cell now: nobody else is asked", {}};
  if (const std::string names = NamesOf(facts); !names.empty())
    return {Finding::kNotAsked, Text("nobody has it of those who answered, and these did not: ", names), {}};
  return {Finding::kUnknown, "no member has it", {}};
}

}  // namespace cistern::mesh
