// SPDX-License-Identifier: Apache-2.0
#include "mesh/rail_thread.h"

#include <pthread.h>

#include <algorithm>
#include <future>
#include <utility>
#include <vector>

#include "base/event.h"
#include "base/format.h"
#include "mesh/block_server.h"
#include "mesh/peer_rails.h"
#include "net/tcp_network.h"
#include "net/tls_network.h"

namespace cistern::mesh {
namespace {

// Whose the leases of blocks are that are on their way to others.
constexpr catalog::SessionId kSession = ~catalog::SessionId{0};

}  // namespace

// A read of the core's: its questions and its sink are the thread's until `done`.
struct RailThread::Asked {
  std::uint64_t peer = 0;
  std::string address;
  std::span<const net::ConstPiece> questions;
  net::RailSink* sink = nullptr;
  Instant deadline;
  Status status;
  Event done;  // of the core
};

// A block that the thread asks the core for.
struct RailThread::Brought {
  ServedNamespace ns;
  catalog::BlockName block;
  Instant deadline;
  std::int64_t worth_us = 0;
  Result<std::uint64_t> kept = 0;
  Event done;  // of the thread
};

// Who uses a block, asked by the thread.
struct RailThread::Noted {
  ServedNamespace ns;
  BlockKey key;
  std::optional<std::vector<std::uint64_t>> notes;
  Event done;  // of the thread
};

class RailThread::Inside final : public MemoryKeeper, public net::RailSource {
 public:
  Inside(RailThread& outside, std::unique_ptr<io::Loop> loop)
      : outside_(outside),
        core_(outside.parts_.core),
        loop_(std::move(loop)),
        tcp_(*loop_),
        tasks_(loop_->executor()) {}

  Executor& executor() { return loop_->executor(); }
  io::Loop& loop() { return *loop_; }
  net::Libfabric* fabric() { return fabric_.get(); }

  Status Open(const std::string& listen) {
    const Parts& parts = outside_.parts_;
    net::Network* network = &tcp_;
    if (parts.context != nullptr)
      network = &sealed_.emplace(tcp_, *parts.context, net::AfterHandshake::kSealedChunks);
    auto listener = network->Listen(listen);
    if (!listener) return std::move(listener.error());
    listener_ = std::move(*listener);
    server_.emplace(BlockServer::Parts{executor(), parts.clock, parts.reader, outside_.view_, *this});
    if (parts.fabric) {
      auto fabric = net::Libfabric::Open(*loop_, *parts.fabric);
      if (fabric) {
        fabric_ = std::move(*fabric);
        fabric_->CountIn(outside_.counters_.rdma_bytes);
        outside_.fabric_name_ = Text(fabric_->kind(), " on ", fabric_->device());
      } else {
        outside_.no_fabric_ = fabric.error();
      }
    }
    rails_.emplace(*network, fabric_.get());
    tasks_.Spawn(Accept());
    return Status();
  }
  void Run() {
    loop_->Run();
    // What is served now nobody waits for; what the core keeps for it goes with its lease.
    tasks_.Drop();
    loop_->BlockOn(rails_->Close());
    rails_.reset();
    fabric_.reset();
    listener_.reset();
  }
  void Ask(std::shared_ptr<Asked> asked) { tasks_.Spawn(ReadFor(std::move(asked))); }
  void Forget(std::uint64_t peer) { rails_->Forget(peer); }
  void ForgetAll() { rails_->ForgetAll(); }

  // As MemoryKeeper: the core does it.
  Task<Result<std::uint64_t>> Bring(ServedNamespace ns, catalog::BlockName block, Instant deadline,
                                    std::int64_t worth_us) override {
    const auto brought = std::make_shared<Brought>();
    brought->ns = ns;
    brought->block = block;
    brought->deadline = std::min(deadline, executor().Now().PlusUs(kBringUs));
    brought->worth_us = worth_us;
    RailThread& outside = outside_;
    core_.PostRemote([&outside, brought] {
      if (!outside.brings_.closed()) outside.brings_.Spawn(outside.BringFor(brought));
    });
    co_await brought->done.Wait();
    if (brought->kept) outside_.counters_.fetched.Add();
    co_return std::move(brought->kept);
  }
  Task<std::optional<std::vector<std::uint64_t>>> NotesOf(ServedNamespace ns, BlockKey key) override {
    const auto noted = std::make_shared<Noted>();
    noted->ns = ns;
    noted->key = key;
    RailThread& outside = outside_;
    core_.PostRemote([&outside, noted] {
      if (!outside.brings_.closed()) outside.brings_.Spawn(outside.NoteFor(noted));
    });
    co_await noted->done.Wait();
    co_return std::move(noted->notes);
  }
  void LetGo(std::uint64_t kept) override {
    RailThread& outside = outside_;
    core_.PostRemote([&outside, kept] { outside.store_.LetGo(kept); });
  }
  void ReportBad(std::uint32_t slot, catalog::BlockName block) override {
    RailThread& outside = outside_;
    core_.PostRemote([&outside, slot, block] { outside.store_.ReportBad(slot, block); });
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
    Counters& counters = outside_.counters_;
    (whole ? counters.blocks : counters.gave_way).Add();
    if (whole) counters.bytes.Add(bytes);
    return whole;
  }

