// SPDX-License-Identifier: Apache-2.0
// Drops, reads of other nodes, hand-over and kills in a cell of real processes.
#include "cell_nodes.h"

#include <gmock/gmock.h>

#include "base/release.h"
#include "net/test_authority.h"

namespace cistern {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

TEST_F(CellNodes, DropByAClientOfOneReachesAllAndStaysOverTheKillOfOneThatWasAway) {
  StartThree();
  for (CellNode& node : nodes_) {
    Put(node, 1);
    Put(node, 2, 1);
    Put(node, 3);
  }
  const Result<std::uint64_t> dropped = Drop(nodes_[0], 1);
  ASSERT_TRUE(dropped.has_value()) << dropped.error().ToString();
  EXPECT_EQ(*dropped, 2u) << "of this node";
  for (CellNode& node : nodes_) {
    EXPECT_FALSE(Has(node, 1) || Has(node, 2));
    EXPECT_TRUE(Has(node, 3));
  }

  // While one is away: its membership stands for some seconds more, so this is not acknowledged; but where
  // the host stands still for as long.
  nodes_[2].daemon->Kill();
  const Result<std::uint64_t> late = Drop(nodes_[1], 3, 3 * kSecond);
  if (!late.has_value()) {
    EXPECT_EQ(late.error().code(), Code::kTooLate) << late.error().ToString();
  }
  Until([&] { return !Has(nodes_[0], 3) && !Has(nodes_[1], 3); });
  ASSERT_TRUE(nodes_[2].daemon->Exec().ok());
  Connect(nodes_[2]);
  ComeTogether();
  EXPECT_FALSE(Has(nodes_[2], 1) || Has(nodes_[2], 2) || Has(nodes_[2], 3));

  // And again, when it had all of it applied.
  nodes_[2].daemon->Kill();
  ASSERT_TRUE(nodes_[2].daemon->Exec().ok());
  Connect(nodes_[2]);
  EXPECT_FALSE(Has(nodes_[2], 1) || Has(nodes_[2], 2) || Has(nodes_[2], 3));
  ComeTogether();

  Put(nodes_[0], 4);
  Put(nodes_[1], 4);
  const auto all = nodes_[0].store->DropNamespace(*nodes_[0].ns, 60 * kSecond).Wait();
  ASSERT_TRUE(all.has_value()) << all.error().ToString();
  EXPECT_EQ(*all, 1u);
  EXPECT_FALSE(Has(nodes_[0], 4));
  nodes_[1].ns = AttachBlocks(*nodes_[1].store);  // under its new incarnation
  EXPECT_FALSE(Has(nodes_[1], 4));
  Put(nodes_[0], 4);
  EXPECT_TRUE(Has(nodes_[0], 4));
}

TEST_F(CellNodes, WhatOneHasAnotherMatchesReadsExactlyAndThenHas) {
  StartThree();
  PutChain(nodes_[0], 1, 40);
  Until([&] { return AtPeer(nodes_[1], 1, 40); });
  EXPECT_EQ(Reading(nodes_[1], 1, 40).End(), AllOk(40));
  const MatchResult match = Match(nodes_[1], 1, 40);
  ASSERT_EQ(match.runs.size(), 1u);
  EXPECT_EQ(match.runs[0].where, Where::kMemory);
  EXPECT_EQ(match.blocks, 40u);
  EXPECT_EQ(StatusNumber(*nodes_[1].store, "peer_read_blocks"), 40u);
  EXPECT_EQ(StatusNumber(*nodes_[1].store, "peer_read_bytes"), 40u * kBytes);
  const std::string listed = nodes_[1].store->CellJson().value_or("");
  EXPECT_THAT(listed, ContainsRegex("\"rails\":[1-9]"));
  EXPECT_THAT(listed, ContainsRegex("\"gb_per_s\":[0-9]"));
  Until([&] { return StatusNumber(*nodes_[0].store, "served_blocks") >= 40u; });
  // A chain of which it has the first half itself.
  PutChain(nodes_[0], 101, 140);
  PutChain(nodes_[1], 101, 120);
  Until([&] {
    const MatchResult halves = Match(nodes_[1], 101, 140);
    return halves.runs.size() == 2 && halves.runs[0].where == Where::kMemory && halves.runs[0].blocks == 20 &&
           halves.runs[1].where == Where::kPeer && halves.runs[1].blocks == 20;
  });
  EXPECT_EQ(Reading(nodes_[1], 101, 140).End(), AllOk(40));
  // Another namespace has none of it, here as there.
  nodes_[1].ns = AttachBlocks(*nodes_[1].store, "another");
  EXPECT_EQ(Match(nodes_[1], 1, 40).blocks, 0u);
}

TEST_F(CellNodes, WhatANodeHadThatDrainedAndIsGoneTheOthersReadExactly) {
  StartThree();
  constexpr std::uint64_t kChains = 30, kBlocks = 20;
  constexpr std::size_t kLarge = 30'000;
  const auto first = [](std::uint64_t chain) { return 100 * chain + 1; };
  for (std::uint64_t chain = 1; chain <= kChains; ++chain)
    PutChain(nodes_[0], first(chain), first(chain) + kBlocks - 1, kLarge);
  const Status drains = nodes_[0].store->Drain({.within_us = 300 * kSecond});
  ASSERT_TRUE(drains.ok()) << drains.ToString();
  for (std::uint64_t chain = 3; chain <= kChains; chain += 3) {
    const Result<std::uint64_t> dropped = Drop(nodes_[1], first(chain) + kBlocks / 2);
    ASSERT_TRUE(dropped.has_value()) << dropped.error().ToString();
  }
  Until([&] { return Says(nodes_[0]).find("\"stage\":\"drained\"") != std::string::npos; });
  const std::uint64_t given = StatusNumber(*nodes_[0].store, "given_blocks");
  EXPECT_GE(given, (kChains - kChains / 3) * kBlocks);
  EXPECT_LE(given, kChains * kBlocks);
  EXPECT_THAT(Says(nodes_[0]), HasSubstr("\"complete\":true"));
  (void)nodes_[0].store->Drain({.then_stop = true});
  Until([&] { return !nodes_[0].store->StatusJson(kSecond).has_value(); });
  nodes_[0].daemon->Kill();
  nodes_[0].daemon->ForgetMemory();

  std::uint64_t taken = 0;
  for (CellNode* node : {&nodes_[1], &nodes_[2]}) taken += StatusNumber(*node->store, "taken_blocks");
  for (std::uint64_t chain = 1; chain <= kChains; ++chain) {
    const std::uint64_t left = chain % 3 == 0 ? kBlocks / 2 : kBlocks, from = first(chain);
    const std::uint64_t last = from + kBlocks - 1;
    // One of them has all that is left of it, and reads it whether or not the other one answers.
    CellNode* owner = nullptr;
    Until([&] {
      for (CellNode* node : {&nodes_[1], &nodes_[2]}) {
        if (Match(*node, from, last).blocks == left) owner = node;
      }
      return owner != nullptr;
    });
    EXPECT_EQ(Reading(*owner, from, from + left - 1, kLarge).End(), AllOk(left)) << chain;
    for (std::uint64_t n = from + left; n <= last; ++n)
      EXPECT_FALSE(Has(nodes_[1], n) || Has(nodes_[2], n)) << n;
  }
  EXPECT_GE(taken, given);
}

// Processor time of each of the node's threads that carry blocks, in nanoseconds.
std::vector<std::uint64_t> TimeOfRailThreads(pid_t node) {
  std::vector<std::uint64_t> times;
  for (const auto& task : std::filesystem::directory_iterator(Text("/proc/", node, "/task"))) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (name != "cistern-rails") continue;
    std::uint64_t ns = 0;
    std::ifstream(task.path() / "schedstat") >> ns;
    times.push_back(ns);
  }
  return times;
}

