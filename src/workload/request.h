// SPDX-License-Identifier: Apache-2.0
// What a workload is made of, wherever it comes from: a trace file or the built-in generator.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "cistern/status.h"

namespace cistern::workload {

inline constexpr std::uint32_t kTraceBlockTokens = 512;

// One prompt and the length of its answer. hash_ids has an id for each 512-token block of the input, the
// last of which may be partial. An id stands for a block after its prefix: equal ids, equal ids before.
struct Request {
  std::uint64_t timestamp_ms = 0;
  std::uint32_t input_tokens = 0;
  std::uint32_t output_tokens = 0;
  std::optional<std::uint64_t> session;
  std::vector<std::uint64_t> hash_ids;

  friend bool operator==(const Request&, const Request&) = default;
};

class RequestSource {
 public:
  virtual ~RequestSource() = default;
  // Overwrites `request` with the next one and returns true, or false at the end. After an error the
  // source is at its end. Memory stays bounded however long the workload is.
  virtual Result<bool> Next(Request& request) = 0;
};

// `trace` is the path of a trace file, or "generated:" and the generator's options.
Result<std::unique_ptr<RequestSource>> OpenRequests(std::string_view trace);

}  // namespace cistern::workload
