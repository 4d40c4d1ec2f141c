// SPDX-License-Identifier: Apache-2.0
// Slow calls as traces: OTLP's ExportTraceServiceRequest in its JSON encoding (opentelemetry-proto 1.x,
// "JSON Protobuf Encoding": ids in hexadecimal, enumerations as numbers, 64-bit numbers as strings).
//
// A call is a trace of its own: a span for the call, and below it one for each station at which it waited,
// from when it came there first until it left last. Where it was there several times, the attribute
// cistern.spent_us says how long that was together.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/slow_calls.h"

namespace cistern::admin {

// Who sends them: attributes of the resource, by OpenTelemetry's names.
using TraceResource = std::vector<std::pair<std::string, std::string>>;

// A call as a trace, with the ids of its spans: those of stations follow the call's own.
struct TracedCall {
  SlowCall call;
  std::uint64_t trace_high = 0, trace_low = 0;  // not both 0
  std::uint64_t span = 1;                       // not 0
};

// `unix_ns`: what a clock of Unix nanoseconds says at Instant 0.
std::string TracesText(const TraceResource& resource, std::span<const TracedCall> calls,
                       std::int64_t unix_ns);

}  // namespace cistern::admin
