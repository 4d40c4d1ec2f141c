// SPDX-License-Identifier: Apache-2.0
// The bytes of one body while they land: they are copied to their place with each segment's checksum in one
// pass, and it is compared with what the source has said of it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cistern/status.h"
#include "mesh/peer_message.h"

namespace cistern::mesh {

class Landing final {
 public:
  // Where it lands.
  explicit Landing(std::span<std::byte> body) : body_(body) {}

  // What is said of it. kInvalid: what no source says that tells the truth; kMiss: it is a record of another
  // length than the one that was looked for, or below another parent.
  Status Begin(const BlockRequest& asked, const BlockKey& parent, net::ConstPiece head,
               std::uint64_t body_bytes);
  // The next bytes, no more than are left of the body.
  void Take(net::ConstPiece bytes);
  // ok: all of it is here, and as was said. On the thread that took them; others may read the body from then
  // on.
  Status Checked() const;

  // Once it is checked, whoever asks may take of it what he likes.
  BlockHead& head() { return head_; }

 private:
  std::span<std::byte> body_;
  BlockHead head_;
  std::uint64_t landed_ = 0;
  std::size_t part_ = 0, segment_ = 0;
  std::uint64_t in_part_ = 0;         // bytes of the part that landed
  std::uint32_t crc_ = 0;             // of the segment so far
  std::optional<std::size_t> wrong_;  // the first segment whose checksum is another
};

}  // namespace cistern::mesh
