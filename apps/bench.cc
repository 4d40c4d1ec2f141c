// SPDX-License-Identifier: Apache-2.0
#include "bench.h"

#include <unistd.h>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <cstdio>
#include <utility>

#include "base/format.h"
#include "base/nearest.h"
#include "base/units.h"
#include "commands.h"
#include "daemon.h"
#include "memory/host_memory.h"
#include "prompt.h"
#include "record/verified_copy.h"
#include "scratch.h"

namespace cistern {
namespace {

boost::json::object Json(const BenchRow& row) {
  return {{"name", row.name},
          {"value", row.value},
          {"unit", row.unit},
          {"limit", row.limit},
          {"limit_value", row.limit_value},
          {"ratio", row.ratio},
          {"ratio_low", row.ratio_low},
          {"ratio_high", row.ratio_high},
          {"p50_us", row.p50_us},
          {"p99_us", row.p99_us},
          {"limit_p50_us", row.limit_p50_us},
          {"limit_p99_us", row.limit_p99_us},
          {"destination", row.destination}};
}

void PrintHeader() {
  std::printf("%-46s %12s %12s %7s %15s %10s %10s  %s\n", "row", "value", "limit", "ratio", "spread",
              "p50 us", "p99 us", "destination");
}

void Print(const BenchRow& row) {
  char limit[32] = "", spread[32] = "", ratio[16] = "";
  if (row.limit_value > 0) {
    std::snprintf(limit, sizeof(limit), "%.2f", row.limit_value);
    std::snprintf(ratio, sizeof(ratio), "%.2f", row.ratio);
  }
  if (row.ratio_high > row.ratio_low)
    std::snprintf(spread, sizeof(spread), "%.2f to %.2f", row.ratio_low, row.ratio_high);
  std::printf("%-46s %7.2f %-4s %12s %7s %15s %10.1f %10.1f  %s\n", row.name.c_str(), row.value,
              row.unit.c_str(), limit, ratio, spread, row.p50_us, row.p99_us, row.destination.c_str());
  std::fflush(stdout);
}

void CopyFlag(CommandLine& line, BenchOptions& options) {
  line.Flag("--copy", "NAME",
            "the copy kernel of all rows and their nodes: avx512_lanes, avx512, avx2_vpclmulqdq, avx2, arm64 "
            "or portable, if this processor has it; default: the fastest, and each in turn for the copy rows",
            [&options](std::string_view name) {
              options.copy = name;
              return record::ChooseKernels(name);
            });
}

// Rows copy blocks of 2 MiB, and halves of what there are.
constexpr std::uint64_t kRowBytes = 2u << 20, kLeastWorkingSetBytes = 8 * kRowBytes;

void WorkingSetFlag(CommandLine& line, BenchOptions& options) {
  line.Flag("--working-set", "SIZE", "bytes of blocks for the get rows; default: 1GiB",
            [&options](std::string_view text) {
              const Result<std::uint64_t> bytes = ParseSize("--working-set", text);
              if (!bytes) return bytes.error();
              if (*bytes < kLeastWorkingSetBytes) {
                return Status(
                    Code::kInvalid,
                    Text("--working-set: ", SizeText(*bytes), " holds too few blocks of ",
                         SizeText(kRowBytes), ": expected ", SizeText(kLeastWorkingSetBytes), " or more"));
              }
              options.working_set_bytes = *bytes / kRowBytes * kRowBytes;
              return Status();
            });
}

// Rows of gets and of pages have a node that holds it.
Status CheckFits(const BenchOptions& options) {
  const Result<memory::HostMemory> host = memory::ReadHostMemory();
  if (!host) return host.error();
  const std::uint64_t node_bytes = options.working_set_bytes / 4 * 5;
  if (node_bytes <= host->limit_bytes) return Status();
  return Status(Code::kInvalid, Text("--working-set: ", SizeText(options.working_set_bytes), " take ",
                                     RoughSizeText(node_bytes), " of memory and this host has ",
                                     RoughSizeText(host->limit_bytes), ": give less"));
}

std::string GroupNames() {
  std::string names;
  for (const BenchGroup& group : BenchGroups()) names += (names.empty() ? "" : ", ") + group.name;
  return names;
}

int Conclude(const BenchOptions& options, boost::json::array rows, bool json) {
  BenchRow verified{.name = "wrong_bytes", .value = static_cast<double>(options.wrong_bytes), .unit = "B"};
  if (json) {
    rows.push_back(Json(verified));
    const boost::json::object report{{"copy", record::ChosenKernels().name}, {"rows", std::move(rows)}};
    std::printf("%s\n", boost::json::serialize(report).c_str());
  } else {
    std::printf("copied by %s; %s verified, wrong bytes: %llu\n", record::ChosenKernels().name,
                RoughSizeText(options.bytes_verified).c_str(),
                static_cast<unsigned long long>(options.wrong_bytes));
  }
  return options.wrong_bytes == 0 ? kExitOk : kExitFailed;
}

// "flash" is all whose names begin with it and a hyphen.
bool Chosen(std::string_view only, std::string_view name) {
  return only.empty() || name == only ||
         (name.starts_with(only) && name.substr(only.size()).starts_with('-'));
}

int MeasureAll(BenchOptions& options, const std::string& only, bool json) {
  const bool live = isatty(STDERR_FILENO) != 0;
  options.progress = [live](const std::string& text) {
    if (live) std::fprintf(stderr, "\r\033[Kmeasuring %s ...", text.c_str());
  };
  boost::json::array rows;
  std::uint64_t measured = 0;
  options.row = [&](const BenchRow& row) {
    ++measured;
    if (live) std::fputs("\r\033[K", stderr);
    if (json) {
      rows.push_back(Json(row));
    } else {
      Print(row);
    }
  };
  if (!json) PrintHeader();
  Status status;
  for (const BenchGroup& group : BenchGroups()) {
    if (!status.ok() || !Chosen(only, group.name)) continue;
    status = group.run(options);
  }
  if (!status.ok()) {
    if (measured > 0) Conclude(options, std::move(rows), json);
    return Complain("cistern bench", status);
  }
  if (measured == 0) {
    return Complain("cistern bench", Status(Code::kInvalid, Text("--only ", only,
                                                                 " measures a disk, and none is named: give "
                                                                 "--flash-dir with a directory on it")));
  }
  return Conclude(options, std::move(rows), json);
}

}  // namespace

int RunBench(int argc, const char* const* argv) {
  BenchOptions options;
  std::string only;
  bool json = false;
  CommandLine line(
      "cistern bench",
      "Measure a node against memcpy and a futex round trip of the same run. Starts nodes of its own. "
      "`cistern bench serve` measures an OpenAI-compatible endpoint instead; it has its own --help.",
      "  cistern bench\n  cistern bench --only get --rounds 21 --json\n  cistern bench --only flash "
      "--flash-dir /var/tmp\n  cistern bench serve --compare");
  line.Text("--only", "GROUP", GroupNames() + "; flash is all of flash-*, cell all of cell-*; default: all",
            &only);
  line.Count("--rounds", "interleaved rounds; default: 9", &options.rounds, 1, 1000);
  WorkingSetFlag(line, options);
  line.Count("--blocks", "blocks of the match and restart rows; default: 1000000", &options.million, 2000,
             100'000'000);
  CopyFlag(line, options);
  line.Text("--memory-dir", "DIR", "where the nodes' memory lies meanwhile; default: /dev/shm",
            &options.memory_dir);
  line.Text("--flash-dir", "DIR",
            "a directory on the disk that the flash rows measure (10 GiB of it); without it "
            "they are left out",
            &options.flash_dir);
  line.Switch("--json", "one JSON object on stdout", &json);
  if (auto exit = line.Parse(argc, argv)) return *exit;

  if (Status status = CheckFits(options); line.Given("--working-set") && !status.ok())
    return Complain("cistern bench", status);
  std::vector<std::string_view> known;
  for (const BenchGroup& group : BenchGroups()) known.push_back(group.name);
  if (std::ranges::none_of(known, [&only](std::string_view name) { return Chosen(only, name); })) {
    return Complain("cistern bench", Status(Code::kInvalid, UnknownName("group", only, known)));
  }
  options.daemon = DaemonBeside();
  const Result<int> code = InScratch(options, [&] { return MeasureAll(options, only, json); });
  return code ? *code : Complain("cistern bench", code.error());
}

}  // namespace cistern
