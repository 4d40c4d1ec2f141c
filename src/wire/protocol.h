// SPDX-License-Identifier: Apache-2.0
// What a client of this host and the node say to each other. docs/formats/session.md says why.
//
// A unix socket (SOCK_SEQPACKET) carries the handshake and the rare requests that pass descriptors; all else
// goes through the session's shared memory, which the node made, sealed and preallocated (R13): a submission
// ring, a completion ring, a lossy ring of touches and an argument area. The node copies every entry and
// every argument out before it looks at it, and checks it against its own tables.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace cistern::wire {

inline constexpr std::uint32_t kProtocolMagic = 0x43495354;  // "CIST"
inline constexpr std::uint32_t kProtocolVersion = 1;
inline constexpr std::uint32_t kOldestProtocolVersion = 1;  // a node works with this and the previous one

// ---- over the socket -------------------------------------------------------------------------------------

inline constexpr std::size_t kMaxDescriptors = 8;  // that a message carries

enum class MessageKind : std::uint32_t {
  kHello = 1,
  kWelcome = 2,
  kMoreStaging = 3,
  kStaging = 4,
  kReturnStaging = 5
};

// Magic, kind and version stand first in every version's hello and welcome.

struct Hello {  // client -> node, first message
  std::uint32_t magic = kProtocolMagic;
  MessageKind kind = MessageKind::kHello;
  std::uint32_t version = kProtocolVersion;
  std::uint32_t reserved = 0;
  std::array<char, 64> tenant{};      // zero-terminated
  std::array<std::byte, 16> owner{};  // all zero: become an owner
  std::uint64_t staging_bytes = 0;    // of the first staging, out of the node's budget; 0: the node's default
};

// With it, as SCM_RIGHTS in this order when code is ok: arena (O_RDONLY), index (O_RDONLY), session memory,
// staging memory, eventfd that wakes the core, epoll set of an eventfd that wakes the client.
struct Welcome {
  std::uint32_t magic = kProtocolMagic;
  MessageKind kind = MessageKind::kWelcome;
  std::uint32_t version = kProtocolVersion;
  std::uint32_t code = 0;  // Code; not ok: no descriptors, the session ends
  std::array<char, 256> message{};
  std::array<std::byte, 16> owner{};
  std::uint64_t session = 0;
  std::uint64_t node_pid = 0;
  std::uint64_t boot_count = 0;
  std::uint64_t staging_bytes = 0;  // of the staging that comes along
};

struct MoreStaging {  // client -> node, which ends who has not received the answer before
  std::uint32_t magic = kProtocolMagic;
  MessageKind kind = MessageKind::kMoreStaging;
  std::uint64_t bytes = 0;
};

// Client -> node, without an answer: nothing of the session lies in the area any more, and its number may be
// granted again. Only to a node whose session memory says takes_staging_back.
struct ReturnStaging {
  std::uint32_t magic = kProtocolMagic;
  MessageKind kind = MessageKind::kReturnStaging;
  std::uint64_t area = 0;
};
static_assert(sizeof(ReturnStaging) == sizeof(MoreStaging));

struct StagingGrant {  // node -> client, with one descriptor when code is ok
  std::uint32_t magic = kProtocolMagic;
  MessageKind kind = MessageKind::kStaging;
  std::uint32_t code = 0;
  std::uint32_t area = 0;  // number of the staging area; the first is 0
  std::uint64_t bytes = 0;
  std::array<char, 256> message{};
};

// ---- session memory --------------------------------------------------------------------------------------

inline constexpr std::uint32_t kRingEntries = 256;    // a power of two; also the bound of calls in flight
inline constexpr std::uint32_t kTouchEntries = 4096;  // a power of two
inline constexpr std::uint32_t kArgumentBytes = 1u << 20;  // also the bound of arguments in flight
inline constexpr std::uint32_t kMaxReplyMessage = 512;

// What one call carries at most; all of it fits the argument area.
inline constexpr std::uint32_t kMaxKeysPerCall = 20'000;
inline constexpr std::uint32_t kMaxWritesPerCall = 4'096;
inline constexpr std::uint32_t kMaxStagingAreas = 64;  // of one session

