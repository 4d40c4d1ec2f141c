// SPDX-License-Identifier: Apache-2.0
// Memory that other members read by themselves: the seam between rails and remote direct memory access. A
// rail says where a body lies, and the reader's device fetches it while the holder's processors do nothing.
// Two fabrics exist: libfabric (net/libfabric.h) and a simulated one (net/simulated_fabric.h).
//
// Nothing here says whether the bytes that came are right. The holder's memory may change under a read, so
// who reads asks the holder behind the last byte whether they were one record's all the while, and checks
// them, as on any rail.
//
// All of it belongs to the thread of one executor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/metrics.h"
#include "net/stream.h"

namespace cistern::net {

// Where bytes lie, to those who read them from elsewhere: as the holder's device calls it.
struct FabricPlace {
  std::uint64_t address = 0;
  std::uint64_t key = 0;
  friend bool operator==(const FabricPlace&, const FabricPlace&) = default;
};

// Reads from the memory of one other member.
class FabricReader {
 public:
  static constexpr std::size_t kReadBytes = 256u << 10;  // of one read at most
  static constexpr std::size_t kReads = 16;              // under way at most

  // Ends what is under way: nothing is written to the buffer afterwards.
  virtual ~FabricReader() = default;
  FabricReader() = default;
  FabricReader(const FabricReader&) = delete;
  FabricReader& operator=(const FabricReader&) = delete;

  virtual Executor& executor() = 0;
  // kReads * kReadBytes that the device may write to. They are this process's own and shared with nobody: of
  // a process that is killed the device may write for a while yet, and no slot of an arena is in its way.
  virtual Piece buffer() = 0;
  // Brings `into`, a part of the buffer. kTooLate: not by the deadline; kGone: it was closed, or the other
  // side refuses; kBusy: kReads are under way. After an error the device may write to `into` until this
  // object is gone or closed.
  virtual Task<Status> Read(FabricPlace from, Piece into, Instant deadline) = 0;
  // Reads under way end with kGone, and so do later ones.
  virtual void Close() = 0;
};

class Fabric {
 public:
  virtual ~Fabric() = default;
  Fabric() = default;
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;

  virtual Executor& executor() = 0;
  // Fabrics of different kinds do not understand each other: "verbs;ofi_rxm".
  virtual const std::string& kind() const = 0;
  // By which others reach this member's memory: at most kNameBytes, meaningless to who carries it.
  virtual ConstPiece name() const = 0;
  static constexpr std::size_t kNameBytes = 256;
  // None: the bytes do not lie in memory that others may read, or not all in one piece of it.
  virtual std::optional<FabricPlace> PlaceOf(ConstPiece bytes) const = 0;
  // To the memory of the member that has this name. It connects with the first read, and goes before the
  // fabric does.
  virtual Result<std::unique_ptr<FabricReader>> ReaderOf(ConstPiece name) = 0;

  // Bytes of bodies that come over it are counted there, which outlives it.
  void CountIn(Counter& counter) { counter_ = &counter; }
  void NoteFetched(std::uint64_t bytes) {
    if (counter_ != nullptr) counter_->Add(bytes);
  }

 private:
  Counter* counter_ = nullptr;
};

}  // namespace cistern::net
