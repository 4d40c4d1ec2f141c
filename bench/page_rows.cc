// SPDX-License-Identifier: Apache-2.0
// Blocks to and from an engine's pages, scattered over a tensor a layer, against libc memcpy of the same
// bytes between the same places.
#include <cstring>
#include <memory>
#include <numeric>

#include "base/format.h"
#include "base/units.h"
#include "bench_node.h"
#include "fill.h"
#include "measure.h"
#include "transfer/transfers.h"
#include "workload/content.h"

namespace cistern {
namespace {

constexpr std::size_t kFragments = 32;  // layers of an 8B model
constexpr std::uint64_t kFragmentBytes = 64u << 10;
constexpr std::uint64_t kBlockBytes = kFragments * kFragmentBytes;
constexpr std::size_t kBlocksATransfer = 64;  // 128 MiB, as a prompt of 4,096 tokens may be
constexpr std::int64_t kForeverUs = 60'000'000;

class PageBench {
 public:
  PageBench(BenchOptions& options, Store store, FilledBlocks blocks)
      : options_(options),
        store_(std::make_shared<Store>(std::move(store))),
        blocks_(std::move(blocks)),
        pool_(blocks_.keys.size() * kBlockBytes),
        order_(blocks_.keys.size()),
        page_order_(blocks_.keys.size()) {
    std::iota(order_.begin(), order_.end(), 0u);
    std::iota(page_order_.begin(), page_order_.end(), 0u);
  }

  Status Begin() {
    std::vector<transfer::Fragment> fragments;
    for (std::size_t i = 0; i < kFragments; ++i)
      fragments.push_back(
          {pool_.data() + i * kFragmentBytes * order_.size(), kFragmentBytes, kFragmentBytes});
    Result<transfer::Pages> pages = transfer::Pages::Make({.fragments = fragments, .pages = order_.size()});
    if (!pages) return pages.error();
    pages_ = std::make_shared<const transfer::Pages>(std::move(*pages));
    Result<std::unique_ptr<transfer::Transfers>> transfers = transfer::Transfers::Make(store_, {});
    if (!transfers) return transfers.error();
    transfers_ = std::move(*transfers);
    return Status();
  }

  Status MeasureLoads() {
    options_.progress("load_pages_32x64KiB");
    Samples ours, theirs;
    for (std::uint64_t round = 0; round < options_.rounds + 1; ++round) {
      Shuffle(order_, random_);
      Shuffle(page_order_, random_);
      Result<Lease> lease = LeaseAll(*store_, blocks_);
      if (!lease) return lease.error();
      Samples dropped;  // the first round warms page tables and caches
      if (round % 2 == 0) CopyAll(lease->views(), round == 0 ? dropped : theirs);
      if (Status status = LoadAll(round == 0 ? dropped : ours); !status.ok()) return status;
      if (round % 2 == 1) CopyAll(lease->views(), theirs);
    }
    options_.row(RateRow("load_pages_32x64KiB", "memcpy", ours, theirs));
    return Status();
  }

  // Each round writes blocks of its own, which the next round drops.
  Status MeasureSaves() {
    options_.progress("save_pages_32x64KiB");
    Samples ours, theirs;
    Buffer to(order_.size() / 2 * kBlockBytes);
    for (std::uint64_t round = 0; round < options_.rounds + 1; ++round) {
      Shuffle(page_order_, random_);
      if (Result<std::uint64_t> dropped = store_->DropNamespace(blocks_.ns).Wait(); !dropped)
        return dropped.error();
      Samples dropped;
      if (round % 2 == 0) GatherAll(to.data(), round == 0 ? dropped : theirs);
      if (Status status = SaveAll(round == 0 ? dropped : ours); !status.ok()) return status;
      if (round % 2 == 1) GatherAll(to.data(), theirs);
    }
    options_.row(RateRow("save_pages_32x64KiB", "memcpy", ours, theirs));
    return Status();
  }

  // Not timed: every page once more, into a pool without any of it, against what its key must hold.
  Status Verify() {
    std::memset(pool_.data(), 0, pool_.size());
    Samples dropped;
    if (Status status = LoadAll(dropped); !status.ok()) return status;
    std::vector<std::byte> body(kBlockBytes);
    for (std::size_t i = 0; i < order_.size(); ++i) {
      Each(page_order_[i], [&](std::byte* page, std::size_t offset) {
        std::memcpy(body.data() + offset, page, kFragmentBytes);
      });
      options_.wrong_bytes += workload::CountWrongBytes(blocks_.keys[order_[i]], body);
      options_.bytes_verified += kBlockBytes;
    }
    return Status();
  }

