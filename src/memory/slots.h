// SPDX-License-Identifier: Apache-2.0
// Which slots of an arena are free, and how its headers are carved into chunks of slots (R14). The writer's
// own book; what readers need of it goes to the shared headers through Words. Belongs to the core.
//
// A slot has room for a body of m * 2^k alignment units, m from 8 to 15, and one alignment unit for the
// trailer: what a body of a round size takes exactly, and at most a ninth too much for any other. A chunk is
// 32 MiB, doubled until it holds 8 slots, and lies at a multiple of its size. A chunk whose last slot was
// freed is taken apart at once, so its headers serve any size again.
//
// Of an arena that lies on several memory nodes (node_plan.h) a chunk is of one of them, and a kind of slot
// is a size on a node: who asks for a slot of a node gets one of another only where that has none, and of a
// far node only who asks for that.
//
// The arena's last headers may be closed: room that has no memory, or memory that is to go back to the host.
//
// Every call but EndAdoption does a bounded number of touches, fewer than a core step may (R16).
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "arena/geometry.h"
#include "arena/words.h"
#include "base/event.h"
#include "base/limits.h"
#include "cistern/status.h"
#include "memory/free_headers.h"
#include "memory/node_plan.h"

namespace cistern::memory {

inline constexpr std::uint32_t kSizeNumbers = 128;

// The sizes that a slot can have. Pure arithmetic.
struct SlotSize {
  std::uint64_t bytes = 0;
  std::uint32_t chunk_headers = 1;  // a power of two
  // The smallest that holds a record of `record_bytes` (at least 1).
  static SlotSize For(std::uint64_t record_bytes, std::uint32_t alignment);
  // Sizes numbered from small to large, without a gap; up to 2 * kMaxBodyBytes, less than kSizeNumbers.
  std::uint8_t Number(std::uint32_t alignment) const;
  friend bool operator==(const SlotSize&, const SlotSize&) = default;
};

// Headers [first, first + count).
struct HeaderRange {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  friend bool operator==(const HeaderRange&, const HeaderRange&) = default;
};

// A size of slots on a memory node, as a number: what leaves makes room for one of its kind.
using SlotKind = std::uint16_t;
constexpr SlotKind KindOf(std::uint8_t size_number, NodeIndex node) {
  return static_cast<SlotKind>(node * kSizeNumbers + size_number);
}

class Slots final {
 public:
  // Every header is free that the arena serves; the others are closed. Words are borrowed.
  Slots(arena::Words& words, arena::ArenaSpace arena, NodePlan plan = {});
  ~Slots();
  Slots(const Slots&) = delete;
  Slots& operator=(const Slots&) = delete;

  const arena::ArenaSpace& arena() const { return arena_; }
  // The longest body that a block may have: kMaxBodyBytes, or 1/32 of the memory if that is less; of the
  // memory that is expected where that is more.
  std::uint64_t max_body_bytes() const { return MaxBodyBytes(open_ < expected_ ? expected_ : open_); }
  // The same with another number of open headers.
  std::uint64_t MaxBodyBytes(std::uint32_t headers) const;
  // kInvalid names value and limit.
  Status CheckBody(std::uint64_t body_bytes) const;

  // A free slot for a record of so many bytes (RecordBytes), near, or far where the node is. It counts as
  // used until Free; its generation is odd or 0. kBusy: no free slot or header range could serve; a slot of
  // the same size or all of BestToEmpty has to be freed first.
  Result<arena::Place> Allocate(std::uint64_t record_bytes, NodeIndex node = kAnyNode);
  // False: it would be kBusy.
  bool HasRoom(std::uint64_t record_bytes) const;
  // The slot's record was retired (asserted) and no lease or I/O uses the slot.
  void Free(arena::Place place);

  // A lease or an I/O begins (ends) to use the slot: its chunk is not proposed for emptying meanwhile.
  // Counted. The slot is in use.
  void Pin(arena::Place place);
  void Unpin(arena::Place place);

