// SPDX-License-Identifier: Apache-2.0
// The checksums of a body that is on its way into memory: movers compute those of the segments that are there
// while others still come, so that little is left to do behind the last byte.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/task_group.h"
#include "memory/movers.h"
#include "record/seal.h"
#include "record/segments.h"

namespace cistern::residency {

class ArrivalCheck final {
 public:
  // A body of these parts, one behind the other, will lie at `body`, which stays until Finish was awaited.
  ArrivalCheck(Executor& executor, memory::Movers& movers, const std::byte* body,
               std::span<const std::uint32_t> part_bytes);
  // Finish was awaited, or the node crashed.
  ~ArrivalCheck() { jobs_.Drop(); }
  ArrivalCheck(const ArrivalCheck&) = delete;
  ArrivalCheck& operator=(const ArrivalCheck&) = delete;

  Executor& executor() const { return jobs_.executor(); }

  // These bytes of it are there. Bytes beside the body do not matter, nor do bytes told of twice.
  void Arrived(std::span<const std::byte> bytes);
  // Waits for the movers; `whole`: all bytes are there, and the rest of the segments is computed too. Awaited
  // once.
  Task<void> Finish(bool whole);

  // After Finish(true): true if the seal is of a body of these parts, and each segment has its CRC.
  bool Sound(const record::SealView& seal) const;
  bool HasPartsOf(const record::SealView& seal) const;

 private:
  enum class State : std::uint8_t { kAbsent, kTaken };

  // Segments [first, end) that nobody has taken, by one mover.
  void Take(std::uint32_t first, std::uint32_t end);
  Task<void> Sum(std::span<const record::Segment> segments);

  memory::Movers& movers_;
  const std::byte* const body_;
  const std::vector<std::uint32_t> part_bytes_;
  std::vector<record::Segment> segments_;
  std::vector<State> states_;
  std::vector<std::uint32_t> crcs_;
  TaskGroup jobs_;
};

}  // namespace cistern::residency
