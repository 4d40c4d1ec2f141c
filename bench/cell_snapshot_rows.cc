// SPDX-License-Identifier: Apache-2.0
// The snapshot that a newcomer to a cell takes of one member: from its question until it finds that member's
// blocks. Both have the store, the feed and the streams of a node, and a control connection over loopback.
// They share a thread: one page is asked for, made, sent and taken in after the other, so nothing of it would
// go on side by side in two processes either.
#include <time.h>

#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "base/codec.h"
#include "base/format.h"
#include "base/random.h"
#include "bench.h"
#include "io/loop.h"
#include "measure.h"
#include "mesh/sample_streams.h"
#include "mesh/shared_names.h"
#include "net/control_connection.h"
#include "net/tcp_network.h"
#include "record/seal.h"
#include "store/test_store.h"

namespace cistern {
namespace {

constexpr std::uint32_t kBlockTokens = 16;
constexpr std::uint64_t kChainBlocks = 32'768 / kBlockTokens;
constexpr std::uint32_t kBodyBytes = 4'000;
constexpr std::uint32_t kAlignment = 4'096;
constexpr std::uint64_t kHistory = 1, kHolder = 1, kNewcomer = 2;
constexpr std::uint16_t kPlainQuestion = 1'000;  // of no member: as many bytes as it says
constexpr std::int64_t kDeadlineUs = 60'000'000;

BlockKey Key(std::uint64_t n) {
  BlockKey key;
  key.length = 32;
  const std::uint64_t words[] = {SplitMix(n), SplitMix(~n), n, n};
  std::memcpy(key.bytes.data(), words, sizeof(words));
  return key;
}

// ---- a store of many blocks

// A tier that says after a start that it has so many blocks, in chains, and is asked for none of them.
class ListedTier final : public tier::Tier {
 public:
  ListedTier(Executor& runs_on, std::uint64_t blocks, std::uint64_t incarnation)
      : executor_(runs_on), blocks_(blocks), incarnation_(incarnation) {}
  Executor& executor() { return executor_; }

  Task<Status> Recover(Found found) override {
    std::vector<tier::TierEntry> entries;
    for (std::uint64_t n = 0; n < blocks_; ++n) {
      entries.push_back(EntryOf(n));
      if (entries.size() < kBatch && n + 1 < blocks_) continue;
      co_await found(entries);
      entries.clear();
    }
    co_return Status();
  }

  void SetOwner(tier::TierOwner&) override {}
  std::vector<std::uint64_t> media_ids() const override { return {1}; }
  tier::JournalMark newest_mark() const override { return {}; }
  Task<Status> Mark(tier::JournalMark) override { co_return Status(); }
  void Adopt(const tier::Location&, std::uint64_t) override {}
  Room RoomFor(std::uint64_t) const override { return Room::kNoRoom; }
  std::uint64_t max_append_bytes() const override { return 0; }
  Task<Result<std::vector<tier::Location>>> Append(std::span<const tier::AppendRequest>) override {
    co_return Error(Code::kBusy, "no room");
  }
  Task<Status> MakeDurable() override { co_return Status(); }
  void Forget(const tier::Location&, std::uint64_t) override {}
  std::int64_t EstimateUs(const tier::Location&, std::uint64_t) const override { return kNever; }
  Task<Result<tier::FetchedRecord>> Fetch(tier::Location, std::span<std::byte>, const Arrived*) override {
    co_return Error(Code::kMiss, "a list alone");
  }
  Task<Result<tier::FetchedRecord>> FetchSome(tier::Location, std::uint64_t, std::span<std::byte>,
                                              std::uint64_t, std::span<std::byte>) override {
    co_return Error(Code::kMiss, "a list alone");
  }
  void ReportBad(const tier::Location&) override {}
  std::string Describe(const tier::Location& location) const override {
    return Text("block ", EntryAt(location), " of a list");
  }
  std::string DescribeMedium(const tier::Location&) const override { return "a list"; }
  void Reclaim(bool) override {}
  std::uint64_t reservable_bytes() const override { return 0; }
  std::uint64_t oldest_sequence() const override { return blocks_ == 0 ? UINT64_MAX : 1; }
  void Tick() override {}
  void Forgotten(const tier::LocationRange&) override {}
  Task<void> Close() override { co_return; }

 private:
  static constexpr std::size_t kBatch = 4'096;

