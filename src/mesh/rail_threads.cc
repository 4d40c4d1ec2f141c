// SPDX-License-Identifier: Apache-2.0
#include "mesh/rail_threads.h"

#include <algorithm>
#include <utility>

#include "base/event.h"
#include "base/format.h"
#include "net/tcp_network.h"

namespace cistern::mesh {
namespace {

// Whose the leases of blocks are that are on their way to others.
constexpr catalog::SessionId kSession = ~catalog::SessionId{0};

}  // namespace

std::size_t RailThreads::CountFor(std::size_t processors) {
  return std::clamp<std::size_t>(processors / 4, 1, 4);
}

RailThreads::RailThreads(const Parts& parts)
    : links_(parts.links),
      common_{parts.core,
              parts.clock,
              parts.reader,
              parts.context,
              {},
              {},
              net::Bandwidth(parts.bytes_a_second),
              StoreKeeper(parts.core.executor(), parts.store, catalog::Caller{kSession, store::kSourceOwner}),
              TaskGroup(parts.core.executor()),
              parts.lane} {}

RailThreads::~RailThreads() = default;

Result<std::unique_ptr<RailThreads>> RailThreads::Start(const Parts& parts, const std::string& listen) {
  std::unique_ptr<RailThreads> made(new RailThreads(parts));
  std::vector<io::Loop*> loops;
  for (std::size_t at = 0; at < parts.threads; ++at) {
    Result<std::unique_ptr<io::Loop>> loop = io::MakeLoop(parts.clock, parts.loop);
    if (!loop) return Error(std::move(loop.error()));
    loops.push_back(loop->get());
    made->threads_.push_back(std::make_unique<RailThread>(made->common_, std::move(*loop)));
  }
  std::vector<std::unique_ptr<net::Listener>> listeners;
  const auto listen_for_all = [&](bool fabric) -> Result<std::unique_ptr<net::Listener>> {
    auto all = net::ListenFor(std::span(loops).first(fabric ? 1 : loops.size()), listen);
    if (!all) return Error(std::move(all.error()));
    listeners = std::move(*all);
    return std::move(listeners.front());
  };
  Status status = made->threads_.front()->Start(listen_for_all, parts.fabric, &made->no_fabric_);
  if (!status.ok()) return Error(std::move(status));
  if (const net::Libfabric* fabric = made->fabric(); fabric != nullptr)
    made->fabric_name_ = Text(fabric->kind(), " on ", fabric->device());
  made->threads_.resize(listeners.size());
  for (std::size_t at = 1; at < listeners.size(); ++at) {
    const auto listen_here = [&](bool) -> Result<std::unique_ptr<net::Listener>> {
      return std::move(listeners[at]);
    };
    Status none;
    status = made->threads_[at]->Start(listen_here, std::nullopt, &none);
    if (status.ok()) continue;
    for (const auto& thread : made->threads_) thread->Join();
    return Error(std::move(status));
  }
  return made;
}

void RailThreads::Publish(std::optional<Answered> answered,
                          std::shared_ptr<const ServedNamespaces> namespaces) {
  common_.view.Set(answered, std::move(namespaces));
}

// Another thread is asked to open a rail when the others have something to do, and chosen once it has one:
// no read waits for it.
std::size_t RailThreads::Choose(std::uint64_t peer, const std::shared_ptr<Ways>& ways, Instant deadline) {
  std::size_t best = 0;
  for (std::size_t at = 1; at < ways->size(); ++at) {
    const Way& way = (*ways)[at];
    if (way.rail == Way::Rail::kOpen && way.under_way < (*ways)[best].under_way) best = at;
  }
  if ((*ways)[best].under_way == 0 || common_.brings.closed()) return best;
  const auto next = std::find_if(ways->begin() + 1, ways->end(),
                                 [](const Way& way) { return way.rail != Way::Rail::kOpen; });
  if (next != ways->end() && next->rail == Way::Rail::kNone) {
    next->rail = Way::Rail::kOpens;
    common_.brings.Spawn(OpenRail(peer, ways, static_cast<std::size_t>(next - ways->begin()), deadline));
  }
  return best;
}

Task<void> RailThreads::OpenRail(std::uint64_t peer, std::shared_ptr<Ways> ways, std::size_t at,
                                 Instant deadline) {
  const Status status = co_await threads_[at]->OpenRail(peer, links_.RailAddress(peer), deadline);
  (*ways)[at].rail = status.ok() ? Way::Rail::kOpen : Way::Rail::kNone;
}

Task<Status> RailThreads::Read(std::uint64_t peer, std::span<const net::ConstPiece> questions,
                               net::RailSink& sink, Instant deadline) {
  if (reads_ended_) {
    const Status ended(Code::kGone, "the node ends");
    for (std::uint32_t item = 0; item < questions.size(); ++item) sink.End(item, ended);
    co_return ended;
  }
  std::shared_ptr<Ways>& known = ways_[peer];
  if (known == nullptr) known = std::make_shared<Ways>(threads_.size());
  const std::shared_ptr<Ways> ways = known;
  const std::size_t at = Choose(peer, ways, deadline);
  ++(*ways)[at].under_way;
  const Status status = co_await threads_[at]->Read(peer, links_.RailAddress(peer), questions, sink, deadline,
                                                    &(*ways)[at].rails);
  --(*ways)[at].under_way;
  if ((*ways)[at].rails > 0) {
    no_rail_.erase(peer);
  } else if (const auto now = ways_.find(peer); !status.ok() && now != ways_.end() && now->second == ways) {
    no_rail_[peer] = status;
  }
  co_return status;
}

Status RailThreads::WhyNone(std::uint64_t peer) const {
  const auto none = no_rail_.find(peer);
  return none == no_rail_.end() ? Status() : none->second;
}

std::size_t RailThreads::OpenTo(std::uint64_t peer) const {
  const auto known = ways_.find(peer);
  if (known == ways_.end()) return 0;
  std::size_t open = 0;
  for (const Way& way : *known->second) open += way.rails;
  return open;
}

void RailThreads::Forget(std::uint64_t peer) {
  ways_.erase(peer);
  no_rail_.erase(peer);
  for (const auto& thread : threads_) thread->Forget(peer);
}

void RailThreads::EndReads() {
  reads_ended_ = true;
  for (const auto& thread : threads_) thread->ForgetAll();
}

Task<void> RailThreads::Close() {
  co_await common_.brings.Close();
  // The first one gives connections to the others.
  for (const auto& thread : threads_) thread->Join();
  // What they have posted last is run before this goes.
  Event posted;
  common_.core.PostRemote([&posted] { posted.Set(); });
  co_await posted.Wait();
  threads_.clear();
}

}  // namespace cistern::mesh
