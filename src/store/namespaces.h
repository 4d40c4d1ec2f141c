// SPDX-License-Identifier: Apache-2.0
// Namespaces as clients attach and drop them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/event.h"
#include "base/task.h"
#include "catalog/leases.h"
#include "catalog/namespace_users.h"
#include "cistern/namespace.h"
#include "residency/context.h"
#include "residency/residents.h"
#include "store/deletions.h"
#include "store/switches.h"

namespace cistern::store {

struct Attached {
  std::uint32_t slot = 0;
  std::uint64_t incarnation = 0;
};

// What becomes of a list that no namespace has.
enum class IfNew : bool { kMake, kRefuse };

// kMiss, with what to do about it.
Status UnknownNamespace(std::uint32_t slot);

class Namespaces final {
 public:
  Namespaces(const residency::StoreContext& context, residency::Residents& residents, Deletions& deletions,
             Switches& switches)
      : context_(context), residents_(residents), deletions_(deletions), switches_(switches) {}
  Namespaces(const Namespaces&) = delete;
  Namespaces& operator=(const Namespaces&) = delete;

  Executor& executor() { return context_.executor; }

  // The caller's owner uses the namespace from then on. A new list takes the slot number of one that is
  // nothing (no name, no block, no user) where the table is full or its owner has its share; where it is full
  // also of one that nobody uses, which goes with its blocks: the one used longest ago, and those with a name
  // last. kMismatch: the name stands for another list (message: the differing field, both values). kMiss for
  // a new list that is to be refused; then one that is known stays as it is, too. kBusy: there is no room for
  // a new one. The deadline ends waiting for others' changes (kTooLate); who changes nothing does not wait.
  Task<Result<Attached>> Attach(NamespaceSpec spec, catalog::Caller caller, IfNew if_new, Instant deadline);
  // What Attach would refuse now, of one that may be new: its list, its blocks' size, its name, or the room.
  // ok: nothing. No effect: for who asks others as well before it attaches.
  Task<Status> CheckAttach(NamespaceSpec spec, catalog::Caller caller);
  // The owner uses a namespace that Check was ok for. It stays where it is until OwnerEnded.
  void Use(const OwnerToken& owner, std::uint32_t slot) { users_.Use(owner, slot); }
  // The owner has no session any more, and no call or put of one is left.
  void OwnerEnded(const OwnerToken& owner) { users_.OwnerEnded(owner); }
  // Namespaces that a further list does not replace as long as it finds one that is nothing to anybody. Looks
  // at all of them, some 10 us.
  std::uint64_t wanted() const;
  // How many use it that have a session.
  std::uint32_t OwnersOf(std::uint32_t slot) const { return users_.count(slot); }
  // kInvalid where somebody uses a namespace with blocks that memory of so many headers does not take.
  Task<Status> CheckHeaders(std::uint32_t headers);
  // kMiss when the slot number is unknown or has another incarnation by now.
  Status Check(std::uint32_t slot, std::uint64_t incarnation) const;
  // Blocks removed, and the new incarnation.
  Task<Result<std::pair<std::uint64_t, std::uint64_t>>> Drop(std::uint32_t slot);
  // The same where the journal is not waited for (Journal::Settle), so that it is never refused. Blocks
  // removed; 0 in a slot without a namespace.
  Task<std::uint64_t> Renew(std::uint32_t slot);
  // The namespace that has these 16 digits as the fingerprint of its list, or else this name. kMiss: there
  // is none.
  Task<Result<std::uint32_t>> Find(std::string target);

  // Namespaces count for these quotas from now on, and residents of each as they are met.
  Task<void> SetQuotas(policy::QuotaTable quotas);
  // What a namespace that has no name or label here is called by who handed it over, until somebody gives it
  // one here, or the node starts anew: it counts for the quotas of these names, of which NAME=VALUE is a
  // label's. At most kMaxNamesOfList are kept.
  Task<void> NoteNames(std::uint32_t slot, std::vector<std::string> names);
  // Its names here, or else those.
  std::span<const std::string> NamesOf(std::uint32_t slot) const;
  // The quota that a namespace counts for; null: none.
  const policy::Quota* QuotaOf(std::uint32_t slot) const;

