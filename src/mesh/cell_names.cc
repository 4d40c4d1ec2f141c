// SPDX-License-Identifier: Apache-2.0
#include "mesh/cell_names.h"

#include <algorithm>
#include <utility>

#include "base/codec.h"
#include "base/format.h"
#include "base/nearest.h"
#include "mesh/shared_names.h"

namespace cistern::mesh {
namespace {

constexpr std::uint16_t kNameVersion = 1;

std::string Encode(const NamedList& list) {
  std::vector<std::byte> bytes;
  Encoder out(bytes);
  out.U16(kNameVersion);
  out.Bytes(list.list_hash);
  out.String(list.text);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

NamedList NamedListOf(const std::string& tenant, std::string name, const catalog::NamespaceEntry& entry) {
  NamedList list{.tenant = tenant, .name = std::move(name), .list_hash = NameOf(tenant, entry).list_hash};
  for (const auto& [field, value] : entry.fields) {
    if (list.text.size() > NamedList::kMaxText) break;
    list.text += Text(list.text.empty() ? "" : ", ", field, "=", value);
  }
  for (const catalog::Group& group : entry.groups)
    list.text += Text("; group ", group.name, ", ", group.body_bytes, " bytes a block");
  if (entry.trusted_keys) list.text += "; trusted_keys";
  if (entry.strict) list.text += "; strict";
  if (list.text.size() > NamedList::kMaxText) list.text.resize(NamedList::kMaxText);
  return list;
}

const Status* CellNames::Known(const NamedList& list) const {
  const auto at = answers_.find(keys_.NameKey(list.tenant, list.name));
  const bool known = at != answers_.end() && at->second.history == state_.history &&
                     at->second.list_hash == list.list_hash && state_.history != 0 && at->second.status.ok();
  return known ? &at->second.status : nullptr;
}

Status CellNames::Compare(const std::string& key, std::string_view value, const NamedList& list) const {
  Decoder in(std::as_bytes(std::span(value)));
  const bool readable = in.U16() >= kNameVersion;
  const std::span<const std::byte> list_hash = in.Bytes(list.list_hash.size());
  const std::string text = in.String(2 * NamedList::kMaxText);
  if (readable && in.ok() && std::ranges::equal(list_hash, list.list_hash)) return Status();
  return Status(
      Code::kMismatch,
      Text("namespace ", list.name, " stands for another list in the cell: there it is '",
           readable && in.ok() ? Shown(text, text.size()) : std::string("of a later version"), "', here '",
           list.text, "'; use another name or the same list, or, if nobody uses that one any more, ",
           "delete the key ", key, " in etcd"));
}

Status CellNames::Refused(const std::string& key, const NamedList& list) const {
  const auto at = answers_.find(key);
  if (at == answers_.end()) return Status();
  const Answer& last = at->second;
  if (last.status.ok() || last.history != state_.history) return Status();
  if (etcd_.executor().Now().UsSince(last.said) >= kRefusedUs) return Status();
  return Compare(key, last.value, list);
}

Task<Result<etcd::TransactionAnswer>> CellNames::Commit(etcd::Transaction transaction, Instant deadline) {
  while (under_way_ >= kMostAsked) {
    if (Status in_time = co_await answered_.Wait(deadline); !in_time.ok())
      co_return Error(std::move(in_time));
  }
  struct UnderWay {
    CellNames& names;
    explicit UnderWay(CellNames& of) : names(of) { ++names.under_way_; }
    ~UnderWay() {
      --names.under_way_;
      names.answered_.Pulse();
    }
  };
  const UnderWay one(*this);
  co_return co_await etcd_.Commit(std::move(transaction), deadline);
}

Task<Status> CellNames::Claim(NamedList list, Instant deadline) {
  // Nobody waits for an etcd that has not answered before.
  if (!state_.joined || !state_.trouble.ok())
    co_return Status(Code::kGone,
                     Text("etcd is not asked: ",
                          state_.joined ? state_.trouble.message() : "this member has not joined its cell"));
  const std::string key = keys_.NameKey(list.tenant, list.name);
  for (;;) {
    if (const Status* known = Known(list); known != nullptr) co_return *known;
    if (Status refused = Refused(key, list); !refused.ok()) co_return refused;
    const auto at = asked_.find(key);
    if (at == asked_.end()) break;
    const std::shared_ptr<Asked> other = at->second;
    Status in_time = co_await other->ended.Wait(deadline);
    if (!in_time.ok()) co_return in_time;
    const bool said = other->status.ok() || other->status.code() == Code::kMismatch;
    if (said && other->list_hash == list.list_hash) co_return other->status;
  }
  const auto own = std::make_shared<Asked>();
  own->list_hash = list.list_hash;
  own->status = Status(Code::kGone, "its caller has gone");
  struct Ended {
    CellNames& names;
    const std::string& key;
    ~Ended() {
      const auto at = names.asked_.find(key);
      at->second->ended.Set();
      names.asked_.erase(at);
    }
  };
  asked_[key] = own;
  const Ended ended{*this, key};
  own->status = co_await Ask(key, std::move(list), deadline);
  co_return own->status;
}

Task<Status> CellNames::Ask(std::string key, NamedList list, Instant deadline) {
  using etcd::Compare;
  using etcd::Operation;
  if (const auto unwanted = unwanted_.find(key); unwanted != unwanted_.end())
    co_await Remove(key, unwanted->second, deadline);
  if (answers_.size() + unwanted_.size() >= kMostNames && !answers_.contains(key))
    co_return Status(Code::kBusy,
                     Text("the node has asked for ", kMostNames, " names of the cell, the limit"));
  const std::uint64_t history = state_.history;
  etcd::Transaction claim;
  claim.conditions.push_back({.key = key, .what = Compare::What::kCreateRevision, .number = 0});
  claim.conditions.push_back({.key = keys_.History(), .number = state_.history_revision});
  claim.then.push_back({.keys = {key, ""}, .value = Encode(list)});
  claim.otherwise.push_back({.kind = Operation::Kind::kRange, .keys = {key, ""}});
  auto answer = co_await Commit(std::move(claim), deadline);
  if (!answer) co_return answer.error();
  Answer known{.history = history, .list_hash = list.list_hash, .said = executor().Now()};
  if (answer->succeeded) {
    known.made = answer->header.revision;
  } else {
    if (answer->ranges[0].keys.empty())
      co_return Status(Code::kLapsed, "the cell's history changed meanwhile");
    const etcd::KeyValue there = answer->ranges[0].keys.front();
    known.status = this->Compare(key, there.value, list);
    if (!known.status.ok()) known.value = there.value;
    if (known.status.ok() && there.mod_revision == there.create_revision) {
      const auto confirmed = co_await Confirm(key, there.value, there.mod_revision, deadline);
      if (!confirmed) co_return confirmed.error();
      if (!confirmed->succeeded && confirmed->ranges[0].keys.empty())
        co_return Status(Code::kLapsed, "who had claimed the name has given it back meanwhile");
    }
  }
  answers_[key] = known;
  co_return known.status;
}

Task<Result<etcd::TransactionAnswer>> CellNames::Confirm(std::string key, std::string value,
                                                         std::int64_t revision, Instant deadline) {
  etcd::Transaction confirm;
  confirm.conditions.push_back({.key = key, .number = revision});
  confirm.then.push_back({.keys = {key, ""}, .value = std::move(value)});
  confirm.otherwise.push_back({.kind = etcd::Operation::Kind::kRange, .keys = {key, ""}});
  return Commit(std::move(confirm), deadline);
}

Task<void> CellNames::Withdraw(NamedList list, Instant deadline) {
  const std::string key = keys_.NameKey(list.tenant, list.name);
  const auto known = answers_.find(key);
  if (known == answers_.end() || known->second.list_hash != list.list_hash || known->second.made == 0)
    co_return;
  const Unwanted unwanted{known->second.history, known->second.made};
  answers_.erase(known);
  unwanted_[key] = unwanted;
  co_await Remove(key, unwanted, deadline);
}

Task<void> CellNames::WithdrawRest(Instant deadline) {
  const std::map<std::string, Unwanted> all = unwanted_;
  for (const auto& [key, unwanted] : all) {
    if (!state_.joined || !state_.trouble.ok()) co_return;
    co_await Remove(key, unwanted, deadline);
  }
}

Task<void> CellNames::Remove(std::string key, Unwanted unwanted, Instant deadline) {
  // With another history came another etcd, or an older one of its states.
  if (unwanted.history != state_.history) {
    unwanted_.erase(key);
    co_return;
  }
  etcd::Transaction remove;
  remove.conditions.push_back({.key = key, .number = unwanted.made});
  remove.conditions.push_back({.key = keys_.History(), .number = state_.history_revision});
  remove.then.push_back({.kind = etcd::Operation::Kind::kDelete, .keys = {key, ""}});
  const auto answer = co_await Commit(std::move(remove), deadline);
  if (answer) unwanted_.erase(key);
}

}  // namespace cistern::mesh
