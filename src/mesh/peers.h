// SPDX-License-Identifier: Apache-2.0
// Control connections of a member, one to each other member: of two the one with the lower id dials. Over
// them goes what each has applied, at once whenever it changes, where it serves blocks, and what is asked and
// told to find them; their heartbeats tell who can be reached.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/task.h"
#include "base/task_group.h"
#include "mesh/cell_state.h"
#include "mesh/reach.h"
#include "net/control_connection.h"

namespace cistern::mesh {

// Types of notices (docs/formats/wire.md).
inline constexpr std::uint16_t kAppliedNotice = 1;
inline constexpr std::uint16_t kRailNotice = 3;  // 2 is kSampleNotice

struct PeerLimits {
  static constexpr std::size_t kConnections = 256;  // with those that have not said who they are
  static constexpr std::int64_t kOpenUs = 2'000'000;
  static constexpr std::int64_t kDialUs = 1'000'000;
  static constexpr std::int64_t kLeastPauseUs = 50'000, kMostPauseUs = 5'000'000;  // between two dials
  static constexpr std::int64_t kAgainUs = 50'000;  // after a connection had no room
};

class Peers final : public PeerLinks {
 public:
  // All is borrowed; the listener is where the others reach this member. What they ask is answered in the
  // lane `answers`; null: in none.
  Peers(net::Network& network, std::unique_ptr<net::Listener> listener, std::string id,
        std::uint64_t process_number, CellState& state, std::uint64_t seed, Lane* answers);
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  Executor& executor() { return network_.executor(); }

  // Accepts and dials, until Close.
  void Start();
  // This member has left: no connection stands any more, and none comes.
  void Close() { tasks_.Drop(); }
  // Says to all how far this member has come.
  void TellApplied();
  // Members that can be reached now.
  std::size_t connected() const { return connected_.size(); }
  bool Reaches(std::uint64_t process_number) const { return connected_.contains(process_number); }

  // Of a member of the view to which there is no connection: why not, as far as this side knows.
  std::string WhyApart(const std::string& id) const;

  // Who hears what is not this class's own; null: nobody. It is told of the connections that there are.
  void SetListener(PeerListener* listener, std::string rail_address);
  std::vector<std::uint64_t> Reachable() const override;
  bool SameZone(std::uint64_t peer) const override { return near_.contains(peer); }
  Status Tell(std::uint64_t peer, std::uint16_t type, net::ConstPiece payload) override;
  void TellLatest(std::uint64_t peer, std::uint16_t type, net::ConstPiece payload) override;
  Task<Result<std::vector<std::byte>>> Ask(std::uint64_t peer, std::uint16_t type,
                                           std::vector<std::byte> payload, Instant deadline) override;
  std::string RailAddress(std::uint64_t peer) const override;

 private:
  class Other;
  struct Line;  // a connection and who hears what comes over it
  struct Connected {
    net::ControlConnection* connection = nullptr;
    std::string rail_address;
    std::map<std::uint16_t, std::vector<std::byte>> untold;  // by type, the latest there was no room for
  };

  // How a member's last connection ended.
  struct Ended {
    Status why;
    Instant at;
  };

  // One dial of a member, until its connection ends.
  struct Dialed {
    bool over = false;
    std::int64_t lasted_us = 0;
  };

  void TellLatest(Connected& to, std::uint16_t type, net::ConstPiece payload);
  Task<void> TellAgain();
  Task<void> Accept();
  Task<void> FollowView();
  Task<void> Dial(std::string id);
  Task<void> DialOnce(std::string id, std::string address, std::shared_ptr<Dialed> dialed);
  // From the hello to the end of the connection; how long it lasted. Its error: it never began. `dialed`, not
  // empty, is who is to answer there; else the other side has dialed.
  Task<Result<std::int64_t>> Serve(std::unique_ptr<net::Stream> stream, std::string dialed);
  // The connection to a member, from now on.
  void List(std::uint64_t process_number, net::ControlConnection& connection);
  Task<void> End(std::unique_ptr<Line> line);
  void Heard(std::uint64_t process_number, const Answered& said);
  // Of starts that are no more, and of members.
  void ForgetHeard();
  void LookForNear();

  net::Network& network_;
  const std::unique_ptr<net::Listener> listener_;
  const std::string id_;
  const std::uint64_t process_number_;
  CellState& state_;
  Lane* const answers_;
  Random random_;
  std::map<std::uint64_t, Connected> connected_;  // by process number, the newest
  PeerListener* hears_ = nullptr;
  std::string rail_address_;
  std::set<std::string> dialed_;              // ids that a Dial is at work for
  std::map<std::string, Status> not_dialed_;  // why the last dial to an id came to nothing
  Status refused_;                            // why the last connection of another came to nothing
  std::map<std::string, Ended> ended_;        // by id, of members that none is there to
  std::size_t serving_ = 0;
  std::set<std::uint64_t> near_;  // members of the view in this one's zone
  bool lost_ = false;             // a connection has ended since ForgetHeard
  Event redial_;                  // another view, or a connection has ended
  Event behind_;                  // a connection had no room for what is to be told
  TaskGroup tasks_;
};

}  // namespace cistern::mesh
