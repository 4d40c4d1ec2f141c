// SPDX-License-Identifier: Apache-2.0
#include "store/namespaces.h"

#include <algorithm>
#include <memory>

#include "arena/protocol.h"
#include "base/format.h"
#include "base/nearest.h"
#include "policy/namespace_pattern.h"
#include "policy/share.h"

namespace cistern::store {

Status UnknownNamespace(std::uint32_t slot) {
  return Status(Code::kMiss, Text("namespace ", slot, ": is not attached, or was dropped; attach again"));
}

namespace {

constexpr std::size_t kFingerprintDigits = 16;

// As who attaches it would say it.
std::string NameOf(const NamespaceSpec& spec) {
  if (!spec.name.empty()) return spec.name;
  if (spec.fields.empty()) return "without a name and fields";
  return Text("with the field ", spec.fields[0].first, " '", spec.fields[0].second, "'");
}

// Somebody here says what it is, so what others call it counts no more.
bool CalledHere(const catalog::NamespaceEntry& entry) {
  return !entry.names.empty() || !entry.labels.empty();
}

std::string NotCalled(const std::string& target) {
  return Text("namespace ", Shown(target), ": the node knows none of that name, fingerprint, field or label");
}

bool IsNamed(const catalog::NamespaceEntry* entry, const std::string& target) {
  return entry != nullptr && std::ranges::find(entry->names, target) != entry->names.end();
}

bool HasFingerprint(const catalog::NamespaceEntry* entry, const std::string& target) {
  return entry != nullptr &&
         target == catalog::NamespaceTable::FingerprintText(catalog::NamespaceTable::Fingerprint(*entry));
}

}  // namespace

Status Namespaces::CheckSpec(const NamespaceSpec& spec) const {
  if (Status status = catalog::NamespaceTable::Validate(spec); !status.ok()) return status;
  for (const GroupSpec& group : spec.groups) {
    std::uint64_t body = 0;
    for (std::uint64_t bytes : group.part_bytes) body += bytes;
    if (body == 0) continue;
    if (Status status = context_.slots.CheckBody(body); !status.ok())
      return Status(status.code(), Text("group ", group.name, ": ", status.message()));
  }
  return Status();
}

Task<Status> Namespaces::CheckAttach(NamespaceSpec spec, catalog::Caller caller) {
  if (Status status = CheckSpec(spec); !status.ok()) co_return status;
  const auto found = context_.namespaces.Find(spec);
  if (!found) co_return found.error();
  if (found->entry != nullptr) co_return Status();
  const Result<Place> room = co_await FindRoom(caller.owner);
  co_return room ? Status() : room.error();
}

Task<Result<Attached>> Namespaces::Attach(NamespaceSpec spec, catalog::Caller caller, IfNew if_new,
                                          Instant deadline) {
  if (Status status = CheckSpec(spec); !status.ok()) co_return std::unexpected(std::move(status));
  auto found = context_.namespaces.Find(spec);
  const auto as_it_is = [&] {
    return found && found->entry != nullptr && (!found->changes || if_new == IfNew::kRefuse);
  };
  // One change of the names at a time: two that attach the same new list get one namespace.
  while (changing_ && !as_it_is()) {
    if (Status waited = co_await changed_.Wait(deadline); !waited.ok())
      co_return std::unexpected(std::move(waited));
    found = context_.namespaces.Find(spec);
  }
  if (!found) co_return std::unexpected(found.error());
  if (as_it_is()) {
    users_.Use(caller.owner, found->entry->slot);
    co_return Attached{found->entry->slot, found->entry->incarnation};
  }
  if (if_new == IfNew::kRefuse) {
    co_return Error(Code::kMiss, Text("namespace ", NameOf(spec),
                                      ": this node knows none of this list and was not to make one; look at "
                                      "its name, or put something there first"));
  }
  changing_ = true;
  const policy::QuotaGroup before = found->entry == nullptr
                                        ? policy::QuotaGroup{0}
                                        : context_.catalog.counted().of(found->entry->slot).group;
  const bool is_new = found->entry == nullptr;
  Result<Attached> attached = co_await Change(caller, spec, is_new);
  changing_ = false;
  changed_.Pulse();
  // A name more, and with it another quota.
  if (!is_new && attached && context_.catalog.counted().of(attached->slot).group != before)
    co_await Regroup();
  co_return attached;
}

Task<Result<Attached>> Namespaces::Change(const catalog::Caller& caller, const NamespaceSpec& spec,
                                          bool is_new) {
  std::optional<catalog::NamespaceEntry> replaced;
  if (is_new) {
    const Result<std::optional<std::uint32_t>> room = co_await MakeRoom(caller.owner);
    if (!room) co_return std::unexpected(room.error());
    if (*room) replaced = Remove(**room);
  }
  if (replaced) {
    // It comes back where the append fails, and a drop of the cell has found no namespace meanwhile: no
    // record that it had before counts then.
    replaced->incarnation = context_.journal.IncarnationOf(context_.sequences.Next());
    context_.journal.NoteNamespace(*replaced);
  }
  catalog::NamespaceEntry entry =
      context_.namespaces.Merged(spec, context_.journal.IncarnationOf(context_.sequences.next()));
  // The journal knows a list by its slot number: its record of the one replaced goes with this one.
  if (replaced) entry.slot = replaced->slot;
  if (is_new) context_.sequences.Next();
  if (Status status = co_await context_.journal.PutNamespace(entry); !status.ok()) {
    if (replaced) Add(std::move(*replaced));
    co_return std::unexpected(std::move(status));
  }
  const Attached attached{entry.slot, entry.incarnation};
  if (is_new) {
    Add(std::move(entry));
    users_.Bring(caller.owner, attached.slot);
  } else {
    context_.namespaces.Put(std::move(entry));
    SetGroup(attached.slot);
    users_.Use(caller.owner, attached.slot);
  }
  co_return attached;
}

void Namespaces::Add(catalog::NamespaceEntry entry) {
  const std::uint32_t slot = entry.slot;
  context_.catalog.AddTree(slot, entry.incarnation);
  context_.namespaces.Put(std::move(entry));
  context_.catalog.counted().Restart(slot);
  SetGroup(slot);
  Show(slot);
}

bool Namespaces::SetGroup(std::uint32_t slot) {
  const catalog::NamespaceEntry* entry = context_.namespaces.at(slot);
  if (entry == nullptr) return false;
  if (CalledHere(*entry)) called_elsewhere_.erase(slot);
  const policy::QuotaGroup before = context_.catalog.counted().of(slot).group;
  context_.catalog.counted().SetGroup(slot, quotas_.GroupOf(NamesOf(slot), entry->fields, entry->labels));
  return context_.catalog.counted().of(slot).group != before;
}

std::span<const std::string> Namespaces::NamesOf(std::uint32_t slot) const {
  const catalog::NamespaceEntry* entry = context_.namespaces.at(slot);
  if (entry == nullptr) return {};
  const auto elsewhere = called_elsewhere_.find(slot);
  if (elsewhere == called_elsewhere_.end()) return entry->names;
  return elsewhere->second;
}

Task<void> Namespaces::NoteNames(std::uint32_t slot, std::vector<std::string> names) {
  const catalog::NamespaceEntry* entry = context_.namespaces.at(slot);
  if (entry == nullptr || CalledHere(*entry) || names.empty()) co_return;
  names.resize(std::min(names.size(), catalog::kMaxNamesOfList));
  std::vector<std::string>& known = called_elsewhere_[slot];
  if (known == names) co_return;
  known = std::move(names);
  if (SetGroup(slot)) co_await Regroup();
}

Task<void> Namespaces::SetQuotas(policy::QuotaTable quotas) {
  quotas_ = std::move(quotas);
  for (std::uint32_t slot = 0; slot < context_.namespaces.end(); ++slot) {
    SetGroup(slot);
    co_await Yield();  // a list has up to 64 KiB
  }
  co_await Regroup();
}

Task<void> Namespaces::Regroup() {
  // What comes meanwhile counts for its group already. From the cold ends on, so that the order stays.
  const policy::Order& order = residents_.order();
  std::optional<policy::Order::Shelved> shelf;
  for (std::size_t from = 0; (shelf = order.FirstOf(from)); from = shelf->shelf + std::size_t{1}) {
    for (std::optional<policy::EntryId> at = shelf->id; at;) {
      const std::optional<policy::EntryId> next = order.Warmer(*at);
      residents_.Regroup(*at);
      context_.steps.Count();
      at = next;
      if (!context_.steps.Spent()) continue;
      co_await Yield();
      // It went meanwhile: from the cold end again, past those that are right by now.
      if (at && !order.StandsOn(*at, shelf->shelf)) {
        const auto again = order.FirstOf(shelf->shelf);
        at = again && again->shelf == shelf->shelf ? std::optional(again->id) : std::nullopt;
      }
    }
  }
  // And those that are parked.
  const catalog::BlockId end = context_.forest.block_end();
  for (catalog::BlockId block = 0; block < end && block < context_.forest.block_end(); ++block) {
    context_.steps.Count();
    if (context_.steps.Spent()) co_await Yield();
    const catalog::Block& b = context_.forest.block(block);
    if (!b.has_key() || b.folded()) continue;
    for (catalog::RecordId id = b.first_record; id != catalog::kNoId; id = context_.forest.record(id).next)
      residents_.Regroup(id);
  }
}

const policy::Quota* Namespaces::QuotaOf(std::uint32_t slot) const {
  const policy::QuotaGroup group = context_.catalog.counted().of(slot).group;
  return group == 0 || group > quotas_.quotas().size() ? nullptr : &quotas_.quotas()[group - 1];
}

void Namespaces::Show(std::uint32_t slot) {
  const catalog::NamespaceEntry* entry = context_.namespaces.at(slot);
  const bool shown = entry != nullptr && switches_.on(Switch::kReads, slot);
  arena::SetIncarnation(context_.words, residents_.index().index(), slot, shown ? entry->incarnation : 0);
}

catalog::NamespaceEntry Namespaces::Remove(std::uint32_t slot) {
  catalog::NamespaceEntry entry = *context_.namespaces.at(slot);
  arena::SetIncarnation(context_.words, residents_.index().index(), slot, 0);
  context_.catalog.RemoveTree(slot);
  context_.namespaces.Forget(slot);
  switches_.Forget(slot);
  called_elsewhere_.erase(slot);
  return entry;
}

bool Namespaces::Unwanted(std::uint32_t slot) const {
  const catalog::NamespaceEntry* entry = context_.namespaces.at(slot);
  return entry != nullptr && entry->names.empty() && !users_.used(slot) && NothingLeft(slot);
}

std::uint64_t Namespaces::wanted() const {
  std::uint64_t count = context_.namespaces.size();
  for (std::uint32_t slot = 0; slot < context_.namespaces.end(); ++slot) count -= Unwanted(slot);
  return count;
}

bool Namespaces::NothingLeft(std::uint32_t slot) const {
  const catalog::TreeId tree = context_.catalog.TreeOf(slot);
  return context_.forest.block(context_.forest.tree(tree)->root).first_child == catalog::kNoId &&
         !deletions_.Concern(slot);
}

Task<Result<std::optional<std::uint32_t>>> Namespaces::MakeRoom(const OwnerToken& owner) {
  for (;;) {
    const Result<Place> room = co_await FindRoom(owner);
    if (!room) co_return std::unexpected(room.error());
    if (!room->emptied) co_return room->of;
    const auto emptied = co_await Empty(*room->of);
    if (!emptied) co_return std::unexpected(emptied.error());
    co_await deletions_.Collected(*emptied);
    // Somebody may use it by now, and then another one goes; or another node has given it blocks.
    if (!users_.used(*room->of) && NothingLeft(*room->of)) co_return room->of;
  }
}

Task<Result<Namespaces::Place>> Namespaces::FindRoom(const OwnerToken& owner) {
  constexpr std::uint64_t kLimit = arena::kMaxNamespaces;
  const std::uint64_t mine = users_.BroughtBy(owner);
  if (policy::MayTakeOne(kLimit, context_.namespaces.size(), mine)) co_return Place();
  std::uint64_t unwanted = 0;
  std::optional<std::uint32_t> first;
  for (std::uint32_t slot = 0; slot < context_.namespaces.end(); ++slot) {
    context_.steps.Count(2);
    if (context_.steps.Spent()) co_await Yield();
    if (!Unwanted(slot)) continue;
    if (!first) first = slot;
    if (!policy::MayTakeOne(kLimit, context_.namespaces.size() - ++unwanted, mine)) continue;
    // The first may be wanted again since.
    co_return Place{Unwanted(*first) ? *first : slot};
  }
  Unused unused;
  if (context_.namespaces.size() >= kLimit) unused = co_await FindUnused();
  if (unused.first && policy::MayTakeOne(kLimit, context_.namespaces.size() - unused.count, mine))
    co_return Place{unused.first, true};
  co_return Error(Code::kBusy,
                  Text("namespaces: ", context_.namespaces.size(), " are known, ", mine,
                       " of this owner's making, ", unwanted, " have neither name nor blocks nor users, ",
                       unused.count, " no users; ", kLimit, " may be, and of an owner ", policy::kShare,
                       " times what is left: share namespaces, or end the sessions that made some"));
}

Task<Status> Namespaces::CheckHeaders(std::uint32_t headers) {
  const std::uint64_t most = context_.slots.MaxBodyBytes(headers);
  for (std::uint32_t slot = 0; slot < context_.namespaces.end(); ++slot) {
    context_.steps.Count(2);
    if (context_.steps.Spent()) co_await Yield();
    const catalog::NamespaceEntry* entry = context_.namespaces.at(slot);
    if (entry == nullptr || !users_.used(slot)) continue;
    for (const catalog::Group& group : entry->groups) {
      if (group.body_bytes <= most) continue;
      co_return Status(
          Code::kInvalid,
          Text("memory: blocks of group ", group.name, " of namespace ",
               entry->names.empty() ? Text(slot) : entry->names.front(), " have ", group.body_bytes,
               " bytes, and with ", headers * arena::kHeaderSpanBytes, " bytes of slots a block has at most ",
               most, " (1/32): ask for more, or end the engines that write such blocks first"));
    }
  }
  co_return Status();
}

Task<Namespaces::Unused> Namespaces::FindUnused() {
  Unused unused;
  const auto age = [this](std::uint32_t slot) {
    const catalog::NamespaceEntry* entry = context_.namespaces.at(slot);
    return std::pair(entry != nullptr && !entry->names.empty(), context_.catalog.counted().of(slot).last_use);
  };
  for (std::uint32_t slot = 0; slot < context_.namespaces.end(); ++slot) {
    context_.steps.Count(2);
    if (context_.steps.Spent()) co_await Yield();
    if (context_.namespaces.at(slot) == nullptr || users_.used(slot)) continue;
    ++unused.count;
    if (!unused.first || age(slot) < age(*unused.first)) unused.first = slot;
  }
  // Somebody may use it since.
  if (unused.first && users_.used(*unused.first)) unused.first.reset();
  co_return unused;
}

Status Namespaces::Check(std::uint32_t slot, std::uint64_t incarnation) const {
  const catalog::NamespaceEntry* entry = context_.namespaces.at(slot);
  if (entry != nullptr && entry->incarnation == incarnation) return Status();
  return UnknownNamespace(slot);
}

Task<bool> Namespaces::Means(std::uint32_t slot, const std::string& target) {
  const bool called = co_await IsCalled(slot, target);
  if (called) co_return true;
  if (target.find('=') == std::string::npos) co_return false;
  co_await Yield();  // a list has up to 64 KiB
  const catalog::NamespaceEntry* entry = context_.namespaces.at(slot);
  if (entry == nullptr) co_return false;
  co_return policy::MatchesNamespace(target, {}, entry->fields, entry->labels);
}

Task<bool> Namespaces::IsCalled(std::uint32_t slot, const std::string& target) {
  const catalog::NamespaceEntry* entry = context_.namespaces.at(slot);
  if (entry == nullptr) co_return false;
  if (IsNamed(entry, target)) co_return true;
  if (target.size() != kFingerprintDigits) co_return false;
  co_await Yield();  // a list has up to 64 KiB
  co_return HasFingerprint(context_.namespaces.at(slot), target);
}

// Who names a namespace by another one's fingerprint gets no drop that is meant for that one.
Task<Result<std::uint32_t>> Namespaces::Find(std::string target) {
  std::optional<std::uint32_t> named;
  for (std::uint32_t slot = 0; slot < context_.namespaces.end(); ++slot) {
    context_.steps.Count(2);
    if (context_.steps.Spent()) co_await Yield();
    if (context_.namespaces.at(slot) == nullptr) continue;
    if (!named && IsNamed(context_.namespaces.at(slot), target)) named = slot;
    if (target.size() != kFingerprintDigits) continue;
    co_await Yield();  // a list has up to 64 KiB
    if (HasFingerprint(context_.namespaces.at(slot), target)) co_return slot;
  }
  if (named && IsNamed(context_.namespaces.at(*named), target)) co_return *named;
  co_return Error(Code::kMiss, NotCalled(target));
}

Task<Result<std::uint32_t>> Namespaces::Turn(Switch which, bool on, std::string target) {
  std::uint32_t turned = 0;
  if (target.empty()) switches_.TurnAll(which, on);  // from here on for the node's calls and what is attached
  for (std::uint32_t slot = 0; slot < context_.namespaces.end(); ++slot) {
    context_.steps.Count(2);
    if (context_.steps.Spent()) co_await Yield();
    if (context_.namespaces.at(slot) == nullptr) continue;
    if (!target.empty()) {
      const bool meant = co_await Means(slot, target);
      if (!meant) continue;
      switches_.Turn(which, slot, on);
    }
    Show(slot);
    ++turned;
  }
  if (turned > 0 || target.empty()) co_return turned;
  co_return Error(Code::kMiss, NotCalled(target));
}

Task<void> Namespaces::ShowAll() {
  for (std::uint32_t slot = 0; slot < context_.namespaces.end(); ++slot) {
    context_.steps.Count(2);
    if (context_.steps.Spent()) co_await Yield();
    if (context_.namespaces.at(slot) != nullptr) Show(slot);
  }
}

Task<Result<std::shared_ptr<Deletion>>> Namespaces::Empty(std::uint32_t slot) {
  const catalog::TreeId tree = context_.catalog.TreeOf(slot);
  catalog::NamespaceEntry entry = *context_.catalog.EntryOf(tree);
  entry.incarnation = context_.journal.IncarnationOf(context_.sequences.Next());
  Status status = co_await context_.journal.PutNamespace(entry);
  if (!status.ok()) co_return std::unexpected(std::move(status));
  co_return ShowRenewed(slot, entry.incarnation);
}

Task<Result<std::pair<std::uint64_t, std::uint64_t>>> Namespaces::Drop(std::uint32_t slot) {
  const std::optional<std::uint64_t> meant = ListAt(slot);
  while (changing_) co_await changed_.Wait();
  if (!meant || ListAt(slot) != meant) co_return std::unexpected(UnknownNamespace(slot));
  changing_ = true;
  const auto emptied = co_await Empty(slot);
  const std::uint64_t incarnation = emptied ? context_.namespaces.at(slot)->incarnation : 0;
  changing_ = false;
  changed_.Pulse();
  if (!emptied) co_return std::unexpected(emptied.error());
  co_await deletions_.Collected(*emptied);
  co_return std::pair((*emptied)->blocks, incarnation);
}

// A change under way is waited for: its record is in the journal already and would go before this one.
Task<std::uint64_t> Namespaces::Renew(std::uint32_t slot) {
  const std::optional<std::uint64_t> meant = ListAt(slot);
  while (changing_) co_await changed_.Wait();
  if (!meant || ListAt(slot) != meant) co_return 0;
  catalog::NamespaceEntry entry = *context_.namespaces.at(slot);
  entry.incarnation = context_.journal.IncarnationOf(context_.sequences.Next());
  context_.journal.NoteNamespace(entry);
  const std::shared_ptr<Deletion> deletion = ShowRenewed(slot, entry.incarnation);
  co_await deletions_.Collected(deletion);
  co_return deletion->blocks;
}

std::shared_ptr<Deletion> Namespaces::ShowRenewed(std::uint32_t slot, std::uint64_t incarnation) {
  const catalog::TreeId tree = context_.catalog.TreeOf(slot);
  context_.namespaces.SetIncarnation(slot, incarnation);
  Show(slot);
  context_.catalog.AddTree(slot, incarnation);
  Deletion deletion;
  deletion.top = deletion.at = context_.forest.tree(tree)->root;
  deletion.tree = tree;
  deletion.whole_tree = true;
  context_.forest.Cut(deletion.top);
  return deletions_.Start(std::move(deletion));
}

}  // namespace cistern::store
