// SPDX-License-Identifier: Apache-2.0
// One of a node's threads for rails (rail_threads.h), with a loop of its own: it serves the rails of others
// that it was given and reads on rails of its own, without a step of the core.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>

#include "arena/reader.h"
#include "arena/words.h"
#include "base/metrics.h"
#include "base/task.h"
#include "base/task_group.h"
#include "io/loop.h"
#include "mesh/reach.h"
#include "mesh/store_keeper.h"
#include "net/bandwidth.h"
#include "net/libfabric.h"
#include "net/stream.h"
#include "net/tls.h"

namespace cistern::mesh {

struct RailCounters {
  SharedCounter blocks;    // that others have read, whole
  SharedCounter bytes;     // of their bodies
  SharedCounter gave_way;  // that were another record's before the last byte had gone
  SharedCounter fetched;   // of the lower tier, for others
  Counter rdma_bytes;      // of bodies that this node has read from others' memory
};

// What the threads know of the member: the core's view of it, a moment old.
class RailView final : public ServedView {
 public:
  std::optional<Answered> Answering() const override;
  std::optional<ServedNamespace> Find(const SharedNamespace& name) const override;
  void Set(std::optional<Answered> answered, std::shared_ptr<const ServedNamespaces> namespaces);

 private:
  mutable std::mutex mutex_;
  std::optional<Answered> answered_;
  std::shared_ptr<const ServedNamespaces> namespaces_;
};

// What the threads of a node share. The core's are `store` and `brings`, which a thread reaches by a post.
struct RailCommon {
  Executor& executor() { return core.executor(); }

  io::Loop& core;
  const Clock& clock;
  const arena::Reader<arena::Words> reader;
  const net::TlsContext* const context;  // null: a cell without a key
  RailView view;
  RailCounters counters;
  net::Bandwidth bandwidth;
  StoreKeeper store;
  TaskGroup brings;
  Lane* const lane;  // of what is brought; null: none
};

class RailThread final {
 public:
  static constexpr std::size_t kServed = 256;             // rails of others at a time
  static constexpr std::int64_t kBringUs = 5'000'000;     // a block of the lower tier is waited for, at most
  static constexpr std::int64_t kAcceptPauseUs = 50'000;  // while the process has no descriptor

  // The common part is borrowed and outlives the thread.
  RailThread(RailCommon& common, std::unique_ptr<io::Loop> loop);
  // Joined, or not started.
  ~RailThread();
  RailThread(const RailThread&) = delete;
  RailThread& operator=(const RailThread&) = delete;

  io::Loop& loop();
  Executor& executor() { return common_.core.executor(); }

  // Where its connections come from: called once, on the thread, whether or not there is a device for RDMA.
  using Listen = std::function<Result<std::unique_ptr<net::Listener>>(bool fabric)>;
  // Ends when the thread listens. With options a device for RDMA is looked for, and used where there is one:
  // fabric() is null, and `no_fabric` says why, where there is none.
  Status Start(const Listen& listen, const std::optional<net::LibfabricOptions>& fabric, Status* no_fabric);
  // Lives until Join.
  net::Libfabric* fabric();

  // As BlockRails::Read, at this address; `rails`: how many are open to the peer when it ends. On the core's
  // thread.
  Task<Status> Read(std::uint64_t peer, std::string address, std::span<const net::ConstPiece> questions,
                    net::RailSink& sink, Instant deadline, std::size_t* rails);
  // As PeerRails::Open. On the core's thread.
  Task<Status> OpenRail(std::uint64_t peer, std::string address, Instant deadline);
  void Forget(std::uint64_t peer);
  void ForgetAll();

  // Ends the thread. No Read is under way, and none comes.
  void Join();

 private:
  class Inside;  // what belongs to the thread
  struct Asked;

  Task<Status> Do(std::shared_ptr<Asked> asked);

  RailCommon& common_;
  std::unique_ptr<Inside> inside_;
  std::thread thread_;
};

}  // namespace cistern::mesh
