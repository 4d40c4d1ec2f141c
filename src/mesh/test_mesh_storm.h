// SPDX-License-Identifier: Apache-2.0
// Storms over nodes with real stores: a tree of blocks, clients that put and read paths of it, drops that
// each node sees and applies in its own time, and what has to hold of all that is readable. For tests.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "mesh/test_mesh.h"

namespace cistern::mesh {

class MeshStorm : public MeshTest, public ::testing::WithParamInterface<int> {
 protected:
  static constexpr std::uint64_t kBlocks = 96;  // a tree: the parent of n is n / 2
  static constexpr std::size_t kNodes = 3;

  struct DropOf {
    CellDrop drop;
    std::set<std::uint64_t> blocks;
    std::uint64_t issued = 0;  // as puts are counted
    std::size_t applied = 0;   // nodes
  };

  static std::vector<std::uint64_t> PathTo(std::uint64_t n) {
    std::vector<std::uint64_t> path;
    for (; n > 0; n /= 2) path.push_back(n);
    std::ranges::reverse(path);
    return path;
  }
  std::int64_t Random(std::int64_t below) {
    return static_cast<std::int64_t>(random_.Below(static_cast<std::uint64_t>(below)));
  }

  // The path down to a block, as an engine writes what it has computed.
  Task<void> PutPath(Executor&, std::size_t i, std::uint64_t last) {
    const catalog::Caller caller{1, {std::byte{1}}};
    std::vector<store::PartWrite> parts;
    std::vector<std::vector<std::byte>> bodies;
    const std::vector<std::uint64_t> path = PathTo(last);
    bodies.reserve(path.size());
    // What is left of one second, in whole ones, is nothing: it is read by nobody else.
    const auto ttl_s = static_cast<std::uint32_t>(random_.Chance(0.1) ? random_.Between(1, 4) : 0);
    const Instant begun = After(100'000);  // by then, if at all
    for (const std::uint64_t n : path) {
      bodies.push_back(store::Body(n, BytesOf(n)));
      store::PartWrite& part = parts.emplace_back();
      part.key = store::Key(n);
      if (n > 1) part.parent = store::Key(n / 2);
      part.put_id = {77, ++put_count_};
      part.from = bodies.back();
      if (n == last) part.ttl_s = ttl_s;
      if (part.ttl_s > 0) ends_[put_count_] = SecondOf(begun) + ttl_s;
    }
    (void)co_await node(i).store->Write(caller, slot, std::move(parts), begun);
  }
  // Reads of others what is not here.
  Task<void> FindAndRead(Executor&, std::size_t i, std::uint64_t last, std::int64_t us) {
    std::vector<BlockKey> chain;
    std::size_t local = 0;
    bool here = true;
    for (const std::uint64_t n : PathTo(last)) {
      chain.push_back(store::Key(n));
      here = here && Here(i, n);
      local += here ? 1 : 0;
    }
    const Instant deadline = After(us);
    const PeerMatch match = co_await node(i).finder->Find(slot, chain, local, deadline);
    late_ += clock.Now().UsSince(deadline) > 0 ? 1 : 0;
    if (match.run == nullptr) co_return;
    const auto read =
        co_await node(i).reader->Read(match.run, match.run->first, match.run->count, 0, deadline);
    late_ += clock.Now().UsSince(deadline) > 0 ? 1 : 0;
    taken_ += read.value_or(0);
    if (!read && read.error().code() == Code::kMiss) ++refused_;
  }
  // A node sees the cell's drops one after the other, and applies each a while after it has seen it.
  Task<void> FollowDrops(Executor&, std::size_t i) {
    for (std::size_t next = 0;; ++next) {
      while (next >= issued_.size()) co_await drop_issued_.Wait();
      co_await Pass(Random(6'000));
      DropOf& drop = issued_[next];
      node(i).rule.list.Add(static_cast<std::int64_t>(next + 1), drop.drop);
      (void)co_await node(i).store->Drop(slot, drop.drop.keys);
      co_await Pass(Random(3'000));
      node(i).rule.applied = static_cast<std::int64_t>(next + 1);
      ++drop.applied;
    }
  }
  void IssueDrop(std::uint64_t top) {
    DropOf drop{.drop = {.what = CellDrop::What::kKeys,
                         .name = *node(0).names->NameAt(slot),
                         .keys = {store::Key(top)}},
                .issued = put_count_};
    for (std::uint64_t n = top; n < kBlocks; ++n) {
      const std::vector<std::uint64_t> path = PathTo(n);
      if (std::ranges::find(path, top) != path.end()) drop.blocks.insert(n);
    }
    issued_.push_back(std::move(drop));
    drop_issued_.Pulse();
  }
  // Everything readable anywhere is exact, and from behind each drop that all have applied; its time has not
  // passed, and what it stands on is there, in memory or below.
  void Check() {
    for (std::size_t i = 0; i < kNodes; ++i) {
      for (std::uint64_t n = 1; n < kBlocks; ++n) {
        const auto body = node(i).ReadBody(slot, store::Key(n));
        if (!body) continue;
        ++checked_;
        ASSERT_EQ(*body, store::Body(n, BytesOf(n))) << "node " << i << " block " << n;
        const std::uint64_t put = node(i).last_put_id.low;
        const auto end = ends_.find(put);
        ASSERT_TRUE(end == ends_.end() || SecondOf(clock.Now()) < end->second)
            << "node " << i << " block " << n << ": its time to live has passed";
        ASSERT_TRUE(n == 1 || node(i).store->LookAt(slot, store::Key(n / 2))->here)
            << "node " << i << " block " << n << ": without its parent";
        for (const DropOf& drop : issued_) {
          if (drop.applied < kNodes || !drop.blocks.contains(n)) continue;
          ASSERT_GT(put, drop.issued) << "node " << i << " block " << n << ": a drop came undone";
        }
      }
    }
  }
  static std::int64_t SecondOf(Instant at) { return at.ns / 1'000'000'000; }
  static std::size_t BytesOf(std::uint64_t n) { return n % 7 == 0 ? 150'000 : 3'000 + n; }

  cistern::Random random_{static_cast<std::uint64_t>(GetParam())};
  std::deque<DropOf> issued_;
  std::map<std::uint64_t, std::int64_t> ends_;  // by put: the second in which it is readable no more
  Event drop_issued_;
  std::uint64_t put_count_ = 0, taken_ = 0, refused_ = 0, checked_ = 0, late_ = 0;
};

}  // namespace cistern::mesh
