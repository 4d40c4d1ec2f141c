// SPDX-License-Identifier: Apache-2.0
// A measurement's figures for people, the same in the table and on the page, and for programs as JSON.
#pragma once

#include <string>
#include <vector>

#include "endpoint/measure.h"

namespace cistern {

// What was asked, in one line each, for the head of table and page.
struct Heading {
  std::string shape;  // "chat: 8 users, 5 rounds, ..."
  std::string api;    // "chat", "completions"
  std::string when;   // "2025-01-31 12:00 UTC"
  std::uint64_t seed = 1;
};

// Three digits that count, at most three decimals: "7297", "80.0", "0.224".
std::string NumberText(double value);

struct FigureRow {
  std::string label;
  std::vector<std::string> cells;  // one a run
};
std::vector<FigureRow> FigureRows(const std::vector<RunReport>& runs);

// "First token, median: off 812 ms, cold 820 ms, warm 65 ms: 12.5 times sooner than off, and at p90 14 times
// sooner.", or nothing where these runs are not there.
std::string Verdict(const std::vector<RunReport>& runs);

// "run off: 3 x status: HTTP 400: ...", one a kind and run.
std::vector<std::string> FailureLines(const std::vector<RunReport>& runs);

std::string TableText(const Heading& heading, const Measurement& measurement);
std::string JsonText(const Heading& heading, const Measurement& measurement);  // one object, one line

}  // namespace cistern
