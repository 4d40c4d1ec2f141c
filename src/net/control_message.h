// SPDX-License-Identifier: Apache-2.0
// The frames of a control connection as docs/formats/wire.md has them: a head of 16 bytes, little-endian,
// then the payload.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/codec.h"

namespace cistern::net {

enum class FrameKind : std::uint8_t { kHello = 1, kHeartbeat = 2, kQuestion = 3, kAnswer = 4, kNotice = 5 };

struct FrameHead {
  static constexpr std::size_t kBytes = 16;

  std::uint32_t payload_bytes = 0;
  FrameKind kind = FrameKind::kHeartbeat;
  std::uint8_t code = 0;   // of an answer: Code; its payload is a message where it is not kOk
  std::uint16_t type = 0;  // of questions and notices: what they are about
  std::uint32_t id = 0;    // of a question, and of its answer
  // Of a question: microseconds until the asker's deadline.
  std::uint32_t remaining_us = 0;

  void Store(std::byte* to) const {
    StoreAt(to, 0, payload_bytes);
    StoreAt(to, 4, static_cast<std::uint8_t>(kind));
    StoreAt(to, 5, code);
    StoreAt(to, 6, type);
    StoreAt(to, 8, id);
    StoreAt(to, 12, remaining_us);
  }
  static FrameHead Load(const std::byte* from) {
    return {LoadAt<std::uint32_t>(from, 0), static_cast<FrameKind>(LoadAt<std::uint8_t>(from, 4)),
            LoadAt<std::uint8_t>(from, 5),  LoadAt<std::uint16_t>(from, 6),
            LoadAt<std::uint32_t>(from, 8), LoadAt<std::uint32_t>(from, 12)};
  }
};

}  // namespace cistern::net
