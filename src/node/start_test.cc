// SPDX-License-Identifier: Apache-2.0
// A start that is refused takes back what it made.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "node/node.h"

namespace cistern::node {
namespace {

namespace fs = std::filesystem;

class NodeStart : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string path = ::testing::TempDir() + "cistern-start-XXXXXX";
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    root_ = path;
    options_.memory_dir = root_ / "memory";
    options_.memory_bytes = 64u << 20;
    options_.log_level = "error";
  }
  void TearDown() override { fs::remove_all(root_); }
  bool Has(const char* name) const { return fs::exists(root_ / "memory/default" / name); }

  fs::path root_;
  NodeOptions options_;
};

TEST_F(NodeStart, RefusedForItsSocketLeavesNoMemoryReserved) {
  options_.socket = root_ / "none/socket";
  const auto node = Node::Start(options_);
  ASSERT_FALSE(node.has_value());
  EXPECT_NE(node.error().ToString().find("none/socket"), std::string::npos) << node.error().ToString();
  EXPECT_FALSE(Has("arena"));
  EXPECT_FALSE(Has("index"));
}

TEST_F(NodeStart, RefusedForItsSocketKeepsTheMemoryThatWasThere) {
  {
    const auto node = Node::Start(options_);
    ASSERT_TRUE(node.has_value()) << node.error().ToString();
  }
  options_.socket = root_ / "none/socket";
  ASSERT_FALSE(Node::Start(options_).has_value());
  EXPECT_TRUE(Has("arena"));
  EXPECT_TRUE(Has("index"));
}

}  // namespace
}  // namespace cistern::node
