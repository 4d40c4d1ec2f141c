// SPDX-License-Identifier: Apache-2.0
// A world of the cell's storm: members with model stores, records that go from one to another under the rule,
// drops and ends, and everything that goes wrong with members, network and etcd. A model checks after every
// turn of the loop that
// - nothing is readable, at a member that an acknowledged drop or end binds, that it covers, nor at any other
//   in a strict namespace,
// - no record was taken that a drop in (a, seen] covers,
// - every call ends by its deadline,
// and at the end, with all ways whole again, that the cell comes together and a drop is acknowledged.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "mesh/test_cell.h"
#include "store/term.h"

namespace cistern::mesh {

class CellWorld final {
 public:
  CellWorld(std::uint64_t seed, bool trace);
  ~CellWorld();
  CellWorld(const CellWorld&) = delete;
  CellWorld& operator=(const CellWorld&) = delete;

  Executor& executor() { return cell_.executor(); }

  // Empty, or what was broken.
  std::string Run();

  std::uint64_t faults = 0, drops = 0, acknowledged = 0, taken = 0, refused = 0;

 private:
  // A record as some client wrote it; its copies carry its number.
  struct Written {
    SharedNamespace name;
    std::vector<BlockKey> chain;
    std::uint64_t order = 0;
    std::vector<std::size_t> dead_by;  // acknowledged drops that cover it
  };
  struct Dropped {
    CellDrop drop;
    std::uint64_t order = 0;  // when it was asked for
    Instant deadline;
    bool ended = false, acknowledged = false;
    const TestNode* node = nullptr;  // that was asked, in this process
    std::uint64_t process = 0;
    std::uint64_t history = 0;
    std::int64_t revision = 0;
    std::uint64_t etcd_life = 0;      // restores before it was acknowledged
    std::set<const TestNode*> bound;  // that have applied it
  };
  struct Taken {
    const TestNode* node;
    SharedNamespace name;
    std::vector<BlockKey> chain;
    std::uint64_t history, etcd_life;
    std::int64_t a, seen;
  };

  void Act();
  void ActOnMembers();
  void StartAgain(TestNode& node);
  void TrimAnywhere();
  void ActOnEtcd();
  void ActOnNetwork();
  void Restore();
  std::uint64_t HistoryInEtcd();
  void Later(std::int64_t most_us, std::function<void()> call);
  void Pass(std::int64_t us);
  void Say(const std::string& what);
  void Break(std::string what);
  std::int64_t Us(std::int64_t most) {
    return static_cast<std::int64_t>(random_.Below(static_cast<std::uint64_t>(most) + 1));
  }

  // A member's term, where its clients find it: in the header of an arena of its own.
  class Shown {
   public:
    explicit Shown(const Clock& boot) : term(words_, arena::ArenaSpace(header_.get(), {4096, 1}), boot) {}

   private:
    struct Free {
      void operator()(std::byte* memory) const { std::free(memory); }
    };
    static std::byte* Page() {
      auto* page = static_cast<std::byte*>(std::aligned_alloc(4096, 4096));
      std::fill_n(page, 4096, std::byte{0});
      return page;
    }
    arena::RealWords words_;
    const std::unique_ptr<std::byte, Free> header_{Page()};

   public:
    store::Term term;
  };
  Shown& ShownBy(const TestNode& node) { return shown_.try_emplace(&node, cell_.clock).first->second; }

  TestNode& AnyNode() { return *cell_.nodes[random_.Below(cell_.nodes.size())]; }
  std::vector<BlockKey> AnyChain();
  void Write(TestNode& node);
  void AskForDrop(TestNode& node);
  Task<void> DropAt(TestNode& node, std::size_t which, DropWait wait);
  Task<void> TrimAt(TestNode& node, CellFloor floor);
  // Reads a record at `from` for a client at `at`.
  Task<void> Read(TestNode& at, TestNode& from, RecordName name, std::uint64_t conversation);
  void Acknowledge(std::size_t which, TestNode& writer, const DropReceipt& receipt);
  void CheckTaken(const Taken& one, const Dropped& dropped);
  bool Binds(const Dropped& dropped, const TestNode& node) const;
  // Whether its clients may read it, though it is strict and the drop was acknowledged.
  bool StrictlyRead(const Dropped& dropped, const TestNode& node);
  void Check();
  void ComeTogether();

  Random random_;
  TestCell cell_;
  std::unique_ptr<etcd::Etcd> oracle_;
  const bool trace_;
  std::string broken_;
  std::multimap<Instant, std::function<void()>> later_;
  std::vector<Written> written_;
  std::vector<Dropped> dropped_;
  std::map<std::uint64_t, std::vector<std::size_t>> ended_;  // conversations, and their acknowledged ends
  std::set<std::size_t> under_way_;                          // of the drops
  std::vector<Taken> taken_;
  std::vector<std::uint64_t> conversations_;
  std::uint64_t order_ = 0, last_conversation_ = 0;
  std::map<const TestNode*, Shown> shown_;
  const SharedNamespace strict_ = NamespaceOf(2);
  std::uint64_t etcd_lives_ = 0;
  Instant leases_broken_until_;  // etcd itself broke its word on leases
  std::vector<std::shared_ptr<const etcd::SimulatedEtcd::Backup>> backups_;
  std::vector<std::int64_t> backup_revisions_;
  bool calm_ = false;                                        // a restored etcd is to be noticed first
  std::uint64_t unnoticed_ = 0;                              // the history before it
  std::map<const TestNode*, std::int64_t> seen_at_restore_;  // of those that were in the cell
};

}  // namespace cistern::mesh
