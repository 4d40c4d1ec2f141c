// SPDX-License-Identifier: Apache-2.0
// A measurement of an endpoint: is it there, which model, one run of a plan or three that are compared.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "endpoint/drive.h"

namespace cistern {

struct MeasureOptions {
  std::string url;    // base
  std::string model;  // empty: the first that the server names
  Api api = Api::kChat;
  bool plain = false;
  // The same work three times: `off`, Cistern neither loads nor saves; `cold`, it knows nothing of it yet;
  // `warm`, the work of `cold` again. Off and cold each have a salt of their own. Not with `plain`.
  bool compare = false;
  bool warm_up = true;  // one request before, unmeasured
  std::string salt;     // empty: none, or with `compare` a fresh one
  std::int64_t silence_us = 300'000'000;
  Interrupt* interrupt = nullptr;
  std::function<void(const Progress&)> progress;
};

struct Measurement {
  std::string url, model, salt;
  std::vector<RunReport> runs;     // with `compare` off, cold, warm; fewer where it was interrupted
  std::vector<std::string> notes;  // what a reader of the figures must know
  bool interrupted = false;
};

// Fails where nothing could be measured: kGone, no endpoint; kInvalid, no such model; kDenied, no right to
// ask or an interrupt before the first run; kIoError, what the warm-up met. Requests that fail later are
// counted.
Result<Measurement> Measure(const MeasureOptions& options, const Plan& plan, HttpClient& http);

// Of the answer to /v1/models: their names; kMismatch where it is none.
Result<std::vector<std::string>> ModelNames(std::string_view body);

}  // namespace cistern
