// SPDX-License-Identifier: Apache-2.0
#include "mesh/rail_thread.h"

#include <pthread.h>

#include <algorithm>
#include <future>
#include <utility>
#include <vector>

#include "base/event.h"
#include "base/format.h"
#include "base/start_threads.h"
#include "mesh/block_server.h"
#include "mesh/peer_rails.h"
#include "net/tcp_network.h"
#include "net/tls_network.h"

namespace cistern::mesh {
namespace {

// What a thread waits for of the core.
template <class T>
struct Awaited {
  T value;
  Event done{};  // of the thread
};

template <class T>
void TellDone(io::Loop& thread, const std::shared_ptr<Awaited<T>>& awaited) {
  thread.PostRemote([awaited] { awaited->done.Set(); });
}

template <class T, class Call>
Task<void> AnswerTo(RailCommon& common, io::Loop& thread, std::shared_ptr<Awaited<T>> awaited, Call call) {
  co_await Yield();  // its turn
  awaited->value = co_await call(common.store);
  TellDone(thread, awaited);
}

}  // namespace

// What the core wants of a peer, of the thread until `done`: a read, whose questions and sink are the
// thread's meanwhile, or, without a sink, an open rail.
struct RailThread::Asked {
  std::uint64_t peer = 0;
  std::string address;
  std::span<const net::ConstPiece> questions;
  net::RailSink* sink = nullptr;
  Instant deadline;
  Status status;
  std::size_t rails = 0;  // that are open to the peer
  Event done;             // of the core
};

class RailThread::Inside final : public MemoryKeeper, public net::RailSource {
 public:
  Inside(RailCommon& common, std::unique_ptr<io::Loop> loop)
      : common_(common), loop_(std::move(loop)), tcp_(*loop_), tasks_(loop_->executor()) {}

  Executor& executor() { return loop_->executor(); }
  io::Loop& loop() { return *loop_; }
  net::Libfabric* fabric() { return fabric_.get(); }

  Status Open(const Listen& listen, const std::optional<net::LibfabricOptions>& options, Status* no_fabric) {
    if (options) {
      auto fabric = net::Libfabric::Open(*loop_, *options);
      if (fabric) {
        fabric_ = std::move(*fabric);
        fabric_->CountIn(common_.counters.rdma_bytes);
      } else {
        *no_fabric = fabric.error();
      }
    }
    auto listener = listen(fabric_ != nullptr);
    if (!listener) return std::move(listener.error());
    net::Network* network = &tcp_;
    listener_ = std::move(*listener);
    if (common_.context != nullptr) {
      network = &sealed_.emplace(tcp_, *common_.context, net::AfterHandshake::kSealedChunks);
      listener_ = sealed_->Over(std::move(listener_));
    }
    server_.emplace(BlockServer::Parts{executor(), common_.clock, common_.reader, common_.view, *this});
    rails_.emplace(*network, fabric_.get());
    tasks_.Spawn(Accept());
    return Status();
  }
  void Run() {
    loop_->Run();
    // What is served now nobody waits for; what the core keeps for it goes with its lease.
    tasks_.Drop();
    rails_->ForgetAll();
    rails_.reset();
    fabric_.reset();
    listener_.reset();
  }
  void Ask(std::shared_ptr<Asked> asked) { tasks_.Spawn(Do(std::move(asked))); }
  void Forget(std::uint64_t peer) { rails_->Forget(peer); }
  void ForgetAll() { rails_->ForgetAll(); }

  // As MemoryKeeper: the core does it.
  Task<Result<std::uint64_t>> Bring(ServedNamespace ns, catalog::BlockName block, Instant deadline,
                                    std::int64_t worth_us) override {
    const Instant until = std::min(deadline, executor().Now().PlusUs(kBringUs));
    Result<std::uint64_t> kept = co_await OfCore<Result<std::uint64_t>>(
        Error(Code::kGone, "the node ends"),
        [=](MemoryKeeper& store) { return store.Bring(ns, block, until, worth_us); });
    if (kept) common_.counters.fetched.Add();
    co_return kept;
  }
  Task<std::optional<std::vector<std::uint64_t>>> NotesOf(ServedNamespace ns, BlockKey key) override {
    return OfCore<std::optional<std::vector<std::uint64_t>>>(
        std::nullopt, [=](MemoryKeeper& store) { return store.NotesOf(ns, key); });
  }
  void LetGo(std::uint64_t kept) override {
    common_.core.PostRemote([&common = common_, kept] { common.store.LetGo(kept); });
  }

  // As RailSource: the server's, counted.
  Task<Answer> Find(net::ConstPiece question, Instant deadline) override {
    Answer answer = co_await server_->Find(question, deadline);
    if (answer.status.ok()) sending_[answer.handle] = answer.body.front().size();
    co_return answer;
  }
  bool Stands(std::uint64_t handle) const override { return server_->Stands(handle); }
  bool Sent(std::uint64_t handle) override {
    const auto at = sending_.find(handle);
    const std::uint64_t bytes = at->second;
    sending_.erase(at);
    const bool whole = server_->Sent(handle);
    RailCounters& counters = common_.counters;
    (whole ? counters.blocks : counters.gave_way).Add();
    if (whole) counters.bytes.Add(bytes);
    return whole;
  }
  void Unsent(std::uint64_t handle) override {
    sending_.erase(handle);
    server_->Unsent(handle);
  }

