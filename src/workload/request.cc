// SPDX-License-Identifier: Apache-2.0
#include "workload/request.h"

#include <string>

#include "workload/generator.h"
#include "workload/trace.h"

namespace cistern::workload {

Result<std::unique_ptr<RequestSource>> OpenRequests(std::string_view trace, Ids ids) {
  constexpr std::string_view kGenerated = "generated:";
  if (trace.starts_with(kGenerated)) {
    const Result<GeneratorOptions> options = ParseGeneratorOptions(trace.substr(kGenerated.size()));
    if (!options) return Error(options.error());
    return std::make_unique<Generator>(*options);
  }
  Result<TraceReader> reader = TraceReader::Open(std::string(trace), ids);
  if (!reader) return Error(reader.error());
  return std::make_unique<TraceReader>(*std::move(reader));
}

}  // namespace cistern::workload
