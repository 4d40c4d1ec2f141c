// SPDX-License-Identifier: Apache-2.0
#include "node/inquiry.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <map>
#include <utility>
#include <vector>

#include "base/format.h"
#include "mesh/explanation.h"
#include "mesh/member.h"
#include "mesh/shared_names.h"
#include "mesh/sharing.h"
#include "store/block_store.h"

namespace cistern::node {
namespace {

namespace json = boost::json;

constexpr std::int64_t kAskUs = 1'000'000;  // a member that has not answered by then does not

// So that the caller hears what is known by its deadline.
Instant AskUntil(const Inquiry& inquiry, const server::ChainQuestion& question) {
  const Instant now = inquiry.on.Now();
  const std::int64_t left_us = std::max<std::int64_t>(question.deadline.UsSince(now), 0);
  return now.PlusUs(std::min(left_us - left_us / 8, kAskUs));
}

std::map<std::uint64_t, std::string> IdsOf(const mesh::Member& member) {
  std::map<std::uint64_t, std::string> ids;
  for (const auto& [id, value] : member.state().view.members) ids[value.process_number] = id;
  return ids;
}

json::object TiersOf(std::span<const MatchRun> runs) {
  std::uint64_t memory = 0, flash = 0;
  for (const MatchRun& run : runs) (run.where == Where::kMemory ? memory : flash) += run.blocks;
  return {{"blocks", memory + flash}, {"memory", memory}, {"flash", flash}};
}

json::object Holder(std::string_view id, bool self, std::span<const MatchRun> runs, std::size_t sampled,
                    bool exact, std::string_view why) {
  json::object one{{"member", id}, {"self", self}, {"exact", exact}};
  for (auto& [name, value] : TiersOf(runs)) one[name] = value;
  if (!exact) one["blocks"] = sampled;
  one["why"] = why;
  return one;
}

std::string WhyOf(const mesh::Holding& holding) {
  using How = mesh::Holding::How;
  switch (holding.how) {
    case How::kAnswered: return "";
    case How::kFailed: return std::string(holding.why.message());
    case How::kClosed: return "it did not answer lately";
    case How::kBusy: return "enough is asked of it already";
    case How::kUnknown: return "nothing of it is known to be there";
  }
  return "";
}

json::array SaidOf(const mesh::FindingFacts& facts) {
  json::array members;
  for (const mesh::PeerSaid& said : facts.peers) {
    const auto id = facts.ids.find(said.holding.peer);
    if (id == facts.ids.end()) continue;
    json::object one{
        {"member", id->second},
        {"asked", said.holding.how == mesh::Holding::How::kAnswered ||
                      said.holding.how == mesh::Holding::How::kFailed},
        {"has_it", said.holding.blocks() > 0},
        {"applied",
         said.holding.how == mesh::Holding::How::kAnswered ? json::value(said.holding.a) : json::value()},
        {"why", WhyOf(said.holding)}};
    members.push_back(std::move(one));
  }
  for (const std::string& id : facts.unreachable)
    members.push_back(json::object{
        {"member", id}, {"asked", false}, {"has_it", false}, {"applied", nullptr}, {"why", "no connection"}});
  return members;
}

}  // namespace

Task<Result<std::string>> HoldersText(const Inquiry& inquiry, const server::ChainQuestion& question) {
  const auto own = co_await inquiry.store.MatchRest(question.slot, 0, question.chain);
  if (!own) co_return Error(own.error());
  const bool shared = inquiry.names.NameAt(question.slot).has_value();
  const std::vector<mesh::Holding> all = co_await inquiry.sharing.finder().AskAll(
      question.slot, question.chain, 0, false, AskUntil(inquiry, question));
  std::map<std::uint64_t, const mesh::Holding*> by_peer;
  for (const mesh::Holding& one : all) by_peer[one.peer] = &one;
  std::vector<json::object> holders;
  for (const auto& [id, value] : inquiry.member.state().view.members) {
    if (value.process_number == inquiry.member.options().process_number) {
      holders.push_back(Holder(id, true, *own, 0, true, ""));
      continue;
    }
    const auto at = by_peer.find(value.process_number);
    if (at == by_peer.end()) {
      holders.push_back(
          Holder(id, false, {}, 0, false, shared ? "no connection" : "the namespace is kept to this node"));
      continue;
    }
    const mesh::Holding& one = *at->second;
    const bool exact = one.how == mesh::Holding::How::kAnswered;
    holders.push_back(Holder(id, false, one.runs, one.sampled, exact, WhyOf(one)));
  }
  // Who has most comes first; of equal ones, as they stand.
  std::vector<std::pair<std::uint64_t, std::size_t>> order;
  for (std::size_t i = 0; i < holders.size(); ++i)
    order.emplace_back(holders[i].at("blocks").to_number<std::uint64_t>(), holders.size() - i);
  std::ranges::sort(order, std::ranges::greater());
  json::array members;
  for (const auto& [blocks, from_end] : order)
    members.push_back(std::move(holders[holders.size() - from_end]));
  co_return json::serialize(json::object{{"of", question.chain.size()}, {"members", std::move(members)}});
}

Task<Result<std::string>> ExplainText(const Inquiry& inquiry, const server::ChainQuestion& question) {
  const mesh::FindingParts parts{
      inquiry.on,     inquiry.store, inquiry.sharing.finder(), inquiry.sharing.reader(),
      inquiry.member, inquiry.names};
  Result<mesh::FindingFacts> gathered =
      co_await mesh::GatherFacts(parts, question.slot, question.chain, AskUntil(inquiry, question));
  if (!gathered) co_return Error(gathered.error());
  mesh::FindingFacts& facts = *gathered;
  facts.ids = IdsOf(inquiry.member);
  for (const auto& [process, id] : facts.ids) {
    const bool said = std::ranges::any_of(
        facts.peers, [&](const mesh::PeerSaid& one) { return one.holding.peer == process; });
    if (!said && process != inquiry.member.options().process_number && facts.joined && facts.shared)
      facts.unreachable.push_back(id);
  }
  const mesh::Explanation found = mesh::Explain(facts);
  co_return json::serialize(
      json::object{{"key", question.chain.back().ToHex()},
                   {"finding", mesh::ToString(found.finding)},
                   {"member", found.member.empty() ? json::value() : json::value(found.member)},
                   {"text", found.text},
                   {"dropped_at", facts.dropped_at == 0 ? json::value() : json::value(facts.dropped_at)},
                   {"applied", facts.applied},
                   {"members", SaidOf(facts)}});
}

}  // namespace cistern::node