  // Turns reads or writes on or off: of the namespace that has this name, or these 16 digits as the
  // fingerprint of its list, or of those of which policy::MatchesNamespace says that they have this field or
  // label; of all, those that come too, where `target` is empty. No call that begins after it hits, or keeps
  // anything. The number of namespaces; kMiss: there is none that fits.
  Task<Result<std::uint32_t>> Turn(Switch which, bool on, std::string target);
  // Readers see of each namespace what the switches say.
  Task<void> ShowAll();

 private:
  // The attached namespace, journaled as it is to be.
  Task<Result<Attached>> Change(const catalog::Caller& caller, const NamespaceSpec& spec, bool is_new);
  void Add(catalog::NamespaceEntry entry);
  // The fingerprint of the list with this slot number, which a change may give to another one.
  std::optional<std::uint64_t> ListAt(std::uint32_t slot) const {
    if (context_.namespaces.at(slot) == nullptr) return std::nullopt;
    return context_.catalog.FingerprintOf(slot);
  }
  // A new incarnation, which readers see at once; what was there under the old one is collected.
  std::shared_ptr<Deletion> ShowRenewed(std::uint32_t slot, std::uint64_t incarnation);
  catalog::NamespaceEntry Remove(std::uint32_t slot);
  // Whether it is another one: what is there of it counts for the earlier one until Regroup.
  bool SetGroup(std::uint32_t slot);
  // All that is resident counts for its namespace's group.
  Task<void> Regroup();
  // As Turn has it; yields where it has to look at the list.
  Task<bool> Means(std::uint32_t slot, const std::string& target);
  // Yields where it has to look at the list.
  Task<bool> IsCalled(std::uint32_t slot, const std::string& target);
  // Writes the incarnation that readers look blocks up under; 0, under which nothing is found, while reads of
  // the namespace are off.
  void Show(std::uint32_t slot);
  // No name stands for it, nobody uses it, and nothing of it is left.
  bool Unwanted(std::uint32_t slot) const;
  // No block of it is there, nor any that was cut.
  bool NothingLeft(std::uint32_t slot) const;
  // Validate, and CheckBody of each group.
  Status CheckSpec(const NamespaceSpec& spec) const;
  // Where a new namespace of the owner has room: a free slot number, or that of one which is nothing, or
  // which goes first of those that nobody uses. kBusy: the table is full, or the owner has its share, and
  // somebody uses each that is not its own.
  struct Place {
    std::optional<std::uint32_t> of;  // none: a free one
    bool emptied = false;             // it has a name or blocks, which go
  };
  Task<Result<Place>> FindRoom(const OwnerToken& owner);
  // Makes that room: the slot number of the namespace that gave way, of which nothing is left; none: a free
  // number is there.
  Task<Result<std::optional<std::uint32_t>>> MakeRoom(const OwnerToken& owner);
  // Of the namespaces that nobody uses the one that may go first; and how many there are.
  struct Unused {
    std::optional<std::uint32_t> first;
    std::uint64_t count = 0;
  };
  Task<Unused> FindUnused();
  // The namespace is under another incarnation, which has no block, as soon as this is through: what was
  // there is being collected.
  Task<Result<std::shared_ptr<Deletion>>> Empty(std::uint32_t slot);

  const residency::StoreContext context_;
  residency::Residents& residents_;
  Deletions& deletions_;
  Switches& switches_;
  catalog::NamespaceUsers users_;
  policy::QuotaTable quotas_;
  std::map<std::uint32_t, std::vector<std::string>> called_elsewhere_;  // by slot
  bool changing_ = false;  // one change at a time: two that attach the same new list get one namespace
  Event changed_;
};

}  // namespace cistern::store
