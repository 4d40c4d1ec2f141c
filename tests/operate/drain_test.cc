// SPDX-License-Identifier: Apache-2.0
#include "drain.h"

#include <gtest/gtest.h>

namespace cistern {
namespace {

TEST(Drain, ANodeThatDoesNotAnswerHasNotEnded) {
  EXPECT_TRUE(AwaitEnd([] { return Error(Code::kGone, "it is gone"); }).ok());
  const Status hangs = AwaitEnd([] { return Error(Code::kTooLate, "it did not answer"); });
  EXPECT_EQ(hangs.code(), Code::kTooLate);
  EXPECT_NE(hangs.message().find("it did not answer"), std::string_view::npos);
}

TEST(Drain, ANodeThatSomebodyTookBackIntoServiceIsNotWaitedFor) {
  const Status goes_on =
      AwaitEnd([] { return std::string(R"({"drain":{"stage":"off"},"now":{"leases":0,"pending":0}})"); });
  EXPECT_EQ(goes_on.code(), Code::kGone);
  EXPECT_NE(goes_on.message().find("drain off"), std::string_view::npos);
}

}  // namespace
}  // namespace cistern
