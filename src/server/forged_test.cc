// SPDX-License-Identifier: Apache-2.0
// Rings and messages of a hostile client end its session and no other (R13).
#include "server/test_server.h"

namespace cistern::server {
namespace {

class Forged : public ::testing::Test {
 protected:
  void EndsFor(RawClient& client, std::string_view text) {
    client.Wake();
    server.Until([&] { return client.HungUp(); });
    EXPECT_EQ(server.counters().ended_forged, 1u);
    server.UntilLogged(text);
    // The others do not notice.
    RawClient other = RawClient::In(server);
    other.Attach();
    EXPECT_EQ(CodeOf(other.Do(other.Put(1, 0, kBlock))), Code::kOk);
  }
  TestServer server;
};

TEST_F(Forged, R13AStepLargerThanTheRingEndsTheSession) {
  RawClient client = RawClient::In(server);
  client.page().submitted = wire::kRingEntries + 1;
  EndsFor(client, "submissions ahead");
}

TEST_F(Forged, ArgumentsOutsideTheAreaEndTheSession) {
  RawClient client = RawClient::In(server);
  wire::Submission entry{.op = wire::Op::kTouch, .args_offset = UINT32_MAX, .args_bytes = UINT32_MAX};
  client.Push(entry);
  EndsFor(client, "the area has");
}

TEST_F(Forged, MoreArgumentsInFlightThanTheAreaHoldsEndTheSession) {
  RawClient client = RawClient::In(server);
  client.Attach();
  wire::Submission entry = client.With(wire::Op::kTouch, std::span<const wire::KeyItem>());
  entry.args_bytes = wire::kArgumentBytes;
  client.Push(entry);
  client.Push(entry);
  EndsFor(client, "bytes in flight");
}

TEST_F(Forged, CollectingWhatWasNeverMadeEndsTheSession) {
  RawClient client = RawClient::In(server);
  client.Attach();
  client.page().collected = 1000;
  client.Push(client.AcquireOf(1));
  EndsFor(client, "never made");
}

TEST_F(Forged, AMessageThatIsNoneEndsTheSession) {
  RawClient client = RawClient::In(server);
  client.Send(std::uint64_t{42});
  EndsFor(client, "a message of 8 bytes");
}

}  // namespace
}  // namespace cistern::server
