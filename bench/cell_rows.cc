// SPDX-License-Identifier: Apache-2.0
// Nodes of a cell on this host: blocks from a peer's memory against the line, matches, and drops.
#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>

#include "base/format.h"
#include "base/units.h"
#include "bench_node.h"
#include "cell_blocks.h"
#include "line.h"
#include "local_cell.h"
#include "workload/content.h"

namespace cistern {
namespace {

constexpr std::size_t kReaders = 4;
constexpr std::size_t kCallsUnderWay = 6;
constexpr std::size_t kMatched = 1000;
constexpr std::uint64_t kSmallBytes = 4096;

Result<std::unique_ptr<LocalCell>> CellOf(BenchOptions& options, std::size_t nodes,
                                          std::uint64_t memory_bytes, bool sealed = false) {
  auto cell = LocalCell::Start(options.daemon, options.memory_dir, sealed);
  if (!cell) return cell;
  for (std::size_t i = 0; i < nodes; ++i) {
    Status added = (*cell)->Add({"--memory", SizeText(memory_bytes)});
    if (!added.ok()) return Error(added);
  }
  if (Status together = (*cell)->ComeTogether(); !together.ok()) return Error(together);
  return cell;
}

// ---- reads

struct ReadRow {
  const char* name;
  LocalCell& cell;
  std::uint64_t block_bytes;
  std::size_t at_once;
  Samples series = {};
};

// For the next piece: what nobody has read yet leaves before what was read, so a new one would go.
Status MakeRoom(LocalCell& cell, const FilledBlocks& blocks) {
  const Result<std::uint64_t> dropped = cell[1].store.Drop(blocks.ns, blocks.keys).Wait();
  return dropped ? Status() : dropped.error();
}

Status ReadRound(BenchOptions& options, ReadRow& row, std::uint64_t* next_number) {
  auto blocks = BlocksAtPeer(row.cell[0].store, row.cell[1].store, CellSizes(options).piece_bytes,
                             row.block_bytes, next_number);
  if (!blocks) return blocks.error();
  auto rate = AcquireAll(row.cell[1].store, *blocks, blocks->keys, row.at_once, kCallsUnderWay, &row.series);
  if (!rate) return rate.error();
  row.series.rounds.push_back(*rate);
  if (Status status = Verify(options, row.cell[1].store, *blocks, 8); !status.ok()) return status;
  return MakeRoom(row.cell, *blocks);
}

// Each of the readers is a client of its own and reads its share, one block at a time.
Status ReadersRound(BenchOptions& options, LocalCell& cell, Samples& series, std::uint64_t* next_number) {
  auto blocks =
      BlocksAtPeer(cell[0].store, cell[1].store, CellSizes(options).piece_bytes, 2u << 20, next_number);
  if (!blocks) return blocks.error();
  struct Reader {
    Store store;
    FilledBlocks own;  // the blocks, under a namespace of its own session
    Samples series = {};
    Status status = {};
  };
  std::vector<Reader> readers;
  for (std::size_t i = 0; i < kReaders; ++i) {
    Result<Store> store = cell[1].daemon.Connect();
    if (!store) return store.error();
    Result<Namespace> ns = store->Attach(BenchNamespace(blocks->block_bytes));
    if (!ns) return ns.error();
    readers.push_back({std::move(*store), {.ns = *ns, .keys = {}, .block_bytes = blocks->block_bytes}});
  }
  for (std::size_t i = 0; i < blocks->keys.size(); ++i)
    readers[i % kReaders].own.keys.push_back(blocks->keys[i]);
  std::vector<std::thread> threads;
  for (Reader& reader : readers) {
    threads.emplace_back([&reader] {
      auto rate = AcquireAll(reader.store, reader.own, reader.own.keys, 1, 1, &reader.series);
      if (!rate) reader.status = rate.error();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (Reader& reader : readers) {
    if (!reader.status.ok()) return reader.status;
    series.call_us.insert(series.call_us.end(), reader.series.call_us.begin(), reader.series.call_us.end());
  }
  if (Status status = Verify(options, cell[1].store, *blocks, 8); !status.ok()) return status;
  return MakeRoom(cell, *blocks);
}

// ---- matches

// Keys that no node has.
std::vector<BlockKey> UnknownChain(std::uint64_t number) {
  std::vector<BlockKey> keys;
  for (std::size_t i = 0; i < kMatched; ++i)
    keys.push_back(workload::WorkloadKey((1ull << 40) + number * kMatched + i, kSmallBytes));
  return keys;
}

Status MatchOnce(Store& store, const Namespace& ns, std::span<const BlockKey> chain, std::size_t blocks,
                 Samples& series) {
  const Stopwatch watch;
  Result<MatchResult> match = store.Match(ns, chain).Wait();
  series.call_us.push_back(static_cast<double>(watch.Ns()) / 1e3);
  if (!match) return match.error();
  // A member that is asked while the host is busy may not answer within the 40 ms that a match waits.
  if (match->blocks != blocks) series.call_us.back() = 40'000;
  return Status();
}

Status MatchRounds(BenchOptions& options, LocalCell& cell, Store& alone) {
  constexpr std::size_t kCalls = 200, kIdleCalls = 20;
  std::uint64_t next = 0;
  auto blocks = Fill(cell[0].store, kMatched, kSmallBytes, kMatched);
  if (!blocks) return blocks.error();
  Store& member = cell[1].store;
  auto ns = member.Attach(BenchNamespace(kSmallBytes));
  if (!ns) return ns.error();
  auto alone_ns = alone.Attach(BenchNamespace(kSmallBytes));
  if (!alone_ns) return alone_ns.error();
  if (Status found = AwaitFound(member, *ns, blocks->keys); !found.ok()) return found;
  Samples unknown, unknown_alone, held, idle;
  const auto unknowns = [&](Store& store, const Namespace& of, Samples& series) -> Status {
    for (std::size_t i = 0; i < kCalls; ++i) {
      const std::vector<BlockKey> chain = UnknownChain(next++);
      if (Status status = MatchOnce(store, of, chain, 0, series); !status.ok()) return status;
    }
    return Status();
  };
  for (std::uint64_t round = 0; round < options.rounds; ++round) {
    options.progress(Text("cell_match_*, round ", round + 1, " of ", options.rounds));
    if (Status status = unknowns(member, *ns, unknown); !status.ok()) return status;
    if (Status status = unknowns(alone, *alone_ns, unknown_alone); !status.ok()) return status;
    for (std::size_t i = 0; i < kCalls; ++i) {
      Status status = MatchOnce(member, *ns, blocks->keys, kMatched, held);
      if (!status.ok()) return status;
    }
    for (std::size_t i = 0; i < kIdleCalls; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      Status status = MatchOnce(member, *ns, blocks->keys, kMatched, idle);
      if (!status.ok()) return status;
    }
  }
  options.row(TimeRow("cell_match_1000_unknown", "the same without a cell", unknown, unknown_alone));
  options.row(TimeRow("cell_match_1000_of_a_peer", "", held, {}));
  options.row(TimeRow("cell_match_1000_of_a_peer_after_10ms_idle", "", idle, {}));
  return Status();
}

// ---- drops

Result<double> DropUs(Store& store, const Namespace& ns, std::span<const BlockKey> keys) {
  const Stopwatch watch;
  const Result<std::uint64_t> dropped = store.Drop(ns, keys, 60'000'000).Wait();
  const double us = static_cast<double>(watch.Ns()) / 1e3;
  if (!dropped) return Error(dropped.error());
  if (*dropped != keys.size())
    return Error(Code::kMiss, Text(*dropped, " of ", keys.size(), " blocks were dropped"));
  return us;
}

}  // namespace

Status BenchCellReads(BenchOptions& options) {
  if (!HasEtcd(options, "cell_read")) return Status();
  const std::uint64_t memory = CellSizes(options).memory_bytes();
  auto clear = CellOf(options, 2, memory), sealed = CellOf(options, 2, memory, true);
  if (!clear) return clear.error();
  if (!sealed) return sealed.error();
  std::array<ReadRow, 4> rows = {{{"cell_read_8x64KiB", **clear, 64u << 10, 8},
                                  {"cell_read_2MiB", **clear, 2u << 20, 1},
                                  {"cell_read_8x64KiB_sealed", **sealed, 64u << 10, 8},
                                  {"cell_read_2MiB_sealed", **sealed, 2u << 20, 1}}};
  Samples line, bare, readers;
  BareLine bare_line;
  std::uint64_t next_number = 0;
  const bool has_line = HasLine();
  // The first piece opens rails and touches memory.
  for (ReadRow& row : rows) {
    if (Status status = ReadRound(options, row, &next_number); !status.ok()) return status;
    row.series = {};
  }
  for (std::uint64_t round = 0; round < options.rounds; ++round) {
    options.progress(Text("cell_read_*, round ", round + 1, " of ", options.rounds));
    if (has_line) {
      Result<double> rate = LineRate(3 * options.working_set_bytes);
      if (!rate) return rate.error();
      line.rounds.push_back(*rate);
    }
    Result<double> bare_rate = bare_line.Rate(options.working_set_bytes);
    if (!bare_rate) return bare_rate.error();
    bare.rounds.push_back(*bare_rate);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      ReadRow& row = rows[(i + round) % rows.size()];
      if (Status status = ReadRound(options, row, &next_number); !status.ok()) return status;
    }
    Status status = ReadersRound(options, **clear, readers, &next_number);
    if (!status.ok()) return status;
  }
  options.row(RateRow("bare_8x64KiB", LineName(), bare, line));
  for (const ReadRow& row : rows) options.row(RateRow(row.name, LineName(), row.series, line));
  BenchRow late = TimeRow("cell_read_2MiB_p99_of_four_readers", "their median", readers, {});
  late.limit_value = late.p50_us;
  late.value = late.p99_us;
  late.ratio = late.ratio_low = late.ratio_high = late.p50_us > 0 ? late.p99_us / late.p50_us : 0;
  options.row(late);
  return Status();
}

Status BenchCellMatches(BenchOptions& options) {
  if (!HasEtcd(options, "cell_match")) return Status();
  auto cell = CellOf(options, 2, 256u << 20);
  if (!cell) return cell.error();
  auto alone = StartNode(options, {"--memory", "256MiB"});
  if (!alone) return alone.error();
  Result<Store> store = alone->Connect();
  if (!store) return store.error();
  return MatchRounds(options, **cell, *store);
}

Status BenchCellDrops(BenchOptions& options) {
  if (!HasEtcd(options, "cell_drop")) return Status();
  constexpr std::size_t kMembers = 5, kSingle = 20;
  const std::size_t many = std::min<std::uint64_t>(options.million, 10'000);
  auto cell = CellOf(options, kMembers, 256u << 20);
  if (!cell) return cell.error();
  Store& store = (**cell)[0].store;
  Samples one, all;
  std::uint64_t next = 0;
  for (std::uint64_t round = 0; round < options.rounds; ++round) {
    options.progress(Text("cell_drop_*, round ", round + 1, " of ", options.rounds));
    auto blocks = Fill(store, kSingle + many, kSmallBytes, 1, nullptr, next);
    if (!blocks) return blocks.error();
    next += kSingle + many;
    const std::span<const BlockKey> keys = blocks->keys;
    for (std::size_t i = 0; i < kSingle; ++i) {
      Result<double> us = DropUs(store, blocks->ns, keys.subspan(i, 1));
      if (!us) return us.error();
      one.call_us.push_back(*us);
    }
    Result<double> us = DropUs(store, blocks->ns, keys.subspan(kSingle));
    if (!us) return us.error();
    all.call_us.push_back(*us);
  }
  options.row(TimeRow("cell_drop_acknowledged_by_5", "", one, {}));
  options.row(TimeRow(Text("cell_drop_", many, "_keys_by_5"), "", all, {}));
  return Status();
}

}  // namespace cistern
