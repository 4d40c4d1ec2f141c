// SPDX-License-Identifier: Apache-2.0
// Rails of a node on a thread with a loop of its own: blocks that others read are sent from where they lie,
// and blocks that this node reads land and are checked, without a step of the core. What the thread has to
// know of the core it is told: a view of the member, published whenever it changes, and a peer's address with
// each read. Only blocks of the lower tier are the core's to bring, and of blocks that conversations wrote it
// is asked who uses them.
//
// All of it is called on the core's thread, but for the counters.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
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
#include "net/tls.h"
#include "store/block_store.h"

namespace cistern::mesh {

class RailThread final : public BlockRails {
 public:
  static constexpr std::size_t kServed = 256;             // rails of others at a time
  static constexpr std::int64_t kBringUs = 5'000'000;     // a block of the lower tier is waited for, at most
  static constexpr std::int64_t kAcceptPauseUs = 50'000;  // while the process has no descriptor

  struct Parts {  // borrowed, but for the reader
    io::Loop& core;
    const Clock& clock;
    store::BlockStore& store;
    arena::Reader<arena::Words> reader;
    const PeerLinks& links;
    const net::TlsContext* context = nullptr;  // null: a cell without a key
    io::LoopOptions loop;
    // A device for RDMA is looked for, and used where there is one. None: the rails carry everything.
    std::optional<net::LibfabricOptions> fabric;
    // That others read from here, but for what their devices do; 0: no bound.
    std::uint64_t bytes_a_second = 0;
  };
  // Listens there, and answers nobody before the first Publish.
  static Result<std::unique_ptr<RailThread>> Start(const Parts& parts, std::string listen);
  // Close was awaited.
  ~RailThread();
  RailThread(const RailThread&) = delete;
  RailThread& operator=(const RailThread&) = delete;

  Executor& executor() { return parts_.core.executor(); }

  // What is served from now on, until the next one.
  void Publish(std::optional<Answered> answered, std::map<SharedNamespace, ServedNamespace> namespaces);
  Task<Status> Read(std::uint64_t peer, std::span<const net::ConstPiece> questions, net::RailSink& sink,
                    Instant deadline) override;
  // Rails to a start of a member that is no more.
  void Forget(std::uint64_t peer);
  // What the store's memory is to be registered with, until Close; null where there is none, and why: ok
  // where none was looked for.
  net::Libfabric* fabric();
  const Status& no_fabric() const { return no_fabric_; }
  // "verbs;ofi_rxm on mlx5_0"; empty where there is none.
  const std::string& fabric_name() const { return fabric_name_; }
  // Reads that are under way end with kGone, and so do later ones.
  void EndReads();
  // Ends the thread. No Read is under way, and none comes.
  Task<void> Close();

  struct Counters {
    Counter blocks;      // that others have read, whole
    Counter bytes;       // of their bodies
    Counter gave_way;    // that were another record's before the last byte had gone
    Counter fetched;     // of the lower tier, for others
    Counter rdma_bytes;  // of bodies that this node has read from others' memory
  };
  // Of any thread.
  const Counters& counters() const { return counters_; }
  // Sends that waited for their turn. Of any thread.
  const Counter& waits() const { return bandwidth_.waits(); }

 private:
  class View final : public ServedView {
   public:
    std::optional<Answered> Answering() const override;
    std::optional<ServedNamespace> Find(const SharedNamespace& name) const override;
    void Set(std::optional<Answered> answered, std::map<SharedNamespace, ServedNamespace> namespaces);

   private:
    mutable std::mutex mutex_;
    std::optional<Answered> answered_;
    std::map<SharedNamespace, ServedNamespace> namespaces_;
  };
  class Inside;  // what belongs to the thread
  struct Asked;
  struct Brought;
  struct Noted;

  explicit RailThread(const Parts& parts);
  Task<void> BringFor(std::shared_ptr<Brought> brought);
  Task<void> NoteFor(std::shared_ptr<Noted> noted);

  const Parts parts_;
  StoreKeeper store_;
  TaskGroup brings_;  // of the core
  Counters counters_;
  net::Bandwidth bandwidth_;  // of the thread
  View view_;
  bool reads_ended_ = false;
  Status no_fabric_;
  std::string fabric_name_;
  std::unique_ptr<Inside> inside_;
  std::thread thread_;
};

}  // namespace cistern::mesh