 private:
  template <class Call>
  void Each(std::uint32_t page, Call call) const {
    std::array<std::span<std::byte>, kFragments> pieces;
    pages_->PiecesOf(page, pieces);
    for (std::size_t i = 0; i < kFragments; ++i) call(pieces[i].data(), i * kFragmentBytes);
  }

  // `blocks` in transfers of kBlocksATransfer, each timed.
  template <class Call>
  Status Round(Samples& series, std::size_t blocks, Call call) {
    Stopwatch round;
    for (std::size_t first = 0; first < blocks; first += kBlocksATransfer) {
      Stopwatch one;
      if (Status status = call(first, std::min(kBlocksATransfer, blocks - first)); !status.ok())
        return status;
      series.call_us.push_back(static_cast<double>(one.Ns()) / 1e3);
    }
    series.rounds.push_back(static_cast<double>(blocks * kBlockBytes) / static_cast<double>(round.Ns()));
    return Status();
  }

  void CopyAll(std::span<const View> views, Samples& series) {
    static_cast<void>(Round(series, order_.size(), [&](std::size_t first, std::size_t count) {
      for (std::size_t i = first; i < first + count; ++i) {
        Each(page_order_[i], [&](std::byte* page, std::size_t offset) {
          std::memcpy(page, views[order_[i]].data + offset, kFragmentBytes);
        });
      }
      return Status();
    }));
  }

  void GatherAll(std::byte* to, Samples& series) {
    static_cast<void>(Round(series, order_.size() / 2, [&](std::size_t first, std::size_t count) {
      for (std::size_t i = first; i < first + count; ++i) {
        Each(page_order_[i], [&](const std::byte* page, std::size_t offset) {
          std::memcpy(to + i * kBlockBytes + offset, page, kFragmentBytes);
        });
      }
      return Status();
    }));
  }

  template <class Kind>
  Kind MoveOf(std::size_t first, std::size_t count) const {
    Kind move;
    move.ns = blocks_.ns;
    auto keys = std::make_shared<std::vector<BlockKey>>();
    for (std::size_t i = first; i < first + count; ++i) {
      keys->push_back(blocks_.keys[order_[i]]);
      move.page_ids.push_back(page_order_[i]);
    }
    move.keys = std::move(keys);
    move.pages = pages_;
    move.deadline_us = kForeverUs;
    return move;
  }

  template <class Kind>
  Status Finish(Kind move) {
    const std::size_t blocks = move.keys->size();
    Result<std::uint64_t> id = transfers_->Submit(std::move(move));
    if (!id) return id.error();
    std::vector<transfer::TransferDone> done = transfers_->Wait(kForeverUs);
    if (done.size() != 1 || done[0].moved_bytes != blocks * kBlockBytes)
      return Status(Code::kMiss,
                    Text("a transfer of the bench is not whole: ", done.empty() ? "" : done[0].message));
    return Status();
  }

  Status LoadAll(Samples& series) {
    return Round(series, order_.size(), [&](std::size_t first, std::size_t count) {
      return Finish(MoveOf<transfer::PageLoad>(first, count));
    });
  }
  Status SaveAll(Samples& series) {
    return Round(series, order_.size() / 2, [&](std::size_t first, std::size_t count) {
      transfer::PageSave save = MoveOf<transfer::PageSave>(first, count);
      save.parents.resize(count);
      return Finish(std::move(save));
    });
  }

  BenchOptions& options_;
  std::shared_ptr<Store> store_;
  FilledBlocks blocks_;
  Buffer pool_;
  std::vector<std::uint32_t> order_, page_order_;
  std::shared_ptr<const transfer::Pages> pages_;
  std::unique_ptr<transfer::Transfers> transfers_;
  Random random_{11};
};

}  // namespace

Status BenchPages(BenchOptions& options) {
  Result<Daemon> daemon =
      StartNode(options, {"--memory", SizeText(options.working_set_bytes / 4 * 5 + (256u << 20))});
  if (!daemon) return daemon.error();
  Result<Store> store = daemon->Connect();
  if (!store) return store.error();
  Result<FilledBlocks> blocks = Fill(*store, options.working_set_bytes / kBlockBytes, kBlockBytes);
  if (!blocks) return blocks.error();
  PageBench bench(options, std::move(*store), std::move(*blocks));
  Status status = bench.Begin();
  if (status.ok()) status = bench.MeasureLoads();
  if (status.ok()) status = bench.Verify();
  return status.ok() ? bench.MeasureSaves() : status;
}

}  // namespace cistern