  // Pulsed when a slot is free, or pinned by nobody any more: what found no room looks again.
  Event& loosened() { return loosened_; }

  bool used(arena::Place place) const;
  const NodePlan& plan() const { return plan_; }
  NodeIndex NodeOf(arena::Place place) const { return plan_.Of(arena_.geometry().header_of(place)); }
  bool IsFar(arena::Place place) const { return plan_.IsFar(NodeOf(place)); }
  // Kinds from this one on are far.
  SlotKind first_far_kind() const { return KindOf(0, static_cast<NodeIndex>(plan_.near())); }
  // Of a record of so many bytes that is to lie there; of any node, on the one with the least in use.
  SlotKind KindFor(std::uint64_t record_bytes, NodeIndex node) const;
  // Of a used slot.
  SlotKind KindAt(arena::Place place) const;
  // Bytes of a used slot.
  std::uint64_t SlotBytes(arena::Place place) const;
  // Whether a record of so many bytes gets a chunk, near or far as the node is, by what memory grows by now;
  // and whether it gets one only when memory has grown, now or later.
  bool FitsSoon(std::uint64_t record_bytes, NodeIndex node) const;
  bool FitsOnlyGrown(std::uint64_t record_bytes) const;
  // False: a record of so many bytes has no chunk in all of memory, nor in what is expected.
  bool CanHold(std::uint64_t record_bytes) const;

  // ---- changing what a chunk is for ----

  // Chunks of slots of a kind.
  std::uint32_t chunks(SlotKind kind) const { return kinds_[kind].chunks; }
  // True if another size has as many free slots as make up a chunk, near or far as the node is: the records
  // of one of its chunks fit elsewhere.
  bool OthersIdle(std::uint64_t record_bytes, NodeIndex node) const;
  // Of some aligned runs of headers that would serve a record of so many bytes (looking goes on at the next
  // call where it stopped), the one that leaves the fewest bytes without a free slot of their size elsewhere,
  // and of these the one with the fewest bytes in use; without a pin in it. None when all it looked at are
  // pinned, or, for `idle_only`, leave any. Near or far, as the node is. Nothing is being emptied.
  std::optional<HeaderRange> BestToEmpty(std::uint64_t record_bytes, bool idle_only = false,
                                         NodeIndex node = kAnyNode);
  // No slot of the range is given out any more; when its last one is freed it becomes one free run. One range
  // at a time.
  void StartEmptying(const HeaderRange& range);
  void StopEmptying();
  const std::optional<HeaderRange>& emptying() const { return emptying_; }
  // Places in use in the range, from `*cursor` (0 at first) on, at most as many as fit; 0: no more. Slots may
  // be freed between calls.
  std::size_t UsedIn(const HeaderRange& range, std::uint64_t* cursor, std::span<arena::Place> places) const;

  // ---- the arena's size ----

  // Headers from the first on that are open, and the bytes of their slots.
  std::uint32_t headers() const { return open_; }
  std::uint64_t bytes() const { return std::uint64_t{open_} * arena::kHeaderSpanBytes; }
  // The same with what is on its way.
  std::uint64_t bytes_soon() const {
    return std::uint64_t{std::max(open_, coming_)} * arena::kHeaderSpanBytes;
  }
  // Memory is on its way to have so many; it is, and nobody knows when.
  void Expect(std::uint32_t headers) { expected_ = coming_ = headers; }
  void ExpectLater() { coming_ = 0; }
  // Closes the last open header, of two or more: no slot in it, nor in a chunk that lies in it with a part,
  // is given out any more.
  void CloseHeader();
  // Opens the first closed one again, which has memory.
  void OpenHeader();
  // Closed headers that lie in a chunk.
  std::uint32_t closed_in_use() const { return closed_in_use_; }
  // From the first closed header, or the chunk that it lies in, to the arena's end.
  HeaderRange closed() const;

  // ---- restart ----

