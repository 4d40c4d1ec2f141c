// SPDX-License-Identifier: Apache-2.0
// Reads of blocks by number, where a question is the number. For tests.
#pragma once

#include <cstdint>
#include <vector>

#include "base/codec.h"
#include "net/rail.h"

namespace cistern::net {

inline Task<Status> ReadNumbers(RailReader& reader, std::vector<std::uint64_t> numbers, RailSink& sink,
                                Instant deadline) {
  std::vector<std::vector<std::byte>> questions(numbers.size());
  std::vector<ConstPiece> asked;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    Encoder(questions[i]).U64(numbers[i]);
    asked.emplace_back(questions[i]);
  }
  co_return co_await reader.Read(asked, sink, deadline);
}

}  // namespace cistern::net
