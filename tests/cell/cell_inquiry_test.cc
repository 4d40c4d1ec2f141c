// SPDX-License-Identifier: Apache-2.0
// What the nodes of a cell answer to who asks about a chain, by the API and by the command: real processes on
// loopback, and a real etcd.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <boost/json.hpp>

#include "../real_node.h"
#include "command.h"
#include "local_cell.h"

namespace cistern {
namespace {

namespace json = boost::json;

class CellInquiry : public testing::Test {
 protected:
  void Start(int count) {
    if (!etcd::TestEtcd::Installed()) GTEST_SKIP() << "Debian's etcd-server is not installed";
    auto cell = LocalCell::Start(DaemonBeside(), "/dev/shm");
    ASSERT_TRUE(cell.has_value()) << cell.error().ToString();
    cell_ = std::move(*cell);
    for (int i = 0; i < count; ++i) {
      const Status added = cell_->Add({"--memory", "64MiB"});
      ASSERT_TRUE(added.ok()) << added.ToString();
    }
    const Status together = cell_->ComeTogether();
    ASSERT_TRUE(together.ok()) << together.ToString();
  }
  Store& store(std::size_t node) { return (*cell_)[node].store; }
  // The namespace that the command makes of a name.
  Namespace Attached(std::size_t node) {
    NamespaceSpec spec;
    spec.name = "demo";
    spec.fields = {{"name", "demo"}};
    spec.groups = {{.name = "full"}};
    spec.trusted_keys = true;
    Result<Namespace> ns = store(node).Attach(spec);
    CISTERN_ASSERT(ns.has_value());
    return *ns;
  }
  void PutChain(std::size_t node, std::uint64_t first, std::uint64_t last) {
    const Namespace ns = Attached(node);
    for (std::uint64_t n = first; n <= last; ++n) {
      const Status put = PutBlock(store(node), ns, n, n == first ? std::nullopt : std::optional(n - 1), 5000);
      ASSERT_TRUE(put.ok()) << put.ToString();
    }
  }
  static std::vector<BlockKey> Chain(std::uint64_t first, std::uint64_t last) {
    std::vector<BlockKey> chain;
    for (std::uint64_t n = first; n <= last; ++n) chain.push_back(KeyOf(n));
    return chain;
  }
  json::object Who(std::size_t node, std::uint64_t first, std::uint64_t last) {
    const auto text = store(node).CellHoldersJson(Attached(node), Chain(first, last));
    EXPECT_TRUE(text.has_value()) << text.error().ToString();
    return text ? json::parse(*text).as_object() : json::object();
  }
  json::object Explain(std::size_t node, std::uint64_t first, std::uint64_t last) {
    const auto text = store(node).CellExplanationJson(Attached(node), Chain(first, last));
    EXPECT_TRUE(text.has_value()) << text.error().ToString();
    return text ? json::parse(*text).as_object() : json::object();
  }
  std::string FindingOf(std::size_t node, std::uint64_t first, std::uint64_t last) {
    return json::value_to<std::string>(Explain(node, first, last).at("finding"));
  }
  // "node2:8 node1:4*": who has how much, the node that was asked with a star.
  std::string Shares(std::size_t node, std::uint64_t first, std::uint64_t last) {
    std::string shares;
    const json::object who = Who(node, first, last);
    for (const json::value& one : who.at("members").as_array()) {
      const json::object& member = one.as_object();
      shares += Text(shares.empty() ? "" : " ", std::string(member.at("member").as_string()), ":",
                     member.at("blocks").to_number<std::uint64_t>(), member.at("self").as_bool() ? "*" : "");
    }
    return shares;
  }
  std::string Command(std::size_t node, std::vector<std::string> words) {
    const std::string daemon = DaemonBeside();
    std::vector<std::string> command = {daemon.substr(0, daemon.rfind('/')) + "/cistern"};
    command.insert(command.end(), words.begin(), words.end());
    command.insert(command.end(), {"--socket", (*cell_)[node].daemon.socket(), "--namespace", "demo"});
    const Result<std::string> said = OutputOf(command);
    EXPECT_TRUE(said.has_value()) << said.error().ToString();
    return said.value_or("");
  }

