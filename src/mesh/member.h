// SPDX-License-Identifier: Apache-2.0
// A member of a cell: its key in etcd, its view of the others, the cell's drops and the rule that keeps what
// was dropped from coming back with another member's records. docs/formats/cell.md has what lies in etcd.
//
// A member that has started joins by itself and joins anew whenever its membership lapsed or the cell's
// history changed. Without etcd it goes on with its last view. All of it belongs to one executor's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/task.h"
#include "base/task_group.h"
#include "etcd/etcd.h"
#include "mesh/cell_keys.h"
#include "mesh/cell_state.h"
#include "mesh/drop_follower.h"
#include "mesh/drop_writer.h"
#include "mesh/local_store.h"
#include "mesh/membership.h"
#include "mesh/peers.h"
#include "mesh/reach.h"
#include "mesh/role.h"
#include "mesh/trimmer.h"
#include "net/stream.h"
#include "net/tls.h"

namespace cistern::mesh {

struct MemberOptions {
  std::string id;                    // no other member of the cell has it
  std::string prefix = "/cistern/";  // of the cell's keys in etcd; ends with a slash
  std::string listen;                // address for control connections
  std::string address;               // the same as others reach it; empty: `listen`
  std::string zone;                  // may be empty
  Role role = Role::kEngine;
  std::array<std::byte, 16> boot_id{};  // of the host: it changes when the host starts
  std::uint64_t process_number = 0;     // random, not 0
  std::vector<net::CellKey> cell_keys;  // the first is used, each is accepted; none: a cell without one
  bool etcd_is_ours = false;            // and may be compacted
  const Clock* boot = nullptr;          // the host's boot clock; null: the executor's stands for it
  Lane* answers = nullptr;              // borrowed: of what other members ask; null: it is in none

  // kInvalid names the field.
  Status Validate() const;
};

class Member final : public CellRule {
 public:
  // All is borrowed and outlives the member. Fails where the options are wrong or nobody can listen there.
  static Result<std::unique_ptr<Member>> Start(etcd::Etcd& etcd, net::Network& network, LocalStore& store,
                                               MemberOptions options);
  // Leave was awaited; without it, as a kill: the key lapses by itself, and nothing may be under way in the
  // store.
  ~Member();
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  Executor& executor() { return etcd_.executor(); }

  // Whether it has joined, has read to the revision of its own key, and has not lost it since. Else it
  // answers no other member and takes nothing from one; why() says what keeps it.
  bool joined() const { return state_.joined; }
  const Status& why() const { return state_.trouble.ok() ? state_.refused : state_.trouble; }
  // It has not joined yet, and reads what the cell has dropped, which etcd and the store take their time for:
  // the store no more than CellLimits::kUnfitUs.
  bool reading() { return state_.reading && follower_.MakesDurable(); }
  // Ended: only a person can help, as why() says, and it starts no more by itself.
  bool ended() const { return ended_; }
  // Attempts to join that came to nothing.
  std::uint64_t failed_joins() const { return failed_joins_; }
  // Until anything of its state() may have changed; kTooLate: nothing has by the deadline.
  Event::WaitingUntil Changed(Instant deadline) override { return state_.changed.Wait(deadline); }
  // On the boot clock: until then nobody has seen the membership lapse: strict namespaces are served no
  // longer than that. In the past where it has not joined.
  Instant valid_until() const { return state_.joined ? membership_.valid_until() : Instant(); }
  bool stands() const { return state_.joined && membership_.stands(); }

  // To be read before a record is looked up that is to be answered; none: it answers nobody.
  std::optional<Answered> Answering() const override;
  bool Same(const Answered& answered) const override;
  bool Behind(const Answered& answered) const override;
  const DropList& drops() const override { return state_.list; }

  // As DropWriter::Write.
  Task<Result<DropReceipt>> Drop(CellDrop drop, DropWait wait, Instant deadline) {
    return writer_.Write(std::move(drop), wait, deadline);
  }
  // As DropWriter::End.
  void EndDrops() { writer_.End(); }
  // As Trimmer::Trim, for who does not wait until it is time.
  Task<Status> Trim(CellFloor floor) { return trimmer_.Trim(floor); }
  // Gives the membership back, so that the others need not wait for it to lapse; then it may be destroyed.
  Task<void> Leave(Instant deadline);
  // The node dies, in simulation: nothing of what was under way is waited for, and nobody hears it any more.
  void Abandon();

  const CellState& state() const { return state_; }
  const MemberOptions& options() const { return options_; }
  std::size_t reachable() const { return peers_.connected(); }
  // Ways to the others, and who hears them from now on; null: nobody. `rail_address`: where this member
  // serves blocks, as they reach it.
  PeerLinks& links() { return peers_; }
  void SetListener(PeerListener* listener, std::string rail_address = {}) {
    peers_.SetListener(listener, std::move(rail_address));
  }
  // As Peers::WhyApart.
  std::string WhyApart(const std::string& id) const { return peers_.WhyApart(id); }
  // Whether there is a control connection to this start of a member.
  bool Reaches(std::uint64_t process_number) const { return peers_.Reaches(process_number); }

 private:
  Member(etcd::Etcd& etcd, net::Network& network, LocalStore& store, MemberOptions options,
         std::unique_ptr<net::Listener> listener);
  Footing FootingOn(const Answered& answered) const;
  Task<void> Run();
  void Told();

  etcd::Etcd& etcd_;
  const MemberOptions options_;
  const CellKeys keys_;
  Random random_;
  CellState state_;
  Membership membership_;
  Peers peers_;
  DropFollower follower_;
  DropWriter writer_;
  Trimmer trimmer_;
  bool ended_ = false;
  std::uint64_t failed_joins_ = 0;
  TaskGroup tasks_;
};

}  // namespace cistern::mesh
