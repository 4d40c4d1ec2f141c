// SPDX-License-Identifier: Apache-2.0
// Rails from this member to the others: two to each, opened when they are first needed and anew when they
// broke.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/event.h"
#include "base/task.h"
#include "base/task_group.h"
#include "mesh/reach.h"
#include "net/rail.h"

namespace cistern::mesh {

class PeerRails final : public BlockRails {
 public:
  static constexpr std::size_t kRails = 2;            // to a peer
  static constexpr std::int64_t kDialUs = 2'000'000;  // to connect, whatever the time of who reads

  // Both are borrowed: rails belong to the network's thread. No fabric: bodies come over the rails'
  // connections alone.
  explicit PeerRails(net::Network& network, net::Fabric* fabric = nullptr)
      : network_(network), fabric_(fabric), tasks_(network.executor()) {}
  // No Read is under way, or the node crashed. Nobody waits for a dial.
  ~PeerRails() { tasks_.Drop(); }
  PeerRails(const PeerRails&) = delete;
  PeerRails& operator=(const PeerRails&) = delete;

  Executor& executor() { return network_.executor(); }

  // Where a peer serves blocks. kGone for a Read from one of which it was not said.
  void SetAddress(std::uint64_t peer, std::string address) { addresses_[peer] = std::move(address); }
  Task<Status> Read(std::uint64_t peer, std::span<const net::ConstPiece> questions, net::RailSink& sink,
                    Instant deadline) override;
  // Ends when a rail to the peer is open, so that a Read does not wait for one.
  Task<Status> Open(std::uint64_t peer, Instant deadline);
  std::size_t OpenTo(std::uint64_t peer) const;
  // Rails to a start of a member that is no more.
  void Forget(std::uint64_t peer);
  // Rails to all.
  void ForgetAll();

 private:
  struct Rails {
    void DropBroken() {
      std::erase_if(open, [](const auto& rail) { return !rail->status().ok(); });
    }

    Event changed;  // a dial has ended, or a rail has a place for a batch
    std::vector<std::shared_ptr<net::RailReader>> open;
    bool dialing = false, forgotten = false;
    Status failed;  // why the last dial did
  };
  std::shared_ptr<Rails> To(std::uint64_t peer);
  void BeginToDial(std::uint64_t peer, const std::shared_ptr<Rails>& rails);
  Task<void> Dial(std::uint64_t peer, std::shared_ptr<Rails> rails);

  net::Network& network_;
  net::Fabric* const fabric_;
  std::map<std::uint64_t, std::string> addresses_;
  std::map<std::uint64_t, std::shared_ptr<Rails>> rails_;
  TaskGroup tasks_;
};

}  // namespace cistern::mesh
