// SPDX-License-Identifier: Apache-2.0
// Redis with its C client, and files on tmpfs, beside Cistern, in the same run, interleaved. The get of a
// block from the own node against Redis on a unix socket: the same sizes, the same random order; Redis's
// reply is used where hiredis left it, Cistern's is copied to a buffer; and against a file a block, opened,
// read and closed, which nobody checks. Blocks of another node of a cell against Redis over loopback TCP: as
// many blocks a call, as many calls under way; Redis's replies are used where hiredis left them, Cistern's
// blocks are checked and stay in the node's memory.
#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <numeric>

#include "base/format.h"
#include "base/units.h"
#include "bench_node.h"
#include "cell_blocks.h"
#include "child.h"
#include "command_line.h"
#include "daemon.h"
#include "fill.h"
#include "line.h"
#include "local_cell.h"
#include "measure.h"
#include "scratch.h"
#include "scratch_directory.h"
#include "workload/content.h"

namespace cistern {
namespace {

constexpr std::string_view kName = "redis_peer";

class Redis {
 public:
  // By a unix socket, or, with a port, by loopback TCP. Its directory is made in `parent`.
  explicit Redis(const std::string& parent, const std::string& port = "0") {
    Result<ScratchDirectory> made = ScratchDirectory::Make(parent, "redis");
    if (!made) return;
    directory_ = std::move(*made);
    const std::string socket = directory_.path() + "/redis.sock";
    std::vector<std::string> words = {
        "redis-server", "--port", port,           "--bind", "127.0.0.1", "--unixsocket",    socket,
        "--save",       "",       "--appendonly", "no",     "--dir",     directory_.path(), "--logfile",
        "/dev/null"};
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    Result<Child> started = Child::Start([&] { execvp(argv[0], argv.data()); });
    if (!started) return;
    process_ = std::move(*started);
    for (int i = 0; i < 5000 && (context_ == nullptr || context_->err); ++i) {
      if (context_) redisFree(context_);
      context_ = port != "0" ? redisConnect("127.0.0.1", std::stoi(port)) : redisConnectUnix(socket.c_str());
      if (context_->err) usleep(2000);
    }
  }
  ~Redis() {
    if (context_) redisFree(context_);
  }
  bool ok() const { return context_ && !context_->err; }

  bool Set(const BlockKey& key, std::span<const std::byte> value) {
    auto* reply = static_cast<redisReply*>(redisCommand(context_, "SET %b %b", key.bytes.data(),
                                                        static_cast<std::size_t>(key.length), value.data(),
                                                        value.size()));
    bool good = reply && reply->type == REDIS_REPLY_STATUS;
    if (reply) freeReplyObject(reply);
    return good;
  }
  // Asks for the values of these keys together.
  void AskFor(std::span<const BlockKey> keys) {
    std::vector<const char*> words = {"MGET"};
    std::vector<std::size_t> sizes = {4};
    for (const BlockKey& key : keys) {
      words.push_back(reinterpret_cast<const char*>(key.bytes.data()));
      sizes.push_back(key.length);
    }
    redisAppendCommandArgv(context_, static_cast<int>(words.size()), words.data(), sizes.data());
  }
  // The next answer: whether it has so many values of so many bytes each.
  bool Take(std::size_t values, std::size_t bytes) {
    redisReply* reply = nullptr;
    if (redisGetReply(context_, reinterpret_cast<void**>(&reply)) != REDIS_OK || reply == nullptr)
      return false;
    bool good = reply->type == REDIS_REPLY_ARRAY && reply->elements == values;
    for (std::size_t i = 0; good && i < values; ++i) good = reply->element[i]->len == bytes;
    freeReplyObject(reply);
    return good;
  }
  // Whether the value is there and has so many bytes.
  bool Get(const BlockKey& key, std::size_t bytes) {
    auto* reply = static_cast<redisReply*>(
        redisCommand(context_, "GET %b", key.bytes.data(), static_cast<std::size_t>(key.length)));
    const bool good = reply && reply->len == bytes;
    if (reply) freeReplyObject(reply);
    return good;
  }

