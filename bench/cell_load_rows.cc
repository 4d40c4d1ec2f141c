// SPDX-License-Identifier: Apache-2.0
// Nodes of a cell on this host: what a node's own clients pay while blocks go both ways, or while its peer is
// stopped; and blocks that lie on a peer's flash.
#include <signal.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>

#include "base/format.h"
#include "base/units.h"
#include "cell_blocks.h"
#include "flash_place.h"
#include "local_cell.h"
#include "workload/content.h"

namespace cistern {
namespace {

// ---- load

constexpr std::uint64_t kBytes = 64u << 10;
constexpr std::size_t kOwnBlocks = 256;
constexpr std::int64_t kPhaseNs = 250'000'000;

struct Calls {
  std::vector<double> put_us, get_us;
  void Add(const Calls& other) {
    put_us.insert(put_us.end(), other.put_us.begin(), other.put_us.end());
    get_us.insert(get_us.end(), other.get_us.begin(), other.get_us.end());
  }
};

// The client that is measured: it puts blocks and reads others that its node has.
class OwnClient {
 public:
  static Result<OwnClient> Make(Store& store) {
    auto blocks = Fill(store, kOwnBlocks, kBytes, 1, nullptr, 1ull << 40);
    if (!blocks) return Error(blocks.error());
    return OwnClient(store, std::move(*blocks));
  }
  // Until `ends` says so.
  Result<Calls> Run(BenchOptions& options, const std::function<bool()>& ends) {
    Calls calls;
    while (!ends()) {
      const BlockKey key = workload::WorkloadKey(++next_, kBytes);
      const BlockWrite write{.key = key, .put_id = {11, next_}, .data = body_};
      const Stopwatch put;
      if (Status status = PutOne(*store_, blocks_.ns, write); !status.ok()) return Error(status);
      calls.put_us.push_back(static_cast<double>(put.Ns()) / 1e3);
      if (Status status = Get(options, &calls); !status.ok()) return Error(status);
    }
    return calls;
  }

 private:
  OwnClient(Store& store, FilledBlocks blocks) : store_(&store), blocks_(std::move(blocks)) {}
  Status Get(BenchOptions& options, Calls* calls) {
    const BlockKey& key = blocks_.keys[random_.Below(kOwnBlocks)];
    ReadRange range{.bytes = kBytes, .to = got_.data()};
    const BlockRead read{.key = key, .ranges = std::span(&range, 1)};
    const Stopwatch watch;
    Result<ReadResult> result = store_->Read(blocks_.ns, std::span(&read, 1)).Wait();
    const double us = static_cast<double>(watch.Ns()) / 1e3;
    if (!result) return result.error();
    if (result->outcomes[0] == Code::kMiss) {
      // It gave way to what came: computed again, as an engine would.
      workload::FillContent(key, got_);
      const BlockWrite again{.key = key, .put_id = {12, ++next_}, .data = got_};
      Result<WriteResult> written = store_->Write(blocks_.ns, std::span(&again, 1)).Wait();
      return written ? Status() : written.error();
    }
    if (result->outcomes[0] != Code::kOk) return Status(result->outcomes[0], "a get of the bench's block");
    calls->get_us.push_back(us);
    if (calls->get_us.size() % 16 == 0) {
      options.wrong_bytes += workload::CountWrongBytes(key, got_);
      options.bytes_verified += kBytes;
    }
    return Status();
  }

  Store* store_;
  FilledBlocks blocks_;
  Random random_{21};
  std::uint64_t next_ = 1ull << 41;
  std::vector<std::byte> got_ = std::vector<std::byte>(kBytes);
  std::vector<std::byte> body_ = std::vector<std::byte>(kBytes, std::byte{7});
};

// A client on a thread that reads a piece from its node's peer.
class PeerTraffic {
 public:
  static Result<std::unique_ptr<PeerTraffic>> Make(Daemon& daemon, FilledBlocks blocks) {
    Result<Store> store = daemon.Connect();
    if (!store) return Error(store.error());
    Result<Namespace> ns = store->Attach(BenchNamespace(blocks.block_bytes));
    if (!ns) return Error(ns.error());
    blocks.ns = *ns;
    return std::unique_ptr<PeerTraffic>(new PeerTraffic(std::move(*store), std::move(blocks)));
  }
  ~PeerTraffic() {
    if (thread_.joinable()) thread_.join();
  }
  void Begin() {
    thread_ = std::thread([this] {
      auto rate = AcquireAll(store_, blocks_, blocks_.keys, 1, 4, nullptr);
      if (!rate) status_ = rate.error();
      done_ = true;
    });
  }
  bool done() const { return done_; }
  Status End() {
    thread_.join();
    return status_;
  }