TEST_F(CellNodes, BlocksTravelOnEachOfTheRailThreadsOfBothNodes) {
  constexpr std::uint64_t kBlocks = 48;
  constexpr std::size_t kLarge = 512u << 10;
  constexpr std::uint64_t kOpened = 20'000'000;  // more than opening a rail takes
  for (const char* id : {"a", "b"}) Start(id, {"--cell-rail-threads", "3", "--memory", "192MiB"});
  Until([&] { return Says(nodes_[1]).find("\"reachable\":1") != std::string::npos; });
  std::uint64_t next = 1;
  const auto all_have_moved = [&] {
    const std::uint64_t first = next, last = first + kBlocks - 1;
    next += 1000;
    PutChain(nodes_[0], first, last, kLarge);
    Until([&] { return AtPeer(nodes_[1], first, last); });
    EXPECT_EQ(Reading(nodes_[1], first, last, kLarge).End(), AllOk(kBlocks));
    std::size_t moved = 0;
    for (CellNode& node : nodes_) {
      for (const std::uint64_t ns : TimeOfRailThreads(node.daemon->pid())) moved += ns > kOpened ? 1 : 0;
    }
    return moved == 6;
  };
  Until(all_have_moved);
}

// No client of the others has attached its namespace.
TEST_F(CellNodes, WhatANodeHadOnFlashTheOthersHaveWhenItHasLeftForGood) {
  const TestDirectory flash(TestDirectory::On::kDisk);
  Start("a", {"--flash", flash.path() + ":512MiB", "--flash-write", "through"});
  for (const char* id : {"b", "c"}) Start(id, {"--memory", "192MiB"});
  ComeTogether();
  nodes_[0].ns = AttachBlocks(*nodes_[0].store, "its own");
  constexpr std::size_t kLarge = 1u << 20;
  // More than its memory has room for. Where the device is slow some leave memory before they are written:
  // they are put again, until none waits to be written and all are there.
  Until([&] {
    const bool written = StatusNumber(*nodes_[0].store, "write_queue") == 0;
    for (std::uint64_t chain = 0; chain < 8; ++chain) {
      const std::uint64_t first = 100 * chain + 1;
      if (Match(nodes_[0], first, first + 9).blocks == 10) continue;
      for (std::uint64_t n = first; n < first + 10; ++n) {
        const auto parent = n == first ? std::nullopt : std::optional(n - 1);
        if (!PutBlock(*nodes_[0].store, *nodes_[0].ns, n, parent, kLarge).ok()) break;
      }
    }
    std::uint32_t there = 0, below = 0;
    for (std::uint64_t chain = 0; chain < 8; ++chain) {
      const MatchResult match = Match(nodes_[0], 100 * chain + 1, 100 * chain + 10);
      there += match.blocks;
      for (const MatchRun& run : match.runs) below += run.where == Where::kFlash ? run.blocks : 0;
    }
    return written && there == 80 && below >= 20;
  });
  const Status drains = nodes_[0].store->Drain({.flash_goes = true, .within_us = 300 * kSecond});
  ASSERT_TRUE(drains.ok()) << drains.ToString();
  Until([&] { return Says(nodes_[0]).find("\"stage\":\"drained\"") != std::string::npos; });
  EXPECT_THAT(Says(nodes_[0]), HasSubstr("\"complete\":true"));
  nodes_[0].daemon->Kill();
  nodes_[0].daemon->ForgetMemory();
  for (CellNode* node : {&nodes_[1], &nodes_[2]}) {
    // On a busy host one of them may have been given all.
    EXPECT_EQ(StatusNumber(*node->store, "taken_namespaces"),
              StatusNumber(*node->store, "taken_blocks") > 0 ? 1u : 0u);
    node->ns = AttachBlocks(*node->store, "its own");
  }
  for (std::uint64_t chain = 0; chain < 8; ++chain) {
    const std::uint64_t first = 100 * chain + 1, last = first + 9;
    CellNode* owner = nullptr;
    for (CellNode* node : {&nodes_[1], &nodes_[2]}) {
      const MatchResult match = Match(*node, first, last);
      if (match.blocks == 10 && match.runs[0].where == Where::kMemory) owner = node;
    }
    ASSERT_NE(owner, nullptr) << chain;
    EXPECT_EQ(Reading(*owner, first, last, kLarge).End(), AllOk(10)) << chain;
  }
}