  static std::uint64_t EntryAt(const tier::Location& location) {
    return std::uint64_t{location.high} << 16 | location.low;
  }
  tier::TierEntry EntryOf(std::uint64_t n) const {
    tier::TierEntry entry{.key = Key(n), .incarnation = incarnation_, .born = n + 1, .sequence = n + 1};
    if (n % kChainBlocks != 0) entry.parent = Key(n - 1);
    entry.body_bytes = kBodyBytes;
    entry.record_bytes = static_cast<std::uint32_t>(record::RecordBytes(kBodyBytes, kAlignment));
    entry.location = {.high = static_cast<std::uint32_t>(n >> 16),
                      .low = static_cast<std::uint32_t>(n & 0xffff)};
    return entry;
  }

  Executor& executor_;
  const std::uint64_t blocks_, incarnation_;
};

// It is new, has a namespace, and is started again by a tier that has so many blocks of it.
class ListedStore final {
 public:
  explicit ListedStore(std::uint64_t blocks) {
    store::TestStoreOptions options{.alignment = kAlignment};
    options.store.max_lower_blocks = static_cast<std::uint32_t>(blocks + 1);
    options.tier = [this](store::TestStore& store, tier::JournalView) {
      return Open(store.loop->executor(), blocks_, incarnation_);
    };
    store_.emplace(options);
    NamespaceSpec spec{.fields = {{"model", "bench"}}, .groups = {{.name = "full"}}};
    spec.block_tokens = kBlockTokens;
    const Result<store::Attached> attached = store_->Run(store_->store->Attach(spec));
    CISTERN_ASSERT(attached.has_value());
    slot_ = attached->slot;
    incarnation_ = attached->incarnation;
    blocks_ = blocks;
    if (blocks > 0) store_->Restart();
  }
  ListedStore(const ListedStore&) = delete;
  ListedStore& operator=(const ListedStore&) = delete;

  store::BlockStore& store() { return *store_->store; }
  const Status& recovered() const { return store_->recovered; }
  std::uint32_t slot() const { return slot_; }

 private:
  static Task<Result<std::unique_ptr<tier::Tier>>> Open(Executor& executor, std::uint64_t blocks,
                                                        std::uint64_t incarnation) {
    co_return std::make_unique<ListedTier>(executor, blocks, incarnation);
  }

  std::uint64_t blocks_ = 0, incarnation_ = 0;
  std::uint32_t slot_ = 0;
  std::optional<store::TestStore> store_;
};

// ---- two members

class JoinedRule final : public mesh::CellRule {
 public:
  std::optional<mesh::Answered> Answering() const override { return mesh::Answered{.history = kHistory}; }
  bool Same(const mesh::Answered& answered) const override { return answered.history == kHistory; }
  bool Behind(const mesh::Answered&) const override { return false; }
  Event::WaitingUntil Changed(Instant deadline) override { return changed_.Wait(deadline); }
  const mesh::DropList& drops() const override { return drops_; }

 private:
  Event changed_;
  mesh::DropList drops_{1};
};

// A control connection to one other.
class OneLink final : public mesh::PeerLinks, public net::ControlHandler {
 public:
  OneLink(Executor& runs_on, std::uint64_t peer) : executor_(runs_on), peer_(peer) {}
  Executor& executor() { return executor_; }

  std::vector<std::uint64_t> Reachable() const override { return {peer_}; }
  bool SameZone(std::uint64_t) const override { return false; }
  Status Tell(std::uint64_t, std::uint16_t type, net::ConstPiece payload) override {
    return connection->Tell(type, payload);
  }
  void TellLatest(std::uint64_t peer, std::uint16_t type, net::ConstPiece payload) override {
    (void)Tell(peer, type, payload);
  }
  Task<Result<std::vector<std::byte>>> Ask(std::uint64_t, std::uint16_t type, std::vector<std::byte> payload,
                                           Instant deadline) override {
    Result<std::vector<std::byte>> answer = co_await connection->Ask(type, payload, deadline);
    if (answer) answers.push_back(answer->size());
    co_return answer;
  }
  std::string RailAddress(std::uint64_t) const override { return ""; }

  Task<Result<std::vector<std::byte>>> Answer(std::uint16_t type, net::ConstPiece payload, Instant) override {
    if (type == mesh::kSnapshotQuestion && streams != nullptr)
      co_return co_await streams->AnswerSnapshot(payload);
    if (type == kPlainQuestion) co_return std::vector<std::byte>(Decoder(payload).U32());
    co_return Error(Code::kMismatch, "no such question");
  }
  void Notice(std::uint16_t type, net::ConstPiece payload) override {
    if (type == mesh::kSampleNotice && streams != nullptr) streams->Heard(peer_, payload);
  }