 private:
  PeerTraffic(Store store, FilledBlocks blocks) : store_(std::move(store)), blocks_(std::move(blocks)) {}
  Store store_;
  FilledBlocks blocks_;
  Status status_;
  std::atomic<bool> done_{false};
  std::thread thread_;
};

class LoadBench {
 public:
  LoadBench(BenchOptions& options, LocalCell& cell, OwnClient client)
      : options_(options), cell_(cell), client_(std::move(client)) {}

  // The first one touches memory for the first time and does not count.
  Status Round(bool counts) {
    Result<Calls> quiet = Quiet();
    if (!quiet) return quiet.error();
    Result<Calls> busy = Busy();
    if (!busy) return busy.error();
    Result<Calls> stopped = Stopped();
    if (!stopped) return stopped.error();
    if (counts) Note(*quiet, *busy, *stopped);
    return Status();
  }
  void Report() {
    Row("cell_put_64KiB_p99_while_busy_both_ways", busy_.put_us, quiet_.put_us, busy_put_);
    Row("cell_get_64KiB_p99_while_busy_both_ways", busy_.get_us, quiet_.get_us, busy_get_);
    Row("cell_put_64KiB_p99_while_a_peer_is_stopped", stopped_.put_us, quiet_.put_us, stopped_put_);
    Row("cell_get_64KiB_p99_while_a_peer_is_stopped", stopped_.get_us, quiet_.get_us, stopped_get_);
  }

