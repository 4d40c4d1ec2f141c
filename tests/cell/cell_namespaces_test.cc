// SPDX-License-Identifier: Apache-2.0
// What namespaces ask of a cell of real processes, and what the cell says where something is wrong with it.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>

#include "cell_nodes.h"
#include "etcd/gateway.h"
#include "mesh/cell_keys.h"

namespace cistern {
namespace {

using ::testing::HasSubstr;

// Thirty conversations, of which every third is dropped at its middle while the node gives them away.
// Drops are the cell's all the same.
TEST_F(CellNodes, ANamespaceThatIsKeptToItsNodeIsFoundAtNoOtherAndItsDropReachesAll) {
  StartThree();
  for (CellNode& node : nodes_) node.ns = AttachBlocks(*node.store, "kept", {.mesh = false});
  PutChain(nodes_[0], 1, 40);
  PutChain(nodes_[1], 1, 8);
  // What is put and shared behind it, all others have heard of.
  nodes_[0].ns = AttachBlocks(*nodes_[0].store);
  nodes_[2].ns = AttachBlocks(*nodes_[2].store);
  PutChain(nodes_[0], 101, 140);
  Until([&] { return AtPeer(nodes_[2], 101, 140); });
  nodes_[0].ns = AttachBlocks(*nodes_[0].store, "kept");
  nodes_[2].ns = AttachBlocks(*nodes_[2].store, "kept");
  EXPECT_EQ(Match(nodes_[0], 1, 40).blocks, 40u);
  EXPECT_EQ(Match(nodes_[1], 1, 40).blocks, 8u);
  EXPECT_EQ(Match(nodes_[2], 1, 40).blocks, 0u);
  const Result<std::uint64_t> dropped = Drop(nodes_[2], 5);
  ASSERT_TRUE(dropped.has_value()) << dropped.error().ToString();
  EXPECT_EQ(Match(nodes_[0], 1, 40).blocks, 4u);
  EXPECT_EQ(Match(nodes_[1], 1, 40).blocks, 4u);
  // It holds over a restart, and until somebody says otherwise.
  nodes_[0].daemon->Kill();
  ASSERT_TRUE(nodes_[0].daemon->Exec().ok());
  Connect(nodes_[0]);
  ComeTogether();
  nodes_[0].ns = AttachBlocks(*nodes_[0].store, "kept");
  EXPECT_EQ(Match(nodes_[2], 1, 4).blocks, 0u);
  for (CellNode* node : {&nodes_[0], &nodes_[2]})
    node->ns = AttachBlocks(*node->store, "kept", {.mesh = true});
  Until([&] { return AtPeer(nodes_[2], 1, 4); });
  EXPECT_EQ(Reading(nodes_[2], 1, 4).End(), AllOk(4));
}

// Its client reads shared memory, without asking it.
TEST_F(CellNodes, R10APausedNodesClientMissesInAStrictNamespaceWhatWasDroppedElsewhere) {
  StartThree();
  for (CellNode& node : nodes_) {
    node.ns = AttachBlocks(*node.store, "strict", {.strict = true});
    PutChain(node, 1, 4);
    Until([&] { return Has(node, 4); });
  }
  Namespace other = AttachBlocks(*nodes_[2].store);
  ASSERT_TRUE(PutBlock(*nodes_[2].store, other, 1, std::nullopt, kBytes).ok());
  const BlockRef first[] = {{KeyOf(1)}};
  // Good while the member's own lease in etcd is, which may be late on a loaded host.
  std::optional<Lease> lease;
  Until([&] {
    Result<Lease> taken = nodes_[2].store->Acquire(*nodes_[2].ns, first, {.lease_us = 60 * kSecond}).Wait();
    if (taken) lease.emplace(std::move(*taken));
    return lease && lease->still_good();
  });
  ::kill(nodes_[2].daemon->pid(), SIGSTOP);
  const Result<std::uint64_t> dropped = Drop(nodes_[0], 1);
  ASSERT_TRUE(dropped.has_value()) << dropped.error().ToString();
  std::vector<std::byte> body(kBytes);
  for (std::uint64_t n = 1; n <= 4; ++n) {
    const ReadRange range{.bytes = kBytes, .to = body.data()};
    const BlockRead read{.key = KeyOf(n), .ranges = std::span(&range, 1)};
    // What shared memory does not give the node is asked for, which does not answer.
    const ReadOptions soon{.deadline_us = kSecond / 10};
    const Result<ReadResult> came = nodes_[2].store->Read(*nodes_[2].ns, std::span(&read, 1), soon).Wait();
    ASSERT_TRUE(came.has_value()) << came.error().ToString();
    EXPECT_NE(came->outcomes[0], Code::kOk) << n;
  }
  EXPECT_FALSE(lease->still_good());
  EXPECT_TRUE(nodes_[2].store->Get(other, KeyOf(1)).has_value()) << "others are exempt";
  ::kill(nodes_[2].daemon->pid(), SIGCONT);
  // What its core is asked before it knows is a miss as well, and then it is a member again.
  EXPECT_EQ(Match(nodes_[2], 1, 4).blocks, 0u);
  ComeTogether();
  EXPECT_FALSE(Has(nodes_[2], 1));
  PutChain(nodes_[2], 1, 4);
  Until([&] { return Has(nodes_[2], 4); });
}

TEST_F(CellNodes, R10WithoutEtcdAStrictNamespaceIsServedNoLongerThanTheMembershipStands) {
  StartThree();
  for (CellNode& node : nodes_) {
    node.ns = AttachBlocks(*node.store, "strict", {.strict = true});
    Put(node, 1);
  }
  Namespace other = AttachBlocks(*nodes_[0].store);
  ASSERT_TRUE(PutBlock(*nodes_[0].store, other, 1, std::nullopt, kBytes).ok());
  etcd_.Kill();
  Until([&] { return !Has(nodes_[0], 1); });
  EXPECT_TRUE(nodes_[0].store->Get(other, KeyOf(1)).has_value());
  EXPECT_THAT(nodes_[0].store->CellExplanationJson(*nodes_[0].ns, Chain(1, 1)).value_or(""),
              HasSubstr("is strict"));
  // Nor by one that starts meanwhile.
  nodes_[1].daemon->Kill();
  ASSERT_TRUE(nodes_[1].daemon->Exec().ok());
  Connect(nodes_[1]);
  nodes_[1].ns = AttachBlocks(*nodes_[1].store, "strict", {.strict = true});
  EXPECT_FALSE(Has(nodes_[1], 1));
  EXPECT_EQ(Match(nodes_[1], 1, 1).blocks, 0u);
  ASSERT_TRUE(etcd_.Start().ok()) << etcd_.log();
  for (CellNode& node : nodes_) Until([&] { return Has(node, 1); });
}

TEST_F(CellNodes, ANameThatStandsForAnotherListInTheCellIsRefusedAndSaid) {
  StartThree();
  std::string name;
  const auto attach = [&](CellNode& node, const std::string& model) {
    NamespaceSpec spec{.name = name, .fields = {{"model", model}}, .groups = {{.name = "all"}}};
    return node.store->Attach(spec, 60 * kSecond);
  };
  // Where etcd is late an attach does not wait for what it says: the next name.
  Result<Namespace> other = Error(Code::kBusy, ""), third = other;
  Until([&, round = 0]() mutable {
    name = Text("demo", ++round);
    EXPECT_TRUE(attach(nodes_[0], "one").has_value());
    EXPECT_TRUE(attach(nodes_[1], "one").has_value());
    other = attach(nodes_[1], "two");
    third = attach(nodes_[2], "two");
    return !other && !third;
  });
  for (const Result<Namespace>* refused : {&other, &third})
    EXPECT_EQ(refused->error().code(), Code::kMismatch);
  EXPECT_THAT(std::string(third.error().message()),
              testing::AllOf(HasSubstr("demo"), HasSubstr("model=one"), HasSubstr("model=two")));
  // What came to be while etcd was away each goes on with, and says so.
  etcd_.Kill();
  const auto named = [](CellNode& node, const std::string& model) {
    NamespaceSpec spec{.name = "late", .fields = {{"model", model}}, .groups = {{.name = "all"}}};
    return node.store->Attach(spec, 60 * kSecond);
  };
  ASSERT_TRUE(named(nodes_[0], "one").has_value());
  ASSERT_TRUE(named(nodes_[1], "two").has_value());
  ASSERT_TRUE(etcd_.Start().ok()) << etcd_.log();
  Until([&] {
    return StatusNumber(*nodes_[0].store, "name_conflicts") +
               StatusNumber(*nodes_[1].store, "name_conflicts") ==
           1u;
  });
  CellNode& loser = StatusNumber(*nodes_[0].store, "name_conflicts") == 1 ? nodes_[0] : nodes_[1];
  EXPECT_THAT(Says(loser), testing::AllOf(HasSubstr("namespace late stands for another list in the cell"),
                                          HasSubstr("model=one"), HasSubstr("model=two")));
  EXPECT_FALSE(named(nodes_[2], "three").has_value());
  // A person frees the name, as the message says.
  const SystemClock clock;
  const auto loop = std::move(*io::MakeLoop(clock));
  const auto etcd = std::move(*etcd::OpenGateway(*loop, {.endpoints = {etcd_.endpoint()}}));
  etcd::Transaction remove;
  remove.then.push_back({.kind = etcd::Operation::Kind::kDelete,
                         .keys = {mesh::CellKeys("/cistern/default/").NameKey("default", "late"), ""}});
  const Instant deadline = clock.Now().PlusUs(60 * kSecond);
  ASSERT_TRUE(loop->BlockOn(etcd->Commit(std::move(remove), deadline)).has_value());
  Until([&] { return StatusNumber(*loser.store, "name_conflicts") == 0; });
}

// The journal takes nothing more, as on a full disk.
TEST_F(CellNodes, ANameWhoseAttachFailedIsFreeInTheCell) {
  ::signal(SIGXFSZ, SIG_IGN);  // of the nodes too
  Start("a");
  Start("b");
  ComeTogether();
  const auto attach = [](CellNode& node, const std::string& model) {
    NamespaceSpec spec{.name = "demo", .fields = {{"model", model}}, .groups = {{.name = "all"}}};
    return node.store->Attach(spec, 60 * kSecond);
  };
  const rlimit none{.rlim_cur = 0, .rlim_max = RLIM_INFINITY};
  const rlimit all{.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
  ASSERT_EQ(::prlimit(nodes_[0].daemon->pid(), RLIMIT_FSIZE, &none, nullptr), 0);
  EXPECT_FALSE(attach(nodes_[0], "one").has_value());
  ASSERT_EQ(::prlimit(nodes_[0].daemon->pid(), RLIMIT_FSIZE, &all, nullptr), 0);
  // Where etcd is late the name is withdrawn a moment later.
  Until([&] { return attach(nodes_[1], "two").has_value(); });
  const Result<Namespace> first = attach(nodes_[0], "one");
  ASSERT_FALSE(first.has_value());
  EXPECT_EQ(first.error().code(), Code::kMismatch);
  EXPECT_TRUE(attach(nodes_[0], "two").has_value());
}

// Each side says it by itself, with what was tried; the others go on.
TEST_F(CellNodes, AMemberWhoseAddressCannotBeReachedIsSaidByName) {
  Start("a");
  Start("c");
  // Nobody listens where it says that it is reached.
  const std::string nowhere = Text("127.0.0.1:", FreePorts());
  Start("b", {"--cell-listen", Text("127.0.0.1:", FreePorts()), "--cell-address", nowhere});
  Until([&] {
    const std::string says = nodes_[0].store->CellJson().value_or("");
    return says.find(Text("it cannot be reached at ", nowhere)) != std::string::npos;
  });
  Until([&] { return Says(nodes_[2]).find("\"joined\":true") != std::string::npos; });
  EXPECT_THAT(nodes_[2].store->CellJson().value_or(""),
              testing::AllOf(HasSubstr("it is to connect to this node at"), HasSubstr(nowhere)));
  Put(nodes_[2], 1);
  EXPECT_TRUE(Has(nodes_[2], 1));
  // With the one that it reaches itself it shares.
  Until([&] { return Says(nodes_[2]).find("\"reachable\":1") != std::string::npos; });
}

TEST_F(CellNodes, TheLastMemberThatDrainsSaysThatItGoesAlone) {
  Start("a");
  Put(nodes_[0], 1);
  ASSERT_TRUE(nodes_[0].store->Drain({.within_us = 60 * kSecond}).ok());
  Until([&] { return Says(nodes_[0]).find("\"stage\":\"drained\"") != std::string::npos; });
  EXPECT_EQ(StatusNumber(*nodes_[0].store, "given_blocks"), 0u);
  EXPECT_EQ(StatusNumber(*nodes_[0].store, "lost_blocks"), 1u);
}

// As after an etcd that was gone for longer than its leases, or was restored.
TEST_F(CellNodes, AMemberWhoseMembershipLapsedOnceIsHandedOverTo) {
  Start("a");
  Start("b");
  ComeTogether();
  const SystemClock clock;
  const auto loop = std::move(*io::MakeLoop(clock));
  const auto etcd = std::move(*etcd::OpenGateway(*loop, {.endpoints = {etcd_.endpoint()}}));
  const std::string key = mesh::CellKeys("/cistern/default/").MemberKey("b");
  const auto soon = [&] { return clock.Now().PlusUs(10 * kSecond); };
  etcd::Transaction lapse;
  lapse.then.push_back({.kind = etcd::Operation::Kind::kDelete, .keys = {key, ""}});
  ASSERT_TRUE(loop->BlockOn(etcd->Commit(lapse, soon())).has_value());
  Until([&] {
    const auto found = loop->BlockOn(etcd->Range({.keys = {key, ""}}, soon()));
    return found && found->keys.size() == 1;
  });
  // Who has acknowledged a drop has seen that the key had gone.
  Until([&] { return Drop(nodes_[0], 99).has_value(); });
  for (CellNode& node : nodes_) Until([&] { return StatusNumber(*node.store, "members") == 2; });
  ComeTogether();
  Put(nodes_[0], 1);
  ASSERT_TRUE(nodes_[0].store->Drain({.within_us = 60 * kSecond}).ok());
  Until([&] { return Says(nodes_[0]).find("\"stage\":\"drained\"") != std::string::npos; });
  EXPECT_EQ(StatusNumber(*nodes_[0].store, "given_blocks"), 1u);
  EXPECT_EQ(StatusNumber(*nodes_[0].store, "lost_blocks"), 0u);
}

TEST_F(CellNodes, R10ANodeWhoseHostStartedAnewServesOnceItsKeyOfBeforeHasLapsed) {
  Start("a");
  nodes_[0].daemon->Kill();
  const SystemClock clock;
  const auto loop = std::move(*io::MakeLoop(clock));
  const auto etcd = std::move(*etcd::OpenGateway(*loop, {.endpoints = {etcd_.endpoint()}}));
  const auto soon = [&] { return clock.Now().PlusUs(10 * kSecond); };
  const auto lease = loop->BlockOn(etcd->Grant(5, soon()));
  ASSERT_TRUE(lease.has_value());
  mesh::MemberValue before{.process_number = 7, .address = "127.0.0.1:1"};
  before.boot_id.fill(std::byte{1});
  etcd::Transaction write;
  write.then.push_back({.keys = {mesh::CellKeys("/cistern/default/").MemberKey("a"), ""},
                        .value = before.Encode(),
                        .lease = lease->id});
  ASSERT_TRUE(loop->BlockOn(etcd->Commit(write, soon())).has_value());
  ASSERT_TRUE(nodes_[0].daemon->Exec().ok());
  Connect(nodes_[0]);
  EXPECT_TRUE(Joined(nodes_[0]));
}

TEST_F(CellNodes, TwoNodesWithOneIdOnOneHostTheEarlierOneGoesOnAloneAndSaysSo) {
  Start("a");
  Until([&] { return Says(nodes_[0]).find("\"joined\":true") != std::string::npos; });
  Start("a");
  Until([&] { return Says(nodes_[0]).find("two members with one id") != std::string::npos; });
  Until([&] { return Says(nodes_[1]).find("\"joined\":true") != std::string::npos; });
  Put(nodes_[0], 1);
  EXPECT_TRUE(Has(nodes_[0], 1));
  const Result<std::uint64_t> dropped = Drop(nodes_[0], 1);
  ASSERT_FALSE(dropped.has_value());
  EXPECT_EQ(dropped.error().code(), Code::kUnavailable);
}

TEST_F(CellNodes, AnEtcdThatIsFullRefusesADropByNameAndTheNodesGoOn) {
  etcd::TestEtcd full({"--quota-backend-bytes", "65536"});
  ASSERT_TRUE(full.Start().ok()) << full.log();
  Start("a", {"--cell", full.endpoint()});
  Result<std::uint64_t> dropped = 0;
  std::vector<BlockKey> keys;
  for (std::uint64_t n = 0; n < 2'000; ++n) keys.push_back(KeyOf(n));
  Until([&] {
    dropped = nodes_[0].store->Drop(*nodes_[0].ns, keys, 2 * kSecond).Wait();
    return !dropped && dropped.error().code() != Code::kTooLate;
  });
  EXPECT_EQ(dropped.error().code(), Code::kBusy) << dropped.error().ToString();
  EXPECT_THAT(std::string(dropped.error().message()), HasSubstr("etcd"));
  Put(nodes_[0], 5'000);
  EXPECT_TRUE(Has(nodes_[0], 5'000));
}

}  // namespace
}  // namespace cistern
