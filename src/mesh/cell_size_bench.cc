// SPDX-License-Identifier: Apache-2.0
// What the size of a cell costs each of its members: cells of 2, 8, 32 and 128 nodes with their real store
// and mesh in one process, on a simulated loop, network and etcd. Messages and bytes are counted on the
// simulated network, without heartbeats, which the last columns have; steps are the executor's, of asker and
// holder together; processor time is this thread's, what the simulation itself takes included.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/event.h"
#include "base/format.h"
#include "base/random_bytes.h"
#include "base/task_group.h"
#include "etcd/simulated.h"
#include "mesh/block_server.h"
#include "mesh/local_block_store.h"
#include "mesh/member.h"
#include "mesh/peer_rails.h"
#include "mesh/sharing.h"
#include "mesh/store_keeper.h"
#include "mesh/test_served.h"
#include "net/control_message.h"
#include "net/simulated_network.h"
#include "store/test_store.h"

namespace cistern::mesh {
namespace {

constexpr std::size_t kSizes[] = {2, 8, 32, 128};
constexpr std::size_t kPrompt = 1'000;         // keys of a match
constexpr std::size_t kOwnChains = 16;         // that each node holds beside
constexpr std::size_t kOwnBlocks = 16;         // of each of them
constexpr std::size_t kSmall = 4096;           // bytes of a block that is only looked for
constexpr std::size_t kLarge = 64u << 10;      // of one that is read
constexpr std::size_t kRead = 256;             // blocks
constexpr std::size_t kUnknown = 20'000;       // matches
constexpr std::size_t kHeld = 2'048;           // matches
constexpr std::size_t kAtOnce = 32;            // of them under way
constexpr std::size_t kPuts = 1'024;           // blocks, in a second, kOwnBlocks a call
constexpr std::size_t kDrops = 50;             // of a key, one after the other
constexpr std::int64_t kSecondUs = 1'000'000;  // of simulated time

// What members have sent, all together.
struct Sent {
  std::uint64_t messages = 0, bytes = 0;  // on control connections, but heartbeats
  std::uint64_t heartbeats = 0;
  std::uint64_t rail_sends = 0, rail_bytes = 0;
};

// A connection whose sends are counted.
class CountedStream final : public net::Stream {
 public:
  CountedStream(std::unique_ptr<net::Stream> stream, bool rail, Sent& sent)
      : stream_(std::move(stream)), rail_(rail), sent_(sent) {}
  Executor& executor() override { return stream_->executor(); }
  const std::string& peer() const override { return stream_->peer(); }
  Task<Result<std::size_t>> Receive(std::span<const net::Piece> into, Instant deadline) override {
    return stream_->Receive(into, deadline);
  }
  Task<Status> Send(std::span<const net::ConstPiece> pieces, Instant deadline) override {
    if (rail_) ++sent_.rail_sends;
    for (const net::ConstPiece& piece : pieces) {
      if (rail_) {
        sent_.rail_bytes += piece.size();
      } else {
        Count(piece);
      }
    }
    return stream_->Send(pieces, deadline);
  }
  void Close() override { stream_->Close(); }

 private:
  // Frames follow each other whatever pieces they come in.
  void Count(net::ConstPiece piece) {
    while (!piece.empty()) {
      if (payload_left_ > 0) {
        const std::size_t some = std::min(payload_left_, piece.size());
        payload_left_ -= some;
        piece = piece.subspan(some);
        continue;
      }
      const std::size_t some = std::min(head_.size() - head_bytes_, piece.size());
      std::copy_n(piece.begin(), some, head_.begin() + static_cast<std::ptrdiff_t>(head_bytes_));
      head_bytes_ += some;
      piece = piece.subspan(some);
      if (head_bytes_ < head_.size()) return;
      head_bytes_ = 0;
      const net::FrameHead head = net::FrameHead::Load(head_.data());
      payload_left_ = head.payload_bytes;
      if (head.kind == net::FrameKind::kHeartbeat) {
        ++sent_.heartbeats;
      } else {
        ++sent_.messages;
        sent_.bytes += head_.size() + head.payload_bytes;
      }
    }
  }

