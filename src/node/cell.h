// SPDX-License-Identifier: Apache-2.0
// A node's membership in its cell: the client of etcd, the connections to the other members, and the member
// (mesh/member.h) over the node's store. What the node's clients drop goes by it. All of it belongs to the
// core's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/task.h"
#include "etcd/etcd.h"
#include "io/loop.h"
#include "mesh/local_block_store.h"
#include "mesh/member.h"
#include "mesh/shared_names.h"
#include "net/tcp_network.h"
#include "net/tls_network.h"
#include "node/options.h"
#include "server/parts.h"
#include "store/block_store.h"

namespace cistern::node {

class Cell final {
 public:
  // How long a start waits for its first attempt to join: so that what was dropped while the node was away is
  // gone before a client comes in. Without etcd it serves its own clients.
  static constexpr std::int64_t kJoinUs = 5'000'000;
  // A drop waits no longer, whatever its caller's deadline: who died meanwhile keeps its session until then.
  static constexpr std::int64_t kDropUs = 60'000'000;
  // So much before its caller's deadline it ends, or an eighth of what is left: so that the caller hears what
  // became of it and not only that nobody answered.
  static constexpr std::int64_t kAnswerUs = 100'000;

  struct Parts {  // borrowed; outlive the cell
    io::Loop& loop;
    store::BlockStore& store;  // has recovered
    Logger& log;
    std::function<std::uint64_t()> random;
  };
  // The options say one, and passed CheckCellOptions; `keys` are their files'. Listens, and begins to join.
  static Result<std::unique_ptr<Cell>> Start(const Parts& parts, const NodeOptions& options,
                                             std::vector<net::CellKey> keys);
  // Leave was awaited.
  ~Cell();
  Cell(const Cell&) = delete;
  Cell& operator=(const Cell&) = delete;

  Executor& executor() { return loop_.executor(); }

  // Waits until it has joined, or cannot for now, which is logged. Its error: only a person can help (a key
  // that the cell does not have).
  Task<Status> AwaitJoin(Instant deadline);
  // As ServerParts::drop.
  Task<Result<server::Dropped>> Drop(const server::DropRequest& request);
  // Logs what has changed: that it joined, what keeps it. Once a tick.
  void NoteChanges();
  // Drops under way end now, with what is known of them.
  void EndDrops() { member_->EndDrops(); }
  Task<void> Leave(Instant deadline);

  const mesh::Member& member() const { return *member_; }
  const mesh::LocalBlockStore& local() const { return local_; }

 private:
  Cell(const Parts& parts, const NodeOptions& options, std::vector<net::CellKey> keys);

  io::Loop& loop_;
  store::BlockStore& store_;
  Logger& log_;
  const std::vector<net::CellKey> keys_;
  std::unique_ptr<etcd::Etcd> etcd_;
  net::TcpNetwork tcp_;
  std::optional<net::TlsContext> context_;
  std::optional<net::TlsNetwork> tls_;
  mesh::SharedNames names_;
  mesh::LocalBlockStore local_;
  std::unique_ptr<mesh::Member> member_;
  std::string said_;  // of its state, last
};

}  // namespace cistern::node
