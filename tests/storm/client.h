// SPDX-License-Identifier: Apache-2.0
// A client process of the storm: the one reader on its own view of the shared memory, calls to the core, and
// whatever a process may do wrong. Dies with its session and comes back as another.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "world.h"

namespace cistern::storm {

class Client {
 public:
  Client(World& world, std::uint32_t number, std::uint32_t engine);

  // The actor, until the run ends.
  void Main();
  // Something is under way: a call, a lease, a read that stopped between two words.
  bool busy() const;
  // From outside: the process is gone at its next word.
  void Die();

 private:
  bool Up();  // its session lives and the node too
  void Live();
  void OpenSession();
  void CloseSession();
  void Operate();

  CallPtr MakeCall(Call::Kind kind, std::uint32_t ns);
  void Send(const CallPtr& call);
  // False: it died or the node did.
  bool Wait(const CallPtr& call);
  bool Ask(const CallPtr& call) {
    Send(call);
    return Wait(call);
  }
  bool Attach(std::uint32_t ns);

  // ---- writing ----
  void PutChain();
  void WriteOthers();
  bool WriteParts(std::uint32_t ns, const std::vector<std::pair<PutNo, std::uint32_t>>& parts);
  void Lie(Call& call, std::size_t bytes);
  void FinishHeld();
  void PutOdd();
  // One block that was here before, with all its parts; false: it died or the node did.
  bool PutAgain(const BlockId& block);

  // ---- reading ----
  void ReadChain();
  void ReadBlock(const BlockId& block, bool whole);
  arena::ReadOutcome ReadRanges(const BlockId& block, const arena::ReadCall& call, const arena::Found& found,
                                std::span<const record::PartRange> asked_ranges, Moment since,
                                std::uint64_t time_s);
  void ReadSegments();
  void ReadView(const BlockId& block, const store::ViewGrant& view, const record::PartRange& range,
                Moment since);
  void CheckHit(const BlockId& block, const arena::OpenRecord& record, Moment since, std::uint64_t time_s);
  void Report(const BlockId& block, std::uint64_t body_bytes);
  void ReadSlowly();
  void MatchOnce();
  // Asks the core for what the client has not found of the chain, as a prompt of which something is known.
  CallPtr AskForRest(std::uint32_t ns, std::span<const BlockCode> chain, std::uint32_t there);
  std::uint32_t MatchChain(std::uint32_t ns, std::span<const BlockCode> chain);

  // ---- leases ----
  LeasePtr NoteLease(const Call& call, std::uint32_t ns);
  void AcquireSome();
  void AcquireChain(std::uint32_t ns, const std::vector<BlockCode>& chain);
  void HoldChain();
  void UseView();
  void ReleaseOne();

  // ---- the rest ----
  void TouchSome();
  void DropKey();
  void DropAll();
  void EndConversation();
  void Revive();
  void TouchGarbage();
  void StealLease();

  BlockCode SomeCode();
  BlockId SomeBlock();
  std::uint32_t SomeNamespace() {
    if (world_.narrow()) return 0;
    return static_cast<std::uint32_t>(world_.random().Below(world_.trees().size()));
  }
  Instant SomeDeadline();
  std::span<std::byte> Room(std::size_t bytes);

  World& world_;
  std::uint32_t number_, engine_number_;
  Actor* actor_ = nullptr;
  arena::Reader<SimWords> reader_;
  catalog::Caller caller_;
  std::uint64_t boot_ = 0;  // of the node that the session is with
  bool dying_ = false;
  std::uint32_t open_ = 0;
  bool reading_ = false;
  struct Known {
    std::uint32_t slot = 0;
    std::uint64_t incarnation = 0;
    bool attached = false;
  };
  std::vector<Known> known_;
  std::vector<LeasePtr> leases_;
  std::vector<std::pair<BlockId, std::uint64_t>> touched_;  // block, place and generation
  std::unique_ptr<arena::OpenRecord> record_;
  std::vector<std::byte> buffer_;
};

}  // namespace cistern::storm