 private:
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
    (void)co_await net::ServeRail(*stream, *this, fabric_.get(), &outside_.bandwidth_);
    --serving_;
  }
  Task<void> ReadFor(std::shared_ptr<Asked> asked) {
    rails_->SetAddress(asked->peer, asked->address);
    asked->status = co_await rails_->Read(asked->peer, asked->questions, *asked->sink, asked->deadline);
    core_.PostRemote([asked] { asked->done.Set(); });
  }

  RailThread& outside_;
  io::Loop& core_;
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

std::optional<Answered> RailThread::View::Answering() const {
  const std::lock_guard lock(mutex_);
  return answered_;
}

std::optional<ServedNamespace> RailThread::View::Find(const SharedNamespace& name) const {
  const std::lock_guard lock(mutex_);
  const auto at = namespaces_.find(name);
  return at == namespaces_.end() ? std::nullopt : std::optional(at->second);
}

void RailThread::View::Set(std::optional<Answered> answered,
                           std::map<SharedNamespace, ServedNamespace> namespaces) {
  const std::lock_guard lock(mutex_);
  answered_ = answered;
  namespaces_.swap(namespaces);
}

RailThread::RailThread(const Parts& parts)
    : parts_(parts),
      store_(parts.core.executor(), parts.store, catalog::Caller{kSession, store::kSourceOwner}),
      brings_(parts.core.executor()),
      bandwidth_(parts.bytes_a_second) {}

net::Libfabric* RailThread::fabric() { return inside_->fabric(); }

RailThread::~RailThread() { CISTERN_ASSERT(!thread_.joinable()); }

Result<std::unique_ptr<RailThread>> RailThread::Start(const Parts& parts, std::string listen) {
  Result<std::unique_ptr<io::Loop>> loop = io::MakeLoop(parts.clock, parts.loop);
  if (!loop) return Error(std::move(loop.error()));
  std::unique_ptr<RailThread> made(new RailThread(parts));
  made->inside_ = std::make_unique<Inside>(*made, std::move(*loop));
  const auto opened = std::make_shared<std::promise<Status>>();
  made->thread_ = std::thread([inside = made->inside_.get(), opened, listen = std::move(listen)] {
    pthread_setname_np(pthread_self(), "cistern-rails");
    Status status = inside->Open(listen);
    const bool runs = status.ok();
    opened->set_value(std::move(status));
    if (runs) inside->Run();
  });
  Status status = opened->get_future().get();
  if (status.ok()) return made;
  made->thread_.join();
  return Error(std::move(status));
}

void RailThread::Publish(std::optional<Answered> answered,
                         std::map<SharedNamespace, ServedNamespace> namespaces) {
  view_.Set(answered, std::move(namespaces));
}

Task<Status> RailThread::Read(std::uint64_t peer, std::span<const net::ConstPiece> questions,
                              net::RailSink& sink, Instant deadline) {
  if (reads_ended_) {
    const Status ended(Code::kGone, "the node ends");
    for (std::uint32_t item = 0; item < questions.size(); ++item) sink.End(item, ended);
    co_return ended;
  }
  const auto asked = std::make_shared<Asked>();
  asked->peer = peer;
  asked->address = parts_.links.RailAddress(peer);
  asked->questions = questions;
  asked->sink = &sink;
  asked->deadline = deadline;
  Inside& inside = *inside_;
  inside.loop().PostRemote([&inside, asked] { inside.Ask(asked); });
  co_await asked->done.Wait();
  co_return asked->status;
}

Task<void> RailThread::BringFor(std::shared_ptr<Brought> brought) {
  brought->kept = co_await store_.Bring(brought->ns, brought->block, brought->deadline, brought->worth_us);
  inside_->loop().PostRemote([brought] { brought->done.Set(); });
}

Task<void> RailThread::NoteFor(std::shared_ptr<Noted> noted) {
  noted->notes = co_await store_.NotesOf(noted->ns, noted->key);
  inside_->loop().PostRemote([noted] { noted->done.Set(); });
}

void RailThread::Forget(std::uint64_t peer) {
  Inside& inside = *inside_;
  inside.loop().PostRemote([&inside, peer] { inside.Forget(peer); });
}

void RailThread::EndReads() {
  reads_ended_ = true;
  Inside& inside = *inside_;
  inside.loop().PostRemote([&inside] { inside.ForgetAll(); });
}

Task<void> RailThread::Close() {
  co_await brings_.Close();
  inside_->loop().Stop();
  thread_.join();
  // What the thread has posted last is run before this goes.
  Event posted;
  parts_.core.PostRemote([&posted] { posted.Set(); });
  co_await posted.Wait();
  inside_.reset();
}

}  // namespace cistern::mesh
