// SPDX-License-Identifier: Apache-2.0
// One endpoint of libfabric, driven by a loop: what waits to be asked of the device, what has ended, and when
// to look again. The library is asked by the loop's thread alone.
//
// A provider that can signal wakes the loop; one that cannot (EFA) is looked at in steps, short ones while
// reads are under way.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

#include <array>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "base/event.h"
#include "io/loop.h"
#include "net/fabric.h"

namespace cistern::net {

// A read of the device, from its begin to the library's last word.
struct LibfabricRead {
  fi_context2 context{};  // the library's own; first, so that it names the read
  FabricPlace from;
  Piece into;
  bool held = false;    // somebody waits for it, or has not looked yet
  bool asked = false;   // the device may write to `into`
  bool queued = false;  // waits until the device takes it
  Event done;
  Status status;

  bool free() const { return !held && !asked && !queued; }
};

class LibfabricEndpoint final {
 public:
  // So long a provider that cannot signal, or that would not take a read, is left alone: while something is
  // under way, and while others may come to read.
  static constexpr std::int64_t kBusyUs = 50;
  static constexpr std::int64_t kIdleUs = 1'000;

  struct Parts {  // borrowed
    io::Loop& loop;
    fid_fabric* fabric;
    fid_domain* domain;
    fi_info* info;
    const char* (*text_of)(int error);
    bool polled = false;
  };
  explicit LibfabricEndpoint(const Parts& parts);
  ~LibfabricEndpoint();
  LibfabricEndpoint(const LibfabricEndpoint&) = delete;
  LibfabricEndpoint& operator=(const LibfabricEndpoint&) = delete;

  Executor& executor() { return parts_.loop.executor(); }

  Status Open();
  // What others reach it by.
  Result<std::vector<std::byte>> Name() const;
  // Whom the reads go to, from now on.
  Status Reach(ConstPiece name);
  bool open() const { return endpoint_ != nullptr; }

  // The read's place and piece are set; `desc` is its buffer's. Ends with its event.
  void Begin(LibfabricRead& read, void* desc);
  // The device writes nowhere any more when this returns; what was under way ends with kGone.
  void Close();

 private:
  void Progress();
  // Completions that are there, a bounded number; whether there may be more.
  bool Harvest();
  void AskQueued();
  void End(LibfabricRead& read, Status status);
  Status Failed(const char* what, long result) const;
  void LookAgain();

  const Parts parts_;
  fid_cq* queue_ = nullptr;
  fid_av* addresses_ = nullptr;
  fid_ep* endpoint_ = nullptr;
  fi_addr_t other_ = FI_ADDR_UNSPEC;
  bool signals_ = false;
  io::FdWatch watch_;
  Timer again_;
  void* desc_ = nullptr;
  std::deque<LibfabricRead*> queued_;
  std::vector<LibfabricRead*> under_way_;
};

}  // namespace cistern::net
