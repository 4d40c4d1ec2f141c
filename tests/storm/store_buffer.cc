// SPDX-License-Identifier: Apache-2.0
#include "store_buffer.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/assert.h"

namespace cistern::storm {

StoreBuffer StoreBuffer::BecomeGhost() {
  for (std::size_t i = first_word_; i < words_.size(); ++i) ghost_words_[words_[i].at] = words_[i].value;
  StoreBuffer left;
  left.words_ = std::move(words_);
  left.first_word_ = std::exchange(first_word_, 0);
  left.tiles_ = std::move(tiles_);
  words_.clear();
  tiles_.clear();
  ghost_ = true;
  return left;
}

void StoreBuffer::Store(std::uint64_t* word, std::uint64_t value) {
  if (ghost_) {
    ghost_words_[word] = value;
    return;
  }
  words_.push_back({word, value});
  if (words_.size() - first_word_ > kMaxWords) DrainOldest(1);
}

void StoreBuffer::Stream(std::byte* to, const std::byte* from, std::size_t bytes) {
  CISTERN_ASSERT(bytes > 0 && bytes <= kTileBytes);
  if (ghost_) return;
  std::size_t lines = (bytes + kLineBytes - 1) / kLineBytes;
  Tile tile{to, static_cast<std::uint32_t>(bytes),
            lines == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << lines) - 1,
            std::make_unique_for_overwrite<std::byte[]>(bytes)};
  std::memcpy(tile.copy.get(), from, bytes);
  tiles_.push_back(std::move(tile));
}

std::optional<std::uint64_t> StoreBuffer::Own(const std::uint64_t* word) {
  if (ghost_) {
    auto found = ghost_words_.find(word);
    if (found != ghost_words_.end()) return found->second;
    return std::nullopt;
  }
  for (std::size_t i = words_.size(); i > first_word_; --i) {
    if (words_[i - 1].at == word) return words_[i - 1].value;
  }
  if (!tiles_.empty()) Show(reinterpret_cast<const std::byte*>(word), sizeof(*word));
  return std::nullopt;
}

void StoreBuffer::Show(const std::byte* from, std::size_t bytes) {
  if (ghost_ || empty()) return;
  for (Tile& tile : tiles_) {
    if (tile.to < from + bytes && from < tile.to + tile.bytes) DrainLines(tile, tile.waiting);
  }
  std::erase_if(tiles_, [](const Tile& tile) { return tile.waiting == 0; });
  for (std::size_t i = first_word_; i < words_.size(); ++i) {
    auto* at = reinterpret_cast<const std::byte*>(words_[i].at);
    if (at < from + bytes && from < at + 8) return DrainWords();
  }
}

void StoreBuffer::DrainOldest(std::size_t count) {
  for (; count > 0 && first_word_ < words_.size(); --count) {
    const Word& word = words_[first_word_++];
    *word.at = word.value;
  }
  if (first_word_ == words_.size()) {
    words_.clear();
    first_word_ = 0;
  } else if (first_word_ > 256) {
    words_.erase(words_.begin(), words_.begin() + static_cast<std::ptrdiff_t>(first_word_));
    first_word_ = 0;
  }
}

void StoreBuffer::DrainLines(Tile& tile, std::uint64_t lines) {
  lines &= tile.waiting;
  tile.waiting &= ~lines;
  while (lines != 0) {
    std::size_t from = static_cast<std::size_t>(std::countr_zero(lines));
    std::size_t run = static_cast<std::size_t>(std::countr_one(lines >> from));
    std::size_t at = from * kLineBytes;
    std::size_t bytes = std::min(run * kLineBytes, tile.bytes - at);
    std::memcpy(tile.to + at, tile.copy.get() + at, bytes);
    lines &= from + run == 64 ? 0 : ~std::uint64_t{0} << (from + run);
  }
}

void StoreBuffer::DrainWords() {
  if (!ghost_) DrainOldest(words_.size());
}

void StoreBuffer::DrainAll() {
  if (ghost_) return;
  for (Tile& tile : tiles_) DrainLines(tile, tile.waiting);
  tiles_.clear();
  DrainWords();
}

void StoreBuffer::DrainSome(Random& random) {
  std::uint64_t draw = random.Next();
  DrainOldest(draw % 8);
  if (tiles_.empty() || (draw & 0x300) == 0) return;
  std::size_t which = static_cast<std::size_t>(draw >> 16) % tiles_.size();
  // A tile's lines leave in a few portions, so that it is torn for a while.
  DrainLines(tiles_[which], random.Next() | random.Next());
  if (tiles_[which].waiting == 0) {
    std::swap(tiles_[which], tiles_.back());
    tiles_.pop_back();
  }
}

}  // namespace cistern::storm
