// SPDX-License-Identifier: Apache-2.0
// Any bytes as a trace: read to the end or to an error, and what is accepted keeps the format's promises.
#include <cstddef>
#include <cstdint>
#include <cstdio>

#include "base/assert.h"
#include "workload/trace.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  std::FILE* file = fmemopen(const_cast<std::uint8_t*>(data), size, "r");
  CISTERN_ASSERT(file);
  cistern::workload::TraceReader reader(file, "fuzz");
  cistern::workload::Request request;
  cistern::Result<bool> more = true;
  while ((more = reader.Next(request)) && *more) {
    CISTERN_ASSERT(request.input_tokens <= cistern::workload::kMaxTraceTokens);
    CISTERN_ASSERT(request.output_tokens <= cistern::workload::kMaxTraceTokens);
    CISTERN_ASSERT(request.hash_ids.size() * cistern::workload::kTraceBlockTokens <
                   std::uint64_t{request.input_tokens} + cistern::workload::kTraceBlockTokens);
  }
  if (!more) {
    CISTERN_ASSERT(!more.error().message().empty());
    more = reader.Next(request);
    CISTERN_ASSERT(more && !*more);
  }
  return 0;
}