TEST_F(CellNodes, WhatIsToBeAtTwoIsReadExactlyWhenOneOfThemIsGone) {
  for (const char* id : {"a", "b", "c"}) Start(id, {"--cell-copies", "2"});
  ComeTogether();
  for (std::uint64_t chain = 0; chain < 10; ++chain) PutChain(nodes_[0], 100 * chain + 1, 100 * chain + 20);
  // Who has all of the chain in its own memory.
  const auto owner_of = [&](std::uint64_t chain) -> CellNode* {
    for (CellNode* node : {&nodes_[1], &nodes_[2]}) {
      const MatchResult match = Match(*node, 100 * chain + 1, 100 * chain + 20);
      if (match.blocks == 20 && match.runs.size() == 1 && match.runs[0].where == Where::kMemory) return node;
    }
    return nullptr;
  };
  // On a busy host an offer may come to both, or its answer too late to be counted.
  for (std::uint64_t chain = 0; chain < 10; ++chain) Until([&] { return owner_of(chain) != nullptr; });
  EXPECT_GE(StatusNumber(*nodes_[1].store, "taken_blocks") + StatusNumber(*nodes_[2].store, "taken_blocks"),
            200u);
  Until([&] { return StatusNumber(*nodes_[0].store, "copied_blocks") > 0; });  // it has been told
  nodes_[0].daemon->Kill();
  nodes_[0].daemon->ForgetMemory();
  for (std::uint64_t chain = 0; chain < 10; ++chain) {
    CellNode* owner = owner_of(chain);
    ASSERT_NE(owner, nullptr) << chain;
    EXPECT_EQ(Reading(*owner, 100 * chain + 1, 100 * chain + 20).End(), AllOk(20)) << chain;
  }
}

