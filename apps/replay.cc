// SPDX-License-Identifier: Apache-2.0
#include "workload/replay.h"

#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "base/format.h"
#include "base/units.h"
#include "commands.h"
#include "policy/evict.h"
#include "prompt.h"

namespace cistern {
namespace {

// Records take their body and one alignment unit; chunks lose at most an eighth and the last one its rest.
std::uint64_t ArenaBytesFor(std::uint64_t blocks, std::uint64_t block_bytes) {
  std::uint64_t record = block_bytes + 4096;
  return blocks * (record + record / 4) + (256u << 20);
}

// A memory directory of this run's own, gone with it.
class ScratchDirectory {
 public:
  static Result<ScratchDirectory> Make(const std::string& parent) {
    std::string path = (parent.empty() ? "/dev/shm" : parent) + "/cistern-replay-XXXXXX";
    if (mkdtemp(path.data()) == nullptr) {
      return Error(Code::kInvalid,
                   Text("--memory-dir ", parent.empty() ? "/dev/shm" : parent,
                        ": no directory can be made there; name one that exists and is writable"));
    }
    return ScratchDirectory(path);
  }
  ScratchDirectory(ScratchDirectory&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  ~ScratchDirectory() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  explicit ScratchDirectory(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

double GigabytesPerSecond(std::uint64_t bytes, std::uint64_t ns) {
  return ns == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(ns);
}

double Us(const Histogram& ns, double fraction) { return static_cast<double>(ns.Percentile(fraction)) / 1e3; }

std::string ReportJson(const ReplayReport& r, std::string_view policy, std::uint64_t blocks) {
  auto percentiles = [](const Histogram& h) {
    return Text("{\"p50_us\":", Us(h, 0.5), ",\"p99_us\":", Us(h, 0.99), "}");
  };
  return Text(
      "{\"policy\":\"", policy, "\",\"blocks\":", blocks, ",\"requests\":", r.requests.value(),
      ",\"accesses\":", r.accesses.value(), ",\"hits\":", r.hits.value(), ",\"hit_rate\":", r.hit_rate(),
      ",\"hits_by_tier\":{\"memory\":", r.hits.value(), "},\"input_tokens\":", r.input_tokens.value(),
      ",\"hit_tokens\":", r.hit_tokens.value(), ",\"blocks_written\":", r.blocks_written.value(),
      ",\"blocks_refused\":", r.blocks_refused.value(), ",\"bytes_read\":", r.bytes_read.value(),
      ",\"bytes_written\":", r.bytes_written.value(),
      ",\"read_GBps\":", GigabytesPerSecond(r.bytes_read.value(), r.read_ns.value()),
      ",\"write_GBps\":", GigabytesPerSecond(r.bytes_written.value(), r.write_ns.value()),
      ",\"match\":", percentiles(r.match_ns), ",\"read_batch\":", percentiles(r.read_batch_ns),
      ",\"write_batch\":", percentiles(r.write_batch_ns), ",\"bytes_verified\":", r.bytes_verified.value(),
      ",\"wrong_bytes\":", r.wrong_bytes.value(), "}\n");
}

void PrintReport(const ReplayReport& r) {
  std::printf("requests        %llu\n", static_cast<unsigned long long>(r.requests.value()));
  std::printf("hits            %llu of %llu accesses (%.2f %%), all from memory\n",
              static_cast<unsigned long long>(r.hits.value()),
              static_cast<unsigned long long>(r.accesses.value()), 100 * r.hit_rate());
  std::printf("prefill saved   %llu of %llu tokens\n", static_cast<unsigned long long>(r.hit_tokens.value()),
              static_cast<unsigned long long>(r.input_tokens.value()));
  std::printf("read            %s at %.2f GB/s, a batch p50 %.0f us, p99 %.0f us\n",
              RoughSizeText(r.bytes_read.value()).c_str(),
              GigabytesPerSecond(r.bytes_read.value(), r.read_ns.value()), Us(r.read_batch_ns, 0.5),
              Us(r.read_batch_ns, 0.99));
  std::printf("written         %s at %.2f GB/s, a batch p50 %.0f us, p99 %.0f us\n",
              RoughSizeText(r.bytes_written.value()).c_str(),
              GigabytesPerSecond(r.bytes_written.value(), r.write_ns.value()), Us(r.write_batch_ns, 0.5),
              Us(r.write_batch_ns, 0.99));
  std::printf("match           p50 %.1f us, p99 %.1f us\n", Us(r.match_ns, 0.5), Us(r.match_ns, 0.99));
  std::printf("bytes verified  %s\nwrong bytes     %llu\n", RoughSizeText(r.bytes_verified.value()).c_str(),
              static_cast<unsigned long long>(r.wrong_bytes.value()));
}

}  // namespace

int RunReplay(int argc, const char* const* argv) {
  std::string trace, policy_name = "lru", memory_dir;
  std::uint64_t blocks = 0;
  ReplayOptions options;
  bool json = false;
  CommandLine line(
      "cistern replay",
      "Run a trace with real bytes through a real node in this process, one request at a time, and\n"
      "compare every byte read with what its key must hold. Hits equal those of cistern sim.",
      "  cistern replay conversation.jsonl --blocks 10000 --json\n"
      "  cistern replay generated:sessions=50,turns=6,seed=1 --blocks 2000 --block-bytes 16KiB");
  line.Argument("TRACE", "a trace of JSON lines, or generated:KEY=VALUE,...", &trace);
  line.Count("--blocks", "blocks that fit (required)", &blocks, 1, 1u << 30);
  line.Text("--policy", "NAME", "eviction policy; default: lru", &policy_name);
  line.Size("--block-bytes", "bytes of a block; default: 64KiB", &options.block_bytes);
  line.Text("--memory-dir", "DIR", "where the node's memory lies meanwhile; default: /dev/shm", &memory_dir);
  line.Switch("--json", "one JSON object on stdout", &json);
  if (auto exit = line.Parse(argc, argv)) return *exit;
  if (blocks == 0) {
    return Complain("cistern replay", Status(Code::kInvalid, "--blocks is missing; say how many blocks fit"));
  }
  Result<EvictionPolicy> policy = ParseEvictionPolicy(policy_name);
  if (!policy) return Complain("cistern replay", policy.error());
  Result<std::unique_ptr<RequestSource>> requests = OpenRequests(trace);
  if (!requests) return Complain("cistern replay", requests.error());
  Result<ScratchDirectory> scratch = ScratchDirectory::Make(memory_dir);
  if (!scratch) return Complain("cistern replay", scratch.error());

  OpenOptions open;
  open.memory_dir = scratch->path();
  open.memory_bytes = ArenaBytesFor(blocks, options.block_bytes);
  open.max_blocks = blocks;
  Result<Store> store = Store::Open(open);
  if (!store) return Complain("cistern replay", store.error());
  Result<Namespace> ns = store->Attach(ReplayNamespace(options.block_bytes));
  if (!ns) return Complain("cistern replay", ns.error());
  if (isatty(STDERR_FILENO)) {
    options.progress = [](const ReplayReport& r) {
      std::fprintf(stderr, "\r%llu requests, %.1f %% hits, %s verified, %llu wrong bytes ",
                   static_cast<unsigned long long>(r.requests.value()), 100 * r.hit_rate(),
                   RoughSizeText(r.bytes_verified.value()).c_str(),
                   static_cast<unsigned long long>(r.wrong_bytes.value()));
    };
  }
  ReplayReport report;
  Replay replay(*store, *ns, options, report);
  Status status = ReplayAll(**requests, replay);
  if (options.progress) std::fputs("\r\033[K", stderr);
  if (!status.ok()) return Complain("cistern replay", status);
  if (json) {
    std::fputs(ReportJson(report, EvictionPolicyName(*policy), blocks).c_str(), stdout);
  } else {
    PrintReport(report);
  }
  return report.wrong_bytes.value() == 0 ? kExitOk : kExitFailed;
}

}  // namespace cistern
