// SPDX-License-Identifier: Apache-2.0
#include "mesh/peer_rails.h"

#include <algorithm>
#include <utility>

namespace cistern::mesh {

std::shared_ptr<PeerRails::Rails> PeerRails::To(std::uint64_t peer) {
  std::shared_ptr<Rails>& known = rails_[peer];
  if (known == nullptr) known = std::make_shared<Rails>();
  return known;
}

void PeerRails::BeginToDial(std::uint64_t peer, const std::shared_ptr<Rails>& rails) {
  if (rails->dialing) return;
  rails->dialing = true;
  tasks_.Spawn(Dial(peer, rails));
}

// For all who read of the peer, now and later: whoever came first may have little time.
Task<void> PeerRails::Dial(std::uint64_t peer, std::shared_ptr<Rails> rails) {
  const Instant deadline = executor().Now().PlusUs(kDialUs);
  // A copy: what is known of the peer may be forgotten meanwhile.
  const std::string address = addresses_[peer];
  Result<std::unique_ptr<net::Stream>> stream =
      Error(Code::kGone, "the peer has not said where its rails are");
  if (!address.empty()) stream = co_await network_.Connect(address, deadline);
  rails->dialing = false;
  rails->failed = stream ? Status() : stream.error();
  if (stream && !rails->forgotten)
    rails->open.push_back(std::make_shared<net::RailReader>(std::move(*stream), fabric_, &rails->changed));
  rails->changed.Pulse();
}

Task<Status> PeerRails::Read(std::uint64_t peer, std::span<const net::ConstPiece> questions,
                             net::RailSink& sink, Instant deadline) {
  const std::shared_ptr<Rails> rails = To(peer);
  const auto end_all = [&](const Status& why) {
    for (std::uint32_t item = 0; item < questions.size(); ++item) sink.End(item, why);
    return why;
  };
  bool asked_for_more = false;  // once, or a peer that refuses it is dialed again and again
  for (;;) {
    rails->DropBroken();
    std::shared_ptr<net::RailReader> best;
    for (const auto& rail : rails->open) {
      if (best == nullptr || rail->outstanding() < best->outstanding()) best = rail;
    }
    // The second rail is opened when the first has something to do.
    const bool more = rails->open.empty() || (rails->open.size() < kRails && best->outstanding() > 0 &&
                                              !std::exchange(asked_for_more, true));
    if (more) BeginToDial(peer, rails);
    if (best != nullptr && best->outstanding() < net::RailLimits::kBatches) {
      const Status status = co_await best->Read(questions, sink, deadline);
      co_return status;
    }
    if (best == nullptr && !rails->dialing)
      co_return end_all(rails->failed.ok() ? Status(Code::kGone, "no rail") : rails->failed);
    const Status waited = co_await rails->changed.Wait(deadline);
    if (rails->forgotten) co_return end_all(Status(Code::kGone, "the peer, or this node, has gone"));
    if (!waited.ok() && best != nullptr)
      co_return end_all(Status(Code::kBusy, "the peer's rails had no place for it before the deadline"));
    if (!waited.ok()) co_return end_all(Status(Code::kTooLate, "no rail to the peer before the deadline"));
    if (rails->open.empty() && !rails->dialing) co_return end_all(rails->failed);
  }
}

Task<Status> PeerRails::Open(std::uint64_t peer, Instant deadline) {
  const std::shared_ptr<Rails> rails = To(peer);
  rails->DropBroken();
  if (rails->open.empty()) BeginToDial(peer, rails);
  while (rails->open.empty() && rails->dialing && !rails->forgotten) {
    const Status waited = co_await rails->changed.Wait(deadline);
    if (!waited.ok()) co_return waited;
  }
  co_return rails->open.empty() || rails->forgotten ? Status(Code::kGone, "no rail") : Status();
}

std::size_t PeerRails::OpenTo(std::uint64_t peer) const {
  const auto at = rails_.find(peer);
  if (at == rails_.end()) return 0;
  return static_cast<std::size_t>(
      std::ranges::count_if(at->second->open, [](const auto& rail) { return rail->status().ok(); }));
}

void PeerRails::Forget(std::uint64_t peer) {
  addresses_.erase(peer);
  const auto at = rails_.find(peer);
  if (at == rails_.end()) return;
  for (const auto& rail : at->second->open) rail->Close();
  at->second->forgotten = true;
  at->second->changed.Pulse();
  rails_.erase(at);
}

void PeerRails::ForgetAll() {
  while (!rails_.empty()) Forget(rails_.begin()->first);
}

}  // namespace cistern::mesh
