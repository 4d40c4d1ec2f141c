// SPDX-License-Identifier: Apache-2.0
// A node of a simulated cell of which all is real but threads and the ring: store, journal, flash, member,
// sharing and rails, put together as node/cell.h does it, with a disk and a loop of its own, on a clock, a
// network and an etcd that the nodes of a cell share. Its process may be killed or stopped at any moment and
// started again, with its memory or not.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "arena/reader.h"
#include "base/codec.h"
#include "base/log.h"
#include "base/random.h"
#include "base/task_group.h"
#include "etcd/simulated.h"
#include "flash/flash_tier.h"
#include "io/simulated_loop.h"
#include "mesh/local_block_store.h"
#include "mesh/member.h"
#include "mesh/peer_rails.h"
#include "mesh/shared_names.h"
#include "mesh/sharing.h"
#include "mesh/store_keeper.h"
#include "mesh/test_served.h"
#include "net/simulated_network.h"
#include "other_release.h"
#include "process_loops.h"
#include "store/drain.h"
#include "store/test_store.h"

namespace cistern::mesh {

// What nodes share. Borrowed; outlives their processes.
struct RealWorld {
  SimulatedClock& clock;
  ProcessLoops& loops;
  net::SimulatedNetwork& network;
  etcd::SimulatedEtcd& etcd;
  Logger& log;
  Random& random;
};

struct RealNodeOptions {
  catalog::StoreOptions store;
  std::uint64_t flash_bytes = 4u << 20;
  std::uint32_t copies = 1;  // members that are to have a block
  Role role = Role::kEngine;
};

// A host's: its wall clock is ahead of the world's, and its seconds begin at other moments.
class HostClock final : public Clock {
 public:
  explicit HostClock(const SimulatedClock& clock) : clock_(clock) {}
  Instant Now() const override { return clock_.Now(); }
  WallTime Wall() const override {
    constexpr std::int64_t kSecondNs = 1'000'000'000;
    const std::int64_t passed_ns = Now().ns;
    const std::int64_t before_s = clock_.Wall().seconds - passed_ns / kSecondNs;
    return {static_cast<std::uint32_t>(before_s + (passed_ns + ahead_ns_) / kSecondNs)};
  }
  void SetAhead(std::int64_t by_us) { ahead_ns_ += by_us * 1'000; }

 private:
  const SimulatedClock& clock_;
  std::int64_t ahead_ns_ = 0;
};

class RealNode final {
 public:
  // A host of this name, and a member that is called so too.
  RealNode(const std::string& name, RealNodeOptions options, const SimulatedClock& on, std::uint64_t seed)
      : RealNode(name, name, options, HostClock(on), seed) {}
  // With a copy of a node's files, one more member with its id: on another host of this name, or beside it.
  RealNode(const std::string& name, const RealNode& original, bool beside, std::uint64_t seed)
      : RealNode(name, original.id, original.options_, original.clock, seed) {
    disk.BecomeCopyOf(original.disk);
    release = original.release;
    if (beside) boot_ = original.boot_;
  }
  RealNode(const RealNode&) = delete;
  RealNode& operator=(const RealNode&) = delete;

  bool running() const { return process_ != nullptr; }
  // Running, and not stopped: it does what it is asked for.
  bool awake() const { return running() && !stopped_; }
  // Not from within a task: it waits until what is there was recovered.
  void Start(const RealWorld& world) {
    late_.LandAll();
    process_ = std::make_unique<Process>(*this, world);
  }
  // SIGSTOP, not from within a task: all of its process stands still until it goes on, while time, network,
  // etcd and clients that read without a hop do not. It may be killed meanwhile.
  void Stop() {
    RunReady(executor());
    process_->world.loops.Hold(*process_->loop, true);
    stopped_ = true;
  }
  void GoOn() {
    process_->world.loops.Hold(*process_->loop, false);
    stopped_ = false;
    went_on_ = process_->world.clock.Now();
  }
  bool stopped() const { return stopped_; }
  // Another process on its host that has its id takes its membership at once, and it may not hear of that.
  bool Beside(const RealNode& other) const {
    return this != &other && id == other.id && boot_ == other.boot_;
  }
  // The last time; what should have ended before could not.
  Instant went_on() const { return went_on_; }
  // Nothing is copied any more, until it is killed.
  void HoldMovers() { process_->movers.paused = true; }
  // Of its process, as everything below.
  Executor& executor() { return process_->executor(); }
  // kill -9, not from within a task. What its disk was asked for lands before the next start, but for some by
  // chance.
  void Kill() {
    if (!running()) return;
    const RealWorld world = process_->world;
    if (!std::exchange(stopped_, false)) RunReady(executor());
    late_ = process_->loop->Kill([this](const void* data, std::size_t bytes) {
      const auto* at = static_cast<const std::byte*>(data);
      return at >= arena_memory_.get() && at + bytes <= arena_memory_.get() + geometry_.file_bytes();
    });
    late_.CancelSome(world.random);
    process_.reset();
    world.network.Stop(host);
  }
  // The power of its host is gone, not from within a task. Nobody says so to who is connected to it.
  void Crash() {
    if (!running()) {
      late_ = {};
      return disk.Crash();
    }
    if (!std::exchange(stopped_, false)) RunReady(executor());
    process_->loop->Crash();
    process_.reset();
  }
  // Its host has started anew, while it is not running.
  void Reboot() {
    boot_ = boots_.Next();
    ForgetMemory();
  }
  // The same, but for the boot's id; as where somebody removed its memory's files.
  void ForgetMemory() {
    late_.LandAll();
    std::memset(arena_memory_.get(), 0, geometry_.slots_offset());
    std::memset(index_memory_.get(), 0, geometry_.index_bytes());
  }

