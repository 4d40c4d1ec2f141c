// SPDX-License-Identifier: Apache-2.0
#include "memory/slots.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "arena/protocol.h"
#include "base/assert.h"
#include "base/format.h"

namespace cistern::memory {
namespace {

constexpr std::uint32_t kNoHeader = ~std::uint32_t{0};
// What one call of BestToEmpty looks at, in headers.
constexpr std::uint32_t kLookHeaders = 256;

// Body units of the slot, a number m * 2^k with m from 8 to 15, or any below 8.
std::uint64_t RoundUnits(std::uint64_t units) {
  if (units < 16) return units;
  const int shift = std::bit_width(units) - 4;
  return arena::RoundUp(units, std::uint64_t{1} << shift);
}

}  // namespace

SlotSize SlotSize::For(std::uint64_t record_bytes, std::uint32_t alignment) {
  CISTERN_ASSERT(record_bytes > 0);
  const std::uint64_t units = arena::RoundUp(record_bytes, alignment) / alignment;
  SlotSize size;
  size.bytes = (RoundUnits(units - 1) + 1) * alignment;
  const std::uint64_t least = arena::Geometry{alignment, 1}.min_slot_bytes();
  if (size.bytes < least) size.bytes = least;
  while (size.chunk_headers * arena::kHeaderSpanBytes < arena::kMinSlotsPerChunk * size.bytes)
    size.chunk_headers *= 2;
  return size;
}

std::uint8_t SlotSize::Number(std::uint32_t alignment) const {
  const std::uint64_t units = bytes / alignment - 1;
  if (units < 16) return static_cast<std::uint8_t>(units);
  const int shift = std::bit_width(units) - 4;
  return static_cast<std::uint8_t>(8 * (shift + 1) + (units >> shift) - 8);
}

struct Slots::Chunk {
  std::uint32_t first;
  SlotSize size;
  SlotKind kind;
  std::uint32_t slots;
  std::uint32_t used = 0;
  std::uint64_t pins = 0;
  bool linked = false;  // in the list of its class's chunks with free slots
  bool closed = false;  // a header of it is
  std::uint32_t next = kNoHeader, previous = kNoHeader;
  // A bit for each free slot, and one for each word of those that is not zero.
  std::vector<std::uint64_t> free;
  std::vector<std::uint64_t> words_with_free;

