// SPDX-License-Identifier: Apache-2.0
#include "admin/trace_text.h"

#include <gtest/gtest.h>

namespace cistern::admin {
namespace {

// By OTLP's specification of its JSON encoding, word for word.
TEST(TraceText, ACallIsASpanWithOneBelowItForEachStation) {
  const SimulatedClock clock;
  const auto at = [](std::int64_t us) { return Instant{us * 1000}; };
  CallStations stations(clock, at(1'000));
  stations.Add(Station::kRoom, at(1'000), at(1'500));
  stations.Add(Station::kFlash, at(1'500), at(2'000));
  stations.Add(Station::kFlash, at(2'500), at(4'000));
  stations.TakeRest(at(4'200));
  const TracedCall traced{.call = {.kind = CallKind::kAcquire,
                                   .stations = stations,
                                   .ended = at(4'200),
                                   .code = Code::kTooLate,
                                   .count = 12,
                                   .session = 7,
                                   .process = 99,
                                   .namespace_fingerprint = 0xfeed},
                          .trace_high = 0x0123456789abcdef,
                          .trace_low = 1,
                          .span = 0xffffffffffffffff};
  const std::string trace = R"({"traceId":"0123456789abcdef0000000000000001",)";
  EXPECT_EQ(
      TracesText({{"service.name", "cis\"tern"}}, std::span(&traced, 1), 1'700'000'000'000'000'000),
      R"({"resourceSpans":[{"resource":{"attributes":[{"key":"service.name","value":{"stringValue":"cis\"tern"}}]},)"
      R"("scopeSpans":[{"scope":{"name":"cistern.slow_calls"},"spans":[)" +
          trace +
          R"("spanId":"ffffffffffffffff","name":"acquire","kind":2,)"
          R"("startTimeUnixNano":"1700000000001000000","endTimeUnixNano":"1700000000004200000",)"
          R"("attributes":[{"key":"cistern.blocks","value":{"intValue":"12"}},)"
          R"({"key":"cistern.code","value":{"stringValue":"too_late"}},)"
          R"({"key":"cistern.longest_at","value":{"stringValue":"flash"}},)"
          R"({"key":"cistern.core_us","value":{"intValue":"700"}},)"
          R"({"key":"cistern.session","value":{"intValue":"7"}},)"
          R"({"key":"client.process.pid","value":{"intValue":"99"}},)"
          R"({"key":"cistern.namespace","value":{"stringValue":"000000000000feed"}}],)"
          R"("status":{"code":2,"message":"too_late"}},)" +
          trace +
          R"("spanId":"0000000000000001","parentSpanId":"ffffffffffffffff","name":"room","kind":1,)"
          R"("startTimeUnixNano":"1700000000001000000","endTimeUnixNano":"1700000000001500000",)"
          R"("attributes":[{"key":"cistern.spent_us","value":{"intValue":"500"}}]},)" +
          trace +
          R"("spanId":"0000000000000002","parentSpanId":"ffffffffffffffff","name":"flash","kind":1,)"
          R"("startTimeUnixNano":"1700000000001500000","endTimeUnixNano":"1700000000004000000",)"
          R"("attributes":[{"key":"cistern.spent_us","value":{"intValue":"2000"}}]}]}]}]})");
}

}  // namespace
}  // namespace cistern::admin
