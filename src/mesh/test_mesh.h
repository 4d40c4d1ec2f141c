// SPDX-License-Identifier: Apache-2.0
// Nodes with real stores in one process, which find and read each other's blocks over a simulated network:
// for tests. What they know of the cell's drops the test says: Drop lists one for all, and each node sees it
// and applies it when it is told to.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/format.h"
#include "base/task_group.h"
#include "mesh/block_server.h"
#include "mesh/chain_giver.h"
#include "mesh/chain_spreader.h"
#include "mesh/chain_taker.h"
#include "mesh/finder.h"
#include "mesh/peer_rails.h"
#include "mesh/peer_reader.h"
#include "mesh/sample_streams.h"
#include "mesh/store_keeper.h"
#include "mesh/test_served.h"
#include "net/control_connection.h"
#include "net/simulated_fabric.h"
#include "net/simulated_network.h"
#include "store/block_store_fixture.h"
#include "tier/simulated_tier.h"

namespace cistern::mesh {

// How far a node has come with the cell's drops.
class TestRule final : public CellRule {
 public:
  std::optional<Answered> Answering() const override {
    return joined ? std::optional(Answered{history, applied, last}) : std::nullopt;
  }
  bool Same(const Answered& answered) const override {
    return joined && answered.history == history && answered.last.revision <= last.revision &&
           answered.a >= trimmed;
  }
  bool Behind(const Answered& answered) const override { return answered.last.revision > last.revision; }
  Event::WaitingUntil Changed(Instant deadline) override { return changed.Wait(deadline); }
  const DropList& drops() const override { return list; }

  bool joined = true;
  std::uint64_t history = 7;
  std::int64_t applied = 0;
  BatchMark last;
  std::int64_t trimmed = 0;  // the cell's floor
  Event changed;
  DropList list{1};
};

inline SharedNamespace TestNameOf(const catalog::NamespaceEntry& entry) {
  SharedNamespace name{.tenant = "default"};
  std::uint64_t hash = 0;
  for (const auto& [field, value] : entry.fields) {
    for (const char c : value) hash = SplitMix(hash ^ static_cast<unsigned char>(c));
  }
  std::memcpy(name.list_hash.data(), &hash, sizeof(hash));
  return name;
}

class TestNames final : public SharedNamespaces {
 public:
  explicit TestNames(const store::BlockStore& store) : store_(store) {}
  std::optional<std::uint32_t> SlotOf(const SharedNamespace& name) const override {
    for (std::uint32_t slot = 0; slot < store_.namespace_slots(); ++slot) {
      const catalog::NamespaceEntry* entry = store_.NamespaceAt(slot);
      if (entry != nullptr && entry->in_mesh() && TestNameOf(*entry) == name) return slot;
    }
    return std::nullopt;
  }
  std::optional<SharedNamespace> NameAt(std::uint32_t slot) const override {
    const catalog::NamespaceEntry* entry = store_.NamespaceAt(slot);
    if (entry == nullptr || !entry->in_mesh()) return std::nullopt;
    return TestNameOf(*entry);
  }
  std::uint64_t switches() const override {
    std::uint64_t number = 0;
    for (std::uint32_t slot = 0; slot < store_.namespace_slots(); ++slot) {
      const catalog::NamespaceEntry* entry = store_.NamespaceAt(slot);
      if (entry != nullptr && !entry->in_mesh()) number += std::uint64_t{1} << (slot % 64);
    }
    return number;
  }
  SharedNamespace NameOf(const catalog::NamespaceEntry& entry) const override { return TestNameOf(entry); }

 private:
  const store::BlockStore& store_;
};

// Control connections of a node, as Peers has them, without etcd: whom it dials the test says.
class TestLinks final : public PeerLinks {
 public:
  TestLinks(net::Network& network, std::uint64_t process_number)
      : network_(network), process_number_(process_number), tasks_(network.executor()) {}
  ~TestLinks() { tasks_.Drop(); }
  void Drop() { tasks_.Drop(); }
  Executor& executor() { return network_.executor(); }

