// SPDX-License-Identifier: Apache-2.0
// Sends slow calls to a collector of traces, by OTLP over HTTP. A thread of its own does it, so that a
// collector that is slow, dead or gone costs nobody anything: what it does not take waits in a bounded queue,
// of which the oldest are lost, and it is asked again after a second, then two, up to a minute.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "admin/trace_text.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/slow_calls.h"
#include "cistern/status.h"

namespace cistern {
class MetricRegistry;
}  // namespace cistern

namespace cistern::admin {

// An endpoint of OTLP: http://HOST:PORT or https://, whose traces go to /v1/traces; or with a path of its
// own. kInvalid: it is none.
Result<std::string> ParseTraceEndpoint(std::string_view field, std::string_view text);

class TraceSender final {
 public:
  static constexpr std::size_t kMaxWaiting = 256;
  static constexpr std::size_t kMostAtOnce = 64;

  // `endpoint` as it was parsed. The log is borrowed. Throws std::system_error where the system starts no
  // more threads.
  TraceSender(std::string endpoint, TraceResource resource, Logger& log);
  // Ends the thread at once; what still waits is lost.
  ~TraceSender();
  TraceSender(const TraceSender&) = delete;
  TraceSender& operator=(const TraceSender&) = delete;

  // From one thread. Never waits.
  void Add(const SlowCall& call);

  // Calls that the collector took, and those that it never will.
  std::uint64_t sent() const;
  std::uint64_t lost() const;

  // Null: there is none.
  static void AddMetrics(MetricRegistry& registry, const TraceSender* sender);

 private:
  class Body;
  const std::unique_ptr<Body> body_;
};

}  // namespace cistern::admin