enum class Op : std::uint16_t {
  kNone = 0,
  kAttach,     // args: AttachArgs + serialized spec; reply: AttachReply or message
  kMatchRest,  // args: keys after the last the index had, with kWithLast that one before them; a = how many
               // the client has matched, b = the expected turn; flags: the prompt's; reply: MatchReply, runs
  kHold,       // args: the chain's keys; a = hold_us, b = how many the client has matched in the index, with
               // the expected turn above; flags: the prompt's;
               // result a = lease id (0: nothing was there), b = blocks that are held; reply: MatchReply and
               // the runs of all that is held, where there is room for it
  kAcquire,  // args: BlockItems; a = lease_us, b = worth_us: what lies below memory and would be there later
             // is not fetched; result a = lease id (0: none), b = when it ends, as deadline_ns counts (0 of a
             // node that does not say: lease_us after the call); reply: ViewItems
  kRelease,  // a = lease id
  // b = conversation, 0: none; args: as many WriteItems as a says, then segment checksums; reply: a
  // WriteReplyItem each, then the message of the first that failed
  kWrite,
  kPublish,        // args: PutIdItems; result a = how many
  kAbandon,        // likewise
  kTouch,          // args: keys in order; b = conversation that uses them, 0: none
  kDrop,           // args: keys; result a = blocks removed
  kDropNamespace,  // result a = blocks removed, b = new incarnation
  kReportBad,      // args: BlockItems whose body failed its seal under an even generation
  // a = which text (kNodeStatus ...), b = where a list goes on; reply: JSON text, of a list its members from
  // there on, with commas between; kInvalid with a = its bytes when it does not fit. Result b: 0 of the
  // node's status and of a node that knows no other text, otherwise kReportEnds, or where the list goes on
  kStatus,
  kEndConversation,  // b = conversation; result a = blocks removed
  kDevice,           // args: path of a device of flash; a = kTakeOut or kBringBack
  // args: a namespace's name, the 16 digits of its list's fingerprint or NAME=VALUE, none: all; with
  // kOfEngine an engine's name; a = kReads or kWrites, b = 1: on, 0: off; result a = namespaces, or sessions
  kSwitch,
  kMemory,     // a = bytes that memory is to have; result a = bytes that it will
  kDropNamed,  // args: a namespace's name or fingerprint, as of kSwitch; result a = blocks removed
  // a = kServe, kForUpgrade, kForReboot or kForLeaving, b = us that it may take; flags: kThenStop. Answered
  // when it has begun; the status says how far it is
  kDrain,
  kIntroduce,  // args: the name of the session's engine, once a session; only to a node that knows engines
};
inline constexpr std::uint16_t kLastOp = static_cast<std::uint16_t>(Op::kIntroduce);

// What kSwitch switches.
inline constexpr std::uint64_t kReads = 1;
inline constexpr std::uint64_t kWrites = 2;
inline constexpr std::uint32_t kMaxTargetBytes = 256;
// A flag of kSwitch. Only to a node that knows engines: another one would look for a namespace.
inline constexpr std::uint16_t kOfEngine = 1;

// What kDrain asks for.
inline constexpr std::uint64_t kServe = 0;       // in service again
inline constexpr std::uint64_t kForUpgrade = 1;  // memory's files outlive the node
inline constexpr std::uint64_t kForReboot = 2;   // memory goes with the host
inline constexpr std::uint64_t kForLeaving = 3;  // and flash with the node
inline constexpr std::uint16_t kThenStop = 1;    // the node ends when it has drained, or its time has passed

// What kStatus asks for.
inline constexpr std::uint64_t kNodeStatus = 0;
inline constexpr std::uint64_t kNamespaceList = 1;
inline constexpr std::uint64_t kConfigurationList = 2;
inline constexpr std::uint64_t kCellList = 3;  // its members
// Both of the keys of a chain, which are the arguments, in a namespace; the reply is one JSON object.
inline constexpr std::uint64_t kHolders = 4;      // which member of the cell has how much of it
inline constexpr std::uint64_t kExplanation = 5;  // why its last block is not found here
inline constexpr std::uint64_t kReportEnds = ~std::uint64_t{0};