  void Start(const std::string& host, PeerListener& listener) {
    listener_ = &listener;
    control_ = std::move(*network_.Listen(host + ":1"));
    tasks_.Spawn(Accept());
  }
  void Dial(std::string address) { tasks_.Spawn(KeepConnected(std::move(address))); }

  std::vector<std::uint64_t> Reachable() const override {
    std::vector<std::uint64_t> reachable;
    for (const auto& [peer, connection] : connected_) reachable.push_back(peer);
    return reachable;
  }
  bool SameZone(std::uint64_t peer) const override { return near.contains(peer); }
  Status Tell(std::uint64_t peer, std::uint16_t type, net::ConstPiece payload) override {
    const auto at = connected_.find(peer);
    if (at == connected_.end()) return Status(Code::kGone, "no connection");
    if (lose_notices) return Status();
    return at->second->Tell(type, payload);
  }
  void TellLatest(std::uint64_t peer, std::uint16_t type, net::ConstPiece payload) override {
    (void)Tell(peer, type, payload);
  }
  Task<Result<std::vector<std::byte>>> Ask(std::uint64_t peer, std::uint16_t type,
                                           std::vector<std::byte> payload, Instant deadline) override {
    ++questions[type];
    const auto at = connected_.find(peer);
    if (at == connected_.end()) co_return Error(Code::kGone, "no connection");
    co_return co_await at->second->Ask(type, payload, deadline);
  }
  std::string RailAddress(std::uint64_t) const override { return ""; }

  std::map<std::uint64_t, bool> near;
  std::map<std::uint16_t, int> questions;  // by type
  bool lose_notices = false;

 private:
  class Other final : public net::ControlHandler {
   public:
    explicit Other(TestLinks& links) : links_(links) {}
    Executor& executor() { return links_.executor(); }
    void Greeted(std::uint64_t peer) {
      peer_ = peer;
      links_.listener_->Connected(peer);
      for (const auto& [type, payload] : early_) links_.listener_->Heard(peer_, type, payload);
      early_.clear();
    }
    Task<Result<std::vector<std::byte>>> Answer(std::uint16_t type, net::ConstPiece payload,
                                                Instant deadline) override {
      co_return co_await links_.listener_->Answer(peer_, type, payload, deadline);
    }
    void Notice(std::uint16_t type, net::ConstPiece payload) override {
      if (peer_ != 0) {
        links_.listener_->Heard(peer_, type, payload);
      } else {
        early_.push_back({type, {payload.begin(), payload.end()}});
      }
    }

   private:
    TestLinks& links_;
    std::uint64_t peer_ = 0;
    std::vector<std::pair<std::uint16_t, std::vector<std::byte>>> early_;
  };

