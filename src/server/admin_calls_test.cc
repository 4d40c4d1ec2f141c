// SPDX-License-Identifier: Apache-2.0
// Calls that steer a node, as they should not be asked: each is refused with a message, and nothing has
// changed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/test_server.h"
#include "store/drain.h"

namespace cistern::server {
namespace {

using testing::HasSubstr;
using wire::Op;

struct Wrong {
  wire::Submission call;
  std::string arguments;
  Code code;
  const char* says;
};

TEST(AdminCalls, WhatIsMalformedIsRefusedWithAMessageAndNothingChanges) {
  TestServer server;
  RawClient client = RawClient::In(server);
  client.Attach();
  std::fill_n(client.staging_bytes().begin(), 4096, std::byte{7});
  ASSERT_EQ(static_cast<Code>(client.Do(client.Put(1, 0, 4096)).code), Code::kOk) << client.ReplyText();
  const std::string long_name(wire::kMaxTargetBytes + 1, 'x');
  const Wrong wrong[] = {
      {{.op = Op::kSwitch, .a = 0, .b = 0}, "", Code::kInvalid, "switch: 0 turned 0"},
      {{.op = Op::kSwitch, .a = 3, .b = 1}, "", Code::kInvalid, "switch: 3 turned 1"},
      {{.op = Op::kSwitch, .a = wire::kReads, .b = 2}, "", Code::kInvalid, "turned 2"},
      {{.op = Op::kSwitch, .a = ~0ull, .b = ~0ull}, "", Code::kInvalid, "nothing that is known"},
      {{.op = Op::kSwitch, .a = wire::kReads, .b = 0}, long_name, Code::kInvalid, "257 bytes"},
      {{.op = Op::kSwitch, .a = wire::kReads, .b = 0}, "nobody", Code::kMiss, "nobody"},
      {{.op = Op::kSwitch, .a = wire::kWrites, .b = 0},
       std::string(200, '\0'),
       Code::kMiss,
       "none of that name"},
      {{.op = Op::kDropNamed}, "", Code::kInvalid, "0 bytes"},
      {{.op = Op::kDropNamed}, long_name, Code::kInvalid, "257 bytes"},
      {{.op = Op::kDropNamed}, "nobody", Code::kMiss, "nobody"},
      {{.op = Op::kDrain, .a = wire::kForLeaving + 1}, "", Code::kInvalid, "drain: 4"},
      {{.op = Op::kDrain, .flags = 0x8000, .a = wire::kForUpgrade}, "", Code::kInvalid, "flags 32768"},
      {{.op = Op::kDrain, .a = wire::kForUpgrade}, "", Code::kInvalid, "never out of service"},
      {{.op = Op::kMemory, .a = 1}, "", Code::kInvalid, "one size"},
      {{.op = Op::kDevice, .a = 7}, "/dev/x", Code::kInvalid, "device: 7"},
      {{.op = Op::kDevice, .a = wire::kTakeOut}, "", Code::kInvalid, "0 bytes"},
      {{.op = Op::kDevice, .a = wire::kTakeOut},
       std::string(wire::kMaxPathBytes + 1, '/'),
       Code::kInvalid,
       "4097 bytes"},
      {{.op = Op::kDevice, .a = wire::kTakeOut}, "/dev/x", Code::kMiss, "no flash"},
      {{.op = Op::kStatus, .a = 99}, "", Code::kMismatch, "status: 99"},
  };
  for (const Wrong& one : wrong) {
    wire::Submission call = client.With(one.call.op, std::as_bytes(std::span(one.arguments)));
    call.flags = one.call.flags;
    call.a = one.call.a;
    call.b = one.call.b;
    const wire::Completion answer = client.Do(call);
    EXPECT_EQ(static_cast<Code>(answer.code), one.code) << one.says;
    EXPECT_THAT(client.ReplyText(), HasSubstr(one.says));
    ASSERT_FALSE(client.HungUp()) << one.says;
  }
  EXPECT_TRUE(server.store->switches().all_on(store::Switch::kReads));
  EXPECT_TRUE(server.store->switches().all_on(store::Switch::kWrites));
  EXPECT_EQ(server.store->switches().off_count(store::Switch::kReads), 0u);
  EXPECT_EQ(server.store->switches().off_count(store::Switch::kWrites), 0u);
  EXPECT_EQ(server.store->drain().stage(), store::Drain::Stage::kOff);
  EXPECT_EQ(server.store->occupancy().blocks, 1u);
  const wire::Completion answer = client.Do(client.AcquireOf(1));
  EXPECT_EQ(static_cast<Code>(answer.code), Code::kOk) << client.ReplyText();
}

}  // namespace
}  // namespace cistern::server
