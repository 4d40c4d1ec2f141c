// SPDX-License-Identifier: Apache-2.0
// A lease at the server, as its holder has it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cistern/lease.h"
#include "client/channel.h"
#include "wire/protocol.h"

namespace cistern::client {

class HeldLease final : public internal::LeaseState {
 public:
  // `deadline_ns` is the node's, or counts from before the node granted it, so it never ends later than that.
  // `strict`: its namespace is, so that it holds no longer than the node's membership of its cell.
  HeldLease(std::shared_ptr<Channel> channel, bool strict, std::uint64_t lease, std::int64_t deadline_ns)
      : channel_(std::move(channel)), strict_(strict), lease_(lease), deadline_ns_(deadline_ns) {}
  ~HeldLease() override { channel_->Release(lease_); }
  HeldLease(const HeldLease&) = delete;
  HeldLease& operator=(const HeldLease&) = delete;

  void Reserve(std::size_t views) {
    views_.reserve(views);
    slots_.reserve(views);
  }
  // In the order asked for. An item outside of the arena counts as a miss.
  void Add(const wire::ViewItem& item);

  bool StillGood() const override;
  bool StillGood(std::size_t view) const override;
  std::span<const View> views() const override { return views_; }
  std::shared_ptr<const void> mapping() const override { return channel_; }

 private:
  struct Slot {
    arena::Place place = 0;
    std::uint64_t generation = 0;
  };
  bool InForce() const {
    return channel_->Check().ok() && NowNs() < deadline_ns_ && (!strict_ || channel_->ServesStrict());
  }
  bool Unchanged(std::size_t view) const {
    return views_[view].data == nullptr ||
           channel_->reader().CheckView(slots_[view].place, slots_[view].generation);
  }

  const std::shared_ptr<Channel> channel_;
  const bool strict_;
  const std::uint64_t lease_;
  const std::int64_t deadline_ns_;
  std::vector<View> views_;
  std::vector<Slot> slots_;  // one a view
};

}  // namespace cistern::client
