// SPDX-License-Identifier: Apache-2.0
// What is left of some pieces while their bytes move in steps.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "base/assert.h"

namespace cistern::net {

// Byte is std::byte or const std::byte. The pieces are borrowed.
template <class Byte>
class PieceCursor final {
 public:
  explicit PieceCursor(std::span<const std::span<Byte>> pieces) : pieces_(pieces) { SkipEmpty(); }

  bool done() const { return at_ == pieces_.size(); }
  // What is left of the piece that comes next. Not done.
  std::span<Byte> next() const { return pieces_[at_].subspan(offset_); }
  // Of the next pieces as many as go into `out`, with at most `most` bytes in all; how many those are.
  std::size_t Fill(std::span<std::span<Byte>> out, std::size_t most) const {
    std::size_t count = 0;
    std::size_t offset = offset_;
    for (std::size_t i = at_; i < pieces_.size() && count < out.size() && most > 0; ++i) {
      const std::span<Byte> piece = pieces_[i].subspan(offset);
      offset = 0;
      if (piece.empty()) continue;
      out[count] = piece.first(std::min(piece.size(), most));
      most -= out[count++].size();
    }
    return count;
  }
  // So many bytes have moved, at most as many as are left.
  void Advance(std::size_t bytes) {
    while (bytes > 0) {
      CISTERN_ASSERT(!done());
      const std::size_t step = std::min(bytes, pieces_[at_].size() - offset_);
      bytes -= step;
      offset_ += step;
      SkipEmpty();
    }
  }

 private:
  void SkipEmpty() {
    while (at_ < pieces_.size() && offset_ == pieces_[at_].size()) {
      ++at_;
      offset_ = 0;
    }
  }

  std::span<const std::span<Byte>> pieces_;
  std::size_t at_ = 0, offset_ = 0;
};

template <class Byte>
std::size_t TotalBytes(std::span<const std::span<Byte>> pieces) {
  std::size_t bytes = 0;
  for (const std::span<Byte>& piece : pieces) bytes += piece.size();
  return bytes;
}

}  // namespace cistern::net
