// SPDX-License-Identifier: Apache-2.0
// Members of a cell that drop, join and leave as a test says, over a simulated network and etcd.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "mesh/test_cell.h"

namespace cistern::mesh {

class CellTest : public ::testing::Test {
 protected:
  static constexpr std::int64_t kSecond = 1'000'000;

  void StartCell(int members) {
    for (int i = 0; i < members; ++i) cell_.Start(cell_.Add(std::string(1, static_cast<char>('a' + i))));
    ASSERT_TRUE(Settled());
  }
  TestNode& node(std::size_t i) { return *cell_.nodes[i]; }
  Member& member(std::size_t i) { return *node(i).member; }
  // Every member runs, has joined and knows every other.
  bool Settled(std::int64_t us = 30 * kSecond) {
    return cell_.RunUntil(us, [this] {
      std::size_t running = 0;
      for (const auto& each : cell_.nodes) running += each->member != nullptr ? 1 : 0;
      for (const auto& each : cell_.nodes) {
        if (!each->member) continue;
        if (!each->member->joined() || each->member->reachable() + 1 < running ||
            each->member->state().view.members.size() != running)
          return false;
      }
      return true;
    });
  }
  void Put(std::size_t i, const std::vector<BlockKey>& chain, std::vector<std::uint64_t> notes = {}) {
    node(i).store->Put({name_, chain.back()}, {.put = ++puts_, .chain = chain, .notes = std::move(notes)});
  }
  // By somebody who is no member.
  void Commit(std::string key, std::string value) { Change({PutOf(std::move(key), std::move(value))}); }
  void Remove(std::string key) {
    Change({{.kind = etcd::Operation::Kind::kDelete, .keys = {std::move(key), ""}}});
  }
  // In one revision.
  void Change(std::vector<etcd::Operation> changes) {
    const auto client = cell_.etcd.Client("somebody");
    const etcd::Transaction write{.then = std::move(changes)};
    ASSERT_TRUE(cell_.loop->BlockOn(client->Commit(write, cell_.clock.Now().PlusUs(kSecond))).has_value());
  }
  static etcd::Operation PutOf(std::string key, std::string value) {
    return {.keys = {std::move(key), ""}, .value = std::move(value)};
  }
  // Others than the cell write to its etcd until it has come to this revision.
  void RaiseTo(std::int64_t revision) {
    while (cell_.etcd.header().revision < revision) Commit("/another/key", "value");
  }
  // Until somebody makes room, etcd takes nothing more.
  void FillEtcd() {
    cell_.etcd.SetFull(true);
    etcd::Transaction write;
    write.then.push_back({.keys = {"/another/key", ""}, .value = "value"});
    (void)cell_.loop->BlockOn(
        cell_.etcd.Client("somebody")->Commit(write, cell_.clock.Now().PlusUs(kSecond)));
  }
  // Who has this key alone is refused by name.
  void ExpectRefused(const std::string& id, const net::CellKey& key) {
    TestNode& stranger = cell_.Add(id);
    stranger.cell_keys = {key};
    cell_.Start(stranger);
    ASSERT_TRUE(cell_.RunUntil(10 * kSecond, [&] { return stranger.member->ended(); }));
    EXPECT_EQ(stranger.member->why().code(), Code::kMismatch);
    EXPECT_NE(stranger.member->why().message().find("cell key"), std::string_view::npos);
  }
  // From the first to the second: it holds all that it can, until the network is healed.
  void FillTheConnectionOfTwo() {
    cell_.network.Cut("a", "b");
    for (int round = 0; round < 4; ++round) {
      std::vector<std::byte> message(net::ControlLimits::kPayloadBytes);
      while (!message.empty()) {
        if (!member(0).links().Tell(member(1).options().process_number, 99, message).ok())
          message.resize(message.size() / 2);
      }
      cell_.RunFor(1'000);
    }
  }
  std::vector<etcd::KeyValue> Found(const std::string& prefix) {
    const auto client = cell_.etcd.Client("somebody");
    const auto found = cell_.loop->BlockOn(
        client->Range({.keys = etcd::KeyRange::Prefix(prefix)}, cell_.clock.Now().PlusUs(kSecond)));
    EXPECT_TRUE(found.has_value());
    return found ? found->keys : std::vector<etcd::KeyValue>();
  }
  std::size_t KeysOf(const std::string& prefix) { return Found(prefix).size(); }
  bool Has(std::size_t i, const BlockKey& key) const {
    return cell_.nodes[i]->store->tree().contains({name_, key});
  }
  // Its medium knows of all that it has seen.
  bool AllIsDurable(std::size_t i) {
    return cell_.RunUntil(30 * kSecond, [&] {
      return node(i).medium.standing.history == member(i).state().history &&
             node(i).medium.standing.applied == member(i).state().seen;
    });
  }
  // Each that runs has joined under another history than this.
  bool BeganAnew(std::uint64_t history, std::int64_t us = 10 * kSecond) {
    return cell_.RunUntil(us, [&] {
      return std::ranges::all_of(cell_.nodes, [&](const auto& each) {
        return !each->member || (each->member->joined() && each->member->state().history != history);
      });
    });
  }
  const SharedNamespace name_ = NamespaceOf(1);
  const CellKeys keys_{"/cistern/"};
  TestCell cell_{1};
  std::uint64_t puts_ = 0;
};

}  // namespace cistern::mesh
