// SPDX-License-Identifier: Apache-2.0
#include "mesh/peer_message.h"

#include <algorithm>
#include <cstring>

#include "base/codec.h"
#include "base/event.h"
#include "base/step_budget.h"
#include "catalog/namespace_table.h"

namespace cistern::mesh {
namespace {

using Limits = PeerMessageLimits;

constexpr std::uint32_t kGone = 1u << 31;

// A key takes its length and its bytes: there are thousands of them.
void PutKey(Encoder& out, const BlockKey& key) {
  out.U8(key.length);
  out.Bytes(std::as_bytes(std::span(key.bytes).first(key.length)));
}

// `none_allowed`: a first block's parent.
bool TakeKey(Decoder& in, BlockKey* key, bool none_allowed = false) {
  const std::size_t length = in.U8();
  if (length == 0) return none_allowed && in.ok();
  if (length > BlockKey::kMaxBytes) return false;
  const auto bytes = in.Bytes(length);
  if (!in.ok()) return false;
  CopyKey(bytes, length, *key);
  return true;
}

void PutName(Encoder& out, const SharedNamespace& name) {
  out.String(name.tenant);
  out.Bytes(name.list_hash);
}

bool TakeName(Decoder& in, SharedNamespace* name) {
  name->tenant = in.String(DropLimits::kTenantBytes);
  const auto hash = in.Bytes(name->list_hash.size());
  if (!in.ok() || name->tenant.empty()) return false;
  std::ranges::copy(hash, name->list_hash.begin());
  return true;
}

void PutSample(Encoder& out, const Sample& sample, bool gone) {
  out.U64(sample.hash);
  out.U32(sample.number | (gone ? kGone : 0));
}

// Which says that so many keys follow.
std::vector<std::byte> EncodeHead(const MatchRequest& request, std::size_t keys) {
  std::vector<std::byte> bytes;
  bytes.reserve(128 + 33 * keys);
  Encoder out(bytes);
  out.U64(request.history);
  PutName(out, request.name);
  out.U32(request.matched);
  out.U32(static_cast<std::uint32_t>(keys));
  return bytes;
}

void AppendKeys(std::vector<std::byte>& question, std::span<const BlockKey> keys) {
  const std::size_t before = question.size();
  question.resize(before + keys.size() * (1 + BlockKey::kMaxBytes));
  std::byte* to = question.data() + before;
  for (const BlockKey& key : keys) {
    StoreAt(to, 0, key.length);
    std::memcpy(to + 1, key.bytes.data(), BlockKey::kMaxBytes);  // the next one begins where this one ends
    to += 1 + key.length;
  }
  question.resize(static_cast<std::size_t>(to - question.data()));
}

// The head, and what of the bytes is behind it.
std::optional<MatchRequest> DecodeHead(net::ConstPiece bytes, std::size_t* keys, net::ConstPiece* behind) {
  Decoder in(bytes);
  MatchRequest request;
  request.history = in.U64();
  if (!TakeName(in, &request.name)) return std::nullopt;
  request.matched = in.U32();
  *keys = in.Count(Limits::kKeys);
  *behind = bytes.last(in.left());
  // No more than the bytes can hold.
  request.keys.reserve(std::min<std::size_t>(*keys, in.left() / 2));
  return in.ok() ? std::optional(std::move(request)) : std::nullopt;
}

// At most `most` keys, into the request. False: they are no keys.
bool TakeKeys(net::ConstPiece* behind, std::size_t most, MatchRequest* request) {
  std::size_t at = 0;
  for (std::size_t i = 0; i < most; ++i) {
    const net::ConstPiece left = behind->subspan(at);
    const std::size_t length = left.empty() ? 0 : LoadAt<std::uint8_t>(left.data(), 0);
    if (length == 0 || length > BlockKey::kMaxBytes || left.size() <= length) return false;
    CopyKey(left.subspan(1), length, request->keys.emplace_back());
    at += 1 + length;
  }
  *behind = behind->subspan(at);
  return true;
}

}  // namespace

std::vector<std::byte> Encode(const SampleNotice& notice) {
  std::vector<std::byte> bytes;
  bytes.reserve(20 + 12 * notice.changes.size());
  Encoder out(bytes);
  out.U64(notice.history);
  out.U64(notice.first);
  out.List(notice.changes, [&](const SampleChange& change) { PutSample(out, change.sample, change.gone); });
  return bytes;
}

std::optional<SampleNotice> DecodeSampleNotice(net::ConstPiece bytes) {
  Decoder in(bytes);
  SampleNotice notice;
  notice.history = in.U64();
  notice.first = in.U64();
  bool good = true;
  in.List(notice.changes, Limits::kChanges, [&](SampleChange& change) {
    change.sample.hash = in.U64();
    const std::uint32_t number = in.U32();
    change.gone = (number & kGone) != 0;
    change.sample.number = number & ~kGone;
    good = good && change.sample.number < Sample::kNumbers;
  });
  return in.ok() && good ? std::optional(std::move(notice)) : std::nullopt;
}

std::vector<std::byte> Encode(const SnapshotRequest& request) {
  std::vector<std::byte> bytes;
  Encoder out(bytes);
  out.U64(request.history);
  out.U32(request.from);
  return bytes;
}

std::optional<SnapshotRequest> DecodeSnapshotRequest(net::ConstPiece bytes) {
  Decoder in(bytes);
  SnapshotRequest request;
  request.history = in.U64();
  request.from = in.U32();
  return in.ok() ? std::optional(request) : std::nullopt;
}

std::vector<std::byte> Encode(const SnapshotPage& page) {
  std::vector<std::byte> bytes;
  bytes.reserve(24 + 12 * page.samples.size());
  Encoder out(bytes);
  out.U64(page.history);
  out.U64(page.as_of);
  out.U32(page.next);
  out.List(page.samples, [&](const Sample& sample) { PutSample(out, sample, false); });
  return bytes;
}

std::optional<SnapshotPage> DecodeSnapshotPage(net::ConstPiece bytes) {
  Decoder in(bytes);
  SnapshotPage page;
  page.history = in.U64();
  page.as_of = in.U64();
  page.next = in.U32();
  bool good = true;
  in.List(page.samples, Limits::kSamples, [&](Sample& sample) {
    sample.hash = in.U64();
    sample.number = in.U32();
    good = good && sample.number < Sample::kNumbers;
  });
  return in.ok() && good ? std::optional(std::move(page)) : std::nullopt;
}

Task<std::vector<std::byte>> EncodeQuestion(Executor&, MatchRequest request, std::span<const BlockKey> keys) {
  std::vector<std::byte> question = EncodeHead(request, keys.size());
  for (std::size_t from = 0; from < keys.size(); from += Limits::kKeysAStep) {
    if (from > 0) co_await Yield();
    AppendKeys(question, keys.subspan(from, std::min(Limits::kKeysAStep, keys.size() - from)));
  }
  co_return question;
}

Task<std::optional<MatchRequest>> DecodeQuestion(Executor& on, net::ConstPiece bytes,
                                                 net::ConstPiece* behind) {
  std::size_t keys = 0;
  std::optional<MatchRequest> request = DecodeHead(bytes, &keys, behind);
  if (!request) co_return std::nullopt;
  while (request->keys.size() < keys) {
    if (!request->keys.empty()) co_await Yield();
    const std::size_t some = std::min(Limits::kKeysAStep, keys - request->keys.size());
    if (!TakeKeys(behind, some, &*request)) co_return std::nullopt;
    on.AddWork(some * sizeof(BlockKey) / kBytesPerTouch);
  }
  co_return request;
}

std::vector<std::byte> Encode(const MatchReply& reply) {
  std::vector<std::byte> bytes;
  Encoder out(bytes);
  out.U64(reply.history);
  out.U64(static_cast<std::uint64_t>(reply.a));
  out.List(reply.runs, [&](const MatchRun& run) {
    out.U32(run.blocks);
    out.U8(static_cast<std::uint8_t>(run.where));
    out.U64(static_cast<std::uint64_t>(run.ready_in_us));
  });
  out.List(reply.body_bytes, [&](std::uint32_t one) { out.U32(one); });
  return bytes;
}

std::optional<MatchReply> DecodeMatchReply(net::ConstPiece bytes) {
  Decoder in(bytes);
  MatchReply reply;
  reply.history = in.U64();
  reply.a = static_cast<std::int64_t>(in.U64());
  bool good = reply.a >= 0;
  in.List(reply.runs, Limits::kRuns, [&](MatchRun& run) {
    run.blocks = in.U32();
    const std::uint8_t where = in.U8();
    run.where = static_cast<Where>(where);
    run.ready_in_us = static_cast<std::int64_t>(in.U64());
    good = good && run.blocks > 0 && run.blocks <= Limits::kKeys && where <= 1 && run.ready_in_us >= 0;
  });
  in.List(reply.body_bytes, Limits::kKeys * 8, [&](std::uint32_t& one) { one = in.U32(); });
  return in.ok() && good ? std::optional(std::move(reply)) : std::nullopt;
}

std::vector<std::byte> Encode(const RoomNotice& notice) {
  std::vector<std::byte> bytes;
  Encoder out(bytes);
  out.U64(notice.memory_bytes);
  out.U8(notice.drains ? 1 : 0);
  out.U8(static_cast<std::uint8_t>(notice.role));
  out.U64(notice.free_bytes);
  out.String(std::string_view(notice.release).substr(0, PeerMessageLimits::kReleaseBytes));
  return bytes;
}

std::optional<RoomNotice> DecodeRoomNotice(net::ConstPiece bytes) {
  Decoder in(bytes);
  RoomNotice notice;
  notice.memory_bytes = in.U64();
  notice.drains = in.U8() != 0;
  std::uint8_t role = 0;
  if (in.ok() && !in.done()) {
    role = in.U8();
    notice.free_bytes = in.U64();
  }
  if (in.ok() && !in.done()) notice.release = in.String(PeerMessageLimits::kReleaseBytes);
  notice.role = static_cast<Role>(role);
  return in.ok() && role <= static_cast<std::uint8_t>(Role::kStore) ? std::optional(notice) : std::nullopt;
}

void AppendRest(std::vector<std::byte>& question, const Offer& offer) {
  Encoder out(question);
  out.List(offer.body_bytes, [&](std::uint32_t one) { out.U32(one); });
  out.List(offer.ages, [&](std::uint32_t age) { out.U32(age); });
}

void AppendNamespace(std::vector<std::byte>& question, std::span<const std::byte> list,
                     std::span<const std::string> names) {
  Encoder out(question);
  if (list.empty() && names.empty()) return;
  out.U32(static_cast<std::uint32_t>(list.size()));
  out.Bytes(list);
  if (!names.empty()) out.List(names, [&](const std::string& name) { out.String(name); });
}

bool TakeRest(net::ConstPiece behind, Offer* offer) {
  Decoder in(behind);
  in.List(offer->body_bytes, Limits::kKeys * 8, [&](std::uint32_t& one) { one = in.U32(); });
  in.List(offer->ages, Limits::kKeys, [&](std::uint32_t& age) { age = in.U32(); });
  const std::size_t keys = offer->chain.keys.size(), before = offer->chain.matched;
  if (in.ok() && !in.done()) {
    const auto list = in.Bytes(in.Count(Limits::kNamespaceBytes));
    offer->list.assign(list.begin(), list.end());
  }
  if (in.ok() && !in.done()) {
    in.List(offer->names, catalog::kMaxNamesOfList,
            [&](std::string& name) { name = in.String(2 * catalog::kMaxNameBytes); });
  }
  return in.ok() && before < keys && offer->ages.size() == keys - before;
}

std::vector<std::byte> Encode(const OfferReply& reply) {
  std::vector<std::byte> bytes;
  Encoder out(bytes);
  out.U64(reply.history);
  out.U32(reply.here);
  out.U8(static_cast<std::uint8_t>(reply.refusal));
  out.U32(reply.had);
  return bytes;
}

std::optional<OfferReply> DecodeOfferReply(net::ConstPiece bytes) {
  Decoder in(bytes);
  OfferReply reply;
  reply.history = in.U64();
  reply.here = in.U32();
  const std::uint8_t refusal = in.U8();
  reply.refusal = static_cast<OfferReply::Refusal>(refusal);
  if (in.ok() && !in.done()) reply.had = in.U32();
  if (!in.ok() || refusal > static_cast<std::uint8_t>(OfferReply::Refusal::kFailed)) return std::nullopt;
  return reply;
}

void Append(std::vector<std::byte>& bytes, const BlockRequest& request) {
  Encoder out(bytes);
  out.U64(request.history);
  PutName(out, request.name);
  out.U16(request.group);
  PutKey(out, request.key);
  out.U64(request.body_bytes);
  out.U64(static_cast<std::uint64_t>(request.worth_us));
}

std::optional<BlockRequest> DecodeBlockRequest(net::ConstPiece bytes) {
  Decoder in(bytes);
  BlockRequest request;
  request.history = in.U64();
  if (!TakeName(in, &request.name)) return std::nullopt;
  request.group = in.U16();
  if (!TakeKey(in, &request.key)) return std::nullopt;
  request.body_bytes = in.U64();
  request.worth_us = static_cast<std::int64_t>(in.U64());
  if (!in.ok() || request.worth_us < 0) return std::nullopt;
  return request;
}

std::vector<std::byte> Encode(const BlockHead& head) {
  std::vector<std::byte> bytes;
  bytes.reserve(66 + head.key.length + head.parent.length + 8 * head.notes.size() +
                4 * (head.part_bytes.size() + head.segment_crcs.size()));
  Encoder out(bytes);
  out.U64(head.history);
  out.U64(static_cast<std::uint64_t>(head.a));
  out.U32(head.ttl_s);
  out.U64(head.put_id.high);
  out.U64(head.put_id.low);
  PutKey(out, head.key);
  PutKey(out, head.parent);
  out.List(head.notes, [&](std::uint64_t note) { out.U64(note); });
  out.List(head.part_bytes, [&](std::uint32_t part) { out.U32(part); });
  out.List(head.segment_crcs, [&](std::uint32_t crc) { out.U32(crc); });
  out.U64(static_cast<std::uint64_t>(head.last.revision));
  out.U64(head.last.name_hash);
  return bytes;
}

std::optional<BlockHead> DecodeBlockHead(net::ConstPiece bytes) {
  Decoder in(bytes);
  BlockHead head;
  head.history = in.U64();
  head.a = static_cast<std::int64_t>(in.U64());
  head.ttl_s = in.U32();
  head.put_id.high = in.U64();
  head.put_id.low = in.U64();
  if (!TakeKey(in, &head.key) || !TakeKey(in, &head.parent, true)) return std::nullopt;
  in.List(head.notes, Limits::kNotes, [&](std::uint64_t& note) { note = in.U64(); });
  in.List(head.part_bytes, Limits::kParts, [&](std::uint32_t& part) { part = in.U32(); });
  in.List(head.segment_crcs, Limits::kSegments, [&](std::uint32_t& crc) { crc = in.U32(); });
  // An earlier version says nothing of it, so that it vouches for less.
  if (!in.done()) {
    head.last.revision = static_cast<std::int64_t>(in.U64());
    head.last.name_hash = in.U64();
  }
  if (!in.ok() || head.a < 0 || head.last.revision < 0) return std::nullopt;
  return head;
}

}  // namespace cistern::mesh
