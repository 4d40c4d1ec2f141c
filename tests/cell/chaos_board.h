// SPDX-License-Identifier: Apache-2.0
// What the clients of a chaos put, read and drop: blocks whose bodies say which put wrote them, and a board
// of what was put and dropped, by which a reader knows bytes that nobody put and blocks that a drop took.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "base/random.h"
#include "base/random_bytes.h"
#include "cistern/key.h"

namespace cistern::chaos {

inline constexpr std::uint32_t kChains = 6, kBlocks = 12;

// Block `block` of chain `chain`, as put number `put` wrote it.
struct Header {
  std::uint64_t chain = 0, block = 0, put = 0;
  friend bool operator==(const Header&, const Header&) = default;
};

inline bool IsStrict(std::uint64_t chain) { return chain % 2 == 1; }

inline std::size_t BytesOf(std::uint32_t chain) { return 2000 + 37'000 * (chain % 3); }

inline BlockKey KeyOf(std::uint64_t seed, std::uint32_t chain, std::uint32_t block) {
  BlockKey key;
  key.length = 32;
  FillRandom(seed * 1'000'003 + chain * 1000 + block, std::as_writable_bytes(std::span(key.bytes)));
  return key;
}

inline std::vector<std::byte> BodyOf(const Header& header) {
  std::vector<std::byte> body(BytesOf(static_cast<std::uint32_t>(header.chain)));
  FillRandom(header.put * 4096 + header.chain * 64 + header.block, body);
  std::memcpy(body.data(), &header, sizeof(header));
  return body;
}

// Of all clients.
struct Counts {
  std::atomic<std::uint64_t> puts{0}, refused{0}, reads{0}, hits{0}, peer_hits{0}, misses{0}, drops{0},
      strict_hits{0}, strict_drops{0}, unacknowledged{0}, unavailable{0}, wrong{0}, revived{0};
};

class Board {
 public:
  std::uint64_t BeginPut() { return next_.fetch_add(1); }
  void Completed(std::uint32_t chain, std::uint32_t block, std::uint64_t put) {
    const std::lock_guard lock(mutex_);
    blocks_[chain][block].completed.push_back(put);
  }
  // Puts of the block and of those behind it that had completed when the drop began.
  std::vector<std::vector<std::uint64_t>> BeginDrop(std::uint32_t chain, std::uint32_t from) {
    const std::lock_guard lock(mutex_);
    std::vector<std::vector<std::uint64_t>> taken;
    for (std::uint32_t block = from; block < kBlocks; ++block)
      taken.push_back(blocks_[chain][block].completed);
    return taken;
  }
  void Dropped(std::uint32_t chain, std::uint32_t from,
               const std::vector<std::vector<std::uint64_t>>& taken) {
    const std::lock_guard lock(mutex_);
    ++acknowledged_;
    for (std::size_t i = 0; i < taken.size(); ++i) {
      for (const std::uint64_t put : taken[i]) blocks_[chain][from + i].gone.try_emplace(put, acknowledged_);
    }
  }
  // Drops that were acknowledged by now.
  std::uint64_t acknowledged() {
    const std::lock_guard lock(mutex_);
    return acknowledged_;
  }
  // Whether a read that began after so many acknowledgements must not have seen the put.
  bool Gone(const Header& header, std::uint64_t acknowledged) {
    const std::lock_guard lock(mutex_);
    const auto& gone = blocks_[header.chain][header.block].gone;
    const auto at = gone.find(header.put);
    return at != gone.end() && at->second <= acknowledged;
  }

 private:
  struct Block {
    std::vector<std::uint64_t> completed;
    std::map<std::uint64_t, std::uint64_t> gone;  // puts, and the acknowledgement that took each
  };
  std::atomic<std::uint64_t> next_{1};
  std::mutex mutex_;
  std::uint64_t acknowledged_ = 0;
  std::array<std::array<Block, kBlocks>, kChains> blocks_;
};

}  // namespace cistern::chaos
