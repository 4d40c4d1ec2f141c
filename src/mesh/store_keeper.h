// SPDX-License-Identifier: Apache-2.0
// The core's part of serving blocks: those of the lower tier are acquired as a client's are. Rails on threads
// of their own reach it by a post to the core's.
#pragma once

#include "mesh/block_server.h"
#include "store/block_store.h"

namespace cistern::mesh {

class StoreKeeper final : public MemoryKeeper {
 public:
  static constexpr std::int64_t kLeaseUs = 10'000'000;  // of a block between its fetch and its sending

  // Borrowed. The caller's leases are those of what is being sent.
  StoreKeeper(Executor& executor, store::BlockStore& store, const catalog::Caller& caller)
      : executor_(executor), store_(store), caller_(caller) {}
  StoreKeeper(const StoreKeeper&) = delete;
  StoreKeeper& operator=(const StoreKeeper&) = delete;

  Executor& executor() { return executor_; }

  Task<Result<std::uint64_t>> Bring(ServedNamespace ns, catalog::BlockName block, Instant deadline,
                                    std::int64_t worth_us) override {
    if (Status there = store_.CheckNamespace(ns.slot, ns.incarnation); !there.ok())
      co_return std::unexpected(std::move(there));
    auto grant =
        co_await store_.Acquire(caller_, ns.slot, std::span(&block, 1), kLeaseUs, deadline, worth_us);
    if (!grant) co_return std::unexpected(std::move(grant.error()));
    if (grant->lease == 0) co_return Error(grant->views[0].code, "it was not brought into memory");
    co_return grant->lease;
  }
  Task<std::optional<std::vector<std::uint64_t>>> NotesOf(ServedNamespace ns, BlockKey key) override {
    if (!store_.CheckNamespace(ns.slot, ns.incarnation).ok()) co_return std::nullopt;
    store::SourcePuts& puts = store_.source_puts();
    auto notes = puts.NotesOf(ns.slot, key);
    if (notes) co_return notes;
    // What an end takes loses its note before it goes, and is of nobody whom its stamp names.
    co_await puts.AwaitEnds(ns.slot);
    if (!store_.CheckNamespace(ns.slot, ns.incarnation).ok()) co_return std::nullopt;
    co_return puts.NotesOf(ns.slot, key);
  }
  void LetGo(std::uint64_t kept) override { (void)store_.Release(caller_, kept); }

 private:
  Executor& executor_;
  store::BlockStore& store_;
  const catalog::Caller caller_;
};

}  // namespace cistern::mesh
