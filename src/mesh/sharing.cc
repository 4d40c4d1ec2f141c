// SPDX-License-Identifier: Apache-2.0
#include "mesh/sharing.h"

#include <algorithm>
#include <string>

#include "base/release.h"

namespace cistern::mesh {

Sharing::Sharing(const Parts& parts)
    : parts_(parts),
      room_{.memory_bytes = parts.memory_bytes, .role = parts.role, .release = std::string(Release())},
      peers_(parts.bytes_a_second),
      feed_(parts.executor, parts.store, parts.names),
      index_(SampleIndex::Options()),
      streams_({parts.executor, feed_, index_, parts.links, parts.rule}),
      finder_({parts.executor, parts.clock, parts.store, parts.rule, parts.names, index_, streams_,
               parts.links, peers_},
              parts.seed),
      reader_({parts.executor, parts.clock, parts.store, parts.memory_bytes, parts.rule, parts.rails, peers_,
               parts.seed}),
      blocks_({parts.executor, parts.clock, parts.store, finder_, reader_}, ~parts.seed),
      offers_({parts.executor, parts.clock, parts.store, parts.rule, parts.names, parts.links, peers_}),
      giver_(offers_, parts.store, parts.clock),
      spreader_({offers_, parts.store, parts.clock, peers_, parts.process_number, parts.role}),
      taker_({parts.executor, parts.clock, parts.store, parts.rule, parts.names, reader_, parts.role}) {
  spreader_.SetMemory(parts.memory_bytes);
}

void Sharing::Start() {
  streams_.Start();
  spreader_.Start();
}

Task<store::HandedOver> Sharing::Give(store::GiveOrder order) {
  if (parts_.role != Role::kStore) co_return co_await giver_.Give(order);
  // A member whose role is to store never hands on: all that it has is left.
  const std::unique_ptr<store::WholeChains> all =
      parts_.store.WalkChains({.lower_tier = order.lower_tier, .deadline = order.deadline});
  store::HandedOver handed;
  handed.left = co_await all->CountLeft();
  co_return handed;
}

Task<void> Sharing::Close() {
  reader_.EndTurns();  // the taker waits for its reads
  co_await giver_.Close();
  spreader_.Close();
  co_await streams_.Close();
  co_await taker_.Close();
  co_await reader_.Close();
}

void Sharing::Abandon() {
  giver_.Abandon();
  spreader_.Close();
  streams_.Abandon();
}

void Sharing::SetMemory(std::uint64_t bytes) {
  reader_.SetMemory(bytes);
  spreader_.SetMemory(bytes);
  room_.memory_bytes = bytes;
  TellRoom();
}

void Sharing::SetDraining(bool draining) {
  room_.drains = draining;
  taker_.SetDraining(draining);
  spreader_.SetDraining(draining);
  if (!draining) giver_.Stop();
  TellRoom();
}

void Sharing::TellRoom(std::uint64_t peer) {
  room_.free_bytes = room_.memory_bytes - std::min(room_.memory_bytes, parts_.store.occupancy().bytes);
  parts_.links.TellLatest(peer, kRoomNotice, Encode(room_));
}

void Sharing::TellRoom() {
  for (const std::uint64_t peer : parts_.links.Reachable()) TellRoom(peer);
}

void Sharing::Connected(std::uint64_t peer) {
  streams_.Connected(peer);
  TellRoom(peer);
}

void Sharing::Disconnected(std::uint64_t peer) {
  streams_.Disconnected(peer);
  peers_.Of(peer).room_bytes = 0;
}

void Sharing::Heard(std::uint64_t peer, std::uint16_t type, net::ConstPiece payload) {
  if (type == kSampleNotice) streams_.Heard(peer, payload);
  if (type != kRoomNotice) return;
  if (const std::optional<RoomNotice> room = DecodeRoomNotice(payload)) {
    peers_.Of(peer).room_bytes = room->memory_bytes;
    peers_.Of(peer).drains = room->drains;
    peers_.Of(peer).role = room->role;
    peers_.Of(peer).release = room->release;
    spreader_.Heard(peer, *room);
  }
}

Task<Result<std::vector<std::byte>>> Sharing::Answer(std::uint64_t peer, std::uint16_t type,
                                                     net::ConstPiece payload, Instant deadline) {
  switch (type) {
    case kSnapshotQuestion: co_return co_await streams_.AnswerSnapshot(payload);
    case kMatchQuestion: co_return co_await finder_.Answer(payload);
    case kOfferQuestion: co_return co_await taker_.Answer(peer, payload, deadline);
    default: co_return Error(Code::kMismatch, "there is no question of this type");
  }
}

}  // namespace cistern::mesh
