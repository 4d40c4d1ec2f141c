// SPDX-License-Identifier: Apache-2.0
// Rails of a node on threads of their own: blocks that others read are sent from where they lie, and blocks
// that this node reads land and are checked, without a step of the core. What the threads have to know of the
// core they are told: a view of the member, published whenever it changes, and a peer's address with each
// read. Only blocks of the lower tier are the core's to bring, and of blocks that conversations wrote it is
// asked who uses them.
//
// A thread moves some 4 GB/s, so a host with many processors has several: each serves some of the rails that
// others have opened, and a read goes to the one that has the least under way from its peer.
//
// All of it is called on the core's thread, but for the counters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/task_group.h"
#include "mesh/rail_thread.h"

namespace cistern::mesh {

class RailThreads final : public BlockRails {
 public:
  // For a host with so many processors, which its engines need too: one for each four, from one to four.
  static std::size_t CountFor(std::size_t processors);

  struct Parts {  // borrowed, but for the reader
    io::Loop& core;
    const Clock& clock;
    store::BlockStore& store;
    arena::Reader<arena::Words> reader;
    const PeerLinks& links;
    const net::TlsContext* context = nullptr;  // null: a cell without a key
    io::LoopOptions loop;
    // A device for RDMA is looked for, and used where there is one, by one thread. None: the rails carry
    // everything.
    std::optional<net::LibfabricOptions> fabric;
    // That others read from here, but for what their devices do; 0: no bound.
    std::uint64_t bytes_a_second = 0;
    std::size_t threads = 1;  // at least one
    Lane* lane = nullptr;     // of what they ask the core for others; null: none
  };
  // Listens there, and answers nobody before the first Publish.
  static Result<std::unique_ptr<RailThreads>> Start(const Parts& parts, const std::string& listen);
  // Close was awaited.
  ~RailThreads();
  RailThreads(const RailThreads&) = delete;
  RailThreads& operator=(const RailThreads&) = delete;

  Executor& executor() { return common_.core.executor(); }

  // What is served from now on, until the next one.
  void Publish(std::optional<Answered> answered, std::shared_ptr<const ServedNamespaces> namespaces);
  Task<Status> Read(std::uint64_t peer, std::span<const net::ConstPiece> questions, net::RailSink& sink,
                    Instant deadline) override;
  // Rails to a start of a member that is no more.
  void Forget(std::uint64_t peer);
  // What the store's memory is to be registered with, until Close; null where there is none, and why: ok
  // where none was looked for.
  net::Libfabric* fabric() { return threads_.front()->fabric(); }
  const Status& no_fabric() const { return no_fabric_; }
  // "verbs;ofi_rxm on mlx5_0"; empty where there is none.
  const std::string& fabric_name() const { return fabric_name_; }
  // Rails to a peer that were open when something was last read on them.
  std::size_t OpenTo(std::uint64_t peer) const;
  // Why no rail to a peer was open when something was last read from it; ok: one was, or nothing was read.
  Status WhyNone(std::uint64_t peer) const;
  // To how many peers none was.
  std::size_t WithoutRail() const { return no_rail_.size(); }
  // Reads that are under way end with kGone, and so do later ones.
  void EndReads();
  // Ends the threads. No Read is under way, and none comes.
  Task<void> Close();

  std::size_t threads() const { return threads_.size(); }
  // Of any thread.
  const RailCounters& counters() const { return common_.counters; }
  // Sends that waited for their turn. Of any thread.
  const Counter& waits() const { return common_.bandwidth.waits(); }

 private:
  // A peer as one of the threads knows it.
  struct Way {
    std::size_t under_way = 0;  // reads
    std::size_t rails = 0;      // that are open, as last heard
    enum class Rail : std::uint8_t { kNone, kOpens, kOpen } rail = Rail::kNone;
  };
  using Ways = std::vector<Way>;  // by thread

  explicit RailThreads(const Parts& parts);
  std::size_t Choose(std::uint64_t peer, const std::shared_ptr<Ways>& ways, Instant deadline);
  Task<void> OpenRail(std::uint64_t peer, std::shared_ptr<Ways> ways, std::size_t at, Instant deadline);

  const PeerLinks& links_;
  RailCommon common_;
  std::map<std::uint64_t, std::shared_ptr<Ways>> ways_;  // to peers
  std::map<std::uint64_t, Status> no_rail_;              // of these, why there was none
  bool reads_ended_ = false;
  Status no_fabric_;
  std::string fabric_name_;
  std::vector<std::unique_ptr<RailThread>> threads_;
};

}  // namespace cistern::mesh