TEST_F(CellNodes, WhatLeavesANodeIsReadFromTheMemberThatStores) {
  Start("a");
  Start("b");
  Start("s", {"--cell-role", "store", "--memory", "256MiB"});
  ComeTogether();
  Until([&] { return Says(nodes_[0]).find("\"reachable\":2") != std::string::npos; });
  constexpr std::size_t kLarge = 256u << 10;
  // In prompts: each is one offer, and behind an offer there is a rest of many times what it took.
  constexpr std::uint64_t kPrompt = 20;
  std::uint64_t prompts = 0;
  const auto put_prompt = [&] {
    const std::uint64_t first = 1'000 * ++prompts;
    PutChain(nodes_[0], first, first + kPrompt - 1, kLarge);
  };
  // Handing on begins when blocks leave.
  while (StatusNumber(*nodes_[0].store, "evicted") == 0) put_prompt();
  PutChain(nodes_[0], 1, 10, kLarge);
  // More than half of what there is room for was used since, and not all.
  for (std::uint64_t more = prompts / 2 + 1; more > 0; --more) put_prompt();
  // All of it, before anything more is put: what it lacks it would find at the node.
  Until([&] {
    const MatchResult match = Match(nodes_[2], 1, 10);
    return match.blocks == 10 && match.runs.size() == 1 && match.runs[0].where == Where::kMemory;
  });
  Until([&] {
    const MatchResult match = Match(nodes_[0], 1, 10);
    if (match.runs.size() == 1 && match.runs[0].where == Where::kPeer) return match.blocks == 10;
    put_prompt();
    return false;
  });
  EXPECT_EQ(Reading(nodes_[0], 1, 10, kLarge).End(), AllOk(10));
  EXPECT_EQ(StatusNumber(*nodes_[2].store, "stored_blocks"), 0u);
  Until([&] { return StatusNumber(*nodes_[0].store, "stored_blocks") >= 10; });
}