  Chunk(std::uint32_t first_header, SlotSize slot_size, SlotKind its)
      : first(first_header),
        size(slot_size),
        kind(its),
        slots(
            static_cast<std::uint32_t>(slot_size.chunk_headers * arena::kHeaderSpanBytes / slot_size.bytes)),
        free((slots + 63) / 64),
        words_with_free((free.size() + 63) / 64) {
    for (std::uint32_t i = 0; i < slots; ++i) SetFree(i);
  }
  bool IsFree(std::uint32_t slot) const { return free[slot / 64] >> (slot % 64) & 1; }
  void SetFree(std::uint32_t slot) {
    free[slot / 64] |= std::uint64_t{1} << (slot % 64);
    words_with_free[slot / 4096] |= std::uint64_t{1} << (slot / 64 % 64);
  }
  void SetUsed(std::uint32_t slot) {
    free[slot / 64] &= ~(std::uint64_t{1} << (slot % 64));
    if (free[slot / 64] == 0) words_with_free[slot / 4096] &= ~(std::uint64_t{1} << (slot / 64 % 64));
  }
  // There is one.
  std::uint32_t FirstFree() const {
    std::uint32_t high = 0;
    while (words_with_free[high] == 0) high++;
    const std::uint32_t word =
        high * 64 + static_cast<std::uint32_t>(std::countr_zero(words_with_free[high]));
    return word * 64 + static_cast<std::uint32_t>(std::countr_zero(free[word]));
  }
  HeaderRange range() const { return {first, size.chunk_headers}; }
};

Slots::Slots(arena::Words& words, arena::ArenaSpace arena, NodePlan plan)
    : words_(words),
      arena_(arena),
      chunks_(arena.geometry().header_count),
      first_of_(arena.geometry().header_count, kNoHeader),
      plan_(plan),
      used_on_(plan.nodes()),
      kinds_(plan.nodes() * kSizeNumbers),
      open_(arena::ServedHeaders(words, arena)) {
  for (std::uint32_t i = 0; i < plan_.nodes(); ++i)
    free_headers_.emplace_back(arena.geometry().header_count, plan_.nodes() == 1 ? open_ : 0);
  for (std::uint32_t header = 0; plan_.nodes() > 1 && header < open_; ++header) GiveHeaders(header, 1);
  counts_.headers = counts_.free_headers = open_;
}

Slots::~Slots() = default;

std::uint64_t Slots::MaxBodyBytes(std::uint32_t headers) const {
  std::uint64_t share = std::uint64_t{headers} * arena::kHeaderSpanBytes / 32;
  // A chunk of its slots, which are up to a ninth longer, lies in a run of a node.
  if (plan_.run() != 0)
    share = std::min(share, plan_.run() * arena::kHeaderSpanBytes / arena::kMinSlotsPerChunk / 8 * 7);
  return share < kMaxBodyBytes ? share : kMaxBodyBytes;
}

Status Slots::CheckBody(std::uint64_t body_bytes) const {
  if (body_bytes == 0) return Status(Code::kInvalid, "block: is empty");
  if (body_bytes <= max_body_bytes()) return Status();
  return Status(Code::kInvalid,
                Text("block: has ", body_bytes, " bytes and the limit is ", max_body_bytes(),
                     max_body_bytes() < kMaxBodyBytes ? ", 1/32 of the memory: give the node more" : ""));
}

// ---- places ----------------------------------------------------------------------------------------------

Slots::Chunk* Slots::ChunkOf(arena::Place place) const {
  const arena::Geometry& geometry = arena_.geometry();
  if (geometry.offset(place) >= geometry.slots_bytes()) return nullptr;
  const std::uint32_t first = first_of_[geometry.header_of(place)];
  return first == kNoHeader ? nullptr : chunks_[first].get();
}

// The slot's number, or chunk.slots where the place is not a slot's start.
std::uint32_t Slots::SlotIn(const Chunk& chunk, arena::Place place) const {
  const std::uint64_t within = arena_.geometry().offset(place) - chunk.first * arena::kHeaderSpanBytes;
  // What the chunk's slots leave empty is less than one.
  return within % chunk.size.bytes == 0 ? static_cast<std::uint32_t>(within / chunk.size.bytes) : chunk.slots;
}

arena::Place Slots::PlaceOf(const Chunk& chunk, std::uint32_t slot) const {
  return arena_.geometry().place(chunk.first * arena::kHeaderSpanBytes + slot * chunk.size.bytes);
}

bool Slots::used(arena::Place place) const {
  const Chunk* chunk = ChunkOf(place);
  if (chunk == nullptr) return false;
  const std::uint32_t slot = SlotIn(*chunk, place);
  return slot < chunk->slots && !chunk->IsFree(slot);
}

SlotKind Slots::KindAt(arena::Place place) const {
  CISTERN_ASSERT(used(place));
  return ChunkOf(place)->kind;
}

SlotKind Slots::KindFor(std::uint64_t record_bytes, NodeIndex node) const {
  const std::uint32_t alignment = arena_.geometry().alignment;
  return KindOf(SlotSize::For(record_bytes, alignment).Number(alignment),
                node < plan_.nodes() ? node : LeastUsed(plan_.IsFar(node)));
}

NodeIndex Slots::LeastUsed(bool far) const {
  const auto first_far = used_on_.begin() + plan_.near();
  const auto least =
      far ? std::min_element(first_far, used_on_.end()) : std::min_element(used_on_.begin(), first_far);
  return static_cast<NodeIndex>(least - used_on_.begin());
}

std::uint64_t Slots::used_bytes_beside(NodeIndex node) const {
  std::uint64_t bytes = 0;
  for (std::uint32_t i = 0; i < plan_.nodes(); ++i) {
    if (plan_.IsFar(static_cast<NodeIndex>(i)) == plan_.IsFar(node)) bytes += used_on_[i];
  }
  return bytes;
}

std::uint64_t Slots::SlotBytes(arena::Place place) const { return ChunkOf(place)->size.bytes; }

bool Slots::FitsSoon(std::uint64_t record_bytes, NodeIndex node) const {
  const std::uint32_t headers = SlotSize::For(record_bytes, arena_.geometry().alignment).chunk_headers;
  if (plan_.IsFar(plan_.Of(open_)) != plan_.IsFar(node)) return false;
  // Of the run that the next header belongs to, the open ones may be in use.
  std::uint32_t run = open_ / headers * headers;
  for (std::uint32_t header = run; header < open_; ++header) {
    if (first_of_[header] != kNoHeader) run = arena::RoundUp(open_, headers);
  }
  return run + headers <= coming_;
}

bool Slots::FitsOnlyGrown(std::uint64_t record_bytes) const {
  const std::uint32_t headers = SlotSize::For(record_bytes, arena_.geometry().alignment).chunk_headers;
  return headers > open_ && headers <= expected_;
}

bool Slots::CanHold(std::uint64_t record_bytes) const {
  const std::uint32_t alignment = arena_.geometry().alignment;
  const SlotSize size = SlotSize::For(record_bytes, alignment);
  const std::uint32_t all = std::max(open_, expected_);
  if (size.chunk_headers <= (plan_.run() == 0 ? all : std::min(all, plan_.run()))) return true;
  // A chunk of a start with another plan may be longer than a run.
  for (std::uint32_t node = 0; node < plan_.nodes(); ++node) {
    if (kinds_[KindOf(size.Number(alignment), static_cast<NodeIndex>(node))].chunks > 0) return true;
  }
  return false;
}

void Slots::Pin(arena::Place place) { ChunkOf(place)->pins++; }

void Slots::Unpin(arena::Place place) {
  Chunk* chunk = ChunkOf(place);
  CISTERN_ASSERT(chunk->pins > 0);
  chunk->pins--;
  loosened_.Pulse();
}

// ---- slots -----------------------------------------------------------------------------------------------

Result<arena::Place> Slots::Allocate(std::uint64_t record_bytes, NodeIndex node) {
  const SlotSize size = SlotSize::For(record_bytes, arena_.geometry().alignment);
  const bool far = plan_.IsFar(node);
  const std::uint32_t begin = far ? plan_.near() : 0;
  const std::uint32_t nodes = far ? plan_.nodes() - plan_.near() : plan_.near();
  const std::uint32_t first = (node < plan_.nodes() ? node : LeastUsed(far)) - begin;
  for (std::uint32_t i = 0; i < nodes; ++i) {
    const auto on = static_cast<NodeIndex>(begin + (first + i) % nodes);
    if (const std::optional<arena::Place> place = AllocateOn(on, size)) return *place;
  }
  return Error(Status(Code::kBusy));
}

std::optional<arena::Place> Slots::AllocateOn(NodeIndex node, SlotSize size) {
  const std::uint32_t open = kinds_[KindOf(size.Number(arena_.geometry().alignment), node)].open;
  if (open != kNoHeader) return Take(*chunks_[open]);
  const std::optional<std::uint32_t> first = free_headers_[node].Take(size.chunk_headers);
  if (!first) return std::nullopt;
  arena::Carve(words_, arena_, *first, size.chunk_headers, size.bytes);
  counts_.carvings++;
  return Take(*NewChunk(*first, size));
}

bool Slots::HasRoom(std::uint64_t record_bytes) const {
  const SlotSize size = SlotSize::For(record_bytes, arena_.geometry().alignment);
  for (std::uint32_t node = 0; node < plan_.nodes(); ++node) {
    const std::uint32_t kind = KindOf(size.Number(arena_.geometry().alignment), static_cast<NodeIndex>(node));
    if (kinds_[kind].open != kNoHeader || free_headers_[node].Has(size.chunk_headers)) return true;
  }
  return false;
}

void Slots::SetUsed(Chunk& chunk, std::uint32_t slot) {
  chunk.SetUsed(slot);
  if (++chunk.used == chunk.slots) Unlink(chunk);
  kinds_[chunk.kind].free_slots--;
  counts_.used_slots++;
  counts_.used_bytes += chunk.size.bytes;
  used_on_[plan_.Of(chunk.first)] += chunk.size.bytes;
}

arena::Place Slots::Take(Chunk& chunk) {
  const std::uint32_t slot = chunk.FirstFree();
  SetUsed(chunk, slot);
  // The next one's generation is changed before it is filled.
  if (chunk.used < chunk.slots) __builtin_prefetch(arena_.generation(PlaceOf(chunk, chunk.FirstFree())), 1);
  return PlaceOf(chunk, slot);
}

bool Slots::TakeHeadersAt(std::uint32_t first, std::uint32_t count) {
  const std::uint32_t piece = plan_.run() == 0 ? count : std::min(count, plan_.run());
  for (std::uint32_t taken = 0; taken < count; taken += piece) {
    if (FreeOf(first + taken).TakeAt(first + taken, piece)) continue;
    GiveHeaders(first, taken);
    return false;
  }
  return true;
}

void Slots::GiveHeaders(std::uint32_t first, std::uint32_t count) {
  const std::uint32_t piece = plan_.run() == 0 ? count : std::min(count, plan_.run());
  for (std::uint32_t given = 0; given < count; given += piece)
    FreeOf(first + given).Give(first + given, piece);
}

void Slots::Free(arena::Place place) {
  CISTERN_ASSERT(used(place));
  const std::uint64_t generation = words_.LoadRelaxed(arena_.generation(place));
  CISTERN_ASSERT(generation == 0 || generation % 2 != 0);
  Chunk& chunk = *ChunkOf(place);
  chunk.SetFree(SlotIn(chunk, place));
  chunk.used--;
  if (!chunk.closed) kinds_[chunk.kind].free_slots++;
  counts_.used_slots--;
  counts_.used_bytes -= chunk.size.bytes;
  used_on_[plan_.Of(chunk.first)] -= chunk.size.bytes;
  if (chunk.used == 0 && !adopting_) {
    DissolveChunk(chunk);
  } else if (!chunk.linked && !chunk.closed && !Emptying(chunk.first)) {
    Link(chunk);
  }
  loosened_.Pulse();
}

Slots::Chunk* Slots::NewChunk(std::uint32_t first, SlotSize size) {
  const SlotKind kind = KindOf(size.Number(arena_.geometry().alignment), plan_.Of(first));
  chunks_[first] = std::make_unique<Chunk>(first, size, kind);
  for (std::uint32_t i = first; i < first + size.chunk_headers; ++i) first_of_[i] = first;
  Chunk* chunk = chunks_[first].get();
  counts_.free_headers -= size.chunk_headers;
  counts_.chunks++;
  counts_.slots += chunk->slots;
  Join(*chunk);
  Link(*chunk);
  return chunk;
}

void Slots::Join(Chunk& chunk) {
  Kind& its = kinds_[chunk.kind];
  its.chunks++;
  its.chunk_slots = chunk.slots;
  its.free_slots += chunk.slots - chunk.used;
}

void Slots::Part(Chunk& chunk) {
  Kind& its = kinds_[chunk.kind];
  its.chunks--;
  its.free_slots -= chunk.slots - chunk.used;
}

void Slots::DissolveChunk(Chunk& chunk) {
  CISTERN_ASSERT(chunk.pins == 0);
  const HeaderRange range = chunk.range();
  arena::Uncarve(words_, arena_, range.first, range.count);
  const bool closed = chunk.closed;
  if (chunk.linked) Unlink(chunk);
  counts_.chunks--;
  counts_.slots -= chunk.slots;
  if (!closed) Part(chunk);
  for (std::uint32_t i = range.first; i < range.first + range.count; ++i) first_of_[i] = kNoHeader;
  chunks_[range.first].reset();
  if (closed) {
    for (std::uint32_t i = range.first; i < range.first + range.count; ++i) {
      if (i >= open_) {
        closed_in_use_--;
      } else {
        counts_.free_headers++;
        GiveHeaders(i, 1);
      }
    }
    return;
  }
  counts_.free_headers += range.count;
  if (!Emptying(range.first)) {
    GiveHeaders(range.first, range.count);
    return;
  }
  for (std::uint32_t i = emptying_->first; i < emptying_->first + emptying_->count; ++i) {
    if (first_of_[i] != kNoHeader) return;
  }
  StopEmptying();
}

void Slots::Link(Chunk& chunk) {
  std::uint32_t& header = kinds_[chunk.kind].open;
  chunk.linked = true;
  chunk.previous = kNoHeader;
  chunk.next = header;
  if (header != kNoHeader) chunks_[header]->previous = chunk.first;
  header = chunk.first;
}

void Slots::Unlink(Chunk& chunk) {
  CISTERN_ASSERT(chunk.linked);
  chunk.linked = false;
  if (chunk.next != kNoHeader) chunks_[chunk.next]->previous = chunk.previous;
  if (chunk.previous != kNoHeader) {
    chunks_[chunk.previous]->next = chunk.next;
  } else {
    kinds_[chunk.kind].open = chunk.next;
  }
}

// ---- emptying --------------------------------------------------------------------------------------------

bool Slots::Emptying(std::uint32_t header) const {
  return emptying_ && header >= emptying_->first && header - emptying_->first < emptying_->count;
}

bool Slots::OthersIdle(std::uint64_t record_bytes, NodeIndex node) const {
  const std::uint8_t own =
      SlotSize::For(record_bytes, arena_.geometry().alignment).Number(arena_.geometry().alignment);
  return std::ranges::any_of(kinds_, [&](const Kind& kind) {
    const auto number = static_cast<std::size_t>(&kind - kinds_.data());
    const std::size_t size_number = number % kSizeNumbers;
    if (plan_.IsFar(static_cast<NodeIndex>(number / kSizeNumbers)) != plan_.IsFar(node)) return false;
    return kind.chunks > 1 && size_number != own && kind.free_slots >= kind.chunk_slots;
  });
}

// What a range has in use, which grows to the chunk that it lies in; none where something is pinned or where
// a chunk has that size already, so that emptying it would gain nothing.
std::optional<Slots::Cost> Slots::CostOfEmptying(HeaderRange* range, SlotSize size) const {
  Cost cost;
  for (std::uint32_t i = range->first; i < range->first + range->count;) {
    if (first_of_[i] == kNoHeader) {
      i++;
      continue;
    }
    const Chunk& chunk = *chunks_[first_of_[i]];
    if (chunk.pins > 0 || chunk.closed || chunk.size == size) return std::nullopt;
    cost.bytes += chunk.used * chunk.size.bytes;
    const std::uint64_t homes = kinds_[chunk.kind].free_slots - (chunk.slots - chunk.used);
    if (homes < chunk.used) cost.homeless_bytes += (chunk.used - homes) * chunk.size.bytes;
    // Chunks are aligned to their size, so one that begins before the range covers it.
    if (chunk.size.chunk_headers > range->count) *range = chunk.range();
    i = chunk.first + chunk.size.chunk_headers;
  }
  return cost;
}

std::optional<HeaderRange> Slots::BestToEmpty(std::uint64_t record_bytes, bool idle_only, NodeIndex node) {
  CISTERN_ASSERT(!emptying_);
  const SlotSize size = SlotSize::For(record_bytes, arena_.geometry().alignment);
  const std::uint32_t runs = open_ / size.chunk_headers;
  const std::uint32_t looks = std::min(kLookHeaders / size.chunk_headers, runs);
  std::optional<HeaderRange> best;
  Cost least;
  for (std::uint32_t i = 0; i < looks; ++i) {
    HeaderRange range{looked_ % runs * size.chunk_headers, size.chunk_headers};
    looked_ = (looked_ + 1) % runs;
    if (plan_.IsFar(plan_.Of(range.first)) != plan_.IsFar(node)) continue;
    const std::optional<Cost> cost = CostOfEmptying(&range, size);
    if (!cost || (idle_only && cost->homeless_bytes > 0) || (best && *cost >= least)) continue;
    best = range;
    least = *cost;
  }
  return best;
}

void Slots::StartEmptying(const HeaderRange& range) {
  CISTERN_ASSERT(!emptying_);
  for (std::uint32_t i = range.first; i < range.first + range.count; ++i) {
    if (first_of_[i] == kNoHeader) {
      FreeOf(i).TakeAt(i, 1);
      continue;
    }
    Chunk& chunk = *chunks_[first_of_[i]];
    CISTERN_ASSERT(chunk.first >= range.first && chunk.size.chunk_headers <= range.count);
    if (chunk.linked) Unlink(chunk);
  }
  emptying_ = range;
}

void Slots::StopEmptying() {
  if (!emptying_) return;
  const HeaderRange range = *emptying_;
  emptying_.reset();
  for (std::uint32_t i = range.first; i < range.first + range.count; ++i) {
    if (first_of_[i] == kNoHeader) {
      GiveHeaders(i, 1);
    } else if (Chunk& chunk = *chunks_[first_of_[i]]; !chunk.linked && chunk.used < chunk.slots) {
      Link(chunk);
    }
  }
}

std::size_t Slots::UsedIn(const HeaderRange& range, std::uint64_t* cursor,
                          std::span<arena::Place> places) const {
  std::size_t found = 0;
  std::uint32_t header = static_cast<std::uint32_t>(*cursor >> 32);
  auto slot = static_cast<std::uint32_t>(*cursor);
  if (header < range.first) header = range.first;
  while (found < places.size() && header < range.first + range.count) {
    const Chunk* chunk = first_of_[header] == header ? chunks_[header].get() : nullptr;
    for (; chunk != nullptr && slot < chunk->slots && found < places.size(); ++slot) {
      if (!chunk->IsFree(slot)) places[found++] = PlaceOf(*chunk, slot);
    }
    if (chunk != nullptr && slot < chunk->slots) break;
    header++;
    slot = 0;
  }
  *cursor = std::uint64_t{header} << 32 | slot;
  return found;
}

// ---- the arena's size ------------------------------------------------------------------------------------

void Slots::CloseHeader() {
  CISTERN_ASSERT(open_ > 1 && !adopting_);
  if (Emptying(open_ - 1)) StopEmptying();
  const std::uint32_t header = --open_;
  counts_.headers--;
  if (first_of_[header] == kNoHeader) {
    counts_.free_headers--;
    const bool free = FreeOf(header).TakeAt(header, 1);
    CISTERN_ASSERT(free);
    return;
  }
  closed_in_use_++;
  Chunk& chunk = *chunks_[first_of_[header]];
  if (std::exchange(chunk.closed, true)) return;
  if (chunk.linked) Unlink(chunk);
  Part(chunk);
}

void Slots::OpenHeader() {
  CISTERN_ASSERT(open_ < arena_.geometry().header_count);
  const std::uint32_t header = open_++;
  counts_.headers++;
  if (first_of_[header] == kNoHeader) {
    counts_.free_headers++;
    GiveHeaders(header, 1);
  } else {
    closed_in_use_--;
    Chunk& chunk = *chunks_[first_of_[header]];
    if (chunk.first + chunk.size.chunk_headers == open_) {
      chunk.closed = false;
      Join(chunk);
      if (chunk.used < chunk.slots) Link(chunk);
    }
  }
  loosened_.Pulse();
}

std::uint64_t Slots::bytes(NodeIndex node) const {
  return plan_.CountOn(node, open_) * arena::kHeaderSpanBytes;
}

HeaderRange Slots::closed() const {
  const std::uint32_t end = arena_.geometry().header_count;
  const std::uint32_t first = open_ < end && first_of_[open_] != kNoHeader ? first_of_[open_] : open_;
  return {first, end - first};
}

// ---- restart ---------------------------------------------------------------------------------------------

bool Slots::AdoptChunk(std::uint32_t first, SlotSize size) {
  const std::uint32_t alignment = arena_.geometry().alignment;
  if (size.bytes == 0 || size.bytes > 2 * kMaxBodyBytes || SlotSize::For(size.bytes, alignment) != size)
    return false;
  if (first % size.chunk_headers != 0 || !TakeHeadersAt(first, size.chunk_headers)) return false;
  NewChunk(first, size);
  adopting_ = true;
  return true;
}

void Slots::EndAdoption() {
  adopting_ = false;
  for (std::uint32_t header = 0; header < first_of_.size(); ++header) {
    if (first_of_[header] == header && chunks_[header]->used == 0) DissolveChunk(*chunks_[header]);
  }
}

bool Slots::AdoptUsed(arena::Place place) {
  Chunk* chunk = ChunkOf(place);
  if (chunk == nullptr) return false;
  const std::uint32_t slot = SlotIn(*chunk, place);
  if (slot == chunk->slots || !chunk->IsFree(slot)) return false;
  SetUsed(*chunk, slot);
  return true;
}

std::uint64_t Slots::Capacity(const arena::Geometry& geometry, std::uint64_t record_bytes) {
  const SlotSize size = SlotSize::For(record_bytes, geometry.alignment);
  return geometry.header_count / size.chunk_headers *
         (size.chunk_headers * arena::kHeaderSpanBytes / size.bytes);
}

}  // namespace cistern::memory
