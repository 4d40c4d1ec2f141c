// SPDX-License-Identifier: Apache-2.0
// Redis with its C client, and files on tmpfs, beside Cistern, in the same run, interleaved. The get of a
// block from the own node against Redis on a unix socket: the same sizes, the same random order; Redis's
// reply is used where hiredis left it, Cistern's is copied to a buffer; and against a file a block, opened,
// read and closed, which nobody checks. Blocks of another node of a cell against Redis over loopback TCP: as
// many blocks a call, as many calls under way; Redis's replies are used where hiredis left them, Cistern's
// blocks are checked and stay in the node's memory.
#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <numeric>

#include "base/format.h"
#include "base/units.h"
#include "cell_blocks.h"
#include "command_line.h"
#include "daemon.h"
#include "fill.h"
#include "line.h"
#include "local_cell.h"
#include "measure.h"
#include "workload/content.h"

extern char** environ;

namespace cistern {
namespace {

class Redis {
 public:
  // By a unix socket, or, with a port, by loopback TCP.
  explicit Redis(const std::string& port = "0") {
    std::string path = directory_;
    if (mkdtemp(path.data()) == nullptr) return;
    directory_ = path;
    std::string socket = directory_ + "/redis.sock";
    std::vector<std::string> words = {"redis-server", "--port", port,       "--bind",    "127.0.0.1",
                                      "--unixsocket", socket,   "--save",   "",          "--appendonly",
                                      "no",           "--dir",  directory_, "--logfile", "/dev/null"};
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    if (posix_spawnp(&pid_, argv[0], nullptr, nullptr, argv.data(), environ) != 0) {
      pid_ = -1;
      return;
    }
    for (int i = 0; i < 5000 && (context_ == nullptr || context_->err); ++i) {
      if (context_) redisFree(context_);
      context_ = port != "0" ? redisConnect("127.0.0.1", std::stoi(port)) : redisConnectUnix(socket.c_str());
      if (context_->err) usleep(2000);
    }
  }
  ~Redis() {
    if (context_) redisFree(context_);
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }
  bool ok() const { return pid_ > 0 && context_ && !context_->err; }

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
  // The caller frees it.
  redisReply* Get(const BlockKey& key) {
    return static_cast<redisReply*>(
        redisCommand(context_, "GET %b", key.bytes.data(), static_cast<std::size_t>(key.length)));
  }

