// SPDX-License-Identifier: Apache-2.0
// Rails from this member to the others: two to each, opened when they are first needed and anew when they
// broke.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/event.h"
#include "base/task.h"
#include "base/task_group.h"
#include "mesh/reach.h"
#include "net/rail.h"

namespace cistern::mesh {

class PeerRails final {
 public:
  static constexpr std::size_t kRails = 2;  // to a peer

  PeerRails(Executor& executor, PeerLinks& links) : executor_(executor), links_(links), tasks_(executor) {}
  // Close was awaited, or the node crashed.
  ~PeerRails() { tasks_.Drop(); }
  PeerRails(const PeerRails&) = delete;
  PeerRails& operator=(const PeerRails&) = delete;

  Executor& executor() { return executor_; }

  // As net::RailReader::Read, on the rail with the least under way; each item of the sink ends, whatever the
  // outcome. kBusy: every rail has as many batches as it may have.
  Task<Status> Read(std::uint64_t peer, std::span<const net::ConstPiece> questions, net::RailSink& sink,
                    Instant deadline);
  // Rails to a start of a member that is no more.
  void Forget(std::uint64_t peer);
  // No Read is under way.
  Task<void> Close();

 private:
  struct Rails {
    std::vector<std::shared_ptr<net::RailReader>> open;
    bool dialing = false;
    Status failed;  // why the last dial did
    Event dialed;
  };
  Task<void> Dial(std::uint64_t peer, std::shared_ptr<Rails> rails, Instant deadline);

  Executor& executor_;
  PeerLinks& links_;
  std::map<std::uint64_t, std::shared_ptr<Rails>> rails_;
  TaskGroup tasks_;
};

}  // namespace cistern::mesh
