// SPDX-License-Identifier: Apache-2.0
#include "node/reports.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>

#include "base/format.h"
#include "base/release.h"
#include "base/utf8.h"
#include "mesh/member.h"
#include "mesh/rail_threads.h"
#include "mesh/sharing.h"
#include "wire/protocol.h"

namespace cistern::node {
namespace {

namespace json = boost::json;

std::string_view ReachText(Reach reach) {
  return reach == Reach::kFull ? "full" : reach == Reach::kWindow ? "window" : "last_state";
}

json::object UseJson(const store::TierUse& use) { return {{"records", use.records}, {"bytes", use.bytes}}; }

store::TierUse Sum(const std::vector<store::TierUse>& groups) {
  store::TierUse sum;
  for (const store::TierUse& group : groups) {
    sum.records += group.records;
    sum.bytes += group.bytes;
  }
  return sum;
}

json::object NamespaceJson(const store::NamespaceUse& use) {
  const catalog::NamespaceEntry& entry = use.entry;
  json::array names, groups;
  for (const std::string& name : entry.names) names.push_back(json::string(Utf8(name)));
  json::object fields, labels;
  for (const auto& [name, value] : entry.fields) fields[Utf8(name)] = Utf8(value);
  for (const auto& [name, value] : entry.labels) labels[Utf8(name)] = Utf8(value);
  for (std::size_t i = 0; i < entry.groups.size(); ++i) {
    const catalog::Group& group = entry.groups[i];
    json::array parts;
    for (const std::uint32_t bytes : group.part_bytes) parts.push_back(bytes);
    groups.push_back(json::object{{"name", Utf8(group.name)},
                                  {"reach", ReachText(group.reach)},
                                  {"window_tokens", group.window_tokens},
                                  {"part_bytes", std::move(parts)},
                                  {"memory", UseJson(use.memory[i])},
                                  {"flash", UseJson(use.lower[i])}});
  }
  const auto& write = entry.lower.write;
  const auto& admit = entry.lower.admit;
  return {{"slot", entry.slot},
          {"fingerprint", catalog::NamespaceTable::FingerprintText(use.fingerprint)},
          {"names", std::move(names)},
          {"fields", std::move(fields)},
          {"labels", std::move(labels)},
          {"groups", std::move(groups)},
          {"block_tokens", entry.block_tokens},
          {"trusted_keys", entry.trusted_keys},
          {"strict", entry.strict},
          {"mesh", entry.mesh ? json::value(*entry.mesh ? "on" : "off") : json::value()},
          {"copies", entry.copies ? json::value(*entry.copies) : json::value()},
          {"flash_write", write ? json::value(ToString(*write)) : json::value()},
          {"flash_admit", admit ? json::value(ToString(*admit)) : json::value()},
          {"blocks", use.blocks},
          {"memory", UseJson(Sum(use.memory))},
          {"flash", UseJson(Sum(use.lower))},
          {"uses", use.uses},
          {"unused_us", use.unused_us < 0 ? json::value() : json::value(use.unused_us)},
          {"owners", use.owners},
          {"quota", use.quota.empty() ? json::value() : json::value(Utf8(use.quota))}};
}

}  // namespace

Task<Result<server::ReportPage>> NamespacesPage(Executor&, store::Survey::Uses uses, std::uint64_t from,
                                                std::size_t most_bytes) {
  server::ReportPage page{.next = wire::kReportEnds};
  for (const store::NamespaceUse& use : *uses) {
    if (use.entry.slot < from) continue;
    const std::string member = json::serialize(NamespaceJson(use));
    if (page.text.empty() && member.size() > most_bytes) {
      co_return Error(Code::kInvalid, Text("namespace ", use.entry.slot, " takes ", member.size(),
                                           " bytes, the call left room for ", most_bytes));
    }
    if (!page.text.empty() && page.text.size() + 1 + member.size() > std::min(kPageBytes, most_bytes)) {
      page.next = use.entry.slot;
      break;
    }
    if (!page.text.empty()) page.text += ',';
    page.text += member;
    co_await Yield();
  }
  co_return page;
}

server::ReportPage MembersPage(const mesh::Member& member, const mesh::Sharing& sharing,
                               const mesh::RailThreads& rails, std::uint64_t from, Instant now) {
  const mesh::CellState& state = member.state();
  server::ReportPage page{.next = wire::kReportEnds};
  std::uint64_t at = 0;
  for (const auto& [id, value] : state.view.members) {
    if (at++ < from) continue;
    const bool self = value.process_number == member.options().process_number;
    const auto heard = state.heard.find(value.process_number);
    const bool comparable = heard != state.heard.end() && heard->second.history == state.history;
    const mesh::Peer* const peer = self ? nullptr : sharing.peers().Find(value.process_number);
    const std::string release = self              ? std::string(Release())
                                : peer == nullptr ? std::string()
                                                  : peer->release;
    const json::object one{
        {"id", id},
        {"address", Utf8(value.address)},
        {"zone", Utf8(value.zone)},
        {"process", Hex(value.process_number)},
        {"self", self},
        {"role", self || peer != nullptr ? json::value(mesh::ToString(self ? sharing.role() : peer->role))
                                         : json::value()},
        {"connected", self || member.Reaches(value.process_number)},
        {"why", self || member.Reaches(value.process_number) ? std::string() : member.WhyApart(id)},
        {"applied", comparable ? json::value(heard->second.a) : json::value()},
        {"samples", self ? sharing.feed().samples() : sharing.streams().SamplesOf(value.process_number)},
        {"asked", peer == nullptr || !peer->breaker.open()},
        {"answer_us", peer == nullptr ? json::value() : json::value(peer->answer_us)},
        {"version", release.empty() ? json::value() : json::value(Utf8(release))},
        {"rails", rails.OpenTo(value.process_number)},
        {"no_rail", std::string(rails.WhyNone(value.process_number).message())},
        {"gb_per_s", peer == nullptr || !peer->IsKnown(now) ? json::value()
                                                            : json::value(peer->bytes_per_us(now) / 1000)},
        {"bytes_per_us", peer == nullptr ? json::value() : json::value(peer->bytes_per_us(now))},
        {"landing_bytes", peer == nullptr ? 0 : peer->landing_bytes}};
    std::string text = json::serialize(one);
    if (!page.text.empty() && page.text.size() + 1 + text.size() > kPageBytes) {
      page.next = at - 1;
      break;
    }
    page.text += (page.text.empty() ? "" : ",") + text;
  }
  return page;
}

std::string SettingsText(const NodeOptions& options) {
  std::string text;
  for (const Setting& setting : NodeSettings()) {
    const auto given = options.origins.find(setting.name);
    const json::object member{
        {"name", setting.name},
        {"value", Utf8(setting.get(options))},
        {"from", given == options.origins.end() ? std::string("default") : Utf8(given->second)},
        {"reload", setting.copy != nullptr}};
    if (!text.empty()) text += ',';
    text += json::serialize(member);
  }
  return text;
}

}  // namespace cistern::node
