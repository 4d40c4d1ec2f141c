// SPDX-License-Identifier: Apache-2.0
// Puts of sources: records that another node, or an object store, gives. Whoever fetches one takes a slot
// first, lets the body land there and says at the end what came; then it is published as any put is, under
// this store's own incarnation, sequence and seal: its parent reachable, the first wins, a drop ends it.
//
// Unlike a client's put it waits for nothing: it is published in the very step in which its source's drops
// were compared with this node's (Admission), or never.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/task.h"
#include "residency/context.h"
#include "residency/residents.h"
#include "residency/room.h"
#include "store/deletions.h"
#include "store/open_puts.h"
#include "store/publisher.h"
#include "store/switches.h"

namespace cistern::store {

// Whose puts those of all sources are.
inline constexpr OwnerToken kSourceOwner = {std::byte{'s'}, std::byte{'o'}, std::byte{'u'},
                                            std::byte{'r'}, std::byte{'c'}, std::byte{'e'}};

struct SourceBlock {
  BlockKey key;
  BlockKey parent;  // none(): the chain's first block
  std::uint16_t group = 0;
  std::uint64_t body_bytes = 0;  // as the namespace has them; 0 there: as the source has said
  // A spare put: it takes free room, or that of what was used longer ago than so (policy::Order::Age), and
  // is kBusy at once where there is neither. None: it displaces what any put does.
  std::optional<std::uint32_t> age{};
  // Of the namespace that it is of: where another one has the slot by now it is kMiss. 0: of whichever has.
  std::uint64_t incarnation = 0;
  // For room that there may be later, and until it is known whether the block is here; else it is kBusy then.
  bool waits = true;
};

// What came with a body.
struct SourceFacts {
  std::vector<std::uint32_t> part_bytes;
  std::vector<std::uint32_t> segment_crcs;  // those of the bytes that landed
  PutId put_id;
  // From when it was asked for, at the store's count of seconds then; 0: it has no end.
  std::uint32_t ttl_s = 0;
  std::uint64_t asked_at_s = 0;
};

// Decides whether a body may become visible here, in the step in which it does.
class Admission {
 public:
  enum class Answer : std::uint8_t {
    kTake,
    kRefuse,
    kMore,  // the touches did not suffice
  };
  // Looks at `*touches` names at most and counts them off.
  virtual Answer Look(std::uint32_t* touches) = 0;
  // After kTake, in the same step: the conversations that alone have written or used it, as they are noted
  // here; none: nobody's, or shared.
  virtual std::vector<std::uint64_t> Notes() const = 0;

 protected:
  ~Admission() = default;
};

class SourcePuts;

// One put of a source, with its slot. Destroyed before Finish: its put ends and the slot is free.
class SourcePut final {
 public:
  SourcePut() = default;
  SourcePut(SourcePut&& other) noexcept
      : puts_(std::exchange(other.puts_, nullptr)),
        put_(other.put_),
        deadline_(other.deadline_),
        told_(other.told_),
        learned_(other.learned_),
        body_(other.body_),
        fill_(std::move(other.fill_)) {}
  SourcePut& operator=(SourcePut&& other) noexcept {
    std::swap(puts_, other.puts_);
    std::swap(put_, other.put_);
    std::swap(deadline_, other.deadline_);
    std::swap(told_, other.told_);
    std::swap(learned_, other.learned_);
    std::swap(body_, other.body_);
    std::swap(fill_, other.fill_);
    return *this;
  }
  ~SourcePut();

  // False: there is nothing to fetch, the block is here.
  bool wanted() const { return puts_ != nullptr; }
  // The body is on its way: whoever needs room waits for this slot, as for any that is being filled, until
  // the put is finished or destroyed. Before that, nobody who calls this waits for room.
  void BeginLanding();
  // Where the body lands. Whoever lets it land there has ended before this is destroyed or finished.
  std::span<std::byte> body() const { return body_; }

 private:
  friend class SourcePuts;
  SourcePut(SourcePuts& puts, catalog::PutIndex put, Instant deadline)
      : puts_(&puts), put_(put), deadline_(deadline) {}

  SourcePuts* puts_ = nullptr;
  catalog::PutIndex put_ = catalog::kNoId;
  Instant deadline_;
  bool told_ = false;     // the facts
  bool learned_ = false;  // whether its parent stands, where a collection hid that
  std::span<std::byte> body_;
  std::optional<residency::SlotFill> fill_;  // from BeginLanding on
};

class SourcePuts final {
 public:
  SourcePuts(const residency::StoreContext& context, residency::Residents& residents, residency::Room& room,
             residency::Removal& removal, OpenPuts& puts, Deletions& deletions, Publisher& publisher,
             const Switches& switches)
      : context_(context),
        residents_(residents),
        room_(room),
        removal_(removal),
        puts_(puts),
        deletions_(deletions),
        publisher_(publisher),
        switches_(switches) {}
  SourcePuts(const SourcePuts&) = delete;
  SourcePuts& operator=(const SourcePuts&) = delete;

