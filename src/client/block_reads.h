// SPDX-License-Identifier: Apache-2.0
// Reading blocks out of shared memory, as Client::Read does: checked, reported where they are bad, touched.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "arena/reader.h"
#include "cistern/store.h"
#include "client/channel.h"

namespace cistern::client {

// The incarnation and time under which this call reads the namespace. Every read of it is a miss where the
// incarnation is another than the attached one, where the namespace is strict and the node's membership of
// its cell has lapsed, and where reads are off for this engine.
arena::ReadCall BeginRead(const Channel& channel, const Namespace& ns);

// Ranges of one read as the reader takes them, without an allocation for the usual few.
class Ranges final {
 public:
  // False: a range that no part can have.
  bool Set(std::span<const ReadRange> ranges);
  std::span<const arena::RangeCopy> get() const { return set_; }

 private:
  std::array<arena::RangeCopy, 8> few_;
  std::array<std::span<std::byte>, 8> few_targets_;
  std::vector<arena::RangeCopy> many_;
  std::vector<std::span<std::byte>> many_targets_;
  std::span<const arena::RangeCopy> set_;
};

// One call's reads; borrows the channel and the namespace. Large: it has the reader's scratch.
class BlockReads final {
 public:
  BlockReads(Channel& channel, const Namespace& ns, bool touch)
      : channel_(channel), ns_(ns), touch_(touch), call_(BeginRead(channel, ns)) {}
  ~BlockReads() { channel_.NoteReads(hits_, hit_bytes_); }
  BlockReads(const BlockReads&) = delete;
  BlockReads& operator=(const BlockReads&) = delete;

  // The block's index entry; the head and seal of its record are being prefetched on return.
  std::optional<arena::Found> Find(const BlockRead& block) const;
  // A hint about a block that did not come from the index.
  void Expect(const arena::Found& found) const { channel_.reader().Prefetch(found); }
  // kOk, kMiss or kInvalid. `found` is tried first; what the index says after it.
  Code Read(const BlockRead& block, const std::optional<arena::Found>& found);
  // All of them, the next one's head and seal on their way while one is copied.
  ReadResult All(std::span<const BlockRead> blocks);

 private:
  Channel& channel_;
  const Namespace& ns_;
  const bool touch_;
  const arena::ReadCall call_;
  Ranges ranges_;
  arena::OpenRecord record_;
  std::uint64_t hits_ = 0;
  std::uint64_t hit_bytes_ = 0;
};

// How many outcomes from the first on are kOk.
std::uint32_t LeadingHits(std::span<const Code> outcomes);

}  // namespace cistern::client
