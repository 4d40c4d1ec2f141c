// SPDX-License-Identifier: Apache-2.0
#include "cell_blocks.h"

#include <deque>

#include "base/format.h"
#include "local_cell.h"
#include "workload/content.h"

namespace cistern {

namespace {
constexpr std::uint64_t kChainBytes = 8u << 20;
constexpr std::int64_t kDeadlineUs = 30'000'000;
}  // namespace

Result<FilledBlocks> BlocksAtPeer(Store& from, Store& to, std::uint64_t piece_bytes,
                                  std::uint64_t block_bytes, std::uint64_t* next_number) {
  const std::size_t chain = std::max<std::size_t>(1, kChainBytes / block_bytes);
  const std::size_t count = std::max<std::size_t>(1, piece_bytes / kChainBytes) * chain;
  Result<FilledBlocks> blocks = Fill(from, count, block_bytes, chain, nullptr, *next_number);
  if (!blocks) return blocks;
  *next_number += count;
  Result<Namespace> ns = to.Attach(BenchNamespace(block_bytes));
  if (!ns) return Error(ns.error());
  blocks->ns = *ns;
  for (std::size_t first = 0; first < count; first += chain) {
    const std::span<const BlockKey> keys = std::span(blocks->keys).subspan(first, chain);
    if (Status found = AwaitFound(to, *ns, keys); !found.ok()) return Error(found);
  }
  return blocks;
}

Result<double> AcquireAll(Store& store, const FilledBlocks& blocks, std::span<const BlockKey> keys,
                          std::size_t at_once, std::size_t calls, Samples* series) {
  struct Asked {
    Ticket<Lease> ticket;
    Stopwatch watch;
  };
  std::deque<Asked> asked;
  const Stopwatch watch;
  for (std::size_t next = 0; next < keys.size() || !asked.empty();) {
    while (next < keys.size() && asked.size() < calls) {
      std::vector<BlockRef> refs;
      for (; next < keys.size() && refs.size() < at_once; ++next) refs.push_back({.key = keys[next]});
      const Stopwatch began;
      asked.push_back({store.Acquire(blocks.ns, refs, {.deadline_us = kDeadlineUs}), began});
    }
    Asked one = std::move(asked.front());
    asked.pop_front();
    Result<Lease> lease = one.ticket.Wait();
    if (!lease) return Error(std::move(lease.error()));
    for (const View& view : lease->views()) {
      if (view.data == nullptr) return Error(view.code, "a block of the bench did not come from its peer");
    }
    if (series != nullptr) series->call_us.push_back(static_cast<double>(one.watch.Ns()) / 1e3);
  }
  return static_cast<double>(keys.size() * blocks.block_bytes) / static_cast<double>(watch.Ns());
}

Status Verify(BenchOptions& options, Store& store, const FilledBlocks& blocks, std::size_t step) {
  for (std::size_t i = 0; i < blocks.keys.size(); i += step) {
    // It may have left memory, and a busy host's peer answers late.
    if (Status found = AwaitFound(store, blocks.ns, std::span(&blocks.keys[i], 1)); !found.ok()) return found;
    const BlockRef ref{.key = blocks.keys[i]};
    Result<Lease> lease = store.Acquire(blocks.ns, std::span(&ref, 1), {.deadline_us = kDeadlineUs}).Wait();
    if (!lease) return lease.error();
    const View& view = lease->views()[0];
    options.wrong_bytes += workload::CountWrongBytes(blocks.keys[i], {view.data, view.bytes});
    options.bytes_verified += view.bytes;
  }
  return Status();
}

}  // namespace cistern