 private:
  Result<Calls> Quiet() {
    const Stopwatch phase;
    return client_.Run(options_, [&] { return phase.Ns() >= kPhaseNs; });
  }
  // Until each node has read a piece from the other.
  Result<Calls> Busy() {
    std::unique_ptr<PeerTraffic> traffic[2];
    for (const std::size_t to : {0, 1}) {
      auto blocks = BlocksAtPeer(cell_[1 - to].store, cell_[to].store, CellSizes(options_).piece_bytes,
                                 2u << 20, &next_number_);
      if (!blocks) return Error(blocks.error());
      auto made = PeerTraffic::Make(cell_[to].daemon, std::move(*blocks));
      if (!made) return Error(made.error());
      traffic[to] = std::move(*made);
    }
    for (auto& one : traffic) one->Begin();
    Result<Calls> calls = client_.Run(options_, [&] { return traffic[0]->done() || traffic[1]->done(); });
    for (auto& one : traffic) {
      if (Status status = one->End(); !status.ok()) return Error(status);
    }
    return calls;
  }
  // Another client goes on matching what the stopped one has.
  Result<Calls> Stopped() {
    auto blocks = BlocksAtPeer(cell_[1].store, cell_[0].store, 32u << 20, 2u << 20, &next_number_);
    if (!blocks) return Error(blocks.error());
    Result<Store> other = cell_[0].daemon.Connect();
    if (!other) return Error(other.error());
    Result<Namespace> ns = other->Attach(BenchNamespace(2u << 20));
    if (!ns) return Error(ns.error());
    const pid_t peer = cell_[1].daemon.pid();
    std::atomic<bool> ends{false};
    ::kill(peer, SIGSTOP);
    std::thread asks([&] {
      while (!ends) {
        (void)other->Match(*ns, blocks->keys).Wait();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
    Result<Calls> calls = Quiet();
    ::kill(peer, SIGCONT);
    ends = true;
    asks.join();
    if (Status status = cell_.ComeTogether(); !status.ok()) return Error(status);
    return calls;
  }
  void Note(const Calls& quiet, const Calls& busy, const Calls& stopped) {
    const auto ratio = [](const std::vector<double>& one, const std::vector<double>& other) {
      const double limit = Quantile(other, 0.99);
      return limit > 0 ? Quantile(one, 0.99) / limit : 0;
    };
    busy_put_.push_back(ratio(busy.put_us, quiet.put_us));
    busy_get_.push_back(ratio(busy.get_us, quiet.get_us));
    stopped_put_.push_back(ratio(stopped.put_us, quiet.put_us));
    stopped_get_.push_back(ratio(stopped.get_us, quiet.get_us));
    quiet_.Add(quiet);
    busy_.Add(busy);
    stopped_.Add(stopped);
  }
  void Row(const char* name, const std::vector<double>& ours, const std::vector<double>& quiet,
           const std::vector<double>& ratios) {
    options_.row({.name = name,
                  .value = Quantile(ours, 0.99),
                  .unit = "us",
                  .limit = "p99 while it is quiet",
                  .limit_value = Quantile(quiet, 0.99),
                  .ratio = Median(ratios),
                  .ratio_low = Quantile(ratios, 0),
                  .ratio_high = Quantile(ratios, 1),
                  .p50_us = Median(ours),
                  .p99_us = Quantile(ours, 0.99),
                  .limit_p50_us = Median(quiet),
                  .limit_p99_us = Quantile(quiet, 0.99)});
  }

  BenchOptions& options_;
  LocalCell& cell_;
  OwnClient client_;
  std::uint64_t next_number_ = 0;
  Calls quiet_, busy_, stopped_;
  std::vector<double> busy_put_, busy_get_, stopped_put_, stopped_get_;
};

// ---- flash

// Keys of the next blocks in an order in which each has left both memories when its turn comes again.
std::vector<BlockKey> NextKeys(const FilledBlocks& blocks, FlashOrder& order, std::size_t count) {
  std::vector<BlockKey> keys;
  for (std::size_t i = 0; i < count; ++i) keys.push_back(blocks.keys[order.Next()]);
  return keys;
}

Status FlashRounds(BenchOptions& options, LocalCell& cell, const FilledBlocks& own) {
  constexpr std::size_t kDepth = 32;
  auto ns = cell[1].store.Attach(BenchNamespace(own.block_bytes));
  if (!ns) return ns.error();
  const FilledBlocks remote{.ns = *ns, .keys = own.keys, .block_bytes = own.block_bytes};
  FlashOrder order(own.keys.size());
  const std::size_t count = std::clamp<std::size_t>(own.keys.size() / 8, 1, 384);
  Samples peer, local;
  // Once before, so that both memories are full of others.
  for (std::uint64_t round = 0; round <= options.rounds; ++round) {
    options.progress(Text("cell_flash_*, round ", round, " of ", options.rounds));
    const std::vector<BlockKey> theirs = NextKeys(own, order, count), ours = NextKeys(own, order, count);
    for (const BlockKey& key : theirs) {
      if (Status found = AwaitFound(cell[1].store, *ns, std::span(&key, 1)); !found.ok()) return found;
    }
    auto rate = AcquireAll(cell[1].store, remote, theirs, 1, kDepth, &peer);
    if (!rate) return rate.error();
    auto limit = AcquireAll(cell[0].store, own, ours, 1, kDepth, &local);
    if (!limit) return limit.error();
    if (round == 0) {
      peer = local = {};
      continue;
    }
    peer.rounds.push_back(*rate);
    local.rounds.push_back(*limit);
    const FilledBlocks read{.ns = *ns, .keys = theirs, .block_bytes = own.block_bytes};
    if (Status status = Verify(options, cell[1].store, read, 16); !status.ok()) return status;
  }
  options.row(RateRow("cell_flash_read_1MiB_depth_32", "the same flash, read there", peer, local));
  return Status();
}

}  // namespace

Status BenchCellLoad(BenchOptions& options) {
  if (!HasEtcd(options, "cell_load")) return Status();
  auto cell = LocalCell::Start(options.daemon, options.memory_dir);
  if (!cell) return cell.error();
  // What is measured stays in memory beside the pieces that come and go.
  const std::string memory = SizeText(CellSizes(options).memory_bytes() * 2);
  for (int i = 0; i < 2; ++i) {
    if (Status added = (*cell)->Add({"--memory", memory}); !added.ok()) return added;
  }
  if (Status together = (*cell)->ComeTogether(); !together.ok()) return together;
  Result<OwnClient> client = OwnClient::Make((**cell)[0].store);
  if (!client) return client.error();
  LoadBench bench(options, **cell, std::move(*client));
  for (std::uint64_t round = 0; round <= options.rounds; ++round) {
    options.progress(Text("cell_put_* and cell_get_*, round ", round, " of ", options.rounds));
    if (Status status = bench.Round(round > 0); !status.ok()) return status;
  }
  bench.Report();
  return Status();
}

Status BenchCellFlash(BenchOptions& options) {
  if (options.flash_dir.empty() || !HasEtcd(options, "cell_flash")) return Status();
  constexpr std::uint64_t kBlock = 1u << 20;
  const std::uint64_t bytes = std::max<std::uint64_t>(3 * options.working_set_bytes, 768u << 20);
  const std::string memory = SizeText(std::max<std::uint64_t>(bytes / 6, 128u << 20));
  auto place = ScratchDirectory::Make(options.flash_dir, "bench-flash");
  if (!place) return place.error();
  auto cell = LocalCell::Start(options.daemon, options.memory_dir);
  if (!cell) return cell.error();
  Status added = (*cell)->Add({"--memory", memory, "--flash-read-ahead", "0B", "--flash",
                               Text(place->path(), ":", SizeText(bytes / 3 * 5))});
  if (!added.ok()) return added;
  added = (*cell)->Add({"--memory", memory});
  if (!added.ok()) return added;
  if (Status together = (*cell)->ComeTogether(); !together.ok()) return together;
  options.progress("filling a peer's flash");
  Store& store = (**cell)[0].store;
  auto blocks = FillDown(store, bytes / kBlock, kBlock, 1);
  if (!blocks) return blocks.error();
  if (Status status = AwaitWritten(store); !status.ok()) return status;
  return FlashRounds(options, **cell, *blocks);
}

}  // namespace cistern