  std::unique_ptr<net::Stream> stream_;
  const bool rail_;
  Sent& sent_;
  std::array<std::byte, net::FrameHead::kBytes> head_;
  std::size_t head_bytes_ = 0, payload_left_ = 0;
};

bool IsRail(const std::string& address) { return address.ends_with(":2"); }

class CountedNetwork final : public net::Network {
 public:
  CountedNetwork(std::unique_ptr<net::Network> network, Sent& sent)
      : network_(std::move(network)), sent_(sent) {}
  Executor& executor() override { return network_->executor(); }
  Task<Result<std::unique_ptr<net::Stream>>> Connect(std::string address, Instant deadline) override {
    const bool rail = IsRail(address);
    auto stream = co_await network_->Connect(std::move(address), deadline);
    if (!stream) co_return Error(stream.error());
    co_return std::make_unique<CountedStream>(std::move(*stream), rail, sent_);
  }
  Result<std::unique_ptr<net::Listener>> Listen(const std::string& address) override {
    auto listener = network_->Listen(address);
    if (!listener) return Error(listener.error());
    return std::make_unique<CountedListener>(std::move(*listener), sent_);
  }

 private:
  class CountedListener final : public net::Listener {
   public:
    CountedListener(std::unique_ptr<net::Listener> listener, Sent& sent)
        : listener_(std::move(listener)), sent_(sent) {}
    Executor& executor() override { return listener_->executor(); }
    const std::string& address() const override { return listener_->address(); }
    Task<Result<std::unique_ptr<net::Stream>>> Accept(Instant deadline) override {
      auto stream = co_await listener_->Accept(deadline);
      if (!stream) co_return Error(stream.error());
      co_return std::make_unique<CountedStream>(std::move(*stream), IsRail(address()), sent_);
    }

   private:
    std::unique_ptr<net::Listener> listener_;
    Sent& sent_;
  };

  std::unique_ptr<net::Network> network_;
  Sent& sent_;
};

// Rails on the thread of the core: what mesh/rail_thread.h does on another.
class BenchRails final : public BlockRails {
 public:
  BenchRails(net::Network& network, const PeerLinks& links) : rails_(network), links_(links) {}
  Executor& executor() { return rails_.executor(); }
  Task<Status> Read(std::uint64_t peer, std::span<const net::ConstPiece> questions, net::RailSink& sink,
                    Instant deadline) override {
    rails_.SetAddress(peer, links_.RailAddress(peer));
    co_return co_await rails_.Read(peer, questions, sink, deadline);
  }
  void ForgetAll() { rails_.ForgetAll(); }

 private:
  PeerRails rails_;
  const PeerLinks& links_;
};

// A node as node/cell.h puts it together.
class BenchNode final {
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  static std::unique_ptr<std::byte, Free> Memory(std::uint64_t bytes, std::uint64_t zeroed) {
    bytes = arena::RoundUp(bytes, arena::kSlotsBoundary);
    void* memory = std::aligned_alloc(arena::kSlotsBoundary, bytes);
    CISTERN_ASSERT(memory != nullptr);
    std::memset(memory, 0, zeroed);
    return std::unique_ptr<std::byte, Free>(static_cast<std::byte*>(memory));
  }
  static MemberOptions OptionsOf(const std::string& host, std::uint64_t number) {
    MemberOptions options;
    options.id = host;
    options.listen = host + ":1";
    options.boot_id.fill(std::byte{1});
    options.process_number = number;
    return options;
  }

