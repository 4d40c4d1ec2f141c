// SPDX-License-Identifier: Apache-2.0
// What the doctor says of one thing: how it is, what it should be, and how to mend it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cistern::doctor {

// kWarning: it works, but slower, or not as somebody meant it. kProblem: it will not start, or it loses or
// refuses what it should keep.
enum class Verdict : std::uint8_t { kOk, kWarning, kProblem };

constexpr std::string_view VerdictName(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk: return "ok";
    case Verdict::kWarning: return "warning";
    case Verdict::kProblem: return "problem";
  }
  return "unknown";
}

struct Finding {
  std::string name;  // stable: scripts look for it
  Verdict verdict = Verdict::kOk;
  std::string value;
  std::string limit;  // what it is compared with; empty: nothing
  std::string mend;   // empty where it is ok
};

using Findings = std::vector<Finding>;

}  // namespace cistern::doctor