 private:
  // What `call` gives there, in a turn of the rails' lane; `otherwise` where the core ends.
  template <class T, class Call>
  Task<T> OfCore(T otherwise, Call call) {
    const auto awaited = std::make_shared<Awaited<T>>(std::move(otherwise));
    common_.core.PostRemote([&common = common_, &loop = *loop_, awaited, call] {
      if (common.brings.closed()) {
        TellDone(loop, awaited);
      } else {
        const Executor::InLane in(common.executor(), common.lane);
        common.brings.Spawn(AnswerTo(common, loop, awaited, call));
      }
    });
    co_await awaited->done.Wait();
    co_return std::move(awaited->value);
  }
  Task<void> Accept() {
    for (;;) {
      auto stream = co_await listener_->Accept(Instant::Never());
      if (!stream) {
        (void)co_await SleepUntil(executor().Now().PlusUs(kAcceptPauseUs));
      } else if (serving_ < kServed) {
        tasks_.Spawn(Serve(std::move(*stream)));
      }
    }
  }
  Task<void> Serve(std::unique_ptr<net::Stream> stream) {
    ++serving_;
    (void)co_await net::ServeRail(*stream, *this, fabric_.get(), &common_.bandwidth);
    --serving_;
  }
  Task<void> Do(std::shared_ptr<Asked> asked) {
    rails_->SetAddress(asked->peer, asked->address);
    if (asked->sink == nullptr) {
      asked->status = co_await rails_->Open(asked->peer, asked->deadline);
    } else {
      asked->status = co_await rails_->Read(asked->peer, asked->questions, *asked->sink, asked->deadline);
    }
    asked->rails = rails_->OpenTo(asked->peer);
    common_.core.PostRemote([asked] { asked->done.Set(); });
  }

  RailCommon& common_;
  const std::unique_ptr<io::Loop> loop_;
  net::TcpNetwork tcp_;
  std::optional<net::TlsNetwork> sealed_;
  std::unique_ptr<net::Listener> listener_;
  std::unique_ptr<net::Libfabric> fabric_;
  std::optional<BlockServer> server_;
  std::optional<PeerRails> rails_;
  std::map<std::uint64_t, std::uint64_t> sending_;  // bytes of bodies, by the server's handle
  std::size_t serving_ = 0;
  TaskGroup tasks_;
};

std::optional<Answered> RailView::Answering() const {
  const std::lock_guard lock(mutex_);
  return answered_;
}

std::optional<ServedNamespace> RailView::Find(const SharedNamespace& name) const {
  const std::lock_guard lock(mutex_);
  if (namespaces_ == nullptr) return std::nullopt;
  const auto at = namespaces_->find(name);
  return at == namespaces_->end() ? std::nullopt : std::optional(at->second);
}

void RailView::Set(std::optional<Answered> answered, std::shared_ptr<const ServedNamespaces> namespaces) {
  const std::lock_guard lock(mutex_);
  answered_ = answered;
  namespaces_.swap(namespaces);
}

RailThread::RailThread(RailCommon& common, std::unique_ptr<io::Loop> loop)
    : common_(common), inside_(std::make_unique<Inside>(common, std::move(loop))) {}

RailThread::~RailThread() { CISTERN_ASSERT(!thread_.joinable()); }

io::Loop& RailThread::loop() { return inside_->loop(); }

net::Libfabric* RailThread::fabric() { return inside_->fabric(); }

Status RailThread::Start(const Listen& listen, const std::optional<net::LibfabricOptions>& fabric,
                         Status* no_fabric) {
  std::promise<Status> opened;
  const auto run = [&, inside = inside_.get()] {
    pthread_setname_np(pthread_self(), "cistern-rails");
    Status status = inside->Open(listen, fabric, no_fabric);
    const bool runs = status.ok();
    opened.set_value(std::move(status));
    if (runs) inside->Run();
  };
  if (Status started = StartingThreads([&] { thread_ = std::thread(run); }); !started.ok()) return started;
  Status status = opened.get_future().get();
  if (!status.ok()) thread_.join();
  return status;
}

Task<Status> RailThread::Read(std::uint64_t peer, std::string address,
                              std::span<const net::ConstPiece> questions, net::RailSink& sink,
                              Instant deadline, std::size_t* rails) {
  const auto asked = std::make_shared<Asked>(peer, std::move(address), questions, &sink, deadline);
  Status status = co_await Do(asked);
  *rails = asked->rails;
  co_return status;
}

Task<Status> RailThread::OpenRail(std::uint64_t peer, std::string address, Instant deadline) {
  return Do(std::make_shared<Asked>(peer, std::move(address), std::span<const net::ConstPiece>(), nullptr,
                                    deadline));
}

Task<Status> RailThread::Do(std::shared_ptr<Asked> asked) {
  Inside& inside = *inside_;
  loop().PostRemote([&inside, asked] { inside.Ask(asked); });
  co_await asked->done.Wait();
  co_return asked->status;
}

void RailThread::Forget(std::uint64_t peer) {
  Inside& inside = *inside_;
  loop().PostRemote([&inside, peer] { inside.Forget(peer); });
}

void RailThread::ForgetAll() {
  Inside& inside = *inside_;
  loop().PostRemote([&inside] { inside.ForgetAll(); });
}

void RailThread::Join() {
  if (!thread_.joinable()) return;
  loop().Stop();
  thread_.join();
}

}  // namespace cistern::mesh