 public:
  BenchNode(io::Loop& loop, const Clock& clock, net::SimulatedNetwork& network, etcd::SimulatedEtcd& etcd,
            Sent& sent, std::uint64_t number)
      : loop_(loop),
        host_(Text("node", number)),
        geometry_{4096, 2},
        arena_memory_(Memory(geometry_.file_bytes(), geometry_.slots_offset())),
        index_memory_(Memory(geometry_.index_bytes(), geometry_.index_bytes())),
        log_(Logger::ToSink(LogLevel::kOff, [](LogLevel, std::string_view) {})),
        arena_(arena_memory_.get(), geometry_),
        index_(index_memory_.get(), geometry_.bucket_count()),
        movers_(words_, loop.executor()),
        slots_(words_, arena_),
        journal_(loop, host_, number),
        store_({loop.executor(), clock, words_, slots_, index_, movers_, journal_, *log_, {}},
               catalog::StoreOptions{.read_ahead_bytes = 0}),
        recovered_(loop.BlockOn(store_.Recover())),
        etcd_(etcd.Client(host_)),
        network_(network.Host(host_), sent),
        names_(loop.executor(), store_, "default"),
        local_(loop.executor(), store_, names_),
        member_(std::move(*Member::Start(*etcd_, network_, local_, OptionsOf(host_, number)))),
        rails_(network_, member_->links()),
        keeper_(loop.executor(), store_, catalog::Caller{1u << 20, store::kSourceOwner}),
        view_(*member_, names_, store_),
        server_(
            {loop.executor(), clock, arena::Reader<arena::Words>(words_, arena_, index_), view_, keeper_}),
        listener_(std::move(*network_.Listen(host_ + ":2"))),
        sharing_({loop.executor(), clock, store_, *member_, names_, member_->links(), rails_,
                  geometry_.slots_bytes(), number, 0, number}),
        tasks_(loop.executor()) {
    CISTERN_ASSERT(recovered_.ok());
    member_->SetListener(&sharing_, host_ + ":2");
    sharing_.Start();
    tasks_.Spawn(ServeRails());
    tasks_.Spawn(Tick());
  }
  ~BenchNode() { store_.Abandon(); }
  Task<void> Leave(Executor& executor) {
    member_->SetListener(nullptr);
    rails_.ForgetAll();
    co_await sharing_.Close();
    tasks_.Drop();
    co_await member_->Leave(executor.Now().PlusUs(kSecondUs));
  }
  BenchNode(const BenchNode&) = delete;
  BenchNode& operator=(const BenchNode&) = delete;

  Executor& executor() { return loop_.executor(); }
  Member& member() { return *member_; }
  SharedNamespace NameAt(std::uint32_t slot) const { return *names_.NameAt(slot); }
  Sharing& sharing() { return sharing_; }
  store::BlockStore& store() { return store_; }