// Flags of kMatchRest and kHold: what is known of the prompt. A node of before there were any does not look
// at them. When its next turn is expected, in ms from now and 0 where that is not known, is b of kMatchRest
// and the upper half of b of kHold.
inline constexpr std::uint16_t kPartial = 1;       // its last block is not full
inline constexpr std::uint16_t kOutlookShift = 1;  // two bits: an Outlook
inline constexpr std::uint16_t kOutlookMask = 3 << kOutlookShift;
// Only to a node whose session memory says takes_last.
inline constexpr std::uint16_t kWithLast = 8;
// The following, the outlook kTool and an expected turn only to a node whose session memory says takes_hints.
inline constexpr std::uint16_t kImportanceShift = 4;  // two bits: an Importance
inline constexpr std::uint16_t kImportanceMask = 3 << kImportanceShift;
inline constexpr std::uint32_t kNextTurnShift = 32;

// The keys of kMatchRest are those of the whole chain, `a` of which the index had. Only to a node whose
// session memory says takes_chain.
inline constexpr std::uint16_t kWholeChain = 64;

// What kDevice asks for.
inline constexpr std::uint64_t kTakeOut = 1;    // out of service: what is on it is lost
inline constexpr std::uint64_t kBringBack = 2;  // in service again, formatted anew
inline constexpr std::uint32_t kMaxPathBytes = 4096;

// 64 bytes, client -> node. [args_offset, +args_bytes) and [reply_offset, +reply_bytes) lie in the session's
// argument area and are the node's from submit to completion; they may be the same bytes.
struct Submission {
  Op op = Op::kNone;
  std::uint16_t flags = 0;
  std::uint32_t namespace_slot = 0;
  std::uint64_t ticket = 0;      // chosen by the client, comes back
  std::int64_t deadline_ns = 0;  // CLOCK_MONOTONIC
  std::uint32_t args_offset = 0;
  std::uint32_t args_bytes = 0;
  std::uint32_t reply_offset = 0;
  std::uint32_t reply_bytes = 0;
  std::uint64_t a = 0;
  std::uint64_t b = 0;
  std::uint64_t incarnation = 0;  // of the namespace as attached; another one now: kMiss / kGone
};
static_assert(sizeof(Submission) == 64);

// 64 bytes, node -> client. When code is not ok, the reply area begins with a zero-terminated message if it
// has room for one.
struct Completion {
  std::uint64_t ticket = 0;
  Op op = Op::kNone;
  std::uint16_t code = 0;
  std::uint32_t reply_bytes = 0;  // used
  std::uint64_t a = 0;
  std::uint64_t b = 0;
  std::uint64_t reserved[4] = {};
};
static_assert(sizeof(Completion) == 64);

// What a client did without the node, since it came; only for metrics. A client of before there was this
// leaves zeros.
struct ReadCounts {
  std::uint64_t asked_blocks;    // of chains that were matched
  std::uint64_t indexed_blocks;  // of these, found in the index
  std::uint64_t read_blocks;     // copied out and found right
  std::uint64_t read_bytes;
};

// What its engine says of its use (EngineReport); likewise.
struct EngineCounts {
  std::uint64_t promised_tokens;
  std::uint64_t delivered_tokens;
  std::uint64_t saved_us;
  std::uint64_t spent_us;
};

// Bits of engine_state.
inline constexpr std::uint64_t kEngineKnown = 1;
inline constexpr std::uint64_t kEngineReadsOff = 2;

