// SPDX-License-Identifier: Apache-2.0
// What a workload is made of, wherever it comes from: a trace file or the built-in generator.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <type_traits>
#include <vector>

#include "cistern/policy.h"
#include "cistern/status.h"

namespace cistern::workload {

inline constexpr std::uint32_t kTraceBlockTokens = 512;

// What an id of a trace stands for.
enum class Ids : std::uint8_t {
  kChains,  // a block after its prefix: equal ids, equal ids before
  kTexts,   // the block's text alone
};

// One prompt and the length of its answer. hash_ids has an id for each 512-token block of the input, the
// last of which may be partial.
struct Request {
  std::uint64_t timestamp_ms = 0;
  std::uint32_t input_tokens = 0;
  std::uint32_t output_tokens = 0;
  std::optional<std::uint64_t> session;
  std::vector<std::uint64_t> hash_ids;

  friend bool operator==(const Request&, const Request&) = default;
};

// When requests are made, in ms. A trace whose times stand still has none: from then on each request is later
// than the one before.
class TraceTime final {
 public:
  std::uint64_t Of(const Request& request) {
    still_ = request.timestamp_ms == last_ms_ ? still_ + 1 : 0;
    last_ms_ = request.timestamp_ms;
    if (still_ > kStill) added_ms_ += kStillMs;
    return request.timestamp_ms + added_ms_;
  }

 private:
  static constexpr std::uint64_t kStill = 256;  // requests in a row at one time
  static constexpr std::uint64_t kStillMs = 250;
  std::uint64_t last_ms_ = 0;
  std::uint64_t still_ = 0;
  std::uint64_t added_ms_ = 0;
};

// Its last block is not full.
inline bool LastIsPartial(const Request& request) {
  return request.hash_ids.size() * kTraceBlockTokens > request.input_tokens;
}

class RequestSource {
 public:
  virtual ~RequestSource() = default;
  // Overwrites `request` with the next one and returns true, or false at the end. After an error the
  // source is at its end. Memory stays bounded however long the workload is.
  virtual Result<bool> Next(Request& request) = 0;
};

// All of `requests` through a simulator, for its result. `told`: hints for each, in order; the rest have
// none. Fails as the source fails.
template <class Simulator>
auto SubmitAll(RequestSource& requests, const std::vector<PromptHints>& told, Simulator& simulator)
    -> Result<std::remove_cvref_t<decltype(simulator.result())>> {
  Request request;
  for (std::size_t i = 0;; ++i) {
    const Result<bool> more = requests.Next(request);
    if (!more) return Error(more.error());
    if (!*more) return simulator.result();
    simulator.Submit(request, i < told.size() ? told[i] : PromptHints());
  }
}

// `trace` is the path of a trace file, or "generated:" and the generator's options. What finds blocks as a
// store does, after their prefix, asks for chains, and a trace of other ids is refused.
Result<std::unique_ptr<RequestSource>> OpenRequests(std::string_view trace, Ids ids = Ids::kChains);

}  // namespace cistern::workload
