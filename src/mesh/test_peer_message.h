// SPDX-License-Identifier: Apache-2.0
// Messages between members as a whole, for tests and the fuzzer: questions that members put together and read
// in steps, without other work between these, and what only one side has a use for.
#pragma once

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/executor.h"
#include "mesh/peer_message.h"

namespace cistern::mesh {

inline std::vector<std::byte> Encode(const MatchRequest& request) {
  const SystemClock clock;
  Executor executor(clock);
  MatchRequest head = request;
  head.keys.clear();
  auto encoding = EncodeQuestion(executor, std::move(head), request.keys);
  while (!encoding.done()) executor.RunReady(1);
  return encoding.Take();
}

inline std::optional<MatchRequest> DecodeMatchRequest(net::ConstPiece bytes, net::ConstPiece* behind) {
  const SystemClock clock;
  Executor executor(clock);
  auto decoding = DecodeQuestion(executor, bytes, behind);
  while (!decoding.done()) executor.RunReady(1);
  return decoding.Take();
}
inline std::optional<MatchRequest> DecodeMatchRequest(net::ConstPiece bytes) {
  net::ConstPiece behind;
  return DecodeMatchRequest(bytes, &behind);
}

inline std::vector<std::byte> Encode(const Offer& offer) {
  std::vector<std::byte> bytes = Encode(offer.chain);
  AppendRest(bytes, offer);
  AppendNamespace(bytes, offer.list, offer.names);
  return bytes;
}

inline std::optional<Offer> DecodeOffer(net::ConstPiece bytes) {
  net::ConstPiece behind;
  std::optional<MatchRequest> chain = DecodeMatchRequest(bytes, &behind);
  Offer offer;
  if (chain) offer.chain = std::move(*chain);
  return chain && TakeRest(behind, &offer) ? std::optional(std::move(offer)) : std::nullopt;
}

inline std::vector<std::byte> Encode(const BlockRequest& request) {
  std::vector<std::byte> bytes;
  Append(bytes, request);
  return bytes;
}

}  // namespace cistern::mesh
