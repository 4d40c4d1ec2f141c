// SPDX-License-Identifier: Apache-2.0
// The storm's memory (R16): the same shared bytes for all, reached through each actor's own store buffer,
// with a stop before every word and between any two tiles of a copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "arena/words.h"
#include "faults.h"
#include "scheduler.h"

namespace cistern::storm {

class SimWords final : public arena::Words {
 public:
  // `source` is told where each CopyIn reads: a copy from staging that its session has back is a violation.
  using SourceCheck = std::function<void(const std::byte* from, std::size_t bytes)>;
  SimWords(Scheduler& scheduler, Damage& damage, SourceCheck source)
      : scheduler_(scheduler), damage_(damage), source_(std::move(source)) {}

  std::uint64_t Load(const std::uint64_t* word) override { return Get(word); }
  std::uint64_t LoadRelaxed(const std::uint64_t* word) override { return Get(word); }
  void Store(std::uint64_t* word, std::uint64_t value) override { Set(word, value); }
  void StoreRelease(std::uint64_t* word, std::uint64_t value) override { Set(word, value); }
  void StoreFence() override;
  void LoadFence() override { scheduler_.Pause(); }
  std::uint32_t CopyOut(void* to, const void* from, std::size_t bytes, std::uint32_t crc,
                        std::size_t behind) override;
  std::uint32_t CopyIn(void* to, const void* from, std::size_t bytes, std::uint32_t crc,
                       std::size_t behind) override;
  std::uint32_t Checksum(const void* from, std::size_t bytes, std::uint32_t crc) override;

  // Whoever reads the entries of an index stands still before an entry's last word, by one chance in `odds`:
  // the words before it are then of what was there long ago.
  void SlowEntries(const std::byte* first, std::size_t bytes, std::uint32_t odds) {
    entries_ = first;
    entries_bytes_ = bytes;
    slow_odds_ = odds;
  }

  std::uint64_t words() const { return words_; }

 private:
  std::uint64_t Get(const std::uint64_t* word);
  void Set(std::uint64_t* word, std::uint64_t value);
  std::size_t TileOf(std::size_t bytes);
  bool EntryEnds(const std::uint64_t* word) const;

  Scheduler& scheduler_;
  Damage& damage_;
  SourceCheck source_;
  const std::byte* entries_ = nullptr;
  std::size_t entries_bytes_ = 0;
  std::uint32_t slow_odds_ = 0;
  std::uint64_t words_ = 0;
};

// Memory as it is, without stops: what a check between two steps looks through.
class PlainWords final : public arena::Words {
 public:
  std::uint64_t Load(const std::uint64_t* word) override { return *word; }
  std::uint64_t LoadRelaxed(const std::uint64_t* word) override { return *word; }
  void Store(std::uint64_t* word, std::uint64_t value) override { *word = value; }
  void StoreRelease(std::uint64_t* word, std::uint64_t value) override { *word = value; }
  void StoreFence() override {}
  void LoadFence() override {}
  std::uint32_t CopyOut(void* to, const void* from, std::size_t bytes, std::uint32_t crc,
                        std::size_t behind) override {
    return record::ChosenKernels().copy_cached(to, from, bytes, crc, behind);
  }
  std::uint32_t CopyIn(void* to, const void* from, std::size_t bytes, std::uint32_t crc,
                       std::size_t behind) override {
    return record::ChosenKernels().copy_cached(to, from, bytes, crc, behind);
  }
  std::uint32_t Checksum(const void* from, std::size_t bytes, std::uint32_t crc) override {
    return record::Crc32c(from, bytes, crc);
  }
};

}  // namespace cistern::storm
