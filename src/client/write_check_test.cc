// SPDX-License-Identifier: Apache-2.0
#include "client/write_check.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/limits.h"

namespace cistern::client {
namespace {

class WriteCheck : public testing::Test {
 protected:
  WriteCheck() {
    spec_.groups.resize(2);
    spec_.groups[1].part_bytes = {64, 64};
    write_.key = BlockKey::FromHex(std::string(32, 'a')).value();
  }
  // A body of so many bytes, in pieces that are all the same memory.
  Status CheckOf(std::uint64_t bytes) {
    std::vector<std::span<const std::byte>> pieces(bytes / memory_.size(), memory_);
    if (bytes % memory_.size() != 0) pieces.push_back(std::span(memory_).first(bytes % memory_.size()));
    write_.pieces = pieces;
    return CheckWrites(spec_, std::span(&write_, 1));
  }

  NamespaceSpec spec_;
  BlockWrite write_;
  std::vector<std::byte> memory_{1u << 20};
};

TEST_F(WriteCheck, ABodyOverTheLimitIsRefusedWithItsSizeAndTheLimit) {
  EXPECT_TRUE(CheckOf(kMaxBodyBytes).ok());
  const Status status = CheckOf(kMaxBodyBytes + 1);
  EXPECT_EQ(status.code(), Code::kInvalid);
  EXPECT_EQ(status.message(),
            "block " + std::string(32, 'a') + ": part 0 has 67108865 bytes, a part has 1 to 67108864");
}

TEST_F(WriteCheck, APartThatTheNamespaceDoesNotHaveIsRefused) {
  EXPECT_EQ(CheckOf(0).message(),
            "block " + std::string(32, 'a') + ": part 0 has 0 bytes, a part has 1 to 67108864");
  write_.group = 2;
  EXPECT_EQ(CheckOf(64).message(), "block " + std::string(32, 'a') + ": group 2 of 2");
  write_.group = 1;
  write_.part = 2;
  EXPECT_EQ(CheckOf(64).message(), "block " + std::string(32, 'a') + ": part 2, its group has 2");
  write_.part = 1;
  EXPECT_EQ(CheckOf(64).code(), Code::kInvalid);  // no put id
  write_.put_id = {1, 1};
  EXPECT_TRUE(CheckOf(64).ok());
}

}  // namespace
}  // namespace cistern::client