  store::BlockStore& store() { return *process_->store; }
  Member& member() { return *process_->member; }
  Sharing& sharing() { return *process_->sharing; }
  // Of clients: they end with the process.
  TaskGroup& calls() { return process_->calls; }
  // Where it has the namespace; none: it has not.
  std::optional<std::uint32_t> SlotOf(const SharedNamespace& name) const {
    return process_->names.DroppedSlotOf(name);
  }
  // The block as a client of the node reads it from memory; none: it finds none there.
  std::optional<std::vector<std::byte>> Read(std::uint32_t slot, const BlockKey& key) {
    arena::Reader<arena::RealWords> reader(words_, arena_, index_);
    const arena::ReadCall call = reader.Begin(slot, clock.Wall().seconds);
    const auto found = reader.Find(call, 0, key);
    const auto record = std::make_unique<arena::OpenRecord>();
    if (!found || reader.Open(call, {key, 0, 1}, &*found, *record) != arena::ReadOutcome::kHit)
      return std::nullopt;
    std::vector<std::byte> body(record->seal.body_bytes());
    const std::span<std::byte> pieces[] = {body};
    const bool hit = reader.CopyRange(*record, {{0, 0, body.size()}, pieces}) == arena::ReadOutcome::kHit;
    return hit && reader.StillGood(*record) ? std::optional(std::move(body)) : std::nullopt;
  }
  // Of a view that is leased.
  const std::byte* slot(arena::Place place) const { return arena_.slot(place); }

  const std::string host, id;
  io::SimulatedDisk disk;
  HostClock clock;
  NodeRelease release = NodeRelease::kThis;  // of its program, from the next start on

 private:
  RealNode(std::string host_in, std::string id_in, const RealNodeOptions& options, const HostClock& on,
           std::uint64_t seed)
      : host(std::move(host_in)),
        id(std::move(id_in)),
        disk(seed),
        clock(on),
        options_(options),
        boots_(seed),
        arena_memory_(Reserve(geometry_.file_bytes())),
        index_memory_(Reserve(geometry_.index_bytes())),
        arena_(arena_memory_.get(), geometry_),
        index_(index_memory_.get(), geometry_.bucket_count()) {
    Reboot();
  }
  // What has ended is told of first.
  static void RunReady(Executor& executor) {
    while (executor.has_ready()) executor.RunReady(64);
  }
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  static std::byte* Reserve(std::uint64_t bytes) {
    return static_cast<std::byte*>(
        std::aligned_alloc(arena::kSlotsBoundary, arena::RoundUp(bytes, arena::kSlotsBoundary)));
  }

  // Rails on the loop of the core: what mesh/rail_thread.h does on another.
  class Rails final : public BlockRails {
   public:
    Rails(net::Network& network, const PeerLinks& links) : rails_(network), links_(links) {}
    Executor& executor() { return rails_.executor(); }
    Task<Status> Read(std::uint64_t peer, std::span<const net::ConstPiece> questions, net::RailSink& sink,
                      Instant deadline) override {
      rails_.SetAddress(peer, links_.RailAddress(peer));
      co_return co_await rails_.Read(peer, questions, sink, deadline);
    }
    void Forget(std::uint64_t peer) { rails_.Forget(peer); }

   private:
    PeerRails rails_;
    const PeerLinks& links_;
  };

