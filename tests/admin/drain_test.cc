// SPDX-License-Identifier: Apache-2.0
// A node that drains under its clients' load.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "../real_node.h"
#include "admin/test_http.h"
#include "base/test_directory.h"

namespace cistern {
namespace {

using testing::HasSubstr;

constexpr std::size_t kBytes = 16'384;
constexpr std::uint64_t kWriters = 2, kMostOfOne = 4'000;

std::uint64_t NumberOf(std::uint64_t writer, std::uint64_t n) { return writer << 32 | n; }

// Chains that are put until the node takes no more.
class Load {
 public:
  explicit Load(RealNode& node) {
    for (std::uint64_t writer = 0; writer < kWriters; ++writer)
      threads_.emplace_back([this, &node, writer] { Put(node, writer); });
  }
  void AwaitBlocks(std::uint64_t of_each) {
    for (const auto& count : published_) Until([&] { return count >= of_each; });
  }
  // What was refused last, or nothing.
  std::string End() {
    threads_.clear();
    return refused_;
  }
  // All that were acknowledged.
  std::uint64_t published(std::uint64_t writer) const { return published_[writer]; }

 private:
  void Put(RealNode& node, std::uint64_t writer) {
    Store store = node.Connect();
    const Namespace ns = AttachTest(store);
    for (std::uint64_t n = 0; n < kMostOfOne; ++n) {
      const auto parent = n == 0 ? std::nullopt : std::optional(NumberOf(writer, n - 1));
      const Status put = PutBlock(store, ns, NumberOf(writer, n), parent, kBytes);
      if (!put.ok()) {
        EXPECT_EQ(put.code(), Code::kBusy) << put.ToString();
        if (writer == 0) refused_ = put.message();
        return;
      }
      ++published_[writer];
    }
  }

  std::atomic<std::uint64_t> published_[kWriters] = {};
  std::string refused_;  // read once its thread has ended
  std::vector<std::jthread> threads_;
};

void ExpectAll(RealNode& node, const Load& load) {
  Store store = node.Connect();
  const Namespace ns = AttachTest(store);
  for (std::uint64_t writer = 0; writer < kWriters; ++writer) {
    for (std::uint64_t n = 0; n < load.published(writer); ++n) {
      const auto body = store.Get(ns, KeyOf(NumberOf(writer, n)), {.deadline_us = 60'000'000});
      ASSERT_TRUE(body.has_value()) << writer << ", " << n << ": " << body.error().ToString();
      ASSERT_EQ(*body, BodyOf(NumberOf(writer, n), kBytes));
    }
  }
}

void AwaitDrained(Store& store) {
  Until([&] {
    const Result<std::string> status = store.StatusJson();
    return status && status->find("\"stage\":\"drained\"") != std::string::npos;
  });
}

class Drained : public testing::Test {
 protected:
  // Nothing is written there by itself.
  void WithFlash(node::NodeOptions& options) {
    options.flash = {{.path = flash_.path(), .size_bytes = 512u << 20}};
    options.flash_write = {.policy = WritePolicy::kSelective, .uses = 200};
  }

  const TestDirectory flash_{TestDirectory::On::kDisk};  // what is on tmpfs is memory
};

TEST_F(Drained, UnderLoadBeforeARebootNoPublishedBlockIsLost) {
  RealNode node(256u << 20, [this](node::NodeOptions& options) { WithFlash(options); });
  Store store = node.Connect();
  Load load(node);
  load.AwaitBlocks(100);
  ASSERT_TRUE(store.Drain({.memory_goes = true}).ok());
  AwaitDrained(store);
  EXPECT_THAT(*store.StatusJson(), AllOf(HasSubstr("\"alone_records\":0,"), HasSubstr("\"complete\":true")));
  const std::string refused = load.End();
  EXPECT_TRUE(load.published(0) == kMostOfOne || refused.find("the node drains") != std::string::npos)
      << refused;
  node.Stop();
  std::filesystem::remove_all(node.Options().memory_dir);  // the host goes down
  node.Start();
  ExpectAll(node, load);
}

TEST_F(Drained, UnderLoadBeforeAnUpgradeMemoryKeepsThem) {
  RealNode node(256u << 20, [](node::NodeOptions& options) { options.http = "0"; });
  Store store = node.Connect();
  Load load(node);
  load.AwaitBlocks(100);
  ASSERT_TRUE(store.Drain({.memory_goes = false}).ok());
  // It says something else where the core had no turn for 2 s.
  admin::HttpAnswered ready;
  Until([&] {
    ready = admin::Get(node.http(), "/readyz");
    return ready.body.find("the node drains") != std::string::npos;
  });
  EXPECT_EQ(ready.status, 503);
  AwaitDrained(store);
  static_cast<void>(load.End());
  node.Stop();
  node.Start();
  ExpectAll(node, load);
}

TEST_F(Drained, OffServesAgainAndIsReady) {
  RealNode node(64u << 20, [](node::NodeOptions& options) { options.http = "0"; });
  Store store = node.Connect();
  const Namespace ns = AttachTest(store);
  ASSERT_TRUE(PutBlock(store, ns, 1, std::nullopt, kBytes).ok());
  ASSERT_TRUE(store.Drain({}).ok());
  AwaitDrained(store);
  EXPECT_FALSE(store.Get(ns, KeyOf(1)).has_value());
  ASSERT_TRUE(store.Drain({.on = false}).ok());
  Until([&] { return admin::Get(node.http(), "/readyz").status == 200; });
  EXPECT_TRUE(store.Get(ns, KeyOf(1)).has_value());
  EXPECT_TRUE(PutBlock(store, ns, 2, std::nullopt, kBytes).ok());
}

TEST_F(Drained, ANodeInsideAnotherProgramIsNotStoppedByIt) {
  RealNode node(64u << 20);
  Store store = node.Connect();
  const Status refused = store.Drain({.then_stop = true});
  EXPECT_EQ(refused.code(), Code::kInvalid);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("without --stop"));
  EXPECT_THAT(*store.StatusJson(), HasSubstr("\"stage\":\"off\""));
}

}  // namespace
}  // namespace cistern
