// SPDX-License-Identifier: Apache-2.0
#include "cistern/status.h"

#include <gtest/gtest.h>

#include "base/format.h"

namespace cistern {
namespace {

TEST(Status, SaysCodeThingValueAndLimit) {
  Status status(Code::kBusy, Text("sessions: ", 1000, " are open and the limit is ", 1000u));
  EXPECT_EQ(status.ToString(), "busy: sessions: 1000 are open and the limit is 1000");
  EXPECT_EQ(Status().ToString(), "ok");
  Status copy = status;
  EXPECT_EQ(copy.message(), status.message());
}

}  // namespace
}  // namespace cistern