// Words that both sides write stand on cache lines of their own. Counts only grow; the entry is count modulo
// ring size. A count that is more than a ring ahead of the other side's ends the session. A sleeps word is
// stored, then a full fence, then the other side's count is looked at once more; who raises a count fences
// likewise before it looks at the word, so no signal is missed.
struct alignas(4096) SessionMemory {
  alignas(64) std::uint64_t submitted;  // client writes
  alignas(64) std::uint64_t taken;      // node writes
  alignas(64) std::uint64_t completed;  // node writes
  alignas(64) std::uint64_t collected;  // client writes
  alignas(64) std::uint64_t touched;    // client writes; no one waits: the node takes the last kTouchEntries
  ReadCounts reads;                     // client writes
  alignas(
      64) std::uint64_t announced;  // client writes; another value than before: a submission is about to come
  EngineCounts engine;              // client writes
  alignas(64) std::uint64_t core_sleeps;  // node writes; not 0: a submission must write the core's eventfd
  std::uint64_t
      ended;  // node writes; not 0: the session and its leases are over, before any of them is let go
  // Node writes, before the welcome; not 0: what the index does not have may lie in a tier below memory, or
  // at another node, and an acquire brings it up. A node of before there was one leaves it 0.
  std::uint64_t has_lower;
  // Node writes, before the welcome; not 0: ReturnStaging is known.
  std::uint64_t takes_staging_back;
  // Node writes, before the welcome; not 0: kWithLast is known.
  std::uint64_t takes_last;
  // Node writes, before the welcome; not 0: all hints of a prompt are known.
  std::uint64_t takes_hints;
  // Node writes, before the welcome; not 0: it asks others for what it has not, and knows kWholeChain.
  std::uint64_t takes_chain;
  // Node writes. kEngineKnown, before the welcome: kIntroduce, kOfEngine and labels in a namespace's list are
  // known; a node of before there were any leaves it 0. kEngineReadsOff, at any time: a read that begins now
  // finds nothing.
  std::uint64_t engine_state;
  alignas(64) std::uint64_t
      client_sleeps;  // client writes; not 0: a completion must signal the client's eventfd
  // Node writes, with the welcome: its CLOCK_MONOTONIC and CLOCK_BOOTTIME then. All times of the protocol are
  // of these; a client of another time namespace has others. 0 of a node that does not say.
  std::int64_t monotonic_ns;
  std::int64_t boot_ns;
  // Client writes; not 0: it has locked this memory, and the lock ends with it.
  std::uint64_t locks;
  alignas(64) Submission submissions[kRingEntries];
  Completion completions[kRingEntries];
  std::uint64_t touches[kTouchEntries];  // place << 32 | generation, low 32 bits
  alignas(4096) std::byte arguments[kArgumentBytes];
};

static_assert(offsetof(SessionMemory, announced) == offsetof(SessionMemory, touched) + 64 &&
              offsetof(SessionMemory, core_sleeps) == offsetof(SessionMemory, announced) + 64);

// ---- arguments -------------------------------------------------------------------------------------------

struct KeyItem {
  std::array<std::byte, 32> bytes{};
  std::uint32_t size = 0;  // 0: none
  std::uint32_t reserved = 0;
};

struct BlockItem {
  KeyItem key;
  std::uint16_t group = 0;
  // Of an acquire: the segments that are wanted of its record, counted over all parts; none: all of it.
  std::uint16_t first_segment = 0;
  std::uint16_t segments = 0;
  std::uint16_t reserved = 0;
};

struct WriteItem {
  KeyItem key;
  KeyItem parent;
  std::uint16_t group = 0;
  std::uint16_t part = 0;
  std::uint32_t staging_area = 0;
  std::uint64_t staging_offset = 0;
  std::uint64_t bytes = 0;
  std::uint64_t put_high = 0;
  std::uint64_t put_low = 0;
  std::uint32_t ttl_s = 0;
  std::uint32_t held = 0;
  // Where in the arguments the checksums of the part's segments stand (R6); 0: the client filled staging
  // itself and has none.
  std::uint32_t checksums_offset = 0;
  std::uint32_t reserved = 0;
};

struct WriteReplyItem {
  std::uint16_t code = 0;
  std::uint16_t state = 0;  // WriteOutcome::State
  std::uint32_t reserved = 0;
};

struct PutIdItem {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
};

struct ViewItem {
  std::uint32_t place = 0;  // alignment units from the start of the slots
  std::uint32_t code = 0;   // ok or why there is no view
  std::uint64_t bytes = 0;  // where code is kTooLate: in how many us it would have been ready, 0: not known
  std::uint64_t generation = 0;  // the slot's; the same after use: the view was good
};

// Only a namespace that is there: kMiss where there is none, and nothing is made or changed. A node of before
// there was this flag does not look at it and attaches.
inline constexpr std::uint32_t kAttachKnown = 1;

struct AttachArgs {  // then the spec, serialized by wire/spec_wire.h
  std::uint32_t spec_bytes = 0;
  std::uint32_t flags = 0;
};

struct AttachReply {
  std::uint32_t slot = 0;
  std::uint32_t reserved = 0;
  std::uint64_t incarnation = 0;
};

struct MatchReply {
  std::uint32_t runs = 0;  // MatchRunItems follow
  std::uint32_t blocks = 0;
};

struct MatchRunItem {
  std::uint32_t blocks = 0;
  std::uint32_t where = 0;  // a Where (cistern/where.h)
  std::int64_t ready_in_us = 0;
};

}  // namespace cistern::wire