 private:
  std::string directory_ = "/tmp/cistern-redis-XXXXXX";
  pid_t pid_ = -1;
  redisContext* context_ = nullptr;
};

// A file a block in a directory of its own, named by the key: the cache that needs no program.
class Files {
 public:
  explicit Files(const std::string& parent) : directory_(parent + "/cistern-files-XXXXXX") {
    if (mkdtemp(directory_.data()) == nullptr) directory_.clear();
  }
  ~Files() {
    std::error_code ignored;
    if (!directory_.empty()) std::filesystem::remove_all(directory_, ignored);
  }
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;

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
  std::string PathOf(const BlockKey& key) const { return directory_ + "/" + key.ToHex(); }
  std::string directory_;
};

// GB/s of all of these blocks once, each read to its place in `to`.
Result<double> ReadFiles(const Files& files, std::span<const BlockKey> keys,
                         std::span<const std::uint32_t> order, std::span<std::byte> to,
                         std::uint64_t block_bytes, Samples& samples) {
  const Stopwatch all;
  for (std::size_t at = 0; at < order.size(); ++at) {
    const Stopwatch one;
    if (!files.Get(keys[order[at]], to.subspan(at * block_bytes, block_bytes)))
      return Error(Code::kIoError, "a file of the bench is not there");
    samples.call_us.push_back(static_cast<double>(one.Ns()) / 1e3);
  }
  return static_cast<double>(order.size() * block_bytes) / static_cast<double>(all.Ns());
}

Status RunSize(std::uint64_t block_bytes, BenchOptions& options) {
  const std::uint64_t working_set = 256u << 20;
  Result<Daemon> daemon = Daemon::Start(options.daemon, options.memory_dir, {"--memory", "512MiB"});
  if (!daemon) return daemon.error();
  Result<Store> store = daemon->Connect();
  if (!store) return store.error();
  Result<FilledBlocks> blocks = Fill(*store, working_set / block_bytes, block_bytes);
  if (!blocks) return blocks.error();
  Redis redis;
  if (!redis.ok()) return Status(Code::kGone, "redis-server does not start; is it installed?");
  std::vector<std::byte> value(block_bytes);
  const Files files(options.memory_dir);
  for (const BlockKey& key : blocks->keys) {
    workload::FillContent(key, value);
    if (!redis.Set(key, value)) return Status(Code::kIoError, "redis refused a SET");
    if (!files.Put(key, value))
      return Status(Code::kIoError, Text(options.memory_dir, ": no room for the files"));
  }
  std::vector<std::uint32_t> order(blocks->keys.size());
  std::iota(order.begin(), order.end(), 0u);
  Random random(23);
  Buffer to(working_set);
  Samples ours, theirs, of_files;
  for (std::uint64_t round = 0; round < options.rounds; ++round) {
    Shuffle(order, random);
    const auto rate = ReadFiles(files, blocks->keys, order, {to.data(), working_set}, block_bytes, of_files);
    if (!rate) return rate.error();
    of_files.rounds.push_back(*rate);
    Stopwatch theirs_round;
    for (std::uint32_t i : order) {
      Stopwatch one;
      redisReply* reply = redis.Get(blocks->keys[i]);
      theirs.call_us.push_back(static_cast<double>(one.Ns()) / 1e3);
      if (!reply || reply->len != block_bytes) return Status(Code::kIoError, "redis lost a value");
      freeReplyObject(reply);
    }
    const auto bytes = static_cast<double>(order.size() * block_bytes);
    theirs.rounds.push_back(bytes / static_cast<double>(theirs_round.Ns()));
    Stopwatch ours_round;
    for (std::size_t at = 0; at < order.size(); ++at) {
      ReadRange range{.bytes = block_bytes, .to = to.data() + at * block_bytes};
      BlockRead read{.key = blocks->keys[order[at]], .ranges = std::span(&range, 1)};
      Stopwatch one;
      Result<ReadResult> result = store->Read(blocks->ns, std::span(&read, 1)).Wait();
      ours.call_us.push_back(static_cast<double>(one.Ns()) / 1e3);
      if (!result || result->leading_hits != 1)
        return Status(Code::kMiss, "a block of the bench is not there");
    }
    ours.rounds.push_back(bytes / static_cast<double>(ours_round.Ns()));
    for (std::size_t at = 0; at < order.size(); ++at) {
      options.wrong_bytes +=
          workload::CountWrongBytes(blocks->keys[order[at]], {to.data() + at * block_bytes, block_bytes});
    }
  }
  options.row(
      RateRow(Text("get_", SizeText(block_bytes), "_against_redis"), "redis on a unix socket", ours, theirs));
  options.row(
      RateRow(Text("get_", SizeText(block_bytes), "_against_files"), "files on tmpfs", ours, of_files));
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
  Redis redis(*port);
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

int Run(int argc, const char* const* argv) {
  BenchOptions options;
  options.daemon = DaemonBeside();
  bool json = false;
  CommandLine line(
      "redis_peer",
      "Get of a block against Redis on a unix socket and against files on tmpfs, and blocks of another node "
      "of a cell against Redis over TCP, interleaved.",
      "  redis_peer --json");
  line.Count("--rounds", "interleaved rounds; default: 9", &options.rounds, 1, 1000);
  line.Switch("--json", "one JSON object on stdout", &json);
  if (auto exit = line.Parse(argc, argv)) return *exit;
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
    if (Status status = RunSize(block_bytes, options); !status.ok()) return Complain("redis_peer", status);
  }
  if (HasEtcd(options, "cell_read_against_redis_tcp")) {
    Status status = RunCell("cell_read_8x64KiB_against_redis_tcp", 64u << 10, 8, options);
    if (status.ok()) status = RunCell("cell_read_2MiB_against_redis_tcp", 2u << 20, 1, options);
    if (!status.ok()) return Complain("redis_peer", status);
  }
  if (json) std::printf("{\"rows\":[%s]}\n", rows.c_str());
  if (options.wrong_bytes != 0)
    std::fprintf(stderr, "redis_peer: %llu wrong bytes\n",
                 static_cast<unsigned long long>(options.wrong_bytes));
  return options.wrong_bytes == 0 ? kExitOk : kExitFailed;
}

}  // namespace
}  // namespace cistern

int main(int argc, char** argv) { return cistern::Run(argc, argv); }
