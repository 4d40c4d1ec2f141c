// SPDX-License-Identifier: Apache-2.0
// The samples of members on their way: this member tells the others what comes and goes here, in numbered
// notices, and keeps what they tell it in its index. A gap in the numbers, a new start of a member or another
// history: a snapshot, in pages that it asks for.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/event.h"
#include "base/task.h"
#include "base/task_group.h"
#include "mesh/peer_message.h"
#include "mesh/reach.h"
#include "mesh/sample_feed.h"
#include "mesh/sample_index.h"

namespace cistern::mesh {

struct SampleStreamLimits {
  static constexpr std::int64_t kGatherUs = 5'000;  // changes that go out together
  static constexpr std::int64_t kAgainUs = 50'000;  // after a member that took nothing
  static constexpr std::size_t kNotice = PeerMessageLimits::kChanges;
  static constexpr std::size_t kHeldBack = 1u << 17;     // changes that came during a snapshot
  static constexpr std::int64_t kPageUs = 5'000'000;     // of a question for a page
  static constexpr std::int64_t kForgetUs = 10'000'000;  // after a member is gone
};

class SampleStreams final {
 public:
  struct Parts {  // borrowed
    Executor& executor;
    SampleFeed& feed;
    SampleIndex& index;
    PeerLinks& links;
    const CellRule& rule;
  };
  explicit SampleStreams(const Parts& parts) : parts_(parts), tasks_(parts.executor) {}
  // Close was awaited, or the node crashed.
  ~SampleStreams() { tasks_.Drop(); }
  SampleStreams(const SampleStreams&) = delete;
  SampleStreams& operator=(const SampleStreams&) = delete;

  Executor& executor() { return parts_.executor; }

  void Start();
  Task<void> Close();
  // As Sharing's.
  void Abandon() { tasks_.Drop(); }

  // As PeerListener, of the types that are about samples.
  void Connected(std::uint64_t peer);
  void Disconnected(std::uint64_t peer);
  void Heard(std::uint64_t peer, net::ConstPiece notice);
  Task<Result<std::vector<std::byte>>> AnswerSnapshot(net::ConstPiece payload);

  // Members whose samples are known and that can be reached.
  const MemberSet& Askable() const { return askable_; }
  std::uint64_t ProcessOf(MemberNumber number) const { return process_of_[number]; }
  // 0 until its snapshot is here.
  std::uint64_t SamplesOf(std::uint64_t peer) const;
  std::uint64_t snapshots() const { return snapshots_; }

 private:
  struct Told {
    std::uint64_t next = 0;  // change
  };
  struct Known {
    std::uint64_t history = 0;
    std::uint64_t next = 0;  // change that is expected
    std::optional<MemberNumber> number;
    bool reachable = false;
    bool snapshot = false;  // on its way
    bool again = false;     // and to be taken once more
    std::vector<SampleNotice> held_back;
    std::size_t held_changes = 0;
    std::uint64_t gone = 0;  // how often it went
  };

  Task<void> Send();
  // One notice. False: it takes none now.
  bool SendTo(std::uint64_t peer, Told& told);
  Task<void> FollowHistory();
  Task<void> Sweep();
  Task<void> ForgetLater(std::uint64_t peer, std::uint64_t gone);
  void NeedSnapshot(std::uint64_t peer, Known& known);
  Task<void> TakeSnapshots(std::uint64_t peer);
  // One, from its first page to the last.
  Task<bool> TakeSnapshot(std::uint64_t peer);
  void Apply(Known& known, const SampleNotice& notice);
  void ForgetNumber(Known& known);
  void NoteAskable(const Known& known);
  std::optional<MemberNumber> FreeNumber() const;

  const Parts parts_;
  std::map<std::uint64_t, Told> told_;                      // those that can be reached
  std::map<std::uint64_t, Known> known_;                    // by process number
  std::array<std::uint64_t, kMemberNumbers> process_of_{};  // 0: nobody's
  MemberSet askable_;                                       // kept: a match looks at no member by itself
  std::uint64_t snapshots_ = 0;
  Event to_send_, to_sweep_;
  TaskGroup tasks_;
};

}  // namespace cistern::mesh