  Executor& executor() { return context_.executor; }

  // A put with a slot, until the deadline; not wanted() where the block is here. kBusy: past a bound of
  // pending puts or of memory; kMiss: the namespace is gone; kInvalid: no block of it looks so; kTooLate.
  Task<Result<SourcePut>> Begin(std::uint32_t slot, SourceBlock block, Instant deadline);
  // The same without a task; none, and nothing was done: Begin has to wait.
  std::optional<Result<SourcePut>> BeginAtOnce(std::uint32_t slot, const SourceBlock& block,
                                               Instant deadline);
  // Prefetches what Begin looks at, of several blocks together.
  void BeginAhead(std::uint32_t slot, std::span<const BlockKey> keys) const;
  // Publishes it. ok: it is visible now, or another put of the block was first. kMiss: it was refused, a drop
  // ended it, its parent is not here, or its time has passed; kInvalid: what came is no body of this block;
  // kBusy: it is a spare put, and its namespaces have their quota by now.
  Task<Status> Finish(SourcePut put, SourceFacts facts, Admission& admission);
  // The same without a task; none: it goes on in another step, by Finish too. `put` and `facts` are taken
  // when it has ended; where Settles() then, the caller awaits Settle.
  std::optional<Status> FinishAtOnce(SourcePut& put, SourceFacts& facts, Admission& admission);
  // Prefetches what FinishAtOnce looks at, of the first kAhead puts together.
  static constexpr std::size_t kAhead = 8;
  void FinishAhead(std::span<const SourcePut* const> some) const;
  // As Publisher::settles and Publisher::Settle.
  bool Settles() const { return publisher_.settles(); }
  Task<void> Settle() { return publisher_.Settle(); }

  // Whether a record of the block can be read here, in any tier; false too where a collection hides it.
  bool Here(std::uint32_t slot, const BlockKey& key, std::uint16_t group);
  // Whether the keys are those of a chain here, from its first block on: each block's parent is the one
  // before it. The first `known` are known to be.
  Task<bool> IsChain(std::uint32_t slot, std::span<const BlockKey> chain, std::size_t known);
  // Waits until the ends of conversations are through that are under way in the namespace: what has no note
  // before that may be what they take.
  Task<void> AwaitEnds(std::uint32_t slot);
  // As Conversations::UsersOf.
  std::optional<std::vector<std::uint64_t>> NotesOf(std::uint32_t slot, const BlockKey& key) const {
    return context_.conversations.UsersOf(context_.catalog.TreeOf(slot), key);
  }
  // The count of seconds that SourceFacts::asked_at_s is on.
  std::uint64_t NowS() { return context_.catalog.NowS(); }
  // Of each block of a chain, the body bytes in each group without a fixed size, in order; of the first
  // `most` that are in any tier.
  Task<std::vector<std::uint32_t>> BodyBytes(std::uint32_t slot, std::span<const BlockKey> chain);

 private:
  friend class SourcePut;
  Status Check(std::uint32_t slot, const SourceBlock& block) const;
  // Whether the block is here already; none where a collection hides it. What cannot be read any more ends:
  // later its end would be that of the put as well.
  std::optional<bool> Present(catalog::TreeId tree, const SourceBlock& block);
  residency::RoomFor RoomOf(catalog::TreeId tree, const SourceBlock& block) {
    return {.group = context_.catalog.GroupOf(tree), .age = block.age, .waits = block.waits};
  }
  // A put without a slot, and what it is when it has one.
  Result<SourcePut> Add(catalog::TreeId tree, const SourceBlock& block, Instant deadline);
  Result<SourcePut> Place(SourcePut put, arena::Place place);
  // Whether the put would be evicted again at once, because its namespaces are at their quota.
  bool OverQuota(const catalog::Put& put) const;
  Status TakeFacts(catalog::Put& put, SourceFacts& facts);
  bool Publish(const SourcePut& source_put, std::vector<std::uint64_t> notes);
  // Whether what is being collected hides if it may be published, and AwaitSure may tell.
  bool Unsure(const SourcePut& put) const;
  Task<void> AwaitSure(SourcePut& put);
  void LetGo(catalog::PutIndex put);

  const residency::StoreContext context_;
  residency::Residents& residents_;
  residency::Room& room_;
  residency::Removal& removal_;
  OpenPuts& puts_;
  Deletions& deletions_;
  Publisher& publisher_;
  const Switches& switches_;
  std::uint64_t made_ = 0;  // puts so far
};

}  // namespace cistern::store