  std::unique_ptr<net::ControlConnection> connection;
  mesh::SampleStreams* streams = nullptr;
  std::vector<std::size_t> answers;  // bytes of each

 private:
  Executor& executor_;
  const std::uint64_t peer_;
};

struct Member {
  Member(Executor& executor, std::uint64_t blocks, std::uint64_t peer)
      : store(blocks),
        names(executor, store.store(), "default"),
        feed(executor, store.store(), names),
        link(executor, peer) {}
  // With an index of its own, which knows nobody yet.
  void StartStreams(Executor& executor) {
    StopStreams();
    index = std::make_unique<mesh::SampleIndex>(mesh::SampleIndex::Options());
    streams.emplace(mesh::SampleStreams::Parts{executor, feed, *index, link, rule});
    link.streams = &*streams;
    streams->Start();
  }
  void StopStreams() {
    link.streams = nullptr;
    streams.reset();
  }

  ListedStore store;
  mesh::SharedNames names;
  mesh::SampleFeed feed;
  OneLink link;
  JoinedRule rule;
  std::unique_ptr<mesh::SampleIndex> index;
  std::optional<mesh::SampleStreams> streams;
};

// ---- the snapshot

double ProcessorMs() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

struct Took {
  double wall_ms = 0, processor_ms = 0;
  std::uint64_t bytes = 0;
};

class SnapshotBench final {
 public:
  SnapshotBench(io::Loop& loop, std::uint64_t blocks)
      : loop_(loop),
        network_(loop),
        blocks_(blocks),
        holder_(loop.executor(), blocks, kNewcomer),
        newcomer_(loop.executor(), 0, kHolder) {}
  ~SnapshotBench() {
    for (Member* member : {&holder_, &newcomer_}) {
      member->StopStreams();
      if (member->link.connection != nullptr) loop_.BlockOn(member->link.connection->Close());
    }
  }
  SnapshotBench(const SnapshotBench&) = delete;
  SnapshotBench& operator=(const SnapshotBench&) = delete;

  // Both know what they have, and are connected.
  Status Start() {
    for (Member* member : {&holder_, &newcomer_}) {
      if (!member->store.recovered().ok()) return member->store.recovered();
      loop_.BlockOn(member->names.Refresh());
      loop_.BlockOn(member->feed.Begin(kHistory));
    }
    if (holder_.feed.samples() < blocks_ / mesh::SampleGrid(kBlockTokens).stride())
      return Status(Code::kMiss,
                    Text("of ", blocks_, " blocks there are ", holder_.feed.samples(), " samples"));
    if (Status status = Connect(); !status.ok()) return status;
    holder_.StartStreams(loop_.executor());
    return Status();
  }

  // By a newcomer that knows nobody yet.
  Result<Took> TakeSnapshot() {
    newcomer_.StartStreams(loop_.executor());
    newcomer_.streams->Connected(kHolder);
    newcomer_.link.answers.clear();
    const Stopwatch watch;
    const double processor_ms = ProcessorMs();
    holder_.streams->Connected(kNewcomer);  // what it says first is what the newcomer asks upon
    while (newcomer_.streams->SamplesOf(kHolder) < holder_.feed.samples()) {
      if (watch.Ns() > kDeadlineUs * 1000)
        return Error(Code::kTooLate, "there is no snapshot after a minute");
      loop_.Turn();
    }
    for (const std::uint64_t chain : {std::uint64_t{0}, blocks_ / kChainBlocks / 2}) {
      if (Status status = FindChain(chain); !status.ok()) return Error(std::move(status));
    }
    Took took{.wall_ms = static_cast<double>(watch.Ns()) / 1e6, .processor_ms = ProcessorMs() - processor_ms};
    for (const std::size_t bytes : newcomer_.link.answers) took.bytes += bytes;
    holder_.streams->Disconnected(kNewcomer);
    return took;
  }

  // As many bytes in as many answers, which nobody makes or looks at.
  Result<Took> MoveBytes() {
    Took took;
    const std::vector<std::size_t> answers = std::exchange(newcomer_.link.answers, {});
    const Stopwatch watch;
    for (const std::size_t bytes : answers) {
      std::vector<std::byte> question;
      Encoder(question).U32(static_cast<std::uint32_t>(bytes));
      const Instant deadline = loop_.executor().Now().PlusUs(kDeadlineUs);
      auto answer = loop_.BlockOn(newcomer_.link.Ask(kHolder, kPlainQuestion, std::move(question), deadline));
      if (!answer) return Error(std::move(answer.error()));
      took.bytes += answer->size();
    }
    took.wall_ms = static_cast<double>(watch.Ns()) / 1e6;
    return took;
  }

