// SPDX-License-Identifier: Apache-2.0
#include "mesh/sharing.h"

namespace cistern::mesh {

Sharing::Sharing(const Parts& parts)
    : parts_(parts),
      peers_(parts.bytes_a_second),
      feed_(parts.executor, parts.store, parts.names),
      index_(SampleIndex::Options()),
      streams_({parts.executor, feed_, index_, parts.links, parts.rule}),
      finder_({parts.executor, parts.clock, parts.store, parts.rule, parts.names, index_, streams_,
               parts.links, peers_},
              parts.seed),
      reader_(
          {parts.executor, parts.clock, parts.store, parts.memory_bytes, parts.rule, parts.rails, peers_}),
      blocks_({parts.executor, parts.clock, parts.store, finder_, reader_}, ~parts.seed) {}

Task<void> Sharing::Close() {
  co_await streams_.Close();
  co_await reader_.Close();
}

void Sharing::Heard(std::uint64_t peer, std::uint16_t type, net::ConstPiece payload) {
  if (type == kSampleNotice) streams_.Heard(peer, payload);
}

Task<Result<std::vector<std::byte>>> Sharing::Answer(std::uint64_t, std::uint16_t type,
                                                     net::ConstPiece payload, Instant) {
  switch (type) {
    case kSnapshotQuestion: co_return co_await streams_.AnswerSnapshot(payload);
    case kMatchQuestion: co_return co_await finder_.Answer(payload);
    default: co_return Error(Code::kMismatch, "there is no question of this type");
  }
}

}  // namespace cistern::mesh