 private:
  Task<void> ServeRails() {
    for (;;) {
      auto stream = co_await listener_->Accept(Instant::Never());
      if (stream) tasks_.Spawn(ServeOne(std::move(*stream)));
    }
  }
  Task<void> ServeOne(std::unique_ptr<net::Stream> stream) {
    (void)co_await net::ServeRail(*stream, server_, nullptr);
  }
  Task<void> Tick() {
    for (;;) {
      while (store_.Tick()) co_await Yield();
      co_await names_.Refresh();
      (void)co_await SleepUntil(executor().Now().PlusUs(50'000));
    }
  }

  io::Loop& loop_;
  const std::string host_;
  const arena::Geometry geometry_;
  const std::unique_ptr<std::byte, Free> arena_memory_, index_memory_;
  arena::RealWords words_;
  const std::unique_ptr<Logger> log_;
  arena::ArenaSpace arena_;
  arena::IndexSpace index_;
  store::InlineMovers movers_;
  memory::Slots slots_;
  catalog::Journal journal_;
  store::BlockStore store_;
  const Status recovered_;
  const std::unique_ptr<etcd::Etcd> etcd_;
  CountedNetwork network_;
  SharedNames names_;
  LocalBlockStore local_;
  const std::unique_ptr<Member> member_;
  BenchRails rails_;
  StoreKeeper keeper_;
  TestServed view_;
  BlockServer server_;
  const std::unique_ptr<net::Listener> listener_;
  Sharing sharing_;
  TaskGroup tasks_;
};

double ProcessorUs() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

// What something has taken, of each of its operations.
struct Cost {
  double us = 0, steps = 0, messages = 0, bytes = 0;
};

class BenchCell final {
 public:
  explicit BenchCell(std::size_t size) {
    for (std::size_t i = 0; i < size; ++i)
      nodes_.push_back(std::make_unique<BenchNode>(*loop_, clock_, network_, etcd_, sent_, i + 1));
    for (auto& node : nodes_) slot_ = Expect(loop_->BlockOn(node->store().Attach(Spec()))).slot;
    for (std::size_t i = 0; i < size; ++i) {
      for (std::size_t chain = 0; chain < kOwnChains; ++chain) Put(i, NewChain(), 0, kOwnBlocks, kSmall);
    }
    Until([&] { return AllKnown(); });
  }
  ~BenchCell() {
    for (auto& node : nodes_) loop_->BlockOn(node->Leave(executor()));
    nodes_.clear();
    loop_->BlockOn(Pass(kSecondUs));
  }
  Executor& executor() { return loop_->executor(); }

  Cost Unknown() {
    std::vector<std::vector<BlockKey>> prompts;
    for (std::size_t i = 0; i < 64; ++i) prompts.push_back(KeysOf(NewChain(), kPrompt));
    return Of(kUnknown, [&] {
      // No message, so time stands still.
      for (std::size_t i = 0; i < kUnknown; ++i)
        CISTERN_ASSERT(Find(prompts[i % prompts.size()]).run == nullptr);
    });
  }
  Cost Held() {
    const std::uint64_t chain = NewChain();
    for (std::size_t from = 0; from < kPrompt; from += kOwnBlocks)
      Put(nodes_.size() - 1, chain, from, std::min(from + kOwnBlocks, kPrompt), kSmall);
    Until([&] { return AllKnown(); });
    const std::vector<BlockKey> prompt = KeysOf(chain, kPrompt);
    return Of(kHeld, [&] {
      TaskGroup asking(executor());
      for (std::size_t i = 0; i < kAtOnce; ++i) asking.Spawn(FindAgain(executor(), prompt, kHeld / kAtOnce));
      loop_->BlockOn(asking.Close());
    });
  }
  // By all but the one that asks.
  Cost HeldByAll() {
    const std::uint64_t chain = NewChain();
    for (std::size_t i = 1; i < nodes_.size(); ++i) Put(i, chain, 0, kOwnBlocks, kSmall);
    Until([&] { return AllKnown(); });
    const std::vector<BlockKey> prompt = KeysOf(chain, kOwnBlocks);
    return Of(kHeld, [&] {
      TaskGroup asking(executor());
      for (std::size_t i = 0; i < kAtOnce; ++i) asking.Spawn(FindAgain(executor(), prompt, kHeld / kAtOnce));
      loop_->BlockOn(asking.Close());
    });
  }
  // Of a drop, from the call to its acknowledgement by all members.
  Cost Drop() {
    const SharedNamespace name = nodes_[0]->NameAt(slot_);
    const double idle_us = Idle().us * static_cast<double>(nodes_.size()) / kSecondUs;
    const Instant began = clock_.Now();
    Cost cost = Of(kDrops, [&] {
      for (std::size_t i = 0; i < kDrops; ++i) {
        const CellDrop drop{.what = CellDrop::What::kKeys, .name = name, .keys = {KeyOf(NewChain(), 0)}};
        const auto dropped = loop_->BlockOn(nodes_[0]->member().Drop(drop, DropWait::kApplied, Soon()));
        CISTERN_ASSERT(dropped.has_value());
      }
    });
    cost.us -= idle_us * static_cast<double>(clock_.Now().UsSince(began)) / kDrops;
    return cost;
  }
  // Of blocks that come over a rail.
  Cost Read() {
    const std::uint64_t chain = NewChain(), first = NewChain();
    Put(nodes_.size() - 1, chain, 0, kRead, kLarge);
    Put(nodes_.size() - 1, first, 0, 1, kLarge);
    Until([&] { return AllKnown(); });
    ReadAll(KeysOf(first, 1));  // rails are opened
    const std::vector<BlockKey> prompt = KeysOf(chain, kRead);
    const Sent before = sent_;
    Cost cost = Of(kRead, [&] { ReadAll(prompt); });
    cost.messages += static_cast<double>(sent_.rail_sends - before.rail_sends) / kRead;
    cost.bytes += static_cast<double>(sent_.rail_bytes - before.rail_bytes) / kRead;
    return cost;
  }
  // Of blocks that a node puts, as all members have heard of them.
  Cost Put() {
    const double idle_us = Idle().us;
    Cost cost = Of(kPuts, [&] {
      const Instant began = clock_.Now();
      for (std::size_t call = 0; call < kPuts / kOwnBlocks; ++call) {
        Put(0, NewChain(), 0, kOwnBlocks, kSmall);
        const auto next = static_cast<std::int64_t>(call + 1) * kSecondUs * kOwnBlocks / kPuts;
        loop_->BlockOn(Pass(began.PlusUs(next).UsSince(clock_.Now())));
      }
    });
    CISTERN_ASSERT(AllKnown());
    cost.us -= idle_us * static_cast<double>(nodes_.size()) / kPuts;
    return cost;
  }
  // Of a member, a second in which nothing happens; messages are heartbeats.
  Cost Idle() {
    const Sent before = sent_;
    Cost cost = Of(2 * nodes_.size(), [&] { loop_->BlockOn(Pass(2 * kSecondUs)); });
    cost.messages += static_cast<double>(sent_.heartbeats - before.heartbeats) / (2.0 * nodes_.size());
    return cost;
  }

 private:
  template <class T>
  static T Expect(Result<T> result) {
    CISTERN_ASSERT(result.has_value());
    return std::move(*result);
  }
  static NamespaceSpec Spec() {
    NamespaceSpec spec;
    spec.fields = {{"name", "bench"}};
    spec.block_tokens = 64;  // every fourth is a sample
    spec.groups = {{.name = "full"}};
    return spec;
  }
  std::uint64_t NewChain() { return ++chains_; }
  static BlockKey KeyOf(std::uint64_t chain, std::size_t block) {
    BlockKey key;
    key.length = 16;
    const std::array<std::uint64_t, 2> words = {SplitMix(chain), SplitMix(block)};
    std::memcpy(key.bytes.data(), words.data(), sizeof(words));
    return key;
  }
  static std::vector<BlockKey> KeysOf(std::uint64_t chain, std::size_t count) {
    std::vector<BlockKey> keys;
    for (std::size_t i = 0; i < count; ++i) keys.push_back(KeyOf(chain, i));
    return keys;
  }
  void Put(std::size_t node, std::uint64_t chain, std::size_t from, std::size_t to, std::size_t bytes) {
    const std::vector<std::byte> body(bytes, std::byte{7});
    std::vector<store::PartWrite> parts;
    for (std::size_t i = from; i < to; ++i) {
      store::PartWrite& part = parts.emplace_back();
      part.key = KeyOf(chain, i);
      if (i > 0) part.parent = KeyOf(chain, i - 1);
      part.put_id = {1, ++puts_};
      part.from = body;
    }
    const catalog::Caller caller{1, {std::byte{1}}};
    const auto outcomes =
        loop_->BlockOn(nodes_[node]->store().Write(caller, slot_, std::move(parts), Soon()));
    for (const store::PartOutcome& outcome : outcomes) CISTERN_ASSERT(outcome.status.ok());
  }
  PeerMatch Find(const std::vector<BlockKey>& prompt) {
    return loop_->BlockOn(nodes_[0]->sharing().finder().Find(slot_, prompt, 0, Soon()));
  }
  Task<void> FindAgain(Executor&, const std::vector<BlockKey>& prompt, std::size_t times) {
    for (std::size_t i = 0; i < times; ++i) {
      const PeerMatch match = co_await nodes_[0]->sharing().finder().Find(slot_, prompt, 0, Soon());
      CISTERN_ASSERT(match.run != nullptr && match.run->count == prompt.size());
    }
  }
  void ReadAll(const std::vector<BlockKey>& prompt) {
    const std::vector<MatchRun> runs =
        loop_->BlockOn(nodes_[0]->sharing().blocks().Match(slot_, prompt, 0, Soon()));
    CISTERN_ASSERT(runs.size() == 1 && runs[0].blocks == prompt.size());
    std::vector<catalog::BlockName> blocks;
    for (const BlockKey& key : prompt) blocks.push_back({key, 0});
    const auto misses = loop_->BlockOn(nodes_[0]->sharing().blocks().Bring(slot_, blocks, Soon()));
    CISTERN_ASSERT(misses.empty());
  }
  bool AllKnown() const {
    std::uint64_t samples = 0;
    for (const auto& node : nodes_) samples += node->sharing().feed().samples();
    for (const auto& node : nodes_) {
      const Sharing& sharing = node->sharing();
      if (!node->member().joined() || sharing.streams().Askable().count() + 1 != nodes_.size() ||
          sharing.index().entries() + sharing.feed().samples() != samples)
        return false;
    }
    return true;
  }
  template <class Holds>
  void Until(Holds&& holds) {
    const Instant deadline = clock_.Now().PlusUs(60 * kSecondUs);
    while (!holds()) {
      CISTERN_ASSERT(clock_.Now() < deadline);
      loop_->BlockOn(Pass(20'000));
    }
  }
  template <class Work>
  Cost Of(std::size_t operations, Work&& work) {
    const Sent before = sent_;
    const std::uint64_t steps = executor().steps();
    const double began = ProcessorUs();
    work();
    const auto of = [&](std::uint64_t total) {
      return static_cast<double>(total) / static_cast<double>(operations);
    };
    return {(ProcessorUs() - began) / static_cast<double>(operations), of(executor().steps() - steps),
            of(sent_.messages - before.messages), of(sent_.bytes - before.bytes)};
  }
  Task<void> Pass(std::int64_t us) { (void)co_await SleepUntil(executor().Now().PlusUs(us)); }
  Instant Soon() const { return clock_.Now().PlusUs(10 * kSecondUs); }

  SimulatedClock clock_;
  io::SimulatedDisk disk_{1};
  const std::unique_ptr<io::Loop> loop_ = std::move(*io::SimulatedLoop::Make(clock_, disk_, 1));
  Sent sent_;
  net::SimulatedNetwork network_{loop_->executor(), 2};
  etcd::SimulatedEtcd etcd_{loop_->executor(), 3};
  std::vector<std::unique_ptr<BenchNode>> nodes_;
  std::uint32_t slot_ = 0;
  std::uint64_t chains_ = 0, puts_ = 0;
};

void Print(const char* what, const Cost& cost) {
  std::printf("  %-28s %10.2f us %10.1f steps %10.2f messages %12.0f bytes\n", what, cost.us, cost.steps,
              cost.messages, cost.bytes);
}

int Run() {
  for (const std::size_t size : kSizes) {
    const double began = ProcessorUs();
    BenchCell cell(size);
    std::printf("%zu members, after %.1f s of processor time\n", size, (ProcessorUs() - began) / 1e6);
    Print("match, unknown everywhere", cell.Unknown());
    Print("match, one member holds it", cell.Held());
    Print("match, all others hold it", cell.HeldByAll());
    Print("block read from a peer", cell.Read());
    Print("put, told to all", cell.Put());
    Print("drop, applied by all", cell.Drop());
    Print("a member's idle second", cell.Idle());
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace cistern::mesh

int main() { return cistern::mesh::Run(); }