 private:
  Status Connect() {
    const Instant deadline = loop_.executor().Now().PlusUs(kDeadlineUs);
    auto listener = network_.Listen("127.0.0.1:0");
    if (!listener) return listener.error();
    auto accepting = (*listener)->Accept(deadline);
    auto near = loop_.BlockOn(network_.Connect((*listener)->address(), deadline));
    auto far = loop_.BlockOn(std::move(accepting));
    if (!near || !far) return near ? far.error() : near.error();
    auto opening = Open(std::move(*far), holder_.link, kHolder, deadline);
    auto opened = loop_.BlockOn(Open(std::move(*near), newcomer_.link, kNewcomer, deadline));
    auto other = loop_.BlockOn(std::move(opening));
    if (!opened || !other) return opened ? other.error() : opened.error();
    newcomer_.link.connection = std::move(*opened);
    holder_.link.connection = std::move(*other);
    return Status();
  }
  Task<Result<std::unique_ptr<net::ControlConnection>>> Open(std::unique_ptr<net::Stream> stream,
                                                             OneLink& link, std::uint64_t number,
                                                             Instant deadline) {
    return net::ControlConnection::Open(loop_.executor(), std::move(stream),
                                        {.process_number = number, .member = Text("member", number)}, link,
                                        deadline);
  }
  Status FindChain(std::uint64_t chain) const {
    std::vector<BlockKey> keys;
    const std::uint64_t first = chain * kChainBlocks;
    for (std::uint64_t n = first; n < std::min(first + kChainBlocks, blocks_); ++n) keys.push_back(Key(n));
    const std::uint64_t seed = mesh::SampleSeed(kHistory, *holder_.names.NameAt(holder_.store.slot()));
    const auto found = newcomer_.index->Find(seed, keys, 0, kBlockTokens, newcomer_.streams->Askable());
    const std::uint32_t stride = mesh::SampleGrid(kBlockTokens).stride();
    if (found.blocks + stride > keys.size() && found.holders.any()) return Status();
    return Status(Code::kMiss, Text("of chain ", chain, " the snapshot knows ", found.blocks, " of ",
                                    keys.size(), " blocks"));
  }

  io::Loop& loop_;
  net::TcpNetwork network_;
  const std::uint64_t blocks_;
  Member holder_, newcomer_;
};

}  // namespace

Status BenchCellSnapshot(BenchOptions& options) {
  const std::uint64_t blocks = 10 * options.million;
  options.progress(Text("a store of ", blocks, " blocks"));
  SystemClock clock;
  auto loop = io::MakeLoop(clock);
  if (!loop) return loop.error();
  SnapshotBench bench(**loop, blocks);
  if (Status status = bench.Start(); !status.ok()) return status;
  std::vector<double> wall_ms, processor_ms, plain_ms, ratios;
  std::uint64_t bytes = 0;
  for (std::uint64_t round = 0; round < options.rounds; ++round) {
    options.progress(Text("cell_snapshot_*, round ", round + 1, " of ", options.rounds));
    auto took = bench.TakeSnapshot();
    if (!took) return took.error();
    auto plain = bench.MoveBytes();
    if (!plain) return plain.error();
    CISTERN_ASSERT(took->bytes == plain->bytes);
    bytes = took->bytes;
    wall_ms.push_back(took->wall_ms);
    processor_ms.push_back(took->processor_ms);
    plain_ms.push_back(plain->wall_ms);
    ratios.push_back(took->wall_ms / plain->wall_ms);
  }
  const std::string name = Text("cell_snapshot_of_", blocks, "_blocks_of_", kBlockTokens, "_tokens");
  options.row({.name = name,
               .value = Median(wall_ms),
               .unit = "ms",
               .limit = "its bytes in plain answers",
               .limit_value = Median(plain_ms),
               .ratio = Median(ratios),
               .ratio_low = Quantile(ratios, 0),
               .ratio_high = Quantile(ratios, 1)});
  options.row({.name = name + "_processor", .value = Median(processor_ms), .unit = "ms"});
  options.row({.name = name + "_bytes", .value = static_cast<double>(bytes) / 1e6, .unit = "MB"});
  return Status();
}

}  // namespace cistern
