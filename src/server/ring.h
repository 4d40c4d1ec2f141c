// SPDX-License-Identifier: Apache-2.0
// The node's end of a session's rings. The other end may be anyone: every entry is copied out whole before a
// byte of it is looked at, positions are the node's own, and what the client writes is only ever compared
// with them (R13). Nothing here waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/clock.h"
#include "wire/protocol.h"

namespace cistern::server {

class NodeRing final {
 public:
  // The session's memory outlives the ring.
  explicit NodeRing(wire::SessionMemory& memory) : memory_(&memory) {}

  enum class Took : std::uint8_t {
    kNothing,  // no submission, or kRingEntries are in flight
    kEntry,
    kForged,  // the client's count is more than a ring ahead
  };
  Took Take(wire::Submission& entry);
  // Whether Take would not say kNothing for want of a submission.
  bool HasSubmission() const;
  // Whether the client has announced a submission since the last time this was asked: worth staying awake
  // for.
  bool TakeAnnounced();
  // Taken and not yet completed.
  std::uint32_t in_flight() const { return in_flight_; }

  enum class Put : std::uint8_t {
    kDone,
    kLost,    // the client has not collected a whole ring of completions: this one is dropped
    kForged,  // its count of collected ones is not within a ring of ours
  };
  // Ends one of those in flight.
  Put Complete(const wire::Completion& completion);
  // To be asked after Complete: whether the client's eventfd has to be signalled. Fences.
  bool ClientSleeps() const;
  // Whether the client has locked the memory, as it says.
  bool ClientLocks() const;

  // What the client counted so far, as it says.
  struct Counts {
    wire::ReadCounts reads;
    wire::EngineCounts engine;
  };
  Counts Counted() const;

  bool HasTouches() const;
  // Touches that were not taken yet, the oldest first. Those that the client overwrote before they were taken
  // are counted in `lost`.
  std::size_t TakeTouches(std::span<std::uint64_t> out, std::uint64_t& lost);

  // What the client looks at to decide whether a submission needs a signal.
  void SetCoreSleeps(bool sleeps);
  // What the client looks at to decide whether its leases still are.
  void SetEnded();
  // Whether there is a tier below memory; before the client has the session.
  void SetHasLower(bool has);
  // The node knows ReturnStaging; before the client has the session.
  void SetTakesStagingBack();
  void SetTakesLast();
  void SetTakesHints();
  void SetTakesChain(bool takes);
  // What the node's clocks say; as its last word before the client has the session.
  void SetClocks(Instant monotonic, Instant boot);
  // The node knows engines, before the client has the session; and whether reads are on for this one's, at
  // any time.
  void SetEngineReads(bool on);

 private:
  wire::SessionMemory* memory_;
  std::uint64_t taken_ = 0;
  std::uint64_t announced_ = 0;
  std::uint64_t completed_ = 0;
  std::uint64_t touches_taken_ = 0;
  std::uint32_t in_flight_ = 0;
};

}  // namespace cistern::server
