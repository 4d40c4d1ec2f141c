// SPDX-License-Identifier: Apache-2.0
// Another history by a person's word, after etcd was restored while no node ran: the command, real processes
// and a real etcd.
#include "cell_nodes.h"
#include "command.h"

namespace cistern {
namespace {

Result<std::string> NewHistory(std::vector<std::string> words) {
  const std::string daemon = DaemonBeside();
  words.insert(words.begin(), {daemon.substr(0, daemon.rfind('/')) + "/cistern", "cell", "new-history"});
  return OutputOf(words);
}

TEST_F(CellNodes, R10WhatWasDroppedBeforeARestoreThatNobodySawIsGivenUpForANewHistory) {
  Start("a");
  Start("b");
  const auto joined = [&](CellNode& node) { return Says(node).find("\"joined\":true") != std::string::npos; };
  for (CellNode& node : nodes_) Until([&] { return joined(node); });
  CellNode &saw = nodes_[0], &missed = nodes_[1];
  for (CellNode* node : {&saw, &missed}) Put(*node, 1);
  Put(missed, 2);
  Until([&] { return StatusNumber(*missed.store, "applied") > 0; });  // else it begins as a stranger
  missed.daemon->Kill();
  etcd_.Kill();
  etcd_.Save("backup");
  ASSERT_TRUE(etcd_.Start().ok()) << etcd_.log();
  // Once the membership of who is away has lapsed.
  Until([&] { return Drop(saw, 1).has_value(); });
  saw.daemon->Kill();
  etcd_.Kill();
  etcd_.Restore("backup");
  ASSERT_TRUE(etcd_.Start().ok()) << etcd_.log();
  ASSERT_TRUE(missed.daemon->Exec().ok());
  Connect(missed);
  Until([&] { return joined(missed); });
  ASSERT_TRUE(Has(missed, 1)) << "else nobody would have to ask for another history";
  const std::string history = HistoryOf(missed);
  missed.daemon->Kill();

  // As the command says it.
  const auto history_of = [&](CellNode& node) {
    const std::string text = HistoryOf(node);
    return text.substr(0, text.find('"', std::string_view("\"history\":\"").size()) + 1);
  };
  const std::string file = directory_.path() + "/cistern.toml", key = directory_.path() + "/key";
  std::ofstream(file) << "member = \"b\"\ncell_address = \"127.0.0.1:7420\"\ncell = [\"" << etcd_.endpoint()
                      << "\"]\ncell_key = [\"" << key << "\"]\n";
  EXPECT_FALSE(NewHistory({"--config", file, "--cell-key", WriteKey("another", 'b')}).has_value());
  EXPECT_FALSE(NewHistory({"--config", file, "--cell-name", "another"}).has_value());
  const Result<std::string> said = NewHistory({"--config", file, "--json"});
  ASSERT_TRUE(said.has_value()) << said.error().ToString();
  ASSERT_TRUE(missed.daemon->Exec().ok());
  Connect(missed);
  Until([&] { return joined(missed); });
  EXPECT_NE(HistoryOf(missed), history);
  EXPECT_NE(said->find(history_of(missed)), std::string::npos) << *said << history_of(missed);
  missed.ns = AttachBlocks(*missed.store);
  EXPECT_FALSE(Has(missed, 1) || Has(missed, 2));
  Put(missed, 3);
  ASSERT_TRUE(saw.daemon->Exec().ok());
  Connect(saw);
  Until([&] { return joined(saw) && HistoryOf(saw) == HistoryOf(missed); });
  saw.ns = AttachBlocks(*saw.store);
  EXPECT_FALSE(Has(saw, 1));
  EXPECT_TRUE(Has(missed, 3));

  // The flags alone, and while nodes run.
  const Result<std::string> again = NewHistory({"--cell", etcd_.endpoint(), "--cell-key", key});
  ASSERT_TRUE(again.has_value()) << again.error().ToString();
  EXPECT_NE(again->find("/cistern/default/: history "), std::string::npos) << *again;
  for (CellNode* node : {&saw, &missed})
    Until([&] { return joined(*node) && said->find(history_of(*node)) == std::string::npos; });
  EXPECT_EQ(HistoryOf(saw), HistoryOf(missed));
  missed.ns = AttachBlocks(*missed.store);
  EXPECT_FALSE(Has(missed, 3));
}

}  // namespace
}  // namespace cistern
