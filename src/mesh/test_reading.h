// SPDX-License-Identifier: Apache-2.0
// Nodes of which one has blocks and another reads them: for tests.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "mesh/test_mesh.h"

namespace cistern::mesh {

class ReadingTest : public MeshTest {
 protected:
  static constexpr std::int64_t kSecond = 1'000'000;
  static constexpr std::uint64_t kWindowBytes = 2u << 20;  // of room for what lands, where it is to be scarce

  // Node `i` has blocks 1 to `last`, and the others have heard of it.
  void PutAndTell(std::size_t i, std::uint64_t last, std::size_t bytes = 4096) {
    PutChain(i, 1, last, bytes);
    ASSERT_TRUE(Told(i));
  }
  bool Told(std::size_t i) {
    return RunUntil([&] {
      for (std::size_t j = 0; j < nodes.size(); ++j) {
        if (j != i && node(j).streams->SamplesOf(node(i).process_number) != node(i).feed->samples())
          return false;
      }
      return true;
    });
  }
  // Blocks 1 to `last` from wherever the index says; how many came.
  std::size_t FindAndRead(std::size_t i, std::uint64_t last, std::size_t local = 0) {
    const PeerMatch match = Find(i, 1, last, local);
    if (match.run == nullptr) return 0;
    return Read(i, match).value_or(0);
  }
  Task<void> ReadInto(Executor&, std::size_t i, std::shared_ptr<const PeerRun> run, Instant deadline,
                      Result<std::size_t>* outcome, int* ended) {
    *outcome = co_await node(i).reader->Read(run, run->first, run->count, 0, deadline);
    ++*ended;
  }
  // Of node 1: block 1 at node 0 and block 2 at node 2. What is on its way of the one leaves no room for the
  // other.
  void FindTwoThatFitOneByOne(PeerMatch* one, PeerMatch* other) {
    constexpr std::uint64_t kBlock = 2u << 20;
    StartNodes(3, Blocks(), {.headers = 2});
    node(1).reader->SetMemory(PeerReadLimits::kMemoryShare * kWindowBytes);
    Put(0, 1, std::nullopt, kBlock);
    Put(2, 2, std::nullopt, kBlock);
    ASSERT_TRUE(Told(0) && Told(2));
    *one = Find(1, 1, 1);
    *other = Find(1, 2, 2);
    ASSERT_TRUE(one->run != nullptr && other->run != nullptr);
  }
  // Reads of node 1, the second begun while node 0 holds back what it answers to the first.
  struct TwoReads {
    TwoReads(ReadingTest& with, const PeerMatch& first, const PeerMatch& second)
        : test(with), readers(with.executor()) {
      test.node(0).before_find = [this](Executor&) -> Task<void> { co_await goes_on.Wait(); };
      for (const PeerMatch* match : {&first, &second}) {
        Result<std::size_t>& outcome = outcomes[match == &first ? 0 : 1];
        readers.Spawn(
            test.ReadInto(test.executor(), 1, match->run, test.After(5 * kSecond), &outcome, &ended));
        test.RunFor(1'000);
      }
    }
    void End() {
      goes_on.Set();
      ASSERT_TRUE(test.RunUntil([this] { return ended == 2; }));
      test.loop->BlockOn(readers.Close());
    }

    ReadingTest& test;
    Event goes_on;
    std::vector<Result<std::size_t>> outcomes = std::vector<Result<std::size_t>>(2, Result<std::size_t>(0));
    int ended = 0;
    TaskGroup readers;
  };
};

}  // namespace cistern::mesh
