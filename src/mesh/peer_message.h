// SPDX-License-Identifier: Apache-2.0
// What members say to each other of what they hold, as docs/formats/wire.md has it: over the control
// connection samples and matches, on rails blocks. What is decoded was checked for its shape; whether it is
// true nobody knows before the bytes are here and their checksums are right.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/limits.h"
#include "base/task.h"
#include "cistern/key.h"
#include "cistern/where.h"
#include "mesh/cell_drop.h"
#include "mesh/local_store.h"
#include "mesh/role.h"
#include "mesh/sample_index.h"
#include "net/stream.h"

namespace cistern::mesh {

// Types of notices and of questions. 1 is kAppliedNotice.
inline constexpr std::uint16_t kSampleNotice = 2;
inline constexpr std::uint16_t kRoomNotice = 4;  // 3 is kRailNotice
inline constexpr std::uint16_t kSnapshotQuestion = 1;
inline constexpr std::uint16_t kMatchQuestion = 2;
inline constexpr std::uint16_t kOfferQuestion = 3;

struct PeerMessageLimits {
  static constexpr std::size_t kSamples = 1u << 16;  // of a page
  static constexpr std::size_t kChanges = 512;       // of a notice: it is taken in one step
  static constexpr std::size_t kKeys = 30'000;       // of a match
  static constexpr std::size_t kKeysAStep = kStepBytes / 2 / sizeof(BlockKey);  // copied, or read
  static constexpr std::size_t kRuns = 1'024;
  static constexpr std::size_t kNotes = 8;
  static constexpr std::size_t kParts = 64;
  static constexpr std::size_t kSegments = 2'048;
  static constexpr std::size_t kNamespaceBytes = 128u << 10;
  static constexpr std::size_t kReleaseBytes = 63;
};

struct SampleChange {
  Sample sample;
  bool gone = false;  // then the number means nothing
  friend bool operator==(const SampleChange&, const SampleChange&) = default;
};

// The sender's changes [first, first + changes.size()), counted since its start.
struct SampleNotice {
  std::uint64_t history = 0;
  std::uint64_t first = 0;
  std::vector<SampleChange> changes;
  friend bool operator==(const SampleNotice&, const SampleNotice&) = default;
};

struct SnapshotRequest {
  std::uint64_t history = 0;
  std::uint32_t from = 0;  // what the page before said; 0 at first
  friend bool operator==(const SnapshotRequest&, const SnapshotRequest&) = default;
};

// Samples of a part of the blocks; every change from `as_of` on is told besides, and has to be heard after
// it.
struct SnapshotPage {
  std::uint64_t history = 0;
  std::uint64_t as_of = 0;
  std::uint32_t next = 0;  // 0: this was the last
  std::vector<Sample> samples;
  friend bool operator==(const SnapshotPage&, const SnapshotPage&) = default;
};

struct MatchRequest {
  std::uint64_t history = 0;
  SharedNamespace name;
  std::uint32_t matched = 0;  // blocks that the asker has; the keys are those behind
  std::vector<BlockKey> keys;
  friend bool operator==(const MatchRequest&, const MatchRequest&) = default;
};

inline std::uint64_t BlocksOf(std::span<const MatchRun> runs) {
  std::uint64_t sum = 0;
  for (const MatchRun& run : runs) sum += run.blocks;
  return sum;
}

struct MatchReply {
  std::uint64_t history = 0;
  std::int64_t a = 0;
  std::vector<MatchRun> runs;  // of memory and flash, and a time to be ready to be sent
  // Of each block in them, the bytes in each group without a fixed size.
  std::vector<std::uint32_t> body_bytes;
  std::uint64_t blocks() const { return BlocksOf(runs); }
};

// What a member has to take blocks in that another one offers. Who has not said it is offered none.
struct RoomNotice {
  std::uint64_t memory_bytes = 0;
  bool drains = false;  // it takes none, and who has a choice asks another
  // An earlier version says nothing of these.
  Role role = Role::kEngine;
  std::uint64_t free_bytes = 0;  // of its memory, when this was said
  std::string release;           // of its program, as Release(); empty: it does not say
  friend bool operator==(const RoomNotice&, const RoomNotice&) = default;
};

// A chain that its member has and will have no more: whoever is asked reads what it has room for.
struct Offer {
  // The keys from the chain's first block on; `matched`: of these the ones that are not offered, and are
  // there as well if what is offered stands on them.
  MatchRequest chain;
  std::vector<std::uint32_t> body_bytes;  // as MatchReply's, of all blocks of the chain
  std::vector<std::uint32_t> ages;        // of the offered blocks: how many uses of others came after theirs
  // The namespace's list (EncodeNamespace), for who said that it has no such namespace; empty for others.
  std::vector<std::byte> list;
  std::vector<std::string> names;  // that it has at who offers, for quotas; of an earlier version none
  friend bool operator==(const Offer&, const Offer&) = default;
};

struct OfferReply {
  enum class Refusal : std::uint8_t {
    kNone = 0,
    kDrains = 1,
    kNoRoom = 2,
    kUnknownNamespace = 3,
    kFailed = 4
  };
  std::uint64_t history = 0;
  std::uint32_t here = 0;            // blocks of the chain, from its first one on, that are published
  Refusal refusal = Refusal::kNone;  // why no more are
  std::uint32_t had = 0;             // of these, that were before; an earlier version says nothing of it
  friend bool operator==(const OfferReply&, const OfferReply&) = default;
};

// On a rail: one record.
struct BlockRequest {
  std::uint64_t history = 0;
  SharedNamespace name;
  std::uint16_t group = 0;
  BlockKey key;
  std::uint64_t body_bytes = 0;  // that there is room for
  std::int64_t worth_us = 0;     // after that it is of no use
  friend bool operator==(const BlockRequest&, const BlockRequest&) = default;
};

// What is said of a body that follows.
struct BlockHead {
  std::uint64_t history = 0;
  std::int64_t a = 0;       // the source's `applied`, read before it looked the record up
  BatchMark last;           // the last batch up to there
  std::uint32_t ttl_s = 0;  // whole seconds that are left; 0: it has no end
  PutId put_id;
  BlockKey key, parent;
  std::vector<std::uint64_t> notes;  // none: shared
  std::vector<std::uint32_t> part_bytes;
  std::vector<std::uint32_t> segment_crcs;
  Answered answered() const { return {history, a, last}; }
  friend bool operator==(const BlockHead&, const BlockHead&) = default;
};

std::vector<std::byte> Encode(const SampleNotice& notice);
std::vector<std::byte> Encode(const SnapshotRequest& request);
std::vector<std::byte> Encode(const SnapshotPage& page);
std::vector<std::byte> Encode(const MatchReply& reply);
std::vector<std::byte> Encode(const RoomNotice& notice);
std::vector<std::byte> Encode(const OfferReply& reply);
std::vector<std::byte> Encode(const BlockHead& head);

// Behind what the bytes have.
void Append(std::vector<std::byte>& bytes, const BlockRequest& request);

// A question for a match: `request` without its keys, then these. In steps of the core.
Task<std::vector<std::byte>> EncodeQuestion(Executor& on, MatchRequest request,
                                            std::span<const BlockKey> keys);
// And back, with what of the bytes is behind the keys; none: it is no such question.
Task<std::optional<MatchRequest>> DecodeQuestion(Executor& on, net::ConstPiece bytes,
                                                 net::ConstPiece* behind);
// An offer is its chain as such a question, and behind the keys the rest.
void AppendRest(std::vector<std::byte>& question, const Offer& offer);
// Behind that, as far as there is any: the namespace's list, and its names.
void AppendNamespace(std::vector<std::byte>& question, std::span<const std::byte> list,
                     std::span<const std::string> names);
bool TakeRest(net::ConstPiece behind, Offer* offer);

// None for bytes that are no such message; what a later version has put behind is left out.
std::optional<SampleNotice> DecodeSampleNotice(net::ConstPiece bytes);
std::optional<SnapshotRequest> DecodeSnapshotRequest(net::ConstPiece bytes);
std::optional<SnapshotPage> DecodeSnapshotPage(net::ConstPiece bytes);
std::optional<MatchReply> DecodeMatchReply(net::ConstPiece bytes);
std::optional<RoomNotice> DecodeRoomNotice(net::ConstPiece bytes);
std::optional<OfferReply> DecodeOfferReply(net::ConstPiece bytes);
std::optional<BlockRequest> DecodeBlockRequest(net::ConstPiece bytes);
std::optional<BlockHead> DecodeBlockHead(net::ConstPiece bytes);

}  // namespace cistern::mesh
