// SPDX-License-Identifier: Apache-2.0
// A client process of the kill loop: loads the node until it is killed, then compares every block of one
// owner, with the mapping of its new session and with that of the session that died. In a round with a census
// the load ends before the kill, and what is there then is noted.
#pragma once

#include <memory>
#include <vector>

#include "base/random.h"
#include "board.h"
#include "daemon.h"

namespace cistern {

// A session with its namespaces.
struct Session {
  Store store;
  std::vector<Namespace> spaces;
};
Result<std::unique_ptr<Session>> OpenSession(const Daemon& daemon);

// Reads one block into `to`. kOk: found, and its wrong bytes are in `wrong`; kMiss; anything else failed.
Status ReadAndCompare(Session& session, std::uint32_t space, const BlockKey& key, std::vector<std::byte>& to,
                      std::uint64_t* wrong);

class Client {
 public:
  Client(const Daemon& daemon, Board& board, std::uint32_t number, std::uint64_t seed);

  // Through `rounds` kills. An error is a fault that is neither wrong bytes nor a revived drop: those are
  // counted.
  Status Run(std::uint64_t rounds);

 private:
  // Views leased before a kill and looked at after it.
  struct Standing {
    Lease lease;
    std::array<BlockKey, kChainBlocks> keys;
  };

  Status LoadUntilKilled(std::uint64_t round);
  Status TakeCensus(std::uint64_t round);
  Status CompareAll(std::uint64_t round);
  // Until the board's number has come to `round`.
  Status AwaitRound(const std::atomic<std::uint64_t>& number, std::uint64_t round, const char* what) const;
  Status CompareOwner(Session& session, std::uint32_t owner, bool old, Compared& compared);
  // Whether each block of a chain is there, and its wrong bytes, by reads or by a lease of all of it.
  struct Finding {
    Status status{Code::kMiss};
    std::uint64_t wrong = 0;
  };
  using Findings = std::array<Finding, kChainBlocks>;
  Status FindByReads(Session& session, const ChainName& name, Findings& findings);
  Status FindByLease(Session& session, const ChainName& name, Findings& findings);
  // Only a miss says that a block is not there; a late or busy node is asked until it answers.
  Status AskAgain(Session& session, const ChainName& name, std::uint32_t block, Finding& finding);
  void CompareStandingViews(std::uint64_t round);

  Status DoRequest(Session& session);
  Status ReadChain(Session& session, const ChainName& name, std::uint32_t* leading_hits);
  Status WriteChain(Session& session, const ChainName& name, std::uint32_t from);
  Status DropChain(Session& session, const ChainName& name);
  Status AcquireChain(Session& session, const ChainName& name);
  ChainName AnyChain(std::uint32_t owner);

  const Daemon& daemon_;
  Board& board_;
  Counts& counts_;
  const std::uint32_t number_;
  const std::uint64_t seed_;
  Random random_;
  std::vector<std::byte> buffer_;
  std::vector<std::byte> own_memory_;
  std::unique_ptr<Session> session_;
  std::vector<Standing> standing_;
};

}  // namespace cistern
