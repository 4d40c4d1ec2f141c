// SPDX-License-Identifier: Apache-2.0
#include "mesh/cell_names.h"

#include <algorithm>
#include <utility>

#include "base/codec.h"
#include "base/format.h"
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

// What another member wrote, as a message may repeat it.
std::string Printable(std::string text) {
  std::ranges::replace_if(
      text, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, '?');
  return text;
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
                     at->second.list_hash == list.list_hash && state_.history != 0;
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
           readable && in.ok() ? Printable(text) : std::string("of a later version"), "', here '", list.text,
           "'; use another name or the same list, or, if nobody uses that one any more, ", "delete the key ",
           key, " in etcd"));
}

Task<Status> CellNames::Claim(NamedList list, Instant deadline) {
  using etcd::Compare;
  using etcd::Operation;
  // Nobody waits for an etcd that has not answered before.
  if (!state_.joined || !state_.trouble.ok())
    co_return Status(Code::kGone,
                     Text("etcd is not asked: ",
                          state_.joined ? state_.trouble.message() : "this member has not joined its cell"));
  const std::string key = keys_.NameKey(list.tenant, list.name);
  if (const Status* known = Known(list); known != nullptr && known->ok()) co_return Status();
  if (answers_.size() >= kMostNames && !answers_.contains(key))
    co_return Status(Code::kBusy,
                     Text("the node has asked for ", kMostNames, " names of the cell, the limit"));
  const std::uint64_t history = state_.history;
  etcd::Transaction claim;
  claim.conditions.push_back({.key = key, .what = Compare::What::kCreateRevision, .number = 0});
  claim.conditions.push_back(
      {.key = keys_.History(), .what = Compare::What::kModRevision, .number = state_.history_revision});
  claim.then.push_back({.keys = {key, ""}, .value = Encode(list)});
  claim.otherwise.push_back({.kind = Operation::Kind::kRange, .keys = {key, ""}});
  const auto answer = co_await etcd_.Commit(std::move(claim), deadline);
  if (!answer) co_return answer.error();
  Status status;
  if (!answer->succeeded) {
    const etcd::RangeAnswer& there = answer->ranges[0];
    if (there.keys.empty()) co_return Status(Code::kLapsed, "the cell's history changed meanwhile");
    status = this->Compare(key, there.keys.front().value, list);
  }
  answers_[key] = {history, list.list_hash, status};
  co_return status;
}

}  // namespace cistern::mesh