// One process asks for it several times over, and the node for each block once.
TEST_F(CellNodes, ReadersOfOneBlockWaitForOneTransfer) {
  StartThree();
  PutChain(nodes_[0], 1, 40, 100'000);
  Until([&] { return AtPeer(nodes_[1], 1, 40); });
  std::deque<Reading> readings;
  for (int i = 0; i < 4; ++i) readings.emplace_back(nodes_[1], 1, 40, 100'000);
  for (Reading& reading : readings) EXPECT_EQ(reading.End(), AllOk(40));
  EXPECT_EQ(StatusNumber(*nodes_[1].store, "peer_read_blocks"), 40u);
  EXPECT_EQ(StatusNumber(*nodes_[1].store, "peer_read_bytes"), 4'000'000u);
}

TEST_F(CellNodes, WhatLiesOnFlashIsReadFromThereByAnother) {
  // On a file system that devices are, which shared memory is not.
  const TestDirectory flash(TestDirectory::On::kDisk);
  Start("a", {"--flash", flash.path() + ":512MiB", "--flash-write", "through"});
  Start("b");
  Start("c");
  ComeTogether();
  constexpr std::size_t kLarge = 1u << 20;
  // They leave memory for what comes later. Where the device is slow some leave it before they are written,
  // and what reads others from flash may have them do so: until none waits to be written and all are there.
  std::uint64_t last = 1'000;
  Until([&] {
    const bool written = StatusNumber(*nodes_[0].store, "write_queue") == 0;
    const MatchResult match = Match(nodes_[0], 1, 20);
    std::uint32_t below = 0;
    for (const MatchRun& run : match.runs) below += run.where == Where::kFlash ? run.blocks : 0;
    if (match.blocks == 20 && below >= 5) return written;
    if (match.blocks < 20) PutChain(nodes_[0], 1, 20, kLarge);
    // It may take the place of one of them.
    Put(nodes_[0], ++last, std::nullopt, kLarge);
    return false;
  });
  Until([&] { return AtPeer(nodes_[1], 1, 20); });
  EXPECT_EQ(Reading(nodes_[1], 1, 20, kLarge).End(), AllOk(20));
  EXPECT_EQ(StatusNumber(*nodes_[1].store, "peer_read_blocks"), 20u);
}

// A read is under way while the third node drops: behind the acknowledgement there is nothing of it anywhere.
TEST_F(CellNodes, DropAtOneIsNotRevivedByAReadAtAnother) {
  StartThree();
  for (std::uint64_t first = 100; first < 900; first += 100) {
    const std::uint64_t last = first + 39, dropped = first + 20;
    PutChain(nodes_[0], first, last);
    Until([&] { return AtPeer(nodes_[1], first, last); });
    Reading reading(nodes_[1], first, last);
    const Result<std::uint64_t> drop = Drop(nodes_[2], dropped);
    ASSERT_TRUE(drop.has_value()) << drop.error().ToString();
    const std::vector<Code> outcomes = reading.End();
    ASSERT_EQ(outcomes.size(), 40u);
    for (CellNode& node : nodes_) {
      EXPECT_FALSE(Has(node, dropped)) << first;
      EXPECT_FALSE(Has(node, last)) << first;
    }
    EXPECT_LE(Match(nodes_[1], first, last).blocks, 20u);
  }
}

TEST_F(CellNodes, KilledInTheMiddleOfAReadItsBlocksAreMissesAndComputedAgain) {
  // What is asked for at once takes the second node 20 s.
  Start("a", {"--memory", "128MiB"});
  Start("b", {"--memory", "128MiB", "--cell-bandwidth", "1MiB/s"});
  Start("c", {"--memory", "128MiB"});
  ComeTogether();
  constexpr std::size_t kLarge = 100'000;
  PutChain(nodes_[0], 1, 200, kLarge);
  Until([&] { return AtPeer(nodes_[1], 1, 200); });
  Reading reading(nodes_[1], 1, 200, kLarge, {.deadline_us = 300 * kSecond});
  Until([&] { return StatusNumber(*nodes_[1].store, "peer_read_blocks") > 0; });
  nodes_[0].daemon->Kill();
  const std::vector<Code> outcomes = reading.End();
  ASSERT_EQ(outcomes.size(), 200u);
  for (const Code code : outcomes)
    EXPECT_TRUE(code == Code::kOk || code == Code::kMiss || code == Code::kTooLate) << static_cast<int>(code);
  EXPECT_EQ(outcomes.front(), Code::kOk) << "it had come";
  EXPECT_NE(outcomes.back(), Code::kOk) << "it had not";
  // What it computes after all is there, and of use to the third.
  for (std::uint64_t n = 1; n <= 200; ++n)
    Put(nodes_[1], n, n == 1 ? std::nullopt : std::optional(n - 1), kLarge);
  EXPECT_EQ(Match(nodes_[1], 1, 200).blocks, 200u);
  Until([&] { return AtPeer(nodes_[2], 1, 200); });
  EXPECT_EQ(Reading(nodes_[2], 1, 20, kLarge).End(), AllOk(20));
  // The one that died comes back with what it had, and gives and takes as before.
  ASSERT_TRUE(nodes_[0].daemon->Exec().ok());
  Connect(nodes_[0]);
  ComeTogether();
  PutChain(nodes_[0], 301, 340);
  // Some of it may be here: for the one that comes back the others have just joined.
  Until([&] { return Match(nodes_[1], 301, 340).blocks == 40; });
  EXPECT_EQ(Reading(nodes_[1], 301, 340).End(), AllOk(40));
}

TEST_F(CellNodes, MemoryResizedUnderReadersGivesWhatIsRightOrAMiss) {
  Start("a", {"--memory", "128MiB"});
  Start("b", {"--memory", "128MiB"});
  Start("c");
  ComeTogether();
  constexpr std::size_t kLarge = 200'000;
  std::size_t ok = 0;
  for (std::uint64_t round = 1; round <= 6; ++round) {
    const std::uint64_t first = 1'000 * round, last = first + 39;
    // While memory shrinks there may be no room for a moment.
    for (std::uint64_t n = first; n <= last; ++n) {
      const auto parent = n == first ? std::nullopt : std::optional(n - 1);
      Until([&] { return PutBlock(*nodes_[0].store, *nodes_[0].ns, n, parent, kLarge).ok(); });
    }
    Until([&] { return Match(nodes_[1], first, last).blocks > 0; });
    Reading reading(nodes_[1], first, last, kLarge);
    for (CellNode* node : {&nodes_[0], &nodes_[1]}) {
      const auto resized = node->store->ResizeMemory(round % 2 == 0 ? 128u << 20 : 64u << 20);
      ASSERT_TRUE(resized.has_value()) << resized.error().ToString();
    }
    const std::vector<Code> outcomes = reading.End();
    ok += static_cast<std::size_t>(std::ranges::count(outcomes, Code::kOk));
  }
  EXPECT_GT(ok, 0u);
}

TEST_F(CellNodes, ANodeOfNoCellHasNoThreadAndNoNumberOfOne) {
  Start("a");
  Result<Daemon> alone = Daemon::Start(DaemonBeside(), directory_.path(), {"--memory", "64MiB"});
  ASSERT_TRUE(alone.has_value()) << alone.error().ToString();
  const auto has_rails = [](pid_t pid) {
    for (const auto& task : std::filesystem::directory_iterator(Text("/proc/", pid, "/task"))) {
      std::string name;
      std::getline(std::ifstream(task.path() / "comm"), name);
      if (name == "cistern-rails") return true;
    }
    return false;
  };
  EXPECT_TRUE(has_rails(nodes_[0].daemon->pid()));
  EXPECT_FALSE(has_rails(alone->pid()));
  Result<Store> store = alone->Connect();
  ASSERT_TRUE(store.has_value());
  EXPECT_EQ(store->StatusJson().value_or("\"cell\":").find("\"cell\":"), std::string::npos);
  EXPECT_NE(nodes_[0].store->StatusJson().value_or("").find("\"cell\":"), std::string::npos);
}

// libfabric over TCP stands for a device.
TEST_F(CellNodes, BlocksAreReadFromAnothersMemoryWhereBothSaySoAndOverTheRailElsewhere) {
  Start("a", {"--cell-rdma", "clear:tcp;ofi_rxm"});
  Start("b", {"--cell-rdma", "clear:tcp;ofi_rxm"});
  Start("c");
  ComeTogether();
  const auto over_rdma = [&](CellNode& node) {
    const std::string says = Says(node), name = "\"rdma_bytes\":";
    return std::stoull(says.substr(says.find(name) + name.size()));
  };
  EXPECT_THAT(Says(nodes_[0]), HasSubstr("tcp;ofi_rxm on lo"));
  // The rail's first batches may be asked before the other side has said what it has; and where the device
  // was late once, it is not asked for a while.
  std::uint64_t first = 1;
  Until([&] {
    PutChain(nodes_[0], first, first + 39);
    Until([&] { return AtPeer(nodes_[1], first, first + 39); });
    EXPECT_EQ(Reading(nodes_[1], first, first + 39).End(), AllOk(40));
    first += 100;
    return over_rdma(nodes_[1]) > 0;
  });
  Until([&] { return AtPeer(nodes_[2], 1, 40); });
  EXPECT_EQ(Reading(nodes_[2], 1, 40).End(), AllOk(40));
  EXPECT_EQ(over_rdma(nodes_[2]), 0u);
  EXPECT_THAT(Says(nodes_[2]), HasSubstr("\"no_rdma\":\"\""));
}

TEST_F(CellNodes, EndOfAConversationReachesAll) {
  StartThree();
  WriteOptions of_conversation;
  of_conversation.conversation = "the same everywhere";
  for (CellNode& node : nodes_) {
    const Status put = node.store->Put(*node.ns, KeyOf(1), std::nullopt, BodyOf(1, kBytes), of_conversation);
    ASSERT_TRUE(put.ok()) << put.ToString();
    Put(node, 2);
  }
  const auto ended =
      nodes_[1].store->EndConversation(*nodes_[1].ns, of_conversation.conversation, 60 * kSecond).Wait();
  ASSERT_TRUE(ended.has_value()) << ended.error().ToString();
  EXPECT_EQ(*ended, 1u);
  for (CellNode& node : nodes_) {
    EXPECT_FALSE(Has(node, 1));
    EXPECT_TRUE(Has(node, 2));
  }
}

TEST_F(CellNodes, WithoutEtcdADropIsUnavailableAndAllElseGoesOn) {
  StartThree();
  for (CellNode& node : nodes_) Put(node, 1);
  etcd_.Kill();
  // A connection that breaks under a question leaves open whether it was written.
  Until([&] {
    const Result<std::uint64_t> dropped = Drop(nodes_[0], 1, 2 * kSecond);
    return !dropped && dropped.error().code() == Code::kUnavailable;
  });
  for (CellNode& node : nodes_) {
    EXPECT_TRUE(Has(node, 1));
    Put(node, 2, 1);
    EXPECT_TRUE(Has(node, 2));
  }
  // A node that starts meanwhile serves its own clients, and catches up later.
  nodes_[2].daemon->Kill();
  ASSERT_TRUE(nodes_[2].daemon->Exec().ok());
  Connect(nodes_[2]);
  EXPECT_TRUE(Has(nodes_[2], 2));
  ASSERT_TRUE(etcd_.Start().ok()) << etcd_.log();
  ComeTogether();
  const Result<std::uint64_t> again = Drop(nodes_[0], 1);
  ASSERT_TRUE(again.has_value()) << again.error().ToString();
  for (CellNode& node : nodes_) EXPECT_FALSE(Has(node, 1) || Has(node, 2));
}

TEST_F(CellNodes, RestoredEtcdBeginsAnotherHistoryAndEveryNodeBeginsAnew) {
  StartThree();
  etcd_.Kill();
  etcd_.Save("backup");
  ASSERT_TRUE(etcd_.Start().ok()) << etcd_.log();
  ComeTogether();
  for (CellNode& node : nodes_) Put(node, 1);
  const Result<std::uint64_t> dropped = Drop(nodes_[0], 7);
  ASSERT_TRUE(dropped.has_value()) << dropped.error().ToString();
  const std::string history = HistoryOf(nodes_[0]);
  etcd_.Kill();
  etcd_.Restore("backup");
  ASSERT_TRUE(etcd_.Start().ok()) << etcd_.log();
  ASSERT_NE(history, "");
  for (CellNode& node : nodes_) {
    Until([&] {
      const std::string now = HistoryOf(node);
      return !now.empty() && now != history;
    });
  }
  ComeTogether();
  EXPECT_EQ(HistoryOf(nodes_[0]), HistoryOf(nodes_[2]));
  for (CellNode& node : nodes_) {
    node.ns = AttachBlocks(*node.store);
    EXPECT_FALSE(Has(node, 1));
    Put(node, 1);
  }
  const Result<std::uint64_t> again = Drop(nodes_[1], 1);
  ASSERT_TRUE(again.has_value()) << again.error().ToString();
  for (CellNode& node : nodes_) EXPECT_FALSE(Has(node, 1));
}

// Each block is put once. Nodes and etcd are killed in any order; whenever all of them are together again,
// what was acknowledged as dropped is on none, and nothing else has gone.
TEST_F(CellNodes, KillsOfNodesAndEtcdReviveNothingAndTakeNothing) {
  StartThree();
  Random random(1);
  std::vector<std::uint64_t> kept, gone;  // of those whose drop is not acknowledged nothing is known
  std::uint64_t last = 100;
  for (int round = 0; round < 16; ++round) {
    for (int i = 0; i < 4; ++i) {
      kept.push_back(++last);
      for (CellNode& node : nodes_) Put(node, last);
    }
    const bool without_etcd = random.Chance(0.2);
    if (without_etcd) etcd_.Kill();
    for (int i = 0; i < 2; ++i) {
      const auto at = kept.begin() + static_cast<std::ptrdiff_t>(random.Below(kept.size()));
      const std::uint64_t number = *at;
      kept.erase(at);
      const std::int64_t within_us = without_etcd ? kSecond : 60 * kSecond;
      const bool dropped = Drop(nodes_[random.Below(3)], number, within_us).has_value();
      ASSERT_FALSE(dropped && without_etcd);
      if (dropped) gone.push_back(number);
    }
    if (without_etcd) {
      ASSERT_TRUE(etcd_.Start().ok()) << etcd_.log();
    }
    if (random.Chance(0.5)) {
      CellNode& node = nodes_[random.Below(3)];
      node.daemon->Kill();
      ASSERT_TRUE(node.daemon->Exec().ok());
      Connect(node);
    }
    ComeTogether();
    for (CellNode& node : nodes_) {
      for (const std::uint64_t number : gone)
        ASSERT_FALSE(Has(node, number)) << number << ", round " << round;
      for (const std::uint64_t number : kept) ASSERT_TRUE(Has(node, number)) << number << ", round " << round;
    }
  }
  EXPECT_GT(gone.size(), 8u) << "hardly a drop was acknowledged";
}

TEST_F(CellNodes, ANodeWithAnotherKeyOrACarelessOneIsRefusedByName) {
  Start("a");
  node::NodeOptions options;
  options.memory_dir = directory_.path() + "/stranger";
  options.memory_bytes = 64u << 20;
  options.log_level = "error";
  options.cell = {etcd_.endpoint()};
  options.member = "b";
  options.cell_address = Text("127.0.0.1:", FreePorts());
  options.cell_keys = {WriteKey("another", 'b')};
  auto started = node::Node::Start(options);
  ASSERT_FALSE(started.has_value());
  EXPECT_EQ(started.error().code(), Code::kMismatch);
  EXPECT_THAT(std::string(started.error().message()), HasSubstr("cell key"));
  ::chmod(options.cell_keys[0].c_str(), 0644);
  started = node::Node::Start(options);
  ASSERT_FALSE(started.has_value());
  EXPECT_THAT(std::string(started.error().message()), HasSubstr("may be read by others"));
  std::ofstream(options.cell_keys[0]) << "abc\n";
  ::chmod(options.cell_keys[0].c_str(), 0600);
  started = node::Node::Start(options);
  ASSERT_FALSE(started.has_value());
  EXPECT_THAT(std::string(started.error().message()), HasSubstr("a key has 64"));
}

TEST_F(CellNodes, MembersProveThemselvesByCertificatesOfOneAuthority) {
  net::TestAuthority ours(directory_.path() + "/ours"), others(directory_.path() + "/others");
  const auto flags = [](const net::TlsCertificates& files) {
    return std::vector<std::string>{"--cell-authority", files.authority,          "--cell-certificate",
                                    files.certificate,  "--cell-certificate-key", files.private_key};
  };
  Start("a", flags(ours.Issue("a")));
  Start("b", flags(ours.Issue("b")));
  ComeTogether();
  PutChain(nodes_[0], 1, 8);
  Until([&] { return AtPeer(nodes_[1], 1, 8); });
  EXPECT_EQ(Reading(nodes_[1], 1, 8).End(), AllOk(8));
  Start("c", flags(others.Issue("c")));
  std::string listed;
  Until([&] {
    listed = nodes_[0].store->CellJson().value_or("");
    return listed.find("give both certificates of one authority") != std::string::npos;
  });
  EXPECT_TRUE(Match(nodes_[2], 1, 8).runs.empty());
}

TEST_F(CellNodes, MembersAreListedWithWhatTheyHaveApplied) {
  StartThree();
  ASSERT_TRUE(Drop(nodes_[0], 1).has_value());
  std::string listed;
  Until([&] {
    listed = nodes_[0].store->CellJson().value_or("\"connected\":false");
    return listed.find("\"connected\":false") == std::string::npos;
  });
  for (const char* part : {"\"id\":\"a\"", "\"id\":\"b\"", "\"id\":\"c\"", "\"self\":true", "\"applied\":"})
    EXPECT_THAT(listed, HasSubstr(part));
  // Each says of which release it is, once it has said what room it has; nothing was read from any.
  Until([&] {
    listed = nodes_[0].store->CellJson().value_or("\"version\":null");
    return listed.find("\"version\":null") == std::string::npos;
  });
  EXPECT_THAT(listed, HasSubstr(Text("\"version\":\"", Release(), "\"")));
  EXPECT_THAT(listed, HasSubstr("\"gb_per_s\":null"));
  EXPECT_THAT(listed, HasSubstr("\"rails\":0"));
  RealNode alone(64u << 20);
  Store store = alone.Connect();
  const Result<std::string> none = store.CellJson();
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code(), Code::kMiss);
}

}  // namespace
}  // namespace cistern