 private:
  ScratchDirectory directory_;
  Child process_;  // ends before its directory does
  redisContext* context_ = nullptr;
};

// A file a block in a directory of its own, named by the key: the cache that needs no program.
class Files {
 public:
  explicit Files(ScratchDirectory directory) : directory_(std::move(directory)) {}

  bool Put(const BlockKey& key, std::span<const std::byte> value) const {
    const Fd file(open(PathOf(key).c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    return file.valid() &&
           write(file.get(), value.data(), value.size()) == static_cast<ssize_t>(value.size());
  }
  bool Get(const BlockKey& key, std::span<std::byte> to) const {
    const Fd file(open(PathOf(key).c_str(), O_RDONLY | O_CLOEXEC));
    return file.valid() && read(file.get(), to.data(), to.size()) == static_cast<ssize_t>(to.size());
  }

 private:
  std::string PathOf(const BlockKey& key) const { return directory_.path() + "/" + key.ToHex(); }
  ScratchDirectory directory_;
};

// What a round reads: each of these blocks once, in this order.
struct Reading {
  std::span<const BlockKey> keys;
  std::span<const std::uint32_t> order;
  std::uint64_t block_bytes = 0;

  // GB/s of `read` for each, which is told the block and its number in the order.
  template <class Read>
  Result<double> Rate(Samples& samples, Read&& read) const {
    const Stopwatch all;
    for (std::size_t at = 0; at < order.size(); ++at) {
      const Stopwatch one;
      if (Status status = read(keys[order[at]], at); !status.ok()) return Error(status);
      samples.call_us.push_back(static_cast<double>(one.Ns()) / 1e3);
    }
    return static_cast<double>(order.size() * block_bytes) / static_cast<double>(all.Ns());
  }
};

// One of those that are measured beside each other.
struct Side {
  std::function<Result<double>(const Reading& reading, Samples& samples)> read;
  Samples samples;
};

// Each round another one begins. The first round is left out: it touches what the others go on with.
Status ReadInTurn(std::span<Side> sides, std::span<const BlockKey> keys, std::uint64_t block_bytes,
                  std::uint64_t rounds) {
  std::vector<std::uint32_t> order(keys.size());
  std::iota(order.begin(), order.end(), 0u);
  Random random(23);
  for (std::uint64_t round = 0; round <= rounds; ++round) {
    Shuffle(order, random);
    for (std::size_t turn = 0; turn < sides.size(); ++turn) {
      Side& side = sides[(round + turn) % sides.size()];
      Samples left_out;
      Samples& samples = round == 0 ? left_out : side.samples;
      const Result<double> rate = side.read({keys, order, block_bytes}, samples);
      if (!rate) return rate.error();
      samples.rounds.push_back(*rate);
    }
  }
  return Status();
}

Status RunSize(std::uint64_t block_bytes, BenchOptions& options) {
  const std::uint64_t working_set = 256u << 20;
  Result<Daemon> daemon = StartNode(options, {"--memory", "512MiB"});
  if (!daemon) return daemon.error();
  Result<Store> store = daemon->Connect();
  if (!store) return store.error();
  Result<FilledBlocks> blocks = Fill(*store, working_set / block_bytes, block_bytes);
  if (!blocks) return blocks.error();
  Redis redis(options.memory_dir);
  if (!redis.ok()) return Status(Code::kGone, "redis-server does not start; is it installed?");
  Result<ScratchDirectory> directory = ScratchDirectory::Make(options.memory_dir, "files");
  if (!directory) return directory.error();
  const Files files(std::move(*directory));
  std::vector<std::byte> value(block_bytes);
  for (const BlockKey& key : blocks->keys) {
    workload::FillContent(key, value);
    if (!redis.Set(key, value)) return Status(Code::kIoError, "redis refused a SET");
    if (!files.Put(key, value))
      return Status(Code::kIoError, Text(options.memory_dir, ": no room for the files"));
  }
  Buffer to(working_set);
  const auto place = [&](std::size_t at) { return std::span(to.data() + at * block_bytes, block_bytes); };
  const auto read_files = [&](const Reading& reading, Samples& samples) {
    return reading.Rate(samples, [&](const BlockKey& key, std::size_t at) {
      return files.Get(key, place(at)) ? Status()
                                       : Status(Code::kIoError, "a file of the bench is not there");
    });
  };
  const auto read_redis = [&](const Reading& reading, Samples& samples) {
    return reading.Rate(samples, [&](const BlockKey& key, std::size_t) {
      return redis.Get(key, block_bytes) ? Status() : Status(Code::kIoError, "redis lost a value");
    });
  };
  const auto read_ours = [&](const Reading& reading, Samples& samples) {
    const Result<double> rate = reading.Rate(samples, [&](const BlockKey& key, std::size_t at) {
      ReadRange range{.bytes = block_bytes, .to = place(at).data()};
      const BlockRead read{.key = key, .ranges = std::span(&range, 1)};
      const Result<ReadResult> result = store->Read(blocks->ns, std::span(&read, 1)).Wait();
      return result && result->leading_hits == 1 ? Status()
                                                 : Status(Code::kMiss, "a block of the bench is not there");
    });
    for (std::size_t at = 0; at < reading.order.size(); ++at)
      options.wrong_bytes += workload::CountWrongBytes(reading.keys[reading.order[at]], place(at));
    return rate;
  };
  std::array<Side, 3> sides{{{read_files, {}}, {read_redis, {}}, {read_ours, {}}}};
  if (Status status = ReadInTurn(sides, blocks->keys, block_bytes, options.rounds); !status.ok())
    return status;
  const auto& [of_files, theirs, ours] = sides;
  options.row(RateRow(Text("get_", SizeText(block_bytes), "_against_redis"), "redis on a unix socket",
                      ours.samples, theirs.samples));
  options.row(RateRow(Text("get_", SizeText(block_bytes), "_against_files"), "files on tmpfs", ours.samples,
                      of_files.samples));
  return Status();
}

// ---- blocks of another host

constexpr std::size_t kCallsUnderWay = 6;

// GB/s of all keys once in random order.
Result<double> ReadRedis(Redis& redis, std::vector<BlockKey>& keys, std::uint64_t block_bytes,
                         std::size_t at_once, Random& random) {
  for (std::size_t i = keys.size(); i > 1; --i) std::swap(keys[i - 1], keys[random.Below(i)]);
  const Stopwatch watch;
  const std::size_t calls = keys.size() / at_once;
  for (std::size_t asked = 0, taken = 0; taken < calls; ++taken) {
    for (; asked < calls && asked < taken + kCallsUnderWay; ++asked)
      redis.AskFor(std::span(keys).subspan(asked * at_once, at_once));
    if (!redis.Take(at_once, block_bytes)) return Error(Code::kIoError, "redis lost a value");
  }
  return static_cast<double>(calls * at_once * block_bytes) / static_cast<double>(watch.Ns());
}

Status RunCell(const std::string& name, std::uint64_t block_bytes, std::size_t at_once,
               BenchOptions& options) {
  const CellSizes sizes(options);
  auto cell = LocalCell::Start(options.daemon, options.memory_dir);
  if (!cell) return cell.error();
  for (int i = 0; i < 2; ++i) {
    const Status added = (*cell)->Add({"--memory", SizeText(sizes.memory_bytes())});
    if (!added.ok()) return added;
  }
  if (Status together = (*cell)->ComeTogether(); !together.ok()) return together;
  auto port = FreePort();
  if (!port) return port.error();
  Redis redis(options.memory_dir, *port);
  if (!redis.ok()) return Status(Code::kGone, "redis-server does not start; is it installed?");
  Samples ours, theirs;
  std::vector<BlockKey> known;
  std::vector<std::byte> value(block_bytes);
  std::uint64_t next_number = 0;
  Random random(23);
  // Once before, which opens rails and touches memory.
  for (std::uint64_t round = 0; round <= options.rounds; ++round) {
    auto blocks =
        BlocksAtPeer((**cell)[0].store, (**cell)[1].store, sizes.piece_bytes, block_bytes, &next_number);
    if (!blocks) return blocks.error();
    if (known.empty()) {
      known = blocks->keys;
      for (const BlockKey& key : known) {
        workload::FillContent(key, value);
        if (!redis.Set(key, value)) return Status(Code::kIoError, "redis refused a SET");
      }
    }
    auto rate = AcquireAll((**cell)[1].store, *blocks, blocks->keys, at_once, kCallsUnderWay,
                           round > 0 ? &ours : nullptr);
    if (!rate) return rate.error();
    auto limit = ReadRedis(redis, known, block_bytes, at_once, random);
    if (!limit) return limit.error();
    if (Status status = Verify(options, (**cell)[1].store, *blocks, 8); !status.ok()) return status;
    if (round == 0) continue;
    ours.rounds.push_back(*rate);
    theirs.rounds.push_back(*limit);
  }
  options.row(RateRow(name, "redis over TCP", ours, theirs));
  return Status();
}

std::string Json(const BenchRow& row) {
  return Text("{\"name\":\"", row.name, "\",\"value\":", row.value, ",\"unit\":\"GB/s\",\"limit\":\"",
              row.limit, "\",\"limit_value\":", row.limit_value, ",\"ratio\":", row.ratio,
              ",\"ratio_low\":", row.ratio_low, ",\"ratio_high\":", row.ratio_high,
              ",\"p50_us\":", row.p50_us, ",\"p99_us\":", row.p99_us, "}");
}

int Measure(BenchOptions& options, bool json) {
  std::string rows;
  options.row = [&](const BenchRow& row) {
    if (json) {
      rows += (rows.empty() ? "" : ",") + Json(row);
    } else if (row.limit_value == 0) {
      std::printf("%-34s %s\n", row.name.c_str(), row.limit.c_str());
    } else {
      std::printf("%-36s %6.2f GB/s  %-22s %6.2f GB/s  %5.1f x (%.1f to %.1f)  p50 %.1f us\n",
                  row.name.c_str(), row.value, row.limit.c_str(), row.limit_value, row.ratio, row.ratio_low,
                  row.ratio_high, row.p50_us);
    }
  };
  for (const std::uint64_t block_bytes : {2u << 20, 64u << 10}) {
    if (Status status = RunSize(block_bytes, options); !status.ok()) return Complain(kName, status);
  }
  if (HasEtcd(options, "cell_read_against_redis_tcp")) {
    Status status = RunCell("cell_read_8x64KiB_against_redis_tcp", 64u << 10, 8, options);
    if (status.ok()) status = RunCell("cell_read_2MiB_against_redis_tcp", 2u << 20, 1, options);
    if (!status.ok()) return Complain(kName, status);
  }
  if (json) std::printf("{\"rows\":[%s]}\n", rows.c_str());
  if (options.wrong_bytes != 0)
    std::fprintf(stderr, "redis_peer: %llu wrong bytes\n",
                 static_cast<unsigned long long>(options.wrong_bytes));
  return options.wrong_bytes == 0 ? kExitOk : kExitFailed;
}

int Run(int argc, const char* const* argv) {
  BenchOptions options;
  options.daemon = DaemonBeside();
  bool json = false;
  CommandLine line(
      kName,
      "Get of a block against Redis on a unix socket and against files on tmpfs, and blocks of another node "
      "of a cell against Redis over TCP, interleaved.",
      "  redis_peer --json");
  line.Count("--rounds", "interleaved rounds; default: 9", &options.rounds, 1, 1000);
  line.Text("--memory-dir", "DIR", "a tmpfs for all that it makes; default: /dev/shm", &options.memory_dir);
  line.Switch("--json", "one JSON object on stdout", &json);
  if (auto exit = line.Parse(argc, argv)) return *exit;
  const Result<int> ran = InScratch(options, [&] { return Measure(options, json); });
  return ran ? *ran : Complain(kName, ran.error());
}

}  // namespace
}  // namespace cistern

int main(int argc, char** argv) { return cistern::Run(argc, argv); }
