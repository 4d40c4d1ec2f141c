// SPDX-License-Identifier: Apache-2.0
// A client in a chaos: puts, reads and drops at one node, which it follows over its kills, and compares every
// byte that it reads.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "base/random.h"
#include "chaos_board.h"
#include "daemon.h"

namespace cistern::chaos {

inline constexpr std::int64_t kCallUs = 20'000'000;

struct ChaosNode {
  std::string id;
  std::optional<Daemon> daemon;
  bool is_other = false;                 // of another release
  std::atomic<std::uint64_t> starts{0};  // counts its starts and its kills: odd while it runs
  // Counts when it, or what it sends or is sent, stands still and when it goes on: odd while it stands.
  std::atomic<std::uint64_t> pauses{0};
  bool runs() const { return starts.load() % 2 == 1; }
};

// On a thread of its own.
class Client final {
 public:
  // All borrowed, and longer there than Run.
  Client(ChaosNode& node, std::deque<ChaosNode>& nodes, Board& board, Counts& counts, std::uint64_t seed,
         std::uint64_t random_seed, const std::atomic<bool>& stops)
      : node_(node),
        nodes_(nodes),
        board_(board),
        counts_(counts),
        seed_(seed),
        random_(random_seed),
        stops_(stops) {}

  void Run();

 private:
  // False, of each: the node is gone.
  bool Connect();
  bool PutChain(std::uint32_t chain);
  bool ReadChain(std::uint32_t chain);
  bool Drop(std::uint32_t chain);
  void Compare(std::uint32_t chain, std::uint32_t block, const std::vector<std::byte>& body,
               std::uint64_t acknowledged);
  // Whether the drop of a namespace that is not strict binds every member that was there all the while.
  Result<bool> BindsAll(const std::vector<std::uint64_t>& starts, const std::vector<std::uint64_t>& pauses);
  const Namespace& NamespaceOf(std::uint64_t chain) const { return namespaces_[IsStrict(chain) ? 1 : 0]; }

  ChaosNode& node_;
  std::deque<ChaosNode>& nodes_;
  Board& board_;
  Counts& counts_;
  const std::uint64_t seed_;
  Random random_;
  const std::atomic<bool>& stops_;
  std::optional<Store> store_;
  std::array<Namespace, 2> namespaces_;  // the second one is strict
};

}  // namespace cistern::chaos
