// SPDX-License-Identifier: Apache-2.0
#include "mesh/peers.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/codec.h"
#include "base/event.h"

namespace cistern::mesh {
namespace {

std::vector<std::byte> Encode(const HeardApplied& said) {
  std::vector<std::byte> payload;
  Encoder out(payload);
  out.U64(said.history);
  out.U64(static_cast<std::uint64_t>(said.applied));
  out.U64(static_cast<std::uint64_t>(said.last.revision));
  out.U64(said.last.name_hash);
  return payload;
}

}  // namespace

// The other end of a connection. What it says counts once its hello is read.
class Peers::Other final : public net::ControlHandler {
 public:
  explicit Other(Peers& peers) : peers_(peers) {}
  ~Other() { --peers_.serving_; }
  Other(const Other&) = delete;
  Other& operator=(const Other&) = delete;

  Executor& executor() { return peers_.executor(); }
  void Greeted(std::uint64_t process_number) {
    process_number_ = process_number;
    if (said_.history != 0) peers_.Heard(process_number_, said_);
  }

  Task<Result<std::vector<std::byte>>> Answer(std::uint16_t, net::ConstPiece, Instant) override {
    co_return Error(Code::kMismatch, "there is no question of this type");
  }
  void Notice(std::uint16_t type, net::ConstPiece payload) override {
    if (type != kAppliedNotice) return;
    Decoder in(payload);
    HeardApplied said;
    said.history = in.U64();
    said.applied = static_cast<std::int64_t>(in.U64());
    said.last.revision = static_cast<std::int64_t>(in.U64());
    said.last.name_hash = in.U64();
    if (!in.ok() || said.applied < 0) return;
    said_ = said;
    if (process_number_ != 0) peers_.Heard(process_number_, said_);
  }

 private:
  Peers& peers_;
  std::uint64_t process_number_ = 0;
  HeardApplied said_;
};

Peers::Peers(net::Network& network, std::unique_ptr<net::Listener> listener, std::string id,
             std::uint64_t process_number, CellState& state, std::uint64_t seed)
    : network_(network),
      listener_(std::move(listener)),
      id_(std::move(id)),
      process_number_(process_number),
      state_(state),
      random_(seed),
      tasks_(network.executor()) {}

Peers::~Peers() { tasks_.Drop(); }

void Peers::Start() {
  tasks_.Spawn(Accept());
  tasks_.Spawn(FollowView());
}

void Peers::Heard(std::uint64_t process_number, const HeardApplied& said) {
  state_.heard[process_number] = said;
  state_.changed.Pulse();
}

void Peers::TellApplied() {
  const std::vector<std::byte> payload = Encode({state_.history, state_.applied, state_.last_applied});
  // A connection that takes nothing more ends by itself, and the next one begins with what is true then.
  for (const auto& [process_number, connection] : connected_) (void)connection->Tell(kAppliedNotice, payload);
}

Task<void> Peers::Accept() {
  struct Served {
    static Task<void> Run(Peers& peers, std::unique_ptr<net::Stream> stream) {
      (void)co_await peers.Serve(std::move(stream));
    }
  };
  for (;;) {
    auto stream = co_await listener_->Accept(Instant::Never());
    if (!stream) {
      (void)co_await SleepUntil(executor().Now().PlusUs(PeerLimits::kLeastPauseUs));
    } else if (serving_ < PeerLimits::kConnections) {
      tasks_.Spawn(Served::Run(*this, std::move(*stream)));
    }
  }
}

Task<void> Peers::FollowView() {
  for (;;) {
    for (const auto& [id, member] : state_.view.members) {
      if (id > id_ && dialed_.insert(id).second) tasks_.Spawn(Dial(id));
    }
    // Of starts that are no more, nothing is kept.
    std::erase_if(state_.heard, [&](const auto& said) {
      return said.first != process_number_ && !connected_.contains(said.first) &&
             std::ranges::none_of(state_.view.members, [&](const auto& member) {
               return member.second.process_number == said.first;
             });
    });
    co_await state_.changed.Wait();
  }
}

Task<void> Peers::Dial(std::string id) {
  std::int64_t pause_us = PeerLimits::kLeastPauseUs;
  for (;;) {
    const auto member = state_.view.members.find(id);
    if (member == state_.view.members.end()) break;
    const std::string address = member->second.address;
    const std::uint64_t process_number = member->second.process_number;
    const Instant deadline = executor().Now().PlusUs(PeerLimits::kDialUs);
    auto stream = co_await network_.Connect(address, deadline);
    std::int64_t lasted_us = 0;
    if (stream) lasted_us = co_await Serve(std::move(*stream));
    if (lasted_us > PeerLimits::kMostPauseUs) pause_us = PeerLimits::kLeastPauseUs;
    const auto jitter_us = static_cast<std::int64_t>(random_.Below(static_cast<std::uint64_t>(pause_us)));
    const Instant until = executor().Now().PlusUs(pause_us / 2 + jitter_us);
    pause_us = std::min(2 * pause_us, PeerLimits::kMostPauseUs);
    const auto same_start = [&] {
      const auto now = state_.view.members.find(id);
      return now != state_.view.members.end() && now->second.process_number == process_number;
    };
    while (same_start() && executor().Now() < until) (void)co_await state_.changed.Wait(until);
    // One that has started anew has a connection soon, since drops wait for what it says.
    if (!same_start()) pause_us = PeerLimits::kLeastPauseUs;
  }
  dialed_.erase(id);
}

Task<std::int64_t> Peers::Serve(std::unique_ptr<net::Stream> stream) {
  ++serving_;
  Other other(*this);
  const Instant began = executor().Now();
  net::Hello own{.process_number = process_number_, .member = id_};
  const Instant deadline = began.PlusUs(PeerLimits::kOpenUs);
  auto opened =
      co_await net::ControlConnection::Open(executor(), std::move(stream), std::move(own), other, deadline);
  if (!opened) co_return 0;
  net::ControlConnection& connection = **opened;
  const std::uint64_t process_number = connection.other().process_number;
  // Who dropped the task has dropped what it was connected to.
  struct Connected {
    Peers& peers;
    const std::uint64_t process_number;
    net::ControlConnection& connection;
    ~Connected() {
      const auto at = peers.connected_.find(process_number);
      if (at != peers.connected_.end() && at->second == &connection) peers.connected_.erase(at);
    }
  };
  const Connected connected{*this, process_number, connection};
  connected_[process_number] = &connection;
  other.Greeted(process_number);
  (void)connection.Tell(kAppliedNotice, Encode({state_.history, state_.applied, state_.last_applied}));
  co_await connection.Ended();
  co_await connection.Close();
  co_return executor().Now().UsSince(began);
}

}  // namespace cistern::mesh
