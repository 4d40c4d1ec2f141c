// SPDX-License-Identifier: Apache-2.0
#include "mesh/sample_streams.h"

#include <algorithm>
#include <utility>

namespace cistern::mesh {
namespace {

constexpr std::size_t kAddsAStep = 256;
constexpr std::uint32_t kShardsAStep = 16;

}  // namespace

void SampleStreams::Start() {
  tasks_.Spawn(FollowHistory());
  tasks_.Spawn(Send());
  tasks_.Spawn(Sweep());
}

Task<void> SampleStreams::Close() {
  tasks_.Drop();  // nothing of it does I/O of its own
  co_return;
}

// ---- what is told --------------------------------------------------------------------------------------

void SampleStreams::Connected(std::uint64_t peer) {
  Known& known = known_[peer];
  known.reachable = true;
  NoteAskable(known);
  told_[peer] = {parts_.feed.end()};
  // It hears at once where the count stands, and so whether it missed anything.
  const SampleNotice notice{.history = parts_.feed.history(), .first = parts_.feed.end()};
  if (notice.history != 0) (void)parts_.links.Tell(peer, kSampleNotice, Encode(notice));
}

bool SampleStreams::SendTo(std::uint64_t peer, Told& told) {
  SampleNotice notice{.history = parts_.feed.history(), .first = told.next};
  auto changes = parts_.feed.From(told.next, SampleStreamLimits::kNotice);
  // It missed some: what it hears next has a gap before it.
  if (!changes) {
    notice.first = parts_.feed.end();
  } else {
    notice.changes = std::move(*changes);
  }
  if (!parts_.links.Tell(peer, kSampleNotice, Encode(notice)).ok()) return false;
  told.next = notice.first + notice.changes.size();
  return true;
}

Task<void> SampleStreams::Send() {
  for (;;) {
    bool all = true;
    // A round in which nobody was told anything is one step, so no change comes unseen before the wait.
    for (bool more = true; more;) {
      more = false;
      for (auto at = told_.begin(); at != told_.end();) {
        const std::uint64_t peer = at->first;
        if (at->second.next != parts_.feed.end()) {
          const bool sent = SendTo(peer, at->second);
          all = all && sent;
          more = more || sent;
          co_await Yield();
        }
        at = told_.upper_bound(peer);
      }
    }
    if (all) co_await parts_.feed.changed().Wait();
    const std::int64_t us = all ? SampleStreamLimits::kGatherUs : SampleStreamLimits::kAgainUs;
    (void)co_await SleepUntil(executor().Now().PlusUs(us));
  }
}

Task<void> SampleStreams::FollowHistory() {
  for (;;) {
    const std::optional<Answered> own = parts_.rule.Answering();
    const bool other = own && own->history != parts_.feed.history();
    if (other) {
      for (auto& [peer, known] : known_) {
        ForgetNumber(known);
        known.history = 0;
      }
    }
    if (other || (own && parts_.feed.stale())) {
      co_await parts_.feed.Begin(own->history);
      for (auto& [peer, told] : told_) {
        const SampleNotice notice{.history = own->history, .first = parts_.feed.end()};
        told.next = notice.first;
        (void)parts_.links.Tell(peer, kSampleNotice, Encode(notice));
      }
    }
    // Those that came to the history earlier have told so already, and were not listened to.
    if (other) {
      for (auto& [peer, known] : known_) {
        if (known.snapshot) {
          known.again = true;
        } else if (known.reachable) {
          NeedSnapshot(peer, known);
        }
      }
    }
    (void)co_await SleepUntil(executor().Now().PlusUs(SampleStreamLimits::kAgainUs));
  }
}

Task<Result<std::vector<std::byte>>> SampleStreams::AnswerSnapshot(net::ConstPiece payload) {
  const std::optional<SnapshotRequest> request = DecodeSnapshotRequest(payload);
  if (!request) co_return Error(Code::kInvalid, "no question for a snapshot");
  if (request->history != parts_.feed.history() || request->history == 0)
    co_return Error(Code::kMismatch, "another history");
  const SnapshotPage page = co_await parts_.feed.Page(request->from);
  if (page.history != parts_.feed.history()) co_return Error(Code::kMismatch, "another history");
  co_return Encode(page);
}

// ---- what is heard -------------------------------------------------------------------------------------

void SampleStreams::Disconnected(std::uint64_t peer) {
  told_.erase(peer);
  const auto at = known_.find(peer);
  if (at == known_.end()) return;
  at->second.reachable = false;
  NoteAskable(at->second);
  if (!tasks_.closed()) tasks_.Spawn(ForgetLater(peer, ++at->second.gone));
}

Task<void> SampleStreams::ForgetLater(std::uint64_t peer, std::uint64_t gone) {
  (void)co_await SleepUntil(executor().Now().PlusUs(SampleStreamLimits::kForgetUs));
  const auto at = known_.find(peer);
  if (at == known_.end() || at->second.reachable || at->second.gone != gone || at->second.snapshot) co_return;
  ForgetNumber(at->second);
  known_.erase(at);
}

std::optional<MemberNumber> SampleStreams::FreeNumber() const {
  for (std::size_t number = 0; number < kMemberNumbers; ++number) {
    if (process_of_[number] == 0 && !parts_.index.forgetting(static_cast<MemberNumber>(number)))
      return static_cast<MemberNumber>(number);
  }
  return std::nullopt;
}

void SampleStreams::NoteAskable(const Known& known) {
  if (known.number) askable_.set(*known.number, known.reachable);
}

void SampleStreams::ForgetNumber(Known& known) {
  if (!known.number) return;
  process_of_[*known.number] = 0;
  askable_.reset(*known.number);
  parts_.index.Forget(*known.number);
  known.number.reset();
  to_sweep_.Pulse();
}

void SampleStreams::Heard(std::uint64_t peer, net::ConstPiece payload) {
  const auto at = known_.find(peer);
  if (at == known_.end()) return;
  Known& known = at->second;
  std::optional<SampleNotice> notice = DecodeSampleNotice(payload);
  // What cannot be read leaves a gap, which the next one shows.
  if (!notice || notice->history != parts_.feed.history() || notice->history == 0) return;
  if (known.snapshot) {
    known.held_changes += 1 + notice->changes.size();  // one of nothing takes room too
    if (known.held_changes > SampleStreamLimits::kHeldBack) {
      known.again = true;
      known.held_back.clear();
    } else if (!known.again) {
      known.held_back.push_back(std::move(*notice));
    }
    return;
  }
  if (!known.number || known.history != notice->history || notice->first != known.next) {
    NeedSnapshot(peer, known);
    return;
  }
  Apply(known, *notice);
}

void SampleStreams::Apply(Known& known, const SampleNotice& notice) {
  for (const SampleChange& change : notice.changes) {
    if (change.gone) {
      parts_.index.Remove(*known.number, change.sample.hash);
    } else {
      parts_.index.Add(*known.number, change.sample);
    }
  }
  known.next = notice.first + notice.changes.size();
  to_sweep_.Pulse();
}

void SampleStreams::NeedSnapshot(std::uint64_t peer, Known& known) {
  known.snapshot = true;
  known.again = false;
  known.held_back.clear();
  known.held_changes = 0;
  tasks_.Spawn(TakeSnapshots(peer));
}

Task<void> SampleStreams::TakeSnapshots(std::uint64_t peer) {
  std::int64_t pause_us = SampleStreamLimits::kAgainUs;
  for (;;) {
    const bool taken = co_await TakeSnapshot(peer);
    if (taken) break;
    Known& known = known_[peer];
    known.again = false;
    known.held_back.clear();
    known.held_changes = 0;
    if (!known.reachable) {
      // The first notice of its next connection asks anew.
      known.snapshot = false;
      ForgetNumber(known);
      break;
    }
    (void)co_await SleepUntil(executor().Now().PlusUs(pause_us));
    pause_us = std::min<std::int64_t>(2 * pause_us, 2'000'000);
  }
}

Task<bool> SampleStreams::TakeSnapshot(std::uint64_t peer) {
  ++snapshots_;
  SnapshotRequest request{.history = parts_.feed.history()};
  std::optional<std::uint64_t> as_of;
  ForgetNumber(known_[peer]);
  const std::optional<MemberNumber> number = FreeNumber();
  if (!number) co_return false;
  process_of_[*number] = peer;
  known_[peer].number = number;
  NoteAskable(known_[peer]);
  do {
    const Instant deadline = executor().Now().PlusUs(SampleStreamLimits::kPageUs);
    auto answer = co_await parts_.links.Ask(peer, kSnapshotQuestion, Encode(request), deadline);
    const std::optional<SnapshotPage> page = answer ? DecodeSnapshotPage(*answer) : std::nullopt;
    Known& known = known_[peer];
    if (!page || page->history != request.history || known.number != number || known.again ||
        (page->next != 0 && page->next <= request.from))
      co_return false;
    if (!as_of) as_of = page->as_of;
    std::size_t adds = 0;
    for (const Sample& sample : page->samples) {
      if (++adds % kAddsAStep == 0) co_await Yield();
      if (known_[peer].number != number) co_return false;
      parts_.index.Add(*number, sample);
    }
    to_sweep_.Pulse();
    request.from = page->next;
  } while (request.from != 0);
  known_[peer].history = request.history;
  known_[peer].next = *as_of;
  // More may come while these are applied.
  for (std::size_t i = 0; i < known_[peer].held_back.size(); ++i) {
    Known& known = known_[peer];
    if (known.number != number || known.again) co_return false;
    SampleNotice notice = std::move(known.held_back[i]);
    if (notice.first > known.next) co_return false;
    const std::uint64_t told = known.next - notice.first;  // before the snapshot began
    if (told > notice.changes.size()) continue;
    notice.changes.erase(notice.changes.begin(), notice.changes.begin() + static_cast<std::ptrdiff_t>(told));
    notice.first = known.next;
    Apply(known, notice);
    co_await Yield();
  }
  Known& known = known_[peer];
  known.held_back.clear();
  known.held_changes = 0;
  known.snapshot = false;
  co_return true;
}

Task<void> SampleStreams::Sweep() {
  for (;;) {
    while (parts_.index.Sweep(kShardsAStep)) co_await Yield();
    co_await to_sweep_.Wait();
  }
}

std::uint64_t SampleStreams::SamplesOf(std::uint64_t peer) const {
  const auto at = known_.find(peer);
  return at == known_.end() || !at->second.number ? 0 : parts_.index.EntriesOf(*at->second.number);
}

}  // namespace cistern::mesh
