// SPDX-License-Identifier: Apache-2.0
// Membership: a key under a lease, which is this start's of the member as long as both stand. Whose key it is
// says the process number in it: another start on the same boot of the host takes it over at once (the lock
// of the directory has shown that this one is dead), one on another boot waits until it lapses.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/task.h"
#include "etcd/etcd.h"
#include "mesh/cell_keys.h"
#include "mesh/cell_state.h"

namespace cistern::mesh {

class Membership final {
 public:
  // All is borrowed. `boot` is the host's boot clock; null: the executor's stands for it.
  Membership(etcd::Etcd& etcd, const CellKeys& keys, const std::string& id, const MemberValue& value,
             const Clock* boot)
      : etcd_(etcd),
        boot_(boot),
        key_(keys.MemberKey(id)),
        history_key_(keys.History()),
        id_(id),
        value_(value) {}
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  Executor& executor() { return etcd_.executor(); }
  const std::string& key() const { return key_; }

  // Writes the key, under the history whose key has this revision. kLapsed: another member has the id, which
  // is named, or was this one before its host started anew, and lapses; or history or key changed meanwhile.
  // etcd's errors.
  Task<Status> Enter(std::int64_t history_revision);
  // Writes the key once more as it stands: a change that no compaction has forgotten yet. kLapsed: it does
  // not stand; etcd's errors.
  Task<Status> WriteAgain();
  // Renews the lease for ever, while this member is fit to be one.
  Task<void> KeepLease(std::function<bool()> fit);
  // What a range of the key, asked for at this time, says. kLapsed: it is gone, or another host's; kDenied:
  // another start on this boot has it, for good.
  Status Confirm(const etcd::RangeAnswer& own, Instant asked_at);
  // The key as a change of it that came by the watch has it.
  Status Confirm(const etcd::WatchEvent& event) const;
  // Gives the key back.
  Task<void> Leave(Instant deadline);

  // On the boot clock: until then nobody has seen this membership lapse, from when the last renewal was sent
  // that the key has outlived. In the past unless Enter has succeeded.
  Instant valid_until() const { return valid_until_; }
  bool stands() const { return BootNow() < valid_until_; }

 private:
  Status TakenBy(const MemberValue& other) const;
  // Renews the lease that there is; none is left where it had ended. etcd's errors.
  Task<Status> Renew(Instant deadline);
  Instant BootNow() const { return boot_ == nullptr ? etcd_.executor().Now() : boot_->Now(); }
  // Of a lease of so many seconds that was asked for or renewed then. Clocks of two hosts run apart by less
  // than one part in a hundred.
  static Instant EndOf(Instant sent, std::int64_t ttl_s) { return sent.PlusUs(ttl_s * 990'000); }

  etcd::Etcd& etcd_;
  const Clock* const boot_;
  const std::string key_, history_key_, id_;
  const MemberValue value_;
  std::int64_t lease_ = 0;  // 0: none that is known to stand
  bool entered_ = false;
  Instant renewed_until_;  // on the boot clock, by the last renewal
  Instant renewed_at_;     // when its answer came
  Instant valid_until_;    // on the boot clock
};

}  // namespace cistern::mesh
