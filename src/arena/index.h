// SPDX-License-Identifier: Apache-2.0
// The index: from a block's fingerprint to its place in the arena, a hint that the slot proves (R1, R3). A
// fingerprint has two buckets of 32 entries and in each a home line, from which the bucket is searched once
// around; the second bucket is used only where the first is full. An entry never moves, and a search does not
// end at an empty entry, because deletion leaves holes. At the design's load (at most half) a hit costs one
// cache line nearly always and a miss costs both buckets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "arena/geometry.h"
#include "arena/layout.h"
#include "base/assert.h"
#include "cistern/key.h"

namespace cistern::arena {

struct Fingerprint {
  std::uint64_t words[2] = {0, 0};  // words[0] is never 0 in a fingerprint of a block
  friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
};

// Of a block of a group under a namespace's incarnation. `out` is as long as `keys`.
Fingerprint FingerprintOf(std::uint64_t incarnation, std::uint16_t group, const BlockKey& key);
void FingerprintsOf(std::uint64_t incarnation, std::uint16_t group, std::span<const BlockKey> keys,
                    std::span<Fingerprint> out);

// What an entry says.
struct Found {
  Place place = 0;
  std::uint32_t body_bytes = 0;
  std::uint32_t expiry = 0;          // Unix seconds, 0 never
  std::uint32_t generation_low = 0;  // 24 bits
  friend bool operator==(const Found&, const Found&) = default;
};

inline constexpr std::uint32_t kGenerationLowMask = 0xffffff;

// An index in this process's memory, to read. Borrows the mapping; a plain value.
class IndexView {
 public:
  // `base` maps kIndexBucketsOffset and `bucket_count` (at least 1) buckets.
  IndexView(const std::byte* base, std::uint64_t bucket_count) : base_(base), bucket_count_(bucket_count) {}

  std::uint64_t bucket_count() const { return bucket_count_; }
  std::uint64_t entry_count() const { return bucket_count_ * kEntriesPerBucket; }
  // Slots that it is made for (Geometry::bucket_count), those of memory that is still to come too.
  std::uint64_t slot_count() const { return entry_count() / 2; }
  const IndexHeader* header() const { return reinterpret_cast<const IndexHeader*>(base_); }
  // number < entry_count()
  const IndexEntry* entry(std::uint64_t number) const {
    return reinterpret_cast<const IndexEntry*>(base_ + kIndexBucketsOffset) + number;
  }

  // The number of the first entry of its first (0) or second (1) bucket.
  std::uint64_t bucket(const Fingerprint& fingerprint, int which) const {
    std::uint64_t first = Spread(fingerprint.words[1] >> 32);
    if (which == 0) return first * kEntriesPerBucket;
    std::uint64_t second = Spread(fingerprint.words[1] & 0xffffffff);
    return (second != first ? second : (first + 1) % bucket_count_) * kEntriesPerBucket;
  }
  // Where in a bucket its search begins. Even: two entries share a line.
  static std::uint32_t home(const Fingerprint& fingerprint) {
    return static_cast<std::uint32_t>(fingerprint.words[0] >> 8) % kEntriesPerBucket & ~1u;
  }
  void Prefetch(const Fingerprint& fingerprint) const {
    __builtin_prefetch(entry(bucket(fingerprint, 0) + home(fingerprint)));
  }

 private:
  std::uint64_t Spread(std::uint64_t bits32) const { return bits32 * bucket_count_ >> 32; }

  const std::byte* base_;
  std::uint64_t bucket_count_;
};

// The same to its one writer.
class IndexSpace final : public IndexView {
 public:
  IndexSpace(std::byte* base, std::uint64_t bucket_count) : IndexView(base, bucket_count) {}

