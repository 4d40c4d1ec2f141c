// SPDX-License-Identifier: Apache-2.0
// Workloads of the shapes that serving has, for tests of policies.
#pragma once

#include <string_view>

namespace cistern::workload {

struct Shape {
  std::string_view name;
  std::string_view options;
};

inline constexpr Shape kShapes[] = {
    {"chat", "generated:sessions=400,turns=6,think=60s,span=20min"},
    {"agents",
     "generated:sessions=40,turns=40,system=1,system_tokens=9000,user_tokens=1500,output_tokens=300,"
     "context=200000,think=15s,span=20min,session_zipf=0"},
    {"retrieval",
     "generated:sessions=2000,turns=1,system=1,documents=300,document_tokens=5000,span=20min,"
     "document_zipf=0.8"},
    {"one shot", "generated:sessions=600,turns=1,system=1,system_tokens=0,user_tokens=20000,context=100000"},
    {"one shot beside chat",
     "generated:sessions=600,turns=3,system=2,user_tokens=9000,context=60000,think=30s"},
    {"API", "generated:sessions=3000,turns=1,system=40,system_tokens=8000,span=10min"},
    {"loop",
     "generated:sessions=2000,turns=1,system=1,system_tokens=0,documents=200,document_tokens=4096,in_turn=1"},
    {"all at once", "generated:sessions=300,turns=5,think=0s,span=0s"},
};

}  // namespace cistern::workload
