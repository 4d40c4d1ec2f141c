// SPDX-License-Identifier: Apache-2.0
#include "workload/replay.h"

#include <unistd.h>

#include <algorithm>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/format.h"
#include "base/interrupt.h"
#include "base/limits.h"
#include "base/units.h"
#include "commands.h"
#include "memory/host_memory.h"
#include "node/options.h"
#include "prompt.h"
#include "scratch_directory.h"

namespace cistern {
namespace {

// Records take their body and one alignment unit; chunks lose at most an eighth and the last one its rest,
// which is less than 16 records. A block takes at most 1/32 of memory.
std::uint64_t ArenaBytesFor(std::uint64_t blocks, std::uint64_t block_bytes) {
  std::uint64_t record = block_bytes + 4096;
  return blocks * (record + record / 4) + std::max<std::uint64_t>(256u << 20, 32 * record);
}

struct ReplayFlags {
  std::string trace, memory_dir = "/dev/shm";
  std::uint64_t blocks = 0;
  OpenOptions open;
  workload::ReplayOptions replay;
  std::string of_flash;  // a flag that is given and says what flash is like; empty: none
  bool json = false;
};

// What the node says of its flash at the end.
struct FlashFigures {
  bool there = false;
  std::uint64_t written_bytes = 0, device_bytes = 0, fetched_records = 0;
  double amplification = 0;
};

Result<FlashFigures> ReadFlashFigures(Store& store) {
  Result<std::string> status = store.StatusJson();
  if (!status) return Error(status.error());
  boost::system::error_code error;
  const boost::json::value value = boost::json::parse(*status, error);
  const boost::json::value* flash = error ? nullptr : value.find_pointer("/flash", error);
  FlashFigures figures;
  if (flash == nullptr || flash->as_object().if_contains("bytes") == nullptr) return figures;
  const auto number = [&](std::string_view name) {
    return flash->as_object().at(name).to_number<std::uint64_t>();
  };
  figures.there = true;
  figures.written_bytes = number("written_bytes");
  figures.device_bytes = number("device_written_bytes");
  figures.fetched_records = number("fetched_records");
  figures.amplification = flash->as_object().at("write_amplification").to_number<double>();
  return figures;
}

double GigabytesPerSecond(std::uint64_t bytes, std::uint64_t ns) {
  return ns == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(ns);
}

double Us(const Histogram& ns, double fraction) { return static_cast<double>(ns.Percentile(fraction)) / 1e3; }

// Hits for each GiB that a device was written: what admission is judged by.
double HitsAGiB(const workload::ReplayReport& r, const FlashFigures& flash) {
  if (flash.device_bytes == 0) return 0;
  return static_cast<double>(r.hits_flash.value()) * (1u << 30) / static_cast<double>(flash.device_bytes);
}

std::string FlashJson(const workload::ReplayReport& r, const ReplayFlags& flags, const FlashFigures& flash) {
  if (!flash.there) return "";
  return Text(",\"flash\":{\"write\":\"", ToString(flags.open.flash_write), "\",\"admit\":\"",
              ToString(flags.open.flash_admit), "\",\"promote\":\"", ToString(flags.open.flash_promote),
              "\",\"written_bytes\":", flash.written_bytes, ",\"device_written_bytes\":", flash.device_bytes,
              ",\"write_amplification\":", flash.amplification,
              ",\"fetched_records\":", flash.fetched_records,
              ",\"hits_per_written_GiB\":", HitsAGiB(r, flash), "}");
}

std::string ReportJson(const workload::ReplayReport& r, const ReplayFlags& flags, const FlashFigures& flash) {
  auto percentiles = [](const Histogram& h) {
    return Text("{\"p50_us\":", Us(h, 0.5), ",\"p99_us\":", Us(h, 0.99), "}");
  };
  return Text(
      "{\"policy\":\"", ToString(flags.open.eviction), "\",\"blocks\":", flags.blocks,
      ",\"requests\":", r.requests.value(), ",\"accesses\":", r.accesses.value(),
      ",\"hits\":", r.hits.value(), ",\"hit_rate\":", r.hit_rate(),
      ",\"hits_by_tier\":{\"memory\":", r.hits.value() - r.hits_flash.value(),
      ",\"flash\":", r.hits_flash.value(), "}", FlashJson(r, flags, flash),
      ",\"input_tokens\":", r.input_tokens.value(), ",\"hit_tokens\":", r.hit_tokens.value(),
      ",\"blocks_written\":", r.blocks_written.value(), ",\"blocks_refused\":", r.blocks_refused.value(),
      ",\"bytes_read\":", r.bytes_read.value(), ",\"bytes_written\":", r.bytes_written.value(),
      ",\"read_GBps\":", GigabytesPerSecond(r.bytes_read.value(), r.read_ns.value()),
      ",\"write_GBps\":", GigabytesPerSecond(r.bytes_written.value(), r.write_ns.value()),
      ",\"match\":", percentiles(r.match_ns), ",\"read_batch\":", percentiles(r.read_batch_ns),
      ",\"write_batch\":", percentiles(r.write_batch_ns), ",\"bytes_verified\":", r.bytes_verified.value(),
      ",\"wrong_bytes\":", r.wrong_bytes.value(), "}\n");
}

void PrintReport(const workload::ReplayReport& r, const FlashFigures& flash) {
  std::printf("requests        %llu\n", static_cast<unsigned long long>(r.requests.value()));
  std::printf("hits            %llu of %llu accesses (%.2f %%): %llu in memory, %llu on flash\n",
              static_cast<unsigned long long>(r.hits.value()),
              static_cast<unsigned long long>(r.accesses.value()), 100 * r.hit_rate(),
              static_cast<unsigned long long>(r.hits.value() - r.hits_flash.value()),
              static_cast<unsigned long long>(r.hits_flash.value()));
  if (flash.there) {
    std::printf("flash           %s written for %s of blocks (amplification %.3f), %.0f hits a GiB written\n",
                RoughSizeText(flash.device_bytes).c_str(), RoughSizeText(flash.written_bytes).c_str(),
                flash.amplification, HitsAGiB(r, flash));
  }
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

namespace {

void AddFlags(CommandLine& line, ReplayFlags& flags) {
  line.Argument("TRACE", "--trace", "TRACE", "a trace of JSON lines, or generated:KEY=VALUE,...",
                &flags.trace);
  line.Count("--blocks", "blocks that fit into memory; without it --memory says", &flags.blocks, 1, 1u << 30);
  line.Policy("--policy", "eviction policy", &flags.open.eviction);
  line.Size("--block-bytes", "bytes of a block; default: 64KiB", &flags.replay.block_bytes);
  line.Text("--memory-dir", "DIR", "where the node's memory lies meanwhile; default: /dev/shm",
            &flags.memory_dir);
  line.Size("--memory", "of the node; default: what --blocks take", &flags.open.memory_bytes);
  const auto as_node = [&line, &flags](std::string_view flag, std::string_view name) {
    const node::Setting* setting = node::FindNodeSetting(name);
    const auto set = [&flags, flag, setting](std::string_view text) {
      node::NodeOptions options;
      static_cast<OpenOptions&>(options) = flags.open;
      Status status = setting->set(options, flag, text);
      flags.open = options;
      if (flag.starts_with("--flash-")) flags.of_flash = flag;
      return status;
    };
    if (setting->clear != nullptr) {
      line.Flags(flag, setting->value, node::HelpOf(*setting), set);
    } else {
      line.Flag(flag, setting->value, node::HelpOf(*setting), set);
    }
  };
  as_node("--flash", "flash");
  as_node("--flash-write", "flash_write");
  as_node("--flash-admit", "flash_admit");
  as_node("--flash-promote", "flash_promote");
  as_node("--flash-read-ahead", "flash_read_ahead");
  as_node("--loop", "loop");
  line.Switch("--json", "one JSON object on stdout", &flags.json);
}

Status Check(const ReplayFlags& flags) {
  if (flags.blocks == 0 && flags.open.memory_bytes == 0) {
    return Status(Code::kInvalid,
                  "--blocks is missing; say how many blocks fit, or give --memory, with or without --flash");
  }
  if (flags.replay.block_bytes == 0)
    return Status(Code::kInvalid, "--block-bytes: 0B leaves nothing to compare; the least is 1B");
  if (flags.replay.block_bytes > kMaxBodyBytes) {
    return Status(Code::kInvalid, Text("--block-bytes: ", SizeText(flags.replay.block_bytes),
                                       " is over the limit of ", SizeText(kMaxBodyBytes)));
  }
  if (!flags.of_flash.empty() && flags.open.flash.empty())
    return Status(Code::kInvalid, Text(flags.of_flash, " says what flash is like: give --flash with it"));
  return Status();
}

// What --blocks take, where --memory does not say.
Result<std::uint64_t> MemoryBytes(const ReplayFlags& flags) {
  const Result<memory::HostMemory> host = memory::ReadHostMemory();
  if (!host) return Error(host.error());
  if (flags.open.memory_bytes > host->limit_bytes)
    return Error(Code::kInvalid, Text("--memory: ", SizeText(flags.open.memory_bytes), " and this host has ",
                                      RoughSizeText(host->limit_bytes), ": give less"));
  if (flags.open.memory_bytes != 0) return flags.open.memory_bytes;
  const std::uint64_t bytes = ArenaBytesFor(flags.blocks, flags.replay.block_bytes);
  if (bytes <= host->limit_bytes) return bytes;
  return Error(Code::kInvalid, Text("--blocks: ", flags.blocks, " of ", SizeText(flags.replay.block_bytes),
                                    " take ", RoughSizeText(bytes), " of memory and this host has ",
                                    RoughSizeText(host->limit_bytes), ": give fewer, or smaller ones"));
}

// A node of the replay's own: its memory and what it makes on flash go with it.
class ReplayNode {
 public:
  static Result<ReplayNode> Start(const ReplayFlags& flags) {
    ReplayNode node;
    OpenOptions open = flags.open;
    Result<ScratchDirectory> memory = ScratchDirectory::Make(flags.memory_dir, "replay");
    if (!memory) return Of("--memory-dir", memory.error());
    open.memory_dir = memory->path();
    node.scratch_.push_back(std::move(*memory));
    open.max_blocks = flags.blocks;
    // What is looked at cannot go meanwhile, and hits are to be the simulator's.
    if (open.flash.empty()) open.scrub_bytes_per_s = 0;
    std::vector<std::pair<std::string, std::string>> made;  // directories, each in the one that was given
    for (FlashVolume& volume : open.flash) {
      std::error_code ignored;  // the node's start says what is wrong with it
      if (!std::filesystem::is_directory(volume.path, ignored)) continue;
      Result<ScratchDirectory> flash = ScratchDirectory::Make(volume.path, "replay");
      if (!flash) return Of("--flash", flash.error());
      made.emplace_back(flash->path(), std::exchange(volume.path, flash->path()));
      node.scratch_.push_back(std::move(*flash));
    }
    // Only what is block devices needs one; with the memory it is gone at the end, and so is what they hold.
    if (!open.flash.empty()) open.journal_dir = open.memory_dir;
    if (flags.replay.time_ms != nullptr)
      open.eviction_time_ms = [time = flags.replay.time_ms] { return time->load(std::memory_order_acquire); };
    Result<Store> store = Store::Open(open);
    if (!store) return WithGiven(store.error(), made);
    node.store_.emplace(std::move(*store));
    return node;
  }
  Store& store() { return *store_; }

 private:
  static std::unexpected<Status> Of(std::string_view flag, const Status& wrong) {
    return Error(wrong.code(), Text(flag, " ", wrong.message()));
  }

  // What is made is gone when the message is read: it names what was given.
  static std::unexpected<Status> WithGiven(const Status& wrong,
                                           const std::vector<std::pair<std::string, std::string>>& made) {
    std::string message(wrong.message());
    for (const auto& [path, given] : made) {
      for (std::size_t at = 0; (at = message.find(path, at)) != message.npos; at += given.size())
        message.replace(at, path.size(), given);
    }
    return Error(wrong.code(), message);
  }

  std::vector<ScratchDirectory> scratch_;
  std::optional<Store> store_;  // ends first
};

void ShowProgress(const workload::ReplayReport& r) {
  std::fprintf(stderr, "\r%llu requests, %.1f %% hits, %s verified, %llu wrong bytes ",
               static_cast<unsigned long long>(r.requests.value()), 100 * r.hit_rate(),
               RoughSizeText(r.bytes_verified.value()).c_str(),
               static_cast<unsigned long long>(r.wrong_bytes.value()));
}

}  // namespace

int RunReplay(int argc, const char* const* argv) {
  ReplayFlags flags;
  CommandLine line(
      "cistern replay",
      "Run a trace with real bytes through a real node in this process, one request at a time, and\n"
      "compare every byte read with what its key must hold. With --blocks and without --flash, hits equal\n"
      "those of cistern sim. With --flash, blocks that leave memory are found there; what it makes in a\n"
      "directory is removed at the end.",
      "  cistern replay conversation.jsonl --blocks 10000 --json\n"
      "  cistern replay generated:sessions=50,turns=6,seed=1 --blocks 2000 --block-bytes 16KiB\n"
      "  cistern replay conversation.jsonl --memory 1GiB --flash /mnt/nvme:10GiB --flash-admit second-hit");
  AddFlags(line, flags);
  if (auto exit = line.Parse(argc, argv)) return *exit;
  if (Status status = Check(flags); !status.ok()) return Complain("cistern replay", status);
  const Result<std::uint64_t> memory_bytes = MemoryBytes(flags);
  if (!memory_bytes) return Complain("cistern replay", memory_bytes.error());
  flags.open.memory_bytes = *memory_bytes;
  // Staging is a small share of it.
  flags.replay.batch_blocks = static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(*memory_bytes / 64 / flags.replay.block_bytes, 1, flags.replay.batch_blocks));
  Result<std::unique_ptr<workload::RequestSource>> requests = workload::OpenRequests(flags.trace);
  if (!requests) return Complain("cistern replay", requests.error());
  Result<Interrupt> interrupt = Interrupt::Open();  // so that nothing is left on flash
  if (!interrupt) return Complain("cistern replay", interrupt.error());
  std::atomic<std::uint64_t> time_ms = 0;
  flags.replay.time_ms = &time_ms;
  Result<ReplayNode> node = ReplayNode::Start(flags);
  if (!node) return Complain("cistern replay", node.error());
  Store& store = node->store();
  Result<Namespace> ns = store.Attach(workload::ReplayNamespace(flags.replay.block_bytes));
  if (!ns) return Complain("cistern replay", ns.error());
  if (isatty(STDERR_FILENO)) flags.replay.progress = ShowProgress;

  workload::ReplayReport report;
  workload::Replay replay(store, *ns, flags.replay, report);
  Status status = workload::ReplayAll(**requests, replay, [&interrupt] { return interrupt->Seen(); });
  if (flags.replay.progress) std::fputs("\r\033[K", stderr);
  if (!status.ok()) return Complain("cistern replay", status);
  Result<FlashFigures> flash = ReadFlashFigures(store);
  if (!flash) return Complain("cistern replay", flash.error());
  if (flags.json) {
    std::fputs(ReportJson(report, flags, *flash).c_str(), stdout);
  } else {
    PrintReport(report, *flash);
  }
  return report.wrong_bytes.value() == 0 ? kExitOk : kExitFailed;
}

}  // namespace cistern
