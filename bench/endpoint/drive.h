// SPDX-License-Identifier: Apache-2.0
// Carries a plan out against an endpoint: who asks when, within the limit in flight, and what came back.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/interrupt.h"
#include "endpoint/ask.h"
#include "endpoint/http.h"
#include "endpoint/plan.h"
#include "endpoint/report.h"

namespace cistern {

struct Progress {
  std::string_view run;
  std::uint64_t done = 0, failed = 0, in_flight = 0, planned = 0;
};

struct DriveOptions {
  std::string name;  // for progress
  std::string url;   // base
  AskOptions ask;
  std::string salt;
  std::int64_t silence_us = 300'000'000;  // a request that hears nothing for so long has failed
  Interrupt* interrupt = nullptr;         // nullptr: nobody will
  std::function<void(const Progress&)> progress;
};

struct Driven {
  std::vector<RequestRecord> records;  // one a request of the plan
  bool interrupted = false;
};

// `answers`, one a request of the plan, are what later rounds have as their history. The empty ones are
// filled in as requests end, with the model's own or, where none came, with a made up one: a run that is
// given them asks the same. kIoError: HTTP itself cannot go on.
Result<Driven> Drive(const Plan& plan, const DriveOptions& options, HttpClient& http,
                     std::vector<std::string>& answers);

}  // namespace cistern