  Task<void> Accept() {
    for (;;) {
      auto stream = co_await control_->Accept(Instant::Never());
      if (stream) tasks_.Spawn(Serve(std::move(*stream)));
    }
  }
  Task<void> KeepConnected(std::string address) {
    for (;;) {
      auto stream = co_await network_.Connect(address, executor().Now().PlusUs(1'000'000));
      if (stream) co_await Serve(std::move(*stream));
      (void)co_await SleepUntil(executor().Now().PlusUs(50'000));
    }
  }
  Task<void> Serve(std::unique_ptr<net::Stream> stream) {
    Other other(*this);
    net::Hello own{.process_number = process_number_, .member = "node"};
    const Instant deadline = executor().Now().PlusUs(1'000'000);
    auto opened =
        co_await net::ControlConnection::Open(executor(), std::move(stream), std::move(own), other, deadline);
    if (!opened) co_return;
    net::ControlConnection& connection = **opened;
    const std::uint64_t peer = connection.other().process_number;
    connected_[peer] = &connection;
    other.Greeted(peer);
    co_await connection.Ended();
    if (connected_[peer] == &connection) {
      connected_.erase(peer);
      listener_->Disconnected(peer);
    }
    co_await connection.Close();
  }

  net::Network& network_;
  const std::uint64_t process_number_;
  PeerListener* listener_ = nullptr;
  std::unique_ptr<net::Listener> control_;
  std::map<std::uint64_t, net::ControlConnection*> connected_;
  TaskGroup tasks_;
};

struct TestNodeOptions {
  std::uint32_t headers = 2;
  catalog::StoreOptions store;
  bool lower_tier = false;
  net::SimulatedFabric::Members* fabric = nullptr;  // of nodes that read each other's memory
  std::uint64_t fabric_seed = 0;
  std::uint64_t bytes_a_second = 0;  // that a node reads from all others; 0: no bound
  Role role = Role::kEngine;
  bool spreads = false;      // what it has, in the background
  std::uint32_t copies = 1;  // then: members that are to have a block
  std::uint64_t tier_room_bytes = 1u << 20;
};

// A node with everything of this folder but etcd.
class MeshNode final : public PeerListener {
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  static std::unique_ptr<std::byte, Free> Zeroed(std::uint64_t bytes) {
    bytes = arena::RoundUp(bytes, arena::kSlotsBoundary);
    void* memory = std::aligned_alloc(arena::kSlotsBoundary, bytes);
    CISTERN_ASSERT(memory != nullptr);
    return std::unique_ptr<std::byte, Free>(static_cast<std::byte*>(memory));
  }

 public:
  // Over the source, to lie about what it answers.
  using Lie = std::function<void(net::RailSource::Answer&)>;

  MeshNode(io::Loop& on, const Clock& of, net::SimulatedNetwork& network, std::string at,
           std::uint64_t number, const TestNodeOptions& options)
      : loop(on),
        clock(of),
        host(std::move(at)),
        process_number(number),
        geometry_{4096, options.headers},
        arena_memory_(Zeroed(geometry_.file_bytes())),
        index_memory_(Zeroed(geometry_.index_bytes())),
        net(network.Host(host)),
        log_(Logger::ToSink(LogLevel::kOff, [](LogLevel, std::string_view) {})),
        arena_(arena_memory_.get(), geometry_),
        index_(index_memory_.get(), geometry_.bucket_count()),
        movers(words, loop.executor()),
        tier_room_bytes_(options.tier_room_bytes),
        peers(options.bytes_a_second),
        tasks(loop.executor()) {
    std::memset(arena_memory_.get(), 0, geometry_.slots_offset());
    std::memset(index_memory_.get(), 0, geometry_.index_bytes());
    slots_.emplace(words, arena_);
    journal_.emplace(loop, "node-" + host, number);
    residency::OpenTierCall open_tier;
    if (options.lower_tier) {
      open_tier = [this](tier::JournalView journal) { return OpenTier(executor(), std::move(journal)); };
    }
    store.emplace(store::BlockStore::Parts{loop.executor(), clock, words, *slots_, index_, movers, *journal_,
                                           *log_, open_tier},
                  options.store);
    EXPECT_TRUE(loop.BlockOn(store->Recover()).ok());
    names.emplace(*store);
    links.emplace(*net, process_number);
    feed.emplace(loop.executor(), *store, *names);
    index.emplace(SampleIndex::Options{1u << 20, 64});
    streams.emplace(SampleStreams::Parts{loop.executor(), *feed, *index, *links, rule});
    if (options.fabric != nullptr) {
      fabric.emplace(loop.executor(), *options.fabric, "simulated", options.fabric_seed);
      fabric->Register({arena_memory_.get() + geometry_.slots_offset(), geometry_.slots_bytes()});
    }
    rails.emplace(*net, fabric ? &*fabric : nullptr);
    reader.emplace(
        PeerReader::Parts{loop.executor(), clock, *store, geometry_.slots_bytes(), rule, *rails, peers});
    finder.emplace(
        Finder::Parts{loop.executor(), clock, *store, rule, *names, *index, *streams, *links, peers}, number);
    offers.emplace(ChainOffers::Parts{loop.executor(), clock, *store, rule, *names, *links, peers});
    giver.emplace(*offers, *store, clock);
    spreader.emplace(ChainSpreader::Parts{*offers, *store, clock, peers, process_number, options.role});
    spreader->SetMemory(room.memory_bytes);
    spreader->SetCopies({{.members = options.copies}});
    if (options.spreads) spreader->Start();
    taker.emplace(ChainTaker::Parts{loop.executor(), clock, *store, rule, *names, *reader, options.role});
    room.role = options.role;
    keeper_.emplace(loop.executor(), *store, catalog::Caller{1u << 20, store::kSourceOwner});
    served.emplace(rule, *names, *store);
    server.emplace(BlockServer::Parts{loop.executor(), clock,
                                      arena::Reader<arena::Words>(words, arena_, index_), *served, *keeper_});
    rails_ = std::move(*net->Listen(host + ":2"));
    tasks.Spawn(ServeRails());
    tasks.Spawn(Tick());
    links->Start(host, *this);
    streams->Start();
  }
  ~MeshNode() {
    store->Abandon();
    tasks.Drop();
    giver.reset();
    spreader.reset();
    links->Drop();
    taker.reset();
    streams.reset();
    reader.reset();
    rails.reset();
    links.reset();
    feed.reset();
    movers.Abandon();
  }
  MeshNode(const MeshNode&) = delete;
  MeshNode& operator=(const MeshNode&) = delete;

  Executor& executor() { return loop.executor(); }
  std::uint64_t memory_bytes() const { return geometry_.slots_bytes(); }

  void Connected(std::uint64_t peer) override {
    streams->Connected(peer);
    room.free_bytes = room.memory_bytes - std::min(room.memory_bytes, store->occupancy().bytes);
    (void)links->Tell(peer, kRoomNotice, Encode(room));
  }
  void Disconnected(std::uint64_t peer) override { streams->Disconnected(peer); }
  void Heard(std::uint64_t peer, std::uint16_t type, net::ConstPiece payload) override {
    if (type == kSampleNotice) streams->Heard(peer, payload);
    if (type != kRoomNotice) return;
    const std::optional<RoomNotice> told = DecodeRoomNotice(payload);
    ASSERT_TRUE(told.has_value());
    peers.Of(peer).room_bytes = told->memory_bytes;
    peers.Of(peer).drains = told->drains;
    peers.Of(peer).role = told->role;
    spreader->Heard(peer, *told);
  }
  // As Sharing::SetDraining.
  void SetDraining(bool drains) {
    room.drains = drains;
    taker->SetDraining(drains);
    spreader->SetDraining(drains);
    for (const std::uint64_t peer : links->Reachable()) (void)links->Tell(peer, kRoomNotice, Encode(room));
  }
  Task<Result<std::vector<std::byte>>> Answer(std::uint64_t peer, std::uint16_t type, net::ConstPiece payload,
                                              Instant deadline) override {
    if (stopped) co_await forever.Wait();
    switch (type) {
      case kSnapshotQuestion: co_return co_await streams->AnswerSnapshot(payload);
      case kMatchQuestion: {
        auto answer = co_await finder->Answer(payload);
        if (!answer || !match_lie) co_return answer;
        MatchReply reply = *DecodeMatchReply(*answer);
        match_lie(reply);
        co_return Encode(reply);
      }
      case kOfferQuestion: co_return co_await taker->Answer(peer, payload, deadline);
      default: co_return Error(Code::kMismatch, "no such question");
    }
  }

  arena::Reader<arena::Words> reader_of_arena() { return {words, arena_, index_}; }
  // All parts, as a client of the node would read them.
  std::optional<std::vector<std::byte>> ReadBody(std::uint32_t slot, const BlockKey& key,
                                                 std::uint16_t group = 0) {
    arena::Reader<arena::RealWords> by(words, arena_, index_);
    const arena::ReadCall call = by.Begin(slot, clock.Wall().seconds);
    const auto found = by.Find(call, group, key);
    if (!found) return std::nullopt;
    std::vector<std::byte> body(found->body_bytes);
    auto record = std::make_unique<arena::OpenRecord>();
    if (by.Open(call, {key, group, PeerMessageLimits::kParts}, &*found, *record) != arena::ReadOutcome::kHit)
      return std::nullopt;
    for (std::uint32_t part = 0; part < record->seal.part_count(); ++part) {
      const auto place = record->seal.part(part);
      const std::span<std::byte> pieces[] = {std::span(body).subspan(place.offset, place.bytes)};
      if (by.CopyRange(*record, {{part, 0, place.bytes}, pieces}) != arena::ReadOutcome::kHit)
        return std::nullopt;
    }
    if (!by.StillGood(*record)) return std::nullopt;
    last_stamp = record->stamp;
    last_put_id = record->seal.put_id();
    return body;
  }

  io::Loop& loop;
  const Clock& clock;
  const std::string host;
  const std::uint64_t process_number;
  bool stopped = false;  // answers nobody
  Lie lie;
  std::function<void(MatchReply&)> match_lie;
  int tears = 0;                                     // so many records that are sent next give way meanwhile
  std::function<Task<void>(Executor&)> before_find;  // a rail's question waits for it
  std::function<Task<void>(Executor&)> before_sent;  // and what was found, held in memory
  Event forever;
  TestRule rule;
  RoomNotice room{.memory_bytes = 1u << 20};  // that it tells the others
  // Of the record that ReadBody read.
  record::Stamp last_stamp;
  PutId last_put_id;

 private:
  class Liar final : public net::RailSource {
   public:
    explicit Liar(MeshNode& node) : node_(node) {}
    Executor& executor() { return node_.executor(); }
    Task<Answer> Find(net::ConstPiece question, Instant deadline) override {
      if (node_.stopped) co_await node_.forever.Wait();
      if (node_.before_find) co_await node_.before_find(node_.executor());
      Answer answer = co_await node_.server->Find(question, deadline);
      if (node_.before_sent && answer.status.ok()) co_await node_.before_sent(node_.executor());
      if (node_.lie && answer.status.ok()) node_.lie(answer);
      co_return answer;
    }
    bool Stands(std::uint64_t handle) const override { return node_.server->Stands(handle); }
    bool Sent(std::uint64_t handle) override {
      return node_.server->Sent(handle) && (node_.tears == 0 || node_.tears-- == 0);
    }

   private:
    MeshNode& node_;
  };
  Task<Result<std::unique_ptr<tier::Tier>>> OpenTier(Executor& on, tier::JournalView journal) {
    tier::SimulatedTierOptions with;
    with.unit = 4096;
    with.room_bytes = tier_room_bytes_;
    co_return std::make_unique<tier::SimulatedTier>(tier::SimulatedTier::Parts{on, media_, process_number},
                                                    with, journal);
  }
  Task<void> ServeRails() {
    for (;;) {
      auto stream = co_await rails_->Accept(Instant::Never());
      if (stream) tasks.Spawn(ServeOne(std::move(*stream)));
    }
  }
  Task<void> ServeOne(std::unique_ptr<net::Stream> stream) {
    Liar source(*this);
    (void)co_await net::ServeRail(*stream, source, fabric ? &*fabric : nullptr);
  }
  Task<void> Tick() {
    for (;;) {
      while (store->Tick()) co_await Yield();
      (void)co_await SleepUntil(executor().Now().PlusUs(1'000));
    }
  }

  const arena::Geometry geometry_;
  std::unique_ptr<std::byte, Free> arena_memory_, index_memory_;

 public:
  const std::unique_ptr<net::Network> net;
  arena::RealWords words;

 private:
  std::unique_ptr<Logger> log_;
  arena::ArenaSpace arena_;
  arena::IndexSpace index_;

 public:
  store::InlineMovers movers;

 private:
  tier::SimulatedMedia media_;
  const std::uint64_t tier_room_bytes_;
  std::optional<memory::Slots> slots_;
  std::optional<catalog::Journal> journal_;

 public:
  std::optional<store::BlockStore> store;
  std::optional<TestNames> names;
  std::optional<TestLinks> links;
  PeerTable peers;
  std::optional<SampleFeed> feed;
  std::optional<SampleIndex> index;
  std::optional<SampleStreams> streams;
  std::optional<net::SimulatedFabric> fabric;
  std::optional<PeerRails> rails;
  std::optional<PeerReader> reader;
  std::optional<Finder> finder;
  std::optional<ChainOffers> offers;
  std::optional<ChainGiver> giver;
  std::optional<ChainSpreader> spreader;
  std::optional<ChainTaker> taker;
  std::optional<TestServed> served;

 private:
  std::optional<StoreKeeper> keeper_;

 public:
  std::optional<BlockServer> server;

 private:
  std::unique_ptr<net::Listener> rails_;

 public:
  TaskGroup tasks;
};

// A cell of such nodes, each of which knows every other.
class MeshTest : public ::testing::Test {
 public:
  Executor& executor() { return loop->executor(); }

 protected:
  ~MeshTest() override {
    while (!nodes.empty()) nodes.pop_back();
  }
  void StartNodes(int count, const NamespaceSpec& spec = Blocks(), const TestNodeOptions& options = {}) {
    for (int i = 0; i < count; ++i) AddNode(spec, options);
    ASSERT_TRUE(RunUntil([&] { return Know(); }));
  }
  void AddNode(const NamespaceSpec& spec = Blocks(), const TestNodeOptions& options = {}) {
    AddBareNode(options);
    Attach(nodes.size() - 1, spec);
  }
  void Attach(std::size_t i, const NamespaceSpec& spec) {
    auto attached = loop->BlockOn(node(i).store->Attach(spec));
    ASSERT_TRUE(attached.has_value()) << attached.error().ToString();
    slot = attached->slot;
  }
  // That knows no namespace.
  void AddBareNode(const TestNodeOptions& options = {}) {
    const std::string host(1, static_cast<char>('a' + nodes.size()));
    auto made = std::make_unique<MeshNode>(*loop, clock, network, host, 100 + nodes.size(), options);
    for (auto& other : nodes) {
      made->rails->SetAddress(other->process_number, other->host + ":2");
      other->rails->SetAddress(made->process_number, made->host + ":2");
      other->links->Dial(made->host + ":1");
    }
    nodes.push_back(std::move(made));
  }
  // Each has every other's samples.
  bool Know() const {
    for (const auto& node : nodes) {
      if (node->streams->Askable().count() + 1 != nodes.size()) return false;
    }
    return true;
  }
  // Blocks of 64 tokens: every fourth is sampled.
  static NamespaceSpec Blocks() {
    NamespaceSpec spec = store::OneGroup();
    spec.block_tokens = 64;
    return spec;
  }
  MeshNode& node(std::size_t i) { return *nodes[i]; }
  Instant After(std::int64_t us) const { return clock.Now().PlusUs(us); }
  Task<void> Pass(std::int64_t us) { (void)co_await SleepUntil(loop->executor().Now().PlusUs(us)); }
  void RunFor(std::int64_t us) { loop->BlockOn(Pass(us)); }
  template <class Holds>
  bool RunUntil(Holds&& holds, std::int64_t us = 10'000'000) {
    for (const Instant until = After(us); !holds();) {
      if (clock.Now() >= until) return false;
      RunFor(1'000);
    }
    return true;
  }

  static std::vector<BlockKey> Chain(std::uint64_t first, std::uint64_t last) {
    std::vector<BlockKey> chain;
    for (std::uint64_t n = first; n <= last; ++n) chain.push_back(store::Key(n));
    return chain;
  }
  void Put(std::size_t i, std::uint64_t n, std::optional<std::uint64_t> parent, std::size_t bytes = 4096,
           std::uint32_t ttl_s = 0, std::uint64_t conversation = 0) {
    const std::vector<std::byte> body = store::Body(n, bytes);
    store::PartWrite part;
    part.key = store::Key(n);
    if (parent) part.parent = store::Key(*parent);
    part.put_id = {1, ++puts_};
    part.from = body;
    part.ttl_s = ttl_s;
    part.conversation = conversation;
    const catalog::Caller caller{1, {std::byte{1}}};
    const auto outcomes = loop->BlockOn(node(i).store->Write(caller, slot, {part}, After(1'000'000)));
    ASSERT_TRUE(outcomes[0].status.ok()) << outcomes[0].status.ToString();
  }
  void PutChain(std::size_t i, std::uint64_t first, std::uint64_t last, std::size_t bytes = 4096) {
    for (std::uint64_t n = first; n <= last; ++n)
      Put(i, n, n == first ? std::nullopt : std::optional(n - 1), bytes);
  }
  PeerMatch Find(std::size_t i, std::uint64_t first, std::uint64_t last, std::size_t local = 0,
                 std::int64_t us = 1'000'000) {
    const std::vector<BlockKey> chain = Chain(first, last);
    return loop->BlockOn(node(i).finder->Find(slot, chain, local, After(us)));
  }
  Result<std::size_t> Read(std::size_t i, const PeerMatch& match, std::int64_t us = 1'000'000,
                           std::uint64_t conversation = 0) {
    return loop->BlockOn(
        node(i).reader->Read(match.run, match.run->first, match.run->count, conversation, After(us)));
  }
  static std::uint64_t BlocksOf(const PeerMatch& match) {
    std::uint64_t blocks = 0;
    for (const MatchRun& run : match.runs) blocks += run.blocks;
    return blocks;
  }
  bool Exact(std::size_t i, std::uint64_t n, std::size_t bytes = 4096) {
    return node(i).ReadBody(slot, store::Key(n)) == store::Body(n, bytes);
  }
  bool Here(std::size_t i, std::uint64_t n) { return node(i).ReadBody(slot, store::Key(n)).has_value(); }

  // A drop of the cell, which no node has seen.
  std::int64_t Drop(std::vector<std::uint64_t> blocks) {
    CellDrop drop{.what = CellDrop::What::kKeys, .name = *node(0).names->NameAt(slot)};
    for (const std::uint64_t n : blocks) drop.keys.push_back(store::Key(n));
    drops_.push_back(std::move(drop));
    return static_cast<std::int64_t>(drops_.size());
  }
  // It has begun to take effect at the node; `apply`: durably, too.
  void See(std::size_t i, std::int64_t revision, bool apply = true) {
    const CellDrop& drop = drops_[static_cast<std::size_t>(revision - 1)];
    node(i).rule.list.Add(revision, drop);
    ASSERT_TRUE(loop->BlockOn(node(i).store->Drop(slot, drop.keys)).has_value());
    if (apply) node(i).rule.applied = revision;
  }

  SimulatedClock clock;
  io::SimulatedDisk disk{1};
  std::unique_ptr<io::Loop> loop = std::move(*io::SimulatedLoop::Make(clock, disk, 1));
  net::SimulatedNetwork network{loop->executor(), 3};
  std::vector<std::unique_ptr<MeshNode>> nodes;
  std::uint32_t slot = 0;

 private:
  std::vector<CellDrop> drops_;
  std::uint64_t puts_ = 0;
};

}  // namespace cistern::mesh
