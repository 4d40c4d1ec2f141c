// SPDX-License-Identifier: Apache-2.0
// The get of a block against Redis on a unix socket with its C client: the same sizes, the same random order,
// the same run, interleaved. Redis's reply is used where hiredis left it; Cistern's is copied to a buffer.
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
#include "command_line.h"
#include "daemon.h"
#include "fill.h"
#include "measure.h"
#include "workload/content.h"

extern char** environ;

namespace cistern {
namespace {

class Redis {
 public:
  Redis() {
    std::string path = directory_;
    if (mkdtemp(path.data()) == nullptr) return;
    directory_ = path;
    std::string socket = directory_ + "/redis.sock";
    std::vector<std::string> words = {
        "redis-server", "--port", "0",     "--unixsocket", socket,      "--save",   "",
        "--appendonly", "no",     "--dir", directory_,     "--logfile", "/dev/null"};
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    if (posix_spawnp(&pid_, argv[0], nullptr, nullptr, argv.data(), environ) != 0) {
      pid_ = -1;
      return;
    }
    for (int i = 0; i < 5000 && (context_ == nullptr || context_->err); ++i) {
      if (context_) redisFree(context_);
      context_ = redisConnectUnix(socket.c_str());
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

Status RunSize(std::uint64_t block_bytes, std::uint64_t rounds, const std::string& program, BenchRow* row,
               std::uint64_t* wrong) {
  const std::uint64_t working_set = 256u << 20;
  Result<Daemon> daemon = Daemon::Start(program, "/dev/shm", {"--memory", "512MiB"});
  if (!daemon) return daemon.error();
  Result<Store> store = daemon->Connect();
  if (!store) return store.error();
  Result<FilledBlocks> blocks = Fill(*store, working_set / block_bytes, block_bytes);
  if (!blocks) return blocks.error();
  Redis redis;
  if (!redis.ok()) return Status(Code::kGone, "redis-server does not start; is it installed?");
  std::vector<std::byte> value(block_bytes);
  for (const BlockKey& key : blocks->keys) {
    workload::FillContent(key, value);
    if (!redis.Set(key, value)) return Status(Code::kIoError, "redis refused a SET");
  }
  std::vector<std::uint32_t> order(blocks->keys.size());
  std::iota(order.begin(), order.end(), 0u);
  Random random(23);
  Buffer to(working_set);
  Series ours, theirs;
  for (std::uint64_t round = 0; round < rounds; ++round) {
    Shuffle(order, random);
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
      *wrong +=
          workload::CountWrongBytes(blocks->keys[order[at]], {to.data() + at * block_bytes, block_bytes});
    }
  }
  *row =
      RateRow(Text("get_", SizeText(block_bytes), "_against_redis"), "redis on a unix socket", ours, theirs);
  return Status();
}

int Run(int argc, const char* const* argv) {
  std::uint64_t rounds = 9;
  bool json = false;
  CommandLine line("redis_peer", "Get of a block against Redis on a unix socket, interleaved.",
                   "  redis_peer --json");
  line.Count("--rounds", "interleaved rounds; default: 9", &rounds, 1, 1000);
  line.Switch("--json", "one JSON object on stdout", &json);
  if (auto exit = line.Parse(argc, argv)) return *exit;
  std::string rows;
  std::uint64_t wrong = 0;
  for (std::uint64_t block_bytes : {2u << 20, 64u << 10}) {
    BenchRow row;
    if (Status status = RunSize(block_bytes, rounds, DaemonBeside(), &row, &wrong); !status.ok()) {
      return Complain("redis_peer", status);
    }
    if (json) {
      rows +=
          Text(rows.empty() ? "" : ",", "{\"name\":\"", row.name, "\",\"value\":", row.value,
               ",\"unit\":\"GB/s\",\"limit\":\"", row.limit, "\",\"limit_value\":", row.limit_value,
               ",\"ratio\":", row.ratio, ",\"ratio_low\":", row.ratio_low, ",\"ratio_high\":", row.ratio_high,
               ",\"p50_us\":", row.p50_us, ",\"p99_us\":", row.p99_us, "}");
    } else {
      std::printf("%-34s %.2f GB/s, redis %.2f GB/s: %.1f x (%.1f to %.1f), p50 %.1f us against %.1f us\n",
                  row.name.c_str(), row.value, row.limit_value, row.ratio, row.ratio_low, row.ratio_high,
                  row.p50_us, row.limit_p50_us);
    }
  }
  if (json) std::printf("{\"rows\":[%s]}\n", rows.c_str());
  if (wrong != 0)
    std::fprintf(stderr, "redis_peer: %llu wrong bytes\n", static_cast<unsigned long long>(wrong));
  return wrong == 0 ? kExitOk : kExitFailed;
}

}  // namespace
}  // namespace cistern

int main(int argc, char** argv) { return cistern::Run(argc, argv); }