  // In the order in which its parts stand on each other.
  struct Process {
    Process(RealNode& of, const RealWorld& on)
        : node(of),
          world(on),
          loop(std::move(*io::SimulatedLoop::Make(on.clock, of.disk, on.random.Next()))),
          turns(on.loops, *loop),
          movers(of.words_, executor()),
          slots(of.words_, of.arena_),
          journal(*loop, "node/journal", on.random.Next()),
          store(std::make_unique<store::BlockStore>(
              store::BlockStore::Parts{
                  executor(), of.clock, of.words_, slots, of.index_, movers, journal, on.log,
                  [this](tier::JournalView known) { return OpenFlash(std::move(known)); }},
              of.options_.store)),
          recovered(on.loops.BlockOn(store->Recover())),
          names(executor(), *store, "default"),
          local(executor(), *store, names),
          client(EtcdOf(of.release, on.etcd.Client(of.host, executor()))),
          network(NetworkOf(of.release, on.network.Host(of.host, executor()), on.random.Next())),
          member(StartMember()),
          rails(*network, member->links()),
          keeper(executor(), *store, catalog::Caller{1u << 20, store::kSourceOwner}),
          view(*member, names, *store),
          server({executor(), of.clock, arena::Reader<arena::Words>(of.words_, of.arena_, of.index_), view,
                  keeper}),
          listener(std::move(*network->Listen(of.host + ":2"))),
          sharing(std::make_unique<Sharing>(
              Sharing::Parts{executor(), of.clock, *store, *member, names, member->links(), rails,
                             of.geometry_.slots_bytes(), on.random.Next(), 0,
                             member->options().process_number, of.options_.role})),
          tasks(executor()),
          calls(executor()) {
      CISTERN_ASSERT(recovered.ok());
      sharing->SetCopies({{.members = of.options_.copies}});
      member->SetListener(&*sharing, of.host + ":2");
      store->drain().SetHandOver(&*sharing);
      sharing->Start();
      tasks.Spawn(ServeRails());
      tasks.Spawn(Tick());
      tasks.Spawn(Publish());
    }
    // As a kill.
    ~Process() {
      movers.Abandon();
      store->Abandon();
      calls.Drop();
      sharing->Abandon();
      member->Abandon();
      tasks.Drop();
      sharing.reset();
    }
    Process(const Process&) = delete;
    Process& operator=(const Process&) = delete;
    Executor& executor() { return loop->executor(); }

    Task<Result<std::unique_ptr<tier::Tier>>> OpenFlash(tier::JournalView view_of_journal) {
      flash::FlashOptions options;
      options.region_bytes = 256u << 10;
      options.devices.push_back({"node/flash", node.options_.flash_bytes});
      return flash::OpenFlash({*loop, world.log, [this] { return world.random.Next(); }}, options,
                              std::move(view_of_journal));
    }
    std::unique_ptr<Member> StartMember() {
      MemberOptions options;
      options.id = node.id;
      options.listen = node.host + ":1";
      StoreAt(options.boot_id.data(), 0, node.boot_);
      options.process_number = world.random.Next() | 1;
      options.etcd_is_ours = true;
      return std::move(*Member::Start(*client, *network, local, std::move(options)));
    }
    Task<void> ServeRails() {
      for (;;) {
        auto stream = co_await listener->Accept(Instant::Never());
        if (stream) tasks.Spawn(ServeOne(std::move(*stream)));
      }
    }
    Task<void> ServeOne(std::unique_ptr<net::Stream> stream) {
      (void)co_await net::ServeRail(*stream, server, nullptr);
    }
    Task<void> Tick() {
      for (;;) {
        while (store->Tick()) co_await Yield();
        (void)co_await SleepUntil(executor().Now().PlusUs(1'000));
      }
    }
    // As Cell::Publish.
    Task<void> Publish() {
      std::set<std::uint64_t> known;
      for (;;) {
        store->SetTerm(member->valid_until());
        co_await names.Refresh();
        std::set<std::uint64_t> now;
        for (const auto& [name, value] : member->state().view.members) now.insert(value.process_number);
        for (const std::uint64_t peer : known) {
          if (member->Reaches(peer)) now.insert(peer);
          if (now.contains(peer)) continue;
          sharing->Forget(peer);
          rails.Forget(peer);
        }
        known = std::move(now);
        (void)co_await member->Changed(executor().Now().PlusUs(50'000));
      }
    }

    // Of the loop among the others.
    class Turns {
     public:
      Turns(ProcessLoops& loops, io::SimulatedLoop& loop) : loops_(loops), loop_(loop) { loops_.Add(loop_); }
      ~Turns() { loops_.Remove(loop_); }
      Turns(const Turns&) = delete;
      Turns& operator=(const Turns&) = delete;

     private:
      ProcessLoops& loops_;
      io::SimulatedLoop& loop_;
    };

    RealNode& node;
    const RealWorld world;
    const std::unique_ptr<io::SimulatedLoop> loop;
    const Turns turns;
    store::InlineMovers movers;
    memory::Slots slots;
    catalog::Journal journal;
    std::unique_ptr<store::BlockStore> store;
    const Status recovered;
    SharedNames names;
    LocalBlockStore local;
    const std::unique_ptr<etcd::Etcd> client;
    const std::unique_ptr<net::Network> network;
    const std::unique_ptr<Member> member;
    Rails rails;
    StoreKeeper keeper;
    TestServed view;
    BlockServer server;
    const std::unique_ptr<net::Listener> listener;
    std::unique_ptr<Sharing> sharing;
    TaskGroup tasks, calls;
  };

  const RealNodeOptions options_;
  Random boots_;
  std::uint64_t boot_ = 0;  // which of the host's it is
  arena::RealWords words_;
  const arena::Geometry geometry_{4096, 4};
  const std::unique_ptr<std::byte, Free> arena_memory_, index_memory_;
  arena::ArenaSpace arena_;
  arena::IndexSpace index_;
  io::LateIo late_;
  bool stopped_ = false;
  Instant went_on_;
  std::unique_ptr<Process> process_;
};

}  // namespace cistern::mesh
