// SPDX-License-Identifier: Apache-2.0
#include "bench.h"

namespace cistern {

std::span<const BenchGroup> BenchGroups() {
  static const BenchGroup kGroups[] = {
      {"get", "checked get against memcpy", BenchGets},
      {"put", "put against memcpy", BenchPuts},
      {"views", "leased views: polling, after idle, embedded", BenchViews},
      {"match", "match and restart with a million blocks", BenchMatchAndRestart},
      {"leases", "leases of a killed client", BenchLeases},
      {"flash", "flash below memory against fio; needs --flash-dir", BenchFlash},
      {"pages", "blocks to and from an engine's pages against memcpy", BenchPages},
  };
  return kGroups;
}

}  // namespace cistern