  IndexHeader* header() const { return const_cast<IndexHeader*>(IndexView::header()); }
  IndexEntry* entry(std::uint64_t number) const { return const_cast<IndexEntry*>(IndexView::entry(number)); }
};

// The first entry of the fingerprint, whatever its expiry.
template <class W>
std::optional<Found> FindEntry(W& words, const IndexView& index, const Fingerprint& fingerprint) {
  for (int which = 0; which < 2; ++which) {
    std::uint64_t first = index.bucket(fingerprint, which);
    std::uint32_t home = index.home(fingerprint);
    for (std::uint32_t i = 0; i < kEntriesPerBucket; ++i) {
      const IndexEntry* entry = index.entry(first + (home + i) % kEntriesPerBucket);
      if (words.Load(&entry->fingerprint[0]) != fingerprint.words[0]) continue;
      if (words.LoadRelaxed(&entry->fingerprint[1]) != fingerprint.words[1]) continue;
      std::uint64_t place_and_bytes = words.LoadRelaxed(&entry->place_and_bytes);
      std::uint64_t rest = words.LoadRelaxed(&entry->rest);
      words.LoadFence();
      // The entry was reused during the loads: the words may be of two entries, so it counts as absent.
      if (words.Load(&entry->fingerprint[0]) != fingerprint.words[0]) continue;
      Found found;
      found.place = static_cast<Place>(place_and_bytes >> 32);
      found.body_bytes = static_cast<std::uint32_t>(place_and_bytes);
      found.expiry = static_cast<std::uint32_t>(rest >> 32);
      found.generation_low = static_cast<std::uint32_t>(rest >> 8) & kGenerationLowMask;
      return found;
    }
  }
  return std::nullopt;
}

// How many of `keys`, from the first on, have an entry that is not expired at `now_s`; stops at the first
// without. Puts what it found into `found` as far as that reaches (it may be shorter, or empty). Works in
// waves, the next wave's lines on their way while this one is compared, so that a miss costs one wave more.
template <class W>
std::size_t LongestRun(W& words, const IndexView& index, std::uint64_t incarnation, std::uint16_t group,
                       std::span<const BlockKey> keys, std::uint64_t now_s, std::span<Found> found) {
  constexpr std::size_t kWave = 16;
  Fingerprint waves[2][kWave];
  auto start = [&](std::size_t wave) {
    std::size_t at = wave * kWave;
    if (at >= keys.size()) return;
    std::size_t count = keys.size() - at < kWave ? keys.size() - at : kWave;
    FingerprintsOf(incarnation, group, keys.subspan(at, count), std::span(waves[wave % 2], count));
    for (std::size_t i = 0; i < count; ++i) index.Prefetch(waves[wave % 2][i]);
  };
  start(0);
  for (std::size_t at = 0; at < keys.size(); ++at) {
    if (at % kWave == 0) start(at / kWave + 1);
    std::optional<Found> hit = FindEntry(words, index, waves[at / kWave % 2][at % kWave]);
    if (!hit || (hit->expiry != 0 && now_s >= hit->expiry)) return at;
    if (at < found.size()) found[at] = *hit;
  }
  return keys.size();
}

// The writer's side. One writer; it alone stores entries.
template <class W>
class IndexWriter final {
 public:
  IndexWriter(W& words, IndexSpace index) : words_(words), index_(index) {}

  const IndexSpace& index() const { return index_; }

  // Makes an entry; its number, or none when both buckets are full: then an entry of OccupantsOf has to go.
  // At most 64 entries are looked at.
  std::optional<std::uint64_t> Insert(const Fingerprint& fingerprint, const Found& found) {
    CISTERN_ASSERT(fingerprint.words[0] != 0);
    for (int which = 0; which < 2; ++which) {
      std::uint64_t first = index_.bucket(fingerprint, which);
      for (std::uint32_t i = 0; i < kEntriesPerBucket; ++i) {
        std::uint64_t number = first + (index_.home(fingerprint) + i) % kEntriesPerBucket;
        IndexEntry* entry = index_.entry(number);
        if (words_.LoadRelaxed(&entry->fingerprint[0]) != 0) continue;
        Fill(entry, fingerprint, found);
        return number;
      }
    }
    return std::nullopt;
  }

  // Rewrites all of an entry that stays where it is, where damage may have changed it. False, and no write,
  // where the entry is not the fingerprint's any more.
  bool Repair(std::uint64_t number, const Fingerprint& fingerprint, const Found& found) {
    IndexEntry* entry = index_.entry(number);
    if (words_.LoadRelaxed(&entry->fingerprint[0]) != fingerprint.words[0]) return false;
    Clear(number);
    Fill(entry, fingerprint, found);
    return true;
  }

  void Clear(std::uint64_t number) { words_.StoreRelease(&index_.entry(number)->fingerprint[0], 0); }

  // Empties entries [from, from + count): at start, before readers come or beside them.
  void ClearRange(std::uint64_t from, std::uint64_t count) {
    for (std::uint64_t i = from; i < from + count; ++i) Clear(i);
  }

  // The places of the entries in both buckets of a fingerprint, 64 at most, among which an insert chooses
  // whom to evict. Returns how many were written.
  std::size_t OccupantsOf(const Fingerprint& fingerprint, std::span<Place, 2 * kEntriesPerBucket> places) {
    std::size_t count = 0;
    for (int which = 0; which < 2; ++which) {
      std::uint64_t first = index_.bucket(fingerprint, which);
      for (std::uint32_t i = 0; i < kEntriesPerBucket; ++i) {
        const IndexEntry* entry = index_.entry(first + i);
        if (words_.LoadRelaxed(&entry->fingerprint[0]) == 0) continue;
        places[count++] = static_cast<Place>(words_.LoadRelaxed(&entry->place_and_bytes) >> 32);
      }
    }
    return count;
  }

 private:
  // Released each, so that a reader of one of them sees word 0 of the former entry cleared.
  void Fill(IndexEntry* entry, const Fingerprint& fingerprint, const Found& found) {
    words_.StoreRelease(&entry->fingerprint[1], fingerprint.words[1]);
    words_.StoreRelease(&entry->place_and_bytes, std::uint64_t{found.place} << 32 | found.body_bytes);
    words_.StoreRelease(&entry->rest, Rest(found));
    words_.StoreRelease(&entry->fingerprint[0], fingerprint.words[0]);
  }
  static std::uint64_t Rest(const Found& found) {
    return std::uint64_t{found.expiry} << 32 | std::uint64_t{found.generation_low & kGenerationLowMask} << 8;
  }

  W& words_;
  IndexSpace index_;
};

}  // namespace cistern::arena