  std::unique_ptr<LocalCell> cell_;
};

TEST_F(CellInquiry, MembersSayHowMuchOfAPromptTheyHaveWhoHasMostFirst) {
  ASSERT_NO_FATAL_FAILURE(Start(3));
  if (IsSkipped()) return;
  PutChain(0, 1, 4);
  PutChain(1, 1, 8);
  for (const std::size_t node : {0, 1, 2}) (void)Attached(node);
  Until([&] { return Shares(2, 1, 10) == "node2:8 node1:4 node3:0*"; });
  Until([&] { return Shares(0, 1, 10) == "node2:8 node1:4* node3:0"; });
  EXPECT_EQ(Shares(0, 90, 99), "node1:0* node2:0 node3:0");
  const json::object who = Who(2, 1, 10);
  EXPECT_EQ(who.at("of").to_number<int>(), 10);
  Until([&] { return Who(2, 1, 10).at("members").as_array()[0].as_object().at("exact").as_bool(); });
  EXPECT_FALSE(Who(2, 90, 99).at("members").as_array()[0].as_object().at("member").as_string().empty());
  const std::string said = Command(2, {"cell", "who", KeyOf(1).ToHex(), KeyOf(2).ToHex(), "--json"});
  EXPECT_EQ(json::parse(said).at("of").to_number<int>(), 2);
  EXPECT_THAT(Command(2, {"cell", "who", KeyOf(1).ToHex()}), testing::HasSubstr("this node"));
}

TEST_F(CellInquiry, BlockThatIsNotFoundIsExplainedAtRealNodes) {
  ASSERT_NO_FATAL_FAILURE(Start(3));
  if (IsSkipped()) return;
  for (const std::size_t node : {0, 1, 2}) (void)Attached(node);
  PutChain(0, 1, 4);
  Until([&] { return FindingOf(1, 1, 4) == "at_peer"; });
  EXPECT_EQ(FindingOf(0, 1, 4), "here");
  Until([&] { return FindingOf(1, 3, 3) == "at_peer"; });  // asked about alone
  Until([&] { return FindingOf(1, 1, 5) == "unknown"; });
  Until([&] {
    const std::string said = Command(1, {"cell", "explain", KeyOf(4).ToHex(), "--json"});
    return json::parse(said).at("member").as_string() == "node1";
  });
  const std::vector<BlockKey> second = Chain(2, 2);
  ASSERT_TRUE(store(2).Drop(Attached(2), second, 60'000'000).Wait().has_value());
  EXPECT_EQ(FindingOf(0, 1, 4), "dropped");
  Until([&] { return FindingOf(1, 1, 4) == "dropped"; });
  Until([&] { return FindingOf(1, 1, 1) == "at_peer"; });
  ::kill((*cell_)[0].daemon.pid(), SIGSTOP);
  Until([&] { return FindingOf(1, 1, 1) == "not_asked"; });
  EXPECT_THAT(Command(1, {"cell", "explain", KeyOf(1).ToHex()}), testing::HasSubstr("node1"));
  ::kill((*cell_)[0].daemon.pid(), SIGCONT);
  Until([&] { return FindingOf(1, 1, 1) == "at_peer"; });
}

TEST(Inquiry, NodeInNoCellSaysSo) {
  Result<Daemon> daemon = Daemon::Start(DaemonBeside(), "/dev/shm", {"--memory", "64MiB"});
  ASSERT_TRUE(daemon.has_value());
  Result<Store> store = daemon->Connect();
  ASSERT_TRUE(store.has_value());
  const Namespace ns = AttachTest(*store);
  const BlockKey key = KeyOf(1);
  const auto who = store->CellHoldersJson(ns, std::span(&key, 1));
  ASSERT_FALSE(who.has_value());
  EXPECT_EQ(who.error().code(), Code::kMiss);
  const auto why = store->CellExplanationJson(ns, std::span(&key, 1));
  ASSERT_FALSE(why.has_value());
  EXPECT_EQ(why.error().code(), Code::kMiss);
  EXPECT_EQ(store->CellHoldersJson(ns, {}).error().code(), Code::kMiss);
}

}  // namespace
}  // namespace cistern
