// SPDX-License-Identifier: Apache-2.0
// A cell of three real nodes and a real etcd under load, of which any is killed at any moment, or a node
// stands still for a while. A block's body says which put wrote it, so that a reader sees bytes that nobody
// put and blocks that a drop took. Half of the chains lie in a strict namespace, whose drops bind a node that
// stands still as well.
#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/format.h"
#include "base/random.h"
#include "base/random_bytes.h"
#include "command_line.h"
#include "daemon.h"
#include "etcd/test_etcd.h"

namespace cistern {
namespace {

constexpr std::size_t kNodes = 3;
constexpr std::uint32_t kChains = 6, kBlocks = 12;
constexpr std::uint32_t kTokens = 64;  // every fourth block of a chain is a sample
constexpr std::int64_t kCallUs = 20'000'000;
constexpr std::int64_t kWatchdogUs = 300'000'000;

struct ChaosOptions {
  std::uint64_t rounds = 20, seed = 1, flash_bytes = 0;
  bool json = false;
};

struct Counts {
  std::atomic<std::uint64_t> puts{0}, refused{0}, reads{0}, hits{0}, peer_hits{0}, misses{0}, drops{0},
      strict_hits{0}, strict_drops{0}, unacknowledged{0}, unavailable{0}, wrong{0}, revived{0};
};

// ---- blocks -----------------------------------------------------------------------------------------------

// Block `block` of chain `chain`, as put number `put` wrote it.
struct Header {
  std::uint64_t chain = 0, block = 0, put = 0;
  friend bool operator==(const Header&, const Header&) = default;
};

bool IsStrict(std::uint64_t chain) { return chain % 2 == 1; }

std::size_t BytesOf(std::uint32_t chain) { return 2000 + 37'000 * (chain % 3); }

BlockKey KeyOf(std::uint64_t seed, std::uint32_t chain, std::uint32_t block) {
  BlockKey key;
  key.length = 32;
  FillRandom(seed * 1'000'003 + chain * 1000 + block, std::as_writable_bytes(std::span(key.bytes)));
  return key;
}

std::vector<std::byte> BodyOf(const Header& header) {
  std::vector<std::byte> body(BytesOf(static_cast<std::uint32_t>(header.chain)));
  FillRandom(header.put * 4096 + header.chain * 64 + header.block, body);
  std::memcpy(body.data(), &header, sizeof(header));
  return body;
}

// ---- what is known of puts and drops
// ------------------------------------------------------------------------

class Board {
 public:
  std::uint64_t BeginPut() { return next_.fetch_add(1); }
  void Completed(std::uint32_t chain, std::uint32_t block, std::uint64_t put) {
    const std::lock_guard lock(mutex_);
    blocks_[chain][block].completed.push_back(put);
  }
  // Puts of the block and of those behind it that had completed when the drop began.
  std::vector<std::vector<std::uint64_t>> BeginDrop(std::uint32_t chain, std::uint32_t from) {
    const std::lock_guard lock(mutex_);
    std::vector<std::vector<std::uint64_t>> taken;
    for (std::uint32_t block = from; block < kBlocks; ++block)
      taken.push_back(blocks_[chain][block].completed);
    return taken;
  }
  void Dropped(std::uint32_t chain, std::uint32_t from,
               const std::vector<std::vector<std::uint64_t>>& taken) {
    const std::lock_guard lock(mutex_);
    ++acknowledged_;
    for (std::size_t i = 0; i < taken.size(); ++i) {
      for (const std::uint64_t put : taken[i]) blocks_[chain][from + i].gone.try_emplace(put, acknowledged_);
    }
  }
  // Drops that were acknowledged by now.
  std::uint64_t acknowledged() {
    const std::lock_guard lock(mutex_);
    return acknowledged_;
  }
  // Whether a read that began after so many acknowledgements must not have seen the put.
  bool Gone(const Header& header, std::uint64_t acknowledged) {
    const std::lock_guard lock(mutex_);
    const auto& gone = blocks_[header.chain][header.block].gone;
    const auto at = gone.find(header.put);
    return at != gone.end() && at->second <= acknowledged;
  }

 private:
  struct Block {
    std::vector<std::uint64_t> completed;
    std::map<std::uint64_t, std::uint64_t> gone;  // puts, and the acknowledgement that took each
  };
  std::atomic<std::uint64_t> next_{1};
  std::mutex mutex_;
  std::uint64_t acknowledged_ = 0;
  std::array<std::array<Block, kBlocks>, kChains> blocks_;
};

// ---- nodes ------------------------------------------------------------------------------------------------

std::uint16_t FreePort() {
  const Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  CISTERN_ASSERT(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
  CISTERN_ASSERT(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
  return ntohs(address.sin_port);
}

Result<Namespace> AttachTo(Store& store, bool strict) {
  NamespaceSpec spec;
  spec.fields = {{"name", "chaos"}};
  spec.strict = strict;
  spec.block_tokens = kTokens;
  spec.groups = {{.name = "all"}};
  return store.Attach(spec, kCallUs);
}

struct ChaosNode {
  std::string id;
  std::optional<Daemon> daemon;
  std::atomic<std::uint64_t> starts{0};  // counts its starts and its kills: odd while it runs
  std::atomic<std::uint64_t> pauses{
      0};  // counts when it stands still and when it goes on: odd while it stands
  bool runs() const { return starts.load() % 2 == 1; }
};

// A client of one node, on a thread of its own, that follows it over its kills.
class Client {
 public:
  Client(ChaosNode& node, std::array<ChaosNode, kNodes>& nodes, Board& board, Counts& counts,
         std::uint64_t seed, std::uint64_t random_seed, const std::atomic<bool>& stops)
      : node_(node),
        nodes_(nodes),
        board_(board),
        counts_(counts),
        seed_(seed),
        random_(random_seed),
        stops_(stops) {}

  void Run() {
    while (!stops_) {
      if (!store_ && !Connect()) {
        poll(nullptr, 0, 5);
        continue;
      }
      const std::uint64_t what = random_.Below(100);
      const auto chain = static_cast<std::uint32_t>(random_.Below(kChains));
      const bool goes_on = what < 12 ? PutChain(chain) : what < 94 ? ReadChain(chain) : Drop(chain);
      if (!goes_on) store_.reset();
    }
  }

 private:
  // Once the node has joined: before that it serves what it has, whatever was dropped meanwhile.
  bool Connect() {
    if (!node_.runs()) return false;
    Result<Store> store = node_.daemon->Connect();
    if (!store) return false;
    const Result<std::string> says = store->StatusJson(kCallUs);
    if (!says || says->find("\"joined\":true") == std::string::npos) return false;
    for (const bool strict : {false, true}) {
      Result<Namespace> ns = AttachTo(*store, strict);
      if (!ns) return false;
      namespaces_[strict ? 1 : 0] = *ns;
    }
    store_.emplace(std::move(*store));
    return true;
  }

  bool PutChain(std::uint32_t chain) {
    const auto end = static_cast<std::uint32_t>(1 + random_.Below(kBlocks));
    for (std::uint32_t block = 0; block < end; ++block) {
      const Header header{chain, block, board_.BeginPut()};
      const std::optional<BlockKey> parent =
          block == 0 ? std::nullopt : std::optional(KeyOf(seed_, chain, block - 1));
      const Status put = store_->Put(NamespaceOf(chain), KeyOf(seed_, chain, block), parent, BodyOf(header),
                                     {.deadline_us = kCallUs});
      // One that failed may have been kept all the same: what is not known to be complete is never asked for.
      if (put.code() == Code::kGone) return false;
      if (!put.ok()) {
        ++counts_.refused;
        return true;
      }
      ++counts_.puts;
      board_.Completed(chain, block, header.put);
    }
    return true;
  }

  bool ReadChain(std::uint32_t chain) {
    std::vector<BlockKey> keys;
    for (std::uint32_t block = 0; block < kBlocks; ++block) keys.push_back(KeyOf(seed_, chain, block));
    // Shared memory alone is asked where nothing is matched first, so also at a node that stands still.
    std::size_t count = kBlocks;
    std::size_t at_peers = 0;  // the last of them
    const bool matches = random_.Below(3) > 0;
    if (matches) {
      Result<MatchResult> match = store_->Match(NamespaceOf(chain), keys, {.deadline_us = 1'000'000}).Wait();
      if (!match) return match.error().code() != Code::kGone;
      count = match->blocks;
      for (const MatchRun& run : match->runs) at_peers += run.where == Where::kPeer ? run.blocks : 0;
    }
    if (count == 0) return true;
    const std::uint64_t acknowledged = board_.acknowledged();
    std::vector<std::vector<std::byte>> bodies(count, std::vector<std::byte>(BytesOf(chain)));
    std::vector<ReadRange> ranges(count);
    std::vector<BlockRead> reads(count);
    for (std::size_t i = 0; i < count; ++i) {
      ranges[i] = {.bytes = bodies[i].size(), .to = bodies[i].data()};
      reads[i] = {.key = keys[i], .ranges = std::span(&ranges[i], 1)};
    }
    static constexpr std::int64_t kUs[] = {3'000, 50'000, kCallUs, kCallUs};
    Result<ReadResult> read =
        store_->Read(NamespaceOf(chain), reads, {.deadline_us = kUs[random_.Below(matches ? 4 : 2)]}).Wait();
    if (!read) return read.error().code() != Code::kGone;
    counts_.reads += count;
    for (std::size_t i = 0; i < count; ++i) {
      if (read->outcomes[i] != Code::kOk) {
        ++counts_.misses;
        continue;
      }
      ++counts_.hits;
      if (IsStrict(chain)) ++counts_.strict_hits;
      if (i >= count - at_peers) ++counts_.peer_hits;
      Compare(chain, static_cast<std::uint32_t>(i), bodies[i], acknowledged);
    }
    return true;
  }

  void Compare(std::uint32_t chain, std::uint32_t block, const std::vector<std::byte>& body,
               std::uint64_t acknowledged) {
    Header header;
    std::memcpy(&header, body.data(), sizeof(header));
    if (header != Header{chain, block, header.put} || BodyOf(header) != body) {
      ++counts_.wrong;
      std::fprintf(stderr, "wrong bytes: %s\n",
                   Text("chain ", chain, " block ", block, " at node ", node_.id).c_str());
    } else if (board_.Gone(header, acknowledged)) {
      ++counts_.revived;
      std::fprintf(
          stderr, "revived: %s\n",
          Text("chain ", chain, " block ", block, " put ", header.put, " at node ", node_.id).c_str());
    }
  }

  bool Drop(std::uint32_t chain) {
    const auto block = static_cast<std::uint32_t>(random_.Below(kBlocks));
    std::array<std::uint64_t, kNodes> starts;
    std::array<std::uint64_t, kNodes> pauses;
    for (std::size_t i = 0; i < kNodes; ++i) {
      starts[i] = nodes_[i].starts.load();
      pauses[i] = nodes_[i].pauses.load();
    }
    const auto taken = board_.BeginDrop(chain, block);
    const BlockKey key = KeyOf(seed_, chain, block);
    const Result<std::uint64_t> dropped =
        store_->Drop(NamespaceOf(chain), std::span(&key, 1), kCallUs).Wait();
    if (!dropped) {
      (dropped.error().code() == Code::kUnavailable ? counts_.unavailable : counts_.unacknowledged) += 1;
      return dropped.error().code() != Code::kGone;
    }
    if (IsStrict(chain)) {
      ++counts_.strict_drops;
      board_.Dropped(chain, block, taken);
      return true;
    }
    // Of a member that was alive and not in the view (it, or its host, stood still) nothing is promised.
    for (std::size_t i = 0; i < kNodes; ++i) {
      if (pauses[i] % 2 == 1 || nodes_[i].pauses.load() != pauses[i]) return true;
    }
    const Result<std::string> cell = store_->CellJson(kCallUs);
    if (!cell) return cell.error().code() != Code::kGone;
    for (std::size_t i = 0; i < kNodes; ++i) {
      const bool lived = starts[i] % 2 == 1 && nodes_[i].starts.load() == starts[i];
      if (lived && cell->find(Text("\"id\":\"", nodes_[i].id, "\"")) == std::string::npos) return true;
    }
    ++counts_.drops;
    board_.Dropped(chain, block, taken);
    return true;
  }

  const Namespace& NamespaceOf(std::uint64_t chain) const { return namespaces_[IsStrict(chain) ? 1 : 0]; }

  ChaosNode& node_;
  std::array<ChaosNode, kNodes>& nodes_;
  Board& board_;
  Counts& counts_;
  const std::uint64_t seed_;
  Random random_;
  const std::atomic<bool>& stops_;
  std::optional<Store> store_;
  std::array<Namespace, 2> namespaces_;  // the second one is strict
};

// ---- chaos ------------------------------------------------------------------------------------------------

class Chaos {
 public:
  explicit Chaos(const ChaosOptions& options) : options_(options), random_(options.seed) {}
  ~Chaos() {
    stops_ = true;
    for (std::thread& thread : threads_) thread.join();
    for (ChaosNode& node : nodes_) node.daemon.reset();
    std::error_code ignored;
    for (const std::string& made : {directory_, flash_}) {
      if (!made.empty()) std::filesystem::remove_all(made, ignored);
    }
  }

  Status Run() {
    if (Status status = Start(); !status.ok()) return status;
    for (std::size_t i = 0; i < kNodes; ++i)
      threads_.emplace_back([this, i] {
        Client(nodes_[i], nodes_, board_, counts_, options_.seed, options_.seed * 16 + i, stops_).Run();
      });
    for (; rounds_ < options_.rounds; ++rounds_) {
      if (Status status = Round(); !status.ok()) return status;
      if (!options_.json && (rounds_ + 1) % 10 == 0)
        std::fprintf(stderr, "round %s\n", Text(rounds_ + 1, " of ", options_.rounds).c_str());
    }
    return Status();
  }

  bool Good() const {
    return counts_.wrong == 0 && counts_.revived == 0 && counts_.drops > 0 && counts_.strict_drops > 0 &&
           counts_.strict_hits > 0 && counts_.peer_hits > 0;
  }
  void Print() const {
    const Counts& c = counts_;
    if (options_.json) {
      std::printf("%s\n", Text("{\"seed\":", options_.seed, ",\"rounds\":", rounds_, ",\"node_kills\":",
                               kills_, ",\"etcd_kills\":", etcd_kills_, ",\"pauses\":", pauses_,
                               ",\"puts\":", c.puts.load(), ",\"reads\":", c.reads.load(),
                               ",\"hits\":", c.hits.load(), ",\"peer_hits\":", c.peer_hits.load(),
                               ",\"drops\":", c.drops.load(), ",\"strict_drops\":", c.strict_drops.load(),
                               ",\"wrong_bytes\":", c.wrong.load(), ",\"revived\":", c.revived.load(), "}")
                              .c_str());
      return;
    }
    const auto line = [](const char* name, const std::string& value) {
      std::printf("  %-14s %s\n", name, value.c_str());
    };
    std::printf("%s\n", Text(rounds_, " rounds, ", kills_, " kills of nodes, ", etcd_kills_, " of etcd, ",
                             pauses_, " times a node stood still, seed ", options_.seed)
                            .c_str());
    line("puts", Text(c.puts.load(), ", ", c.refused.load(), " refused"));
    line("reads", Text(c.reads.load(), " of matched blocks: ", c.hits.load(), " hits, ", c.peer_hits.load(),
                       " of them from another node; ", c.misses.load(), " misses"));
    line("drops",
         Text(c.drops.load() + c.strict_drops.load(), " acknowledged, ", c.strict_drops.load(),
              " of them strict, ", c.unacknowledged.load(), " not, ", c.unavailable.load(), " without etcd"));
    line("revived", Text(c.revived.load()));
    line("wrong bytes", Text(c.wrong.load()));
  }

 private:
  Status Start() {
    directory_ = "/dev/shm/cistern-chaos-XXXXXX";
    if (mkdtemp(directory_.data()) == nullptr)
      return Status(Code::kIoError, Text("no directory in /dev/shm: ", ErrnoText(errno)));
    for (std::size_t i = 0; i < kNodes; ++i) nodes_[i].id = std::string(1, static_cast<char>('a' + i));
    if (Status status = MakeFlash(); !status.ok()) return status;
    const std::string key = directory_ + "/key";
    std::ofstream(key) << std::string(64, 'a') << "\n";
    ::chmod(key.c_str(), 0600);
    if (Status etcd = etcd_.Start(); !etcd.ok()) return etcd;
    for (ChaosNode& node : nodes_) {
      // A port may be taken between its choice and its use.
      Status why;
      for (int attempt = 0; attempt < 5 && !node.daemon; ++attempt) {
        Result<Daemon> daemon = Daemon::Start(DaemonBeside(), directory_, FlagsOf(node, key));
        if (daemon) {
          node.daemon.emplace(std::move(*daemon));
        } else {
          why = daemon.error();
        }
      }
      if (!node.daemon) return why;
      ++node.starts;
    }
    return AwaitAll();
  }

  // On a disk, beside the programs: a directory for each node.
  Status MakeFlash() {
    if (options_.flash_bytes == 0) return Status();
    const std::string program = DaemonBeside();
    std::string made = program.substr(0, program.rfind('/')) + "/chaos-flash-XXXXXX";
    if (mkdtemp(made.data()) == nullptr)
      return Status(Code::kIoError, Text(made, ": no directory can be made there"));
    flash_ = std::move(made);
    std::error_code failed;
    for (const ChaosNode& node : nodes_) {
      if (!std::filesystem::create_directory(flash_ + "/" + node.id, failed))
        return Status(Code::kIoError, Text(flash_, "/", node.id, ": ", failed.message()));
    }
    return Status();
  }

  std::vector<std::string> FlagsOf(const ChaosNode& node, const std::string& key) const {
    std::vector<std::string> flags = {"--memory",   "64MiB", "--cell",         etcd_.endpoint(),
                                      "--member",   node.id, "--cell-address", Text("127.0.0.1:", FreePort()),
                                      "--cell-key", key,     "--log-level",    "error"};
    if (options_.flash_bytes > 0) {
      flags.emplace_back("--flash");
      flags.push_back(Text(flash_, "/", node.id, ":", options_.flash_bytes, "B"));
    }
    return flags;
  }

  // Each node has joined and reaches the others.
  Status AwaitAll() {
    SystemClock clock;
    const Instant until = clock.Now().PlusUs(kWatchdogUs);
    for (ChaosNode& node : nodes_) {
      for (;;) {
        if (clock.Now() > until) return Status(Code::kTooLate, Text("node ", node.id, " does not join"));
        Result<Store> store = node.daemon->Connect();
        const std::string says = store ? store->StatusJson(kCallUs).value_or("") : "";
        if (says.find("\"joined\":true") != std::string::npos &&
            says.find(Text("\"reachable\":", kNodes - 1)) != std::string::npos)
          break;
        poll(nullptr, 0, 10);
      }
    }
    return Status();
  }

  Status Round() {
    // Until something was done since the last round, however slow the host is.
    const std::uint64_t busy = counts_.reads + 300 + random_.Below(1500);
    SystemClock clock;
    const Instant until = clock.Now().PlusUs(kWatchdogUs);
    while (counts_.reads < busy) {
      if (clock.Now() > until) return Status(Code::kTooLate, "the load stands still");
      poll(nullptr, 0, 2);
    }
    const std::uint64_t what = random_.Below(12);
    if (what >= 10) {
      // Past its lease, mostly.
      ChaosNode& node = nodes_[random_.Below(kNodes)];
      ++pauses_;
      ++node.pauses;
      ::kill(node.daemon->pid(), SIGSTOP);
      poll(nullptr, 0,
           static_cast<int>(random_.Below(5) == 0 ? random_.Below(3'000) : 11'000 + random_.Below(3'000)));
      ::kill(node.daemon->pid(), SIGCONT);
      ++node.pauses;
    } else if (what < 2) {
      ++etcd_kills_;
      etcd_.Kill();
      poll(nullptr, 0, static_cast<int>(random_.Below(500)));
      if (Status etcd = etcd_.Start(); !etcd.ok()) return etcd;
    } else {
      const std::size_t first = random_.Below(kNodes);
      const std::size_t count = what < 8 ? 1 : 2;
      for (std::size_t i = 0; i < count; ++i) KillNode(nodes_[(first + i) % kNodes]);
      if (random_.Below(2) == 0) poll(nullptr, 0, static_cast<int>(random_.Below(300)));
      for (std::size_t i = 0; i < count; ++i) {
        ChaosNode& node = nodes_[(first + i) % kNodes];
        if (Status exec = node.daemon->Exec(); !exec.ok()) return exec;
        ++node.starts;
      }
    }
    return AwaitAll();
  }
  void KillNode(ChaosNode& node) {
    ++kills_;
    ++node.starts;
    node.daemon->Kill();
  }

  const ChaosOptions options_;
  Random random_;
  std::string directory_;
  std::string flash_;  // empty: nodes have memory alone
  etcd::TestEtcd etcd_;
  std::array<ChaosNode, kNodes> nodes_;
  Board board_;
  Counts counts_;
  std::atomic<bool> stops_{false};
  std::vector<std::thread> threads_;
  std::uint64_t rounds_ = 0, kills_ = 0, etcd_kills_ = 0, pauses_ = 0;
};

int Run(int argc, const char* const* argv) {
  ChaosOptions options;
  CommandLine line(
      "cell_chaos",
      "Three nodes and an etcd, of which any is killed, or a node stopped for a while, as clients of each "
      "put, "
      "read each other's blocks and drop, half of them in a strict namespace; every byte is compared.",
      "  cell_chaos --rounds 200 --seed 7\n  cell_chaos --flash 256MiB");
  line.Count("--rounds", "kills under load; default: 20", &options.rounds, 1, 1'000'000);
  line.Count("--seed", "of requests and kills; default: 1", &options.seed, 0, UINT64_MAX / 1024);
  line.Size("--flash", "below each node's memory", &options.flash_bytes);
  line.Switch("--json", "one JSON object on stdout", &options.json);
  if (auto exit = line.Parse(argc, argv)) return *exit;
  if (!etcd::TestEtcd::Installed())
    return Complain("cell_chaos", Status(Code::kMiss, "Debian's etcd-server is not installed"));
  Chaos chaos(options);
  const Status status = chaos.Run();
  chaos.Print();
  if (!status.ok()) return Complain("cell_chaos", status);
  return chaos.Good() ? kExitOk : kExitFailed;
}

}  // namespace
}  // namespace cistern

int main(int argc, char** argv) { return cistern::Run(argc, argv); }
