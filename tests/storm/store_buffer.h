// SPDX-License-Identifier: Apache-2.0
// What a processor has stored and memory does not show yet. Words leave in the order in which they were
// stored, as x86 has it; streamed lines leave in any order, before or after words, unless a fence comes.
// Whoever stored sees its own stores.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/random.h"

namespace cistern::storm {

class StoreBuffer {
 public:
  static constexpr std::size_t kLineBytes = 64;
  static constexpr std::size_t kTileBytes = 64 * kLineBytes;
  static constexpr std::size_t kMaxWords = 40;

  StoreBuffer() = default;
  StoreBuffer(StoreBuffer&&) = default;
  StoreBuffer& operator=(StoreBuffer&&) = default;

  bool empty() const { return !ghost_ && first_word_ == words_.size() && tiles_.empty(); }
  // Nothing of it will ever reach memory.
  bool settled() const { return ghost_ || empty(); }

  // Its owner dies: what it has stored so far still comes to memory, from what this returns. What it stores
  // from now on only it sees, as it sees the rest.
  StoreBuffer BecomeGhost();

  void Store(std::uint64_t* word, std::uint64_t value);
  // A private copy of `bytes` (at most kTileBytes) is made at once.
  void Stream(std::byte* to, const std::byte* from, std::size_t bytes);
  // What this buffer's owner would load, if it is not what memory shows.
  std::optional<std::uint64_t> Own(const std::uint64_t* word);
  // Before the owner reads a stretch of memory.
  void Show(const std::byte* from, std::size_t bytes);

  void DrainWords();  // a locked instruction, or another thread that was told
  void DrainAll();    // sfence
  void DrainSome(Random& random);

 private:
  struct Word {
    std::uint64_t* at;
    std::uint64_t value;
  };
  struct Tile {
    std::byte* to;
    std::uint32_t bytes;
    std::uint64_t waiting;  // a bit a line
    std::unique_ptr<std::byte[]> copy;
  };

  void DrainOldest(std::size_t count);
  void DrainLines(Tile& tile, std::uint64_t lines);

  std::vector<Word> words_;
  std::size_t first_word_ = 0;
  std::vector<Tile> tiles_;
  bool ghost_ = false;
  std::unordered_map<const std::uint64_t*, std::uint64_t> ghost_words_;
};

}  // namespace cistern::storm
