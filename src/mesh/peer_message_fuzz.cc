// SPDX-License-Identifier: Apache-2.0
// Any bytes as each of what members say to each other and write to etcd: they are no such message, or one
// that is the same once it was said again, and no longer than its bounds allow. The first byte says as which.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/assert.h"
#include "mesh/cell_drop.h"
#include "mesh/cell_keys.h"
#include "mesh/landing.h"
#include "mesh/shared_names.h"
#include "mesh/test_peer_message.h"

namespace {

using namespace cistern;
using namespace cistern::mesh;

template <class Bytes, class Decode, class Again>
void Same(const Bytes& bytes, Decode&& decode, Again&& again) {
  const auto message = decode(bytes);
  if (!message) return;
  const auto said = again(*message);
  const auto heard = decode(said);
  CISTERN_ASSERT(heard.has_value());
  CISTERN_ASSERT(again(*heard) == said);
}

template <class Decode>
void Message(net::ConstPiece bytes, Decode&& decode) {
  Same(bytes, decode, [](const auto& message) { return Encode(message); });
}

template <class Value>
void OfEtcd(std::string_view text) {
  Same(
      text, [](std::string_view value) { return Value::Decode(value); },
      [](const Value& value) { return value.Encode(); });
}

// A body that follows a head of which some bytes were changed: no byte goes beyond it.
void Land(net::ConstPiece changes) {
  std::vector<std::byte> body(300'000);
  std::vector<std::byte> head = Encode(BlockHead{.history = 1,
                                                 .key = *BlockKey::FromBytes(std::vector<std::byte>(16)),
                                                 .part_bytes = {70'000, 10},
                                                 .segment_crcs = {1, 2, 3}});
  for (std::size_t i = 0; i + 1 < changes.size(); i += 2)
    head[std::to_integer<std::size_t>(changes[i]) % head.size()] ^= changes[i + 1];
  const auto said = DecodeBlockHead(head);
  if (!said) return;
  std::uint64_t bytes = 0;
  for (const std::uint32_t part : said->part_bytes) bytes += part;
  if (bytes > body.size()) return;
  Landing landing(net::Piece(body).first(bytes));
  const BlockRequest asked{.history = said->history, .key = said->key, .body_bytes = bytes};
  if (!landing.Begin(asked, said->parent, head, bytes).ok()) return;
  const std::vector<std::byte> sent(bytes);
  landing.Take(net::ConstPiece(sent).first(bytes / 3));
  landing.Take(net::ConstPiece(sent).subspan(bytes / 3));
  (void)landing.Checked();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const net::ConstPiece bytes = std::as_bytes(std::span(data + 1, size - 1));
  const std::string_view text(reinterpret_cast<const char*>(data + 1), size - 1);
  switch (data[0] % 16) {
    case 0: Message(bytes, DecodeSampleNotice); break;
    case 1: Message(bytes, DecodeSnapshotRequest); break;
    case 2: Message(bytes, DecodeSnapshotPage); break;
    case 3: Message(bytes, [](net::ConstPiece some) { return DecodeMatchRequest(some); }); break;
    case 4: Message(bytes, DecodeMatchReply); break;
    case 5: Message(bytes, DecodeRoomNotice); break;
    case 6: Message(bytes, DecodeOffer); break;
    case 7: Message(bytes, DecodeOfferReply); break;
    case 8: Message(bytes, DecodeBlockRequest); break;
    case 9: Message(bytes, DecodeBlockHead); break;
    case 10: Land(bytes); break;
    case 11: Same(bytes, DecodeNamespace, EncodeNamespace); break;
    case 12:
      Same(
          text, [](std::string_view value) { return DecodeBatch(value); },
          [](const auto& drops) { return EncodeBatch(drops); });
      break;
    case 13: OfEtcd<HistoryValue>(text); break;
    case 14: OfEtcd<CellFloor>(text); break;
    case 15: OfEtcd<MemberValue>(text); break;
  }
  return 0;
}
