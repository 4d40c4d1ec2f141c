// SPDX-License-Identifier: Apache-2.0
// A node's membership in its cell: the client of etcd, the connections to the other members, the member
// (mesh/member.h) over the node's store, what it shares with the others (mesh/sharing.h), and the thread of
// its rails. What the node's clients drop goes by it, and what they match and acquire goes on by it. All of
// it belongs to the core's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "arena/reader.h"
#include "arena/words.h"
#include "base/log.h"
#include "base/task.h"
#include "base/task_group.h"
#include "etcd/etcd.h"
#include "io/loop.h"
#include "mesh/cell_metrics.h"
#include "mesh/cell_names.h"
#include "mesh/local_block_store.h"
#include "mesh/member.h"
#include "mesh/rail_threads.h"
#include "mesh/shared_names.h"
#include "mesh/sharing.h"
#include "net/tcp_network.h"
#include "net/tls_network.h"
#include "node/lasting_troubles.h"
#include "node/options.h"
#include "server/lanes.h"
#include "server/parts.h"
#include "store/block_store.h"

namespace cistern::node {

class Cell final {
 public:
  // How long a start waits to join, beside the time that it reads what was dropped while the node was away:
  // so that this is gone before a client comes in. A key of before its host started anew has lapsed by then.
  // Without etcd it serves its own clients.
  static constexpr std::int64_t kJoinUs = (mesh::CellLimits::kLeaseS + 1) * 1'000'000;
  // A drop waits no longer, whatever its caller's deadline: who died meanwhile keeps its session until then.
  static constexpr std::int64_t kDropUs = 60'000'000;
  // So much before its caller's deadline it ends, or an eighth of what is left: so that the caller hears what
  // became of it and not only that nobody answered.
  static constexpr std::int64_t kAnswerUs = 100'000;

  struct Parts {  // borrowed; outlive the cell
    io::Loop& loop;
    server::Lanes& lanes;
    store::BlockStore& store;  // has recovered
    const Clock& clock;
    arena::Reader<arena::Words> reader;  // of the store's memory
    io::LoopOptions rails;               // of their threads' loops
    Logger& log;
    std::function<std::uint64_t()> random;
    const Clock& boot;  // the host's boot clock
  };
  // The options say one, and passed CheckCellOptions; `keys` are their files'. Listens, and begins to join.
  static Result<std::unique_ptr<Cell>> Start(const Parts& parts, const NodeOptions& options,
                                             std::vector<net::CellKey> keys);
  // Leave was awaited.
  ~Cell();
  Cell(const Cell&) = delete;
  Cell& operator=(const Cell&) = delete;

  Executor& executor() { return loop_.executor(); }

  // Waits until it has joined, or cannot for now, which is logged; behind the deadline as long as it reads
  // what the cell has. Its error: only a person can help (a key that the cell does not have).
  Task<Status> AwaitJoin(Instant deadline);
  // As ServerParts::drop.
  Task<Result<server::Dropped>> Drop(const server::DropRequest& request);
  // As ServerParts::agree: what cannot be asked is passed, and looked at later.
  Task<Status> Agree(const NamespaceSpec& spec, Instant deadline);
  // As ServerParts::agreed.
  Task<void> Agreed(const NamespaceSpec& spec, bool attached, Instant deadline);
  // Logs what has changed: that it joined, what keeps it, whom it does not reach. Once a tick.
  void NoteChanges();
  // Drops under way end now, with what is known of them.
  void EndDrops() { member_->EndDrops(); }
  // Who takes what memory has when the node drains.
  store::HandOver& hand_over() { return *sharing_; }
  // As ServerParts::remote.
  store::RemoteBlocks& blocks() { return sharing_->blocks(); }
  void SetCopies(const std::vector<policy::Copies>& copies) { sharing_->SetCopies(copies); }
  // The store's memory has another size.
  void SetMemory(std::uint64_t bytes) { sharing_->SetMemory(bytes); }
  // As ServerParts::inquire.
  Task<Result<std::string>> Inquire(const server::ChainQuestion& question);
  // What is on its way from others ends now.
  void EndReads() { rails_->EndReads(); }
  // No client is left. Giving the membership back has `us`, from when nothing is under way for others any
  // more: who is read from meanwhile may wait for a device for seconds.
  Task<void> Leave(std::int64_t us);

  const mesh::Member& member() const { return *member_; }
  const mesh::Sharing& sharing() const { return *sharing_; }
  const mesh::RailThreads& rails() const { return *rails_; }
  mesh::CellParts counted() const {
    return {member_.get(), &local_,     sharing_.get(),
            rails_.get(),  &conflicts_, context_ ? context_->ends_at() : 0};
  }
  // As mesh::RailThreads::fabric.
  net::Libfabric* fabric() { return rails_->fabric(); }

 private:
  static constexpr std::int64_t kReadingUs = 1'000'000;  // between two looks whether a start still reads
  // How old what the rails serve may be.
  static constexpr std::int64_t kPublishUs = 50'000;
  static constexpr std::int64_t kNamesUs = 1'000'000;   // between two looks for names that nobody has claimed
  static constexpr std::uint64_t kConflictRounds = 10;  // looks between two for names that stand for others

  Cell(const Parts& parts, const NodeOptions& options, std::vector<net::CellKey> keys);
  Status Share(const NodeOptions& options, std::uint64_t seed);
  Task<void> Publish();
  Task<void> PublishNames();
  Task<void> ClaimNames();
  bool HasName(const std::string& name) const;
  void NoteMembers();
  void NoteDiscards();
  void ForgetGone();

  const Parts parts_;
  io::Loop& loop_;
  store::BlockStore& store_;
  Logger& log_;
  const std::vector<net::CellKey> keys_;
  server::ServedLane& peers_;  // of what other members ask
  std::unique_ptr<etcd::Etcd> etcd_;
  net::TcpNetwork tcp_;
  std::optional<net::TlsContext> context_;
  std::optional<net::TlsNetwork> tls_;
  mesh::SharedNames names_;
  mesh::LocalBlockStore local_;
  std::unique_ptr<mesh::Member> member_;
  std::unique_ptr<mesh::RailThreads> rails_;
  std::unique_ptr<mesh::Sharing> sharing_;
  std::optional<mesh::CellNames> agreed_names_;
  std::map<std::string, std::string> conflicts_;  // names that stand for another list in the cell, and why
  std::map<std::string, int> attaching_;          // names, and how many attaches are under way for them
  std::uint64_t discarded_ = 0;                   // blocks, that were said
  LastingTroubles unreached_;                     // there is no connection
  LastingTroubles blockless_;                     // there is one, and no rail
  std::set<std::uint64_t> known_;                 // starts of members in the last view, or still reached
  std::string said_;                              // of its state, last
  TaskGroup tasks_;
};

}  // namespace cistern::node
