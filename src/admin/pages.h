// SPDX-License-Identifier: Apache-2.0
// What the HTTP port shows: /metrics, /status, /healthz, /readyz and the page at /. It steers nothing.
#pragma once

#include <functional>
#include <string>

#include "admin/http_server.h"
#include "base/metric_registry.h"
#include "cistern/status.h"

namespace cistern::admin {

struct PagesParts {
  const MetricRegistry& registry;  // borrowed; not looked at before `read` was true
  // Has the core read the registry and gives what it read to `done`, on the core's thread. False: it cannot
  // be asked, because it starts or ends.
  std::function<bool(std::function<void(MetricSnapshot)> done)> read;
  // From any thread: whether the core turns; whether what was there is found again and clients are let in,
  // and what to say of it.
  std::function<Status()> alive;
  std::function<Result<std::string>()> ready;
};

HttpServer::Handler MakePages(PagesParts parts);

}  // namespace cistern::admin