  // Takes over a chunk that the headers describe; its slots are free. False, and nothing is changed, where
  // the range is not free or the size is not one of SlotSize's.
  bool AdoptChunk(std::uint32_t first, SlotSize size);
  // Takes a slot of an adopted chunk as used. False where it is no slot or used already.
  bool AdoptUsed(arena::Place place);
  // From the first adopted chunk on, chunks stay also when their last slot is freed, since others of their
  // slots may be adopted still. Ends that: takes apart the chunks of which no slot is used. Looks at all
  // chunks.
  void EndAdoption();

  struct Counts {
    std::uint64_t headers = 0;  // open
    std::uint64_t free_headers = 0;
    std::uint64_t chunks = 0;
    std::uint64_t slots = 0;  // of carved chunks
    std::uint64_t used_slots = 0;
    std::uint64_t used_bytes = 0;  // of slots, with what their records leave empty
    std::uint64_t carvings = 0;
  };
  const Counts& counts() const { return counts_; }
  // Bytes of slots in use on a node, and of all that are open there.
  std::uint64_t used_bytes(NodeIndex node) const { return used_on_[node]; }
  // The same of all nodes that are near, or far, as that one is.
  std::uint64_t used_bytes_beside(NodeIndex node) const;
  std::uint64_t bytes(NodeIndex node) const;
  // How many records of so many bytes an empty arena holds.
  static std::uint64_t Capacity(const arena::Geometry& geometry, std::uint64_t record_bytes);

 private:
  struct Chunk;

  Chunk* ChunkOf(arena::Place place) const;
  std::uint32_t SlotIn(const Chunk& chunk, arena::Place place) const;
  arena::Place PlaceOf(const Chunk& chunk, std::uint32_t slot) const;
  Chunk* NewChunk(std::uint32_t first, SlotSize size);
  void SetUsed(Chunk& chunk, std::uint32_t slot);
  arena::Place Take(Chunk& chunk);
  void DissolveChunk(Chunk& chunk);
  bool Emptying(std::uint32_t header) const;
  // Of the nodes that are near, or far.
  NodeIndex LeastUsed(bool far) const;
  std::optional<arena::Place> AllocateOn(NodeIndex node, SlotSize size);
  // As FreeHeaders has them; a chunk of a start with another plan may be longer than a run.
  bool TakeHeadersAt(std::uint32_t first, std::uint32_t count);
  void GiveHeaders(std::uint32_t first, std::uint32_t count);
  FreeHeaders& FreeOf(std::uint32_t header) { return free_headers_[plan_.Of(header)]; }
  // The chunk's free slots count, or count no more, for its class.
  void Join(Chunk& chunk);
  void Part(Chunk& chunk);
  struct Cost {
    std::uint64_t homeless_bytes = 0;  // that have no free slot elsewhere
    std::uint64_t bytes = 0;
    auto operator<=>(const Cost&) const = default;
  };
  std::optional<Cost> CostOfEmptying(HeaderRange* range, SlotSize size) const;
  void Link(Chunk& chunk);
  void Unlink(Chunk& chunk);

  arena::Words& words_;
  arena::ArenaSpace arena_;
  std::vector<std::unique_ptr<Chunk>> chunks_;  // by first header
  std::vector<std::uint32_t> first_of_;         // by header: its chunk's first header, kNoHeader when free
  NodePlan plan_;
  std::vector<FreeHeaders> free_headers_;  // by node
  std::vector<std::uint64_t> used_on_;
  struct Kind {
    std::uint32_t open = ~std::uint32_t{0};  // a chunk with free slots, kNoHeader when there is none
    std::uint32_t chunks = 0;
    std::uint32_t chunk_slots = 0;
    std::uint64_t free_slots = 0;
  };
  std::vector<Kind> kinds_;
  std::optional<HeaderRange> emptying_;
  std::uint32_t open_;
  std::uint32_t expected_ = 0;
  std::uint32_t coming_ = 0;
  std::uint32_t closed_in_use_ = 0;
  bool adopting_ = false;
  std::uint32_t looked_ = 0;  // where BestToEmpty goes on
  Counts counts_;
  Event loosened_;
};

}  // namespace cistern::memory
