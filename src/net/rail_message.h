// SPDX-License-Identifier: Apache-2.0
// The messages of a rail as docs/formats/wire.md has them: fixed heads, little-endian.
//
//   question batch   head | (bytes u16, question)...
//   answer batch     head | (item head, head, body)... | a byte for each item: 1 if it was one record's
//
// Where the reader may fetch bodies itself (net/fabric.h), of a body that is placed its place stands instead,
// before what is said of it, and what was one record's comes only once the reader has said that it is done:
//
//   hello            head | kind, as 16 bits of length and its bytes
//   fabric           head | kind and name, each as above; empty: none that the reader could use
//   taken            head | a u64 for each item: from which byte on its body is to be sent after all
//   verdict          head | for each item of which bytes were asked for: their count u64, bytes |
//                    a byte for each item
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/codec.h"
#include "cistern/status.h"

namespace cistern::net {

// Of a question batch and of an answer batch: 24 bytes.
struct RailBatchHead {
  static constexpr std::size_t kBytes = 24;
  static constexpr std::uint32_t kQuestions = 0x51525443;  // "CTRQ" in memory
  static constexpr std::uint32_t kAnswers = 0x41525443;    // "CTRA"
  static constexpr std::uint32_t kHello = 0x48525443;      // "CTRH"
  static constexpr std::uint32_t kFabric = 0x46525443;     // "CTRF"
  static constexpr std::uint32_t kPlaced = 0x50525443;   // "CTRP": questions; bodies may stay where they are
  static constexpr std::uint32_t kTaken = 0x54525443;    // "CTRT"
  static constexpr std::uint32_t kVerdict = 0x56525443;  // "CTRV"
  // In the id of a question batch: its reader takes answers to such batches in whatever order. An earlier
  // release's server gives the id back as any other, and answers in the order of the questions.
  static constexpr std::uint64_t kAnyOrder = std::uint64_t{1} << 63;
  static constexpr std::uint64_t kNothing = ~std::uint64_t{0};  // in what was taken: no bytes are to be sent

  std::uint32_t magic = 0;
  std::uint32_t items = 0;
  std::uint64_t id = 0;            // the reader's, rising
  std::uint32_t bytes = 0;         // of what is asked, said or taken, behind the head; 0 in an answer
  std::uint32_t remaining_us = 0;  // of a question batch: what the reader's deadline leaves; 0 in an answer

  void Store(std::byte* to) const {
    StoreAt(to, 0, magic);
    StoreAt(to, 4, items);
    StoreAt(to, 8, id);
    StoreAt(to, 16, bytes);
    StoreAt(to, 20, remaining_us);
  }
  static RailBatchHead Load(const std::byte* from) {
    return {LoadAt<std::uint32_t>(from, 0), LoadAt<std::uint32_t>(from, 4), LoadAt<std::uint64_t>(from, 8),
            LoadAt<std::uint32_t>(from, 16), LoadAt<std::uint32_t>(from, 20)};
  }
};

// Before each item of an answer: 16 bytes.
struct RailItemHead {
  static constexpr std::size_t kBytes = 16;
  static constexpr std::size_t kPlaceBytes = 16;  // that follow where it is placed: address and key

  std::uint8_t code = 0;         // Code; not kOk: no head and no body follow
  std::uint8_t placed = 0;       // 1: its place follows, and no body
  std::uint32_t head_bytes = 0;  // that follow
  std::uint64_t body_bytes = 0;  // behind those

  void Store(std::byte* to) const {
    StoreAt(to, 0, code);
    StoreAt(to, 1, placed);
    StoreAt(to, 2, std::uint16_t{0});
    StoreAt(to, 4, head_bytes);
    StoreAt(to, 8, body_bytes);
  }
  static RailItemHead Load(const std::byte* from) {
    return {LoadAt<std::uint8_t>(from, 0), LoadAt<std::uint8_t>(from, 1), LoadAt<std::uint32_t>(from, 4),
            LoadAt<std::uint64_t>(from, 8)};
  }
};

}  // namespace cistern::net
