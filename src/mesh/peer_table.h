// SPDX-License-Identifier: Apache-2.0
// What a member knows of each other one from having asked it: whether it answers, how fast, and what is
// under way to it; and how much it may read from all of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/event.h"
#include "cistern/status.h"
#include "mesh/breaker.h"
#include "mesh/role.h"
#include "net/bandwidth.h"

namespace cistern::mesh {

struct Peer {
  Breaker breaker;
  std::uint32_t matches = 0;                   // questions under way
  std::uint64_t landing_bytes = 0;             // of blocks that were asked for and are not here
  std::uint64_t landing_from_flash_bytes = 0;  // of these, what it reads from its flash first
  std::uint32_t flash_batches = 0;             // of what it reads from its flash, that have room
  std::uint32_t batches = 0;                   // that read from it, or wait for room
  double answer_us = 100;                      // of a match, lately
  std::uint64_t room_bytes = 0;                // its memory; 0: it has not said so, and takes nothing
  bool drains = false;                         // it is on its way out of service
  Role role = Role::kEngine;                   // what it is for
  std::string release;                         // of its program; empty: it has not said
  bool greeted = false;                        // it has said what room it has, in this start

  // What of a question's outcome is the peer's fault. A miss is not: an index is a hint; nor is a deadline
  // that left it no time, or in which it answered others: it is slow, and what else it is asked comes.
  static constexpr std::int64_t kPatienceUs = 20'000;
  void Note(const Status& outcome, Instant now, std::int64_t waited_us) {
    switch (outcome.code()) {
      case Code::kOk:
      case Code::kMiss:
      case Code::kBusy:
      case Code::kMismatch:
        heard_at_ = now;
        breaker.Succeeded();
        break;
      case Code::kTooLate:
        if (waited_us >= kPatienceUs && now.UsSince(heard_at_) >= waited_us) breaker.Failed(now, true);
        break;
      default: breaker.Failed(now, false); break;
    }
  }
  static void Blend(double* average, double value) { *average += (value - *average) / 8; }

  // A batch of what lay in its memory has landed whole. Beside others it takes longer: its time is that since
  // the one before it landed. One that took many times as long was held up by whoever stood still meanwhile,
  // which says little of the peer.
  void NoteLanded(std::uint64_t bytes, Instant asked, Instant now) {
    if (IsForgotten(now)) landed_ = Landed();
    const auto us = static_cast<double>(std::max<std::int64_t>(now.UsSince(std::max(asked, landed_at_)), 1));
    const double expected_us = static_cast<double>(bytes) * landed_.us / landed_.bytes;
    landed_at_ = now;
    Blend(&landed_.bytes, static_cast<double>(bytes));
    Blend(&landed_.us, std::min(us, kMostTimes * expected_us));
  }
  // Of blocks in its memory, lately, all batches together. Whom nothing was read from for a minute is thought
  // of as one that is new: who is slow is read from less, and nothing else would tell when it no longer is.
  bool IsKnown(Instant now) const { return landed_at_ != Instant() && !IsForgotten(now); }
  double bytes_per_us(Instant now) const {
    const Landed landed = IsForgotten(now) ? Landed() : landed_;
    return landed.bytes / landed.us;
  }

 private:
  static constexpr double kMostTimes = 8;
  static constexpr std::int64_t kForgottenUs = 60'000'000;
  struct Landed {
    double bytes = 256'000, us = 256;
  };
  bool IsForgotten(Instant now) const { return now.UsSince(landed_at_) > kForgottenUs; }

  Landed landed_;
  Instant landed_at_;
  Instant heard_at_;  // it answered something
};

class PeerTable final {
 public:
  // 0: without a bound on what is read from all of them.
  explicit PeerTable(std::uint64_t bytes_a_second) : bandwidth_(bytes_a_second) {}

  net::Bandwidth& bandwidth() { return bandwidth_; }
  const net::Bandwidth& bandwidth() const { return bandwidth_; }
  // At which its blocks would come.
  double BytesPerUs(const Peer& peer, Instant now) const {
    return std::min(peer.bytes_per_us(now), bandwidth_.bytes_per_us());
  }
  // After which the first of them would begin to. What it reads from its flash keeps none of them waiting.
  double QueueUs(const Peer& peer, Instant now) const {
    const std::uint64_t ahead = peer.landing_bytes - peer.landing_from_flash_bytes;
    return std::max(static_cast<double>(ahead) / BytesPerUs(peer, now),
                    static_cast<double>(bandwidth_.BeginAt(now).UsSince(now)));
  }

  // Known or new. Stays in place until Forget.
  Peer& Of(std::uint64_t process_number) { return peers_[process_number]; }
  // Of a start of a member that is no more. One to which something is under way goes with the first
  // ForgetEnded behind that, and is no newcomer or taker until then. Where it is back by then, greeted, it
  // stays.
  void Forget(std::uint64_t process_number) {
    gone_.push_back(process_number);
    if (const auto at = peers_.find(process_number); at != peers_.end()) at->second.greeted = false;
    ForgetEnded();
  }
  void ForgetEnded() {
    std::erase_if(gone_, [this](std::uint64_t one) {
      const auto at = peers_.find(one);
      if (at == peers_.end() || at->second.greeted) return true;  // or it has come back
      if (at->second.matches > 0 || at->second.batches > 0) return false;
      peers_.erase(at);
      return true;
    });
  }
  std::size_t size() const { return peers_.size(); }
  const std::unordered_map<std::uint64_t, Peer>& all() const { return peers_; }
  // Null: it was never asked, or is no more.
  Peer* Find(std::uint64_t process_number) {
    const auto at = peers_.find(process_number);
    return at == peers_.end() ? nullptr : &at->second;
  }
  const Peer* Find(std::uint64_t process_number) const {
    const auto at = peers_.find(process_number);
    return at == peers_.end() ? nullptr : &at->second;
  }
  // How many are not asked now.
  std::uint64_t Open() const {
    std::uint64_t open = 0;
    for (const auto& [process_number, peer] : peers_) open += peer.breaker.open() ? 1 : 0;
    return open;
  }

 private:
  net::Bandwidth bandwidth_;
  std::unordered_map<std::uint64_t, Peer> peers_;  // a match looks at each that has the chain
  std::vector<std::uint64_t> gone_;
};

}  // namespace cistern::mesh
