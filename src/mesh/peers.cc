// SPDX-License-Identifier: Apache-2.0
#include "mesh/peers.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/codec.h"
#include "base/event.h"
#include "base/format.h"
#include "base/nearest.h"

namespace cistern::mesh {
namespace {

std::vector<std::byte> Encode(const Answered& said) {
  std::vector<std::byte> payload;
  Encoder out(payload);
  out.U64(said.history);
  out.U64(static_cast<std::uint64_t>(said.a));
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
  // The connection, which counts: now, or once it has said the first that a member says, for who dialed may
  // have looked for another member. What came before is heard then.
  void Serves(net::ControlConnection& connection, bool now) {
    connection_ = &connection;
    if (now || spoke_) Count();
  }
  bool counts() const { return counts_; }

  Task<Result<std::vector<std::byte>>> Answer(std::uint16_t type, net::ConstPiece payload,
                                              Instant deadline) override {
    if (peers_.hears_ == nullptr) co_return Error(Code::kMismatch, "there is no question of this type");
    co_return co_await peers_.hears_->Answer(process_number_, type, payload, deadline);
  }
  void Notice(std::uint16_t type, net::ConstPiece payload) override {
    if (type != kAppliedNotice) {
      Further(type, payload);
      return;
    }
    Decoder in(payload);
    Answered said;
    said.history = in.U64();
    said.a = static_cast<std::int64_t>(in.U64());
    said.last.revision = static_cast<std::int64_t>(in.U64());
    said.last.name_hash = in.U64();
    if (!in.ok() || said.a < 0) return;
    said_ = said;
    spoke_ = true;
    if (counts_) {
      peers_.Heard(process_number_, said_);
    } else if (connection_ != nullptr) {
      Count();
    }
  }

 private:
  // Between the other's hello and the moment at which it is known here.
  static constexpr std::size_t kEarly = 64;

  void Count() {
    counts_ = true;
    process_number_ = connection_->other().process_number;
    peers_.List(process_number_, *connection_);
    if (said_.history != 0) peers_.Heard(process_number_, said_);
    for (const auto& [type, payload] : std::exchange(early_, {})) Notice(type, payload);
  }
  void Further(std::uint16_t type, net::ConstPiece payload) {
    if (!counts_) {
      if (early_.size() < kEarly) early_.push_back({type, {payload.begin(), payload.end()}});
    } else if (type == kRailNotice) {
      const auto at = peers_.connected_.find(process_number_);
      if (at != peers_.connected_.end() && payload.size() <= kMaxAddressBytes)
        at->second.rail_address.assign(reinterpret_cast<const char*>(payload.data()), payload.size());
    } else if (peers_.hears_ != nullptr) {
      peers_.hears_->Heard(process_number_, type, payload);
    }
  }

  Peers& peers_;
  net::ControlConnection* connection_ = nullptr;  // null: it is being opened
  bool spoke_ = false, counts_ = false;
  std::uint64_t process_number_ = 0;  // once it counts
  Answered said_;
  std::vector<std::pair<std::uint16_t, std::vector<std::byte>>> early_;
};

Peers::Peers(net::Network& network, std::unique_ptr<net::Listener> listener, std::string id,
             std::uint64_t process_number, CellState& state, std::uint64_t seed, Lane* answers)
    : network_(network),
      listener_(std::move(listener)),
      id_(std::move(id)),
      process_number_(process_number),
      state_(state),
      answers_(answers),
      random_(seed),
      tasks_(network.executor()) {}

Peers::~Peers() { Close(); }

void Peers::Start() {
  tasks_.Spawn(Accept());
  tasks_.Spawn(FollowView());
  tasks_.Spawn(TellAgain());
}

void Peers::Heard(std::uint64_t process_number, const Answered& said) {
  state_.heard[process_number] = said;
  state_.changed.Pulse();
}

void Peers::TellApplied() {
  const std::vector<std::byte> payload = Encode(state_.own());
  for (auto& [process_number, to] : connected_) TellLatest(to, kAppliedNotice, payload);
}

void Peers::SetListener(PeerListener* listener, std::string rail_address) {
  hears_ = listener;
  rail_address_ = std::move(rail_address);
  for (auto& [process_number, to] : connected_) {
    if (!rail_address_.empty()) TellLatest(to, kRailNotice, std::as_bytes(std::span(rail_address_)));
    if (hears_ != nullptr) hears_->Connected(process_number);
  }
}

std::vector<std::uint64_t> Peers::Reachable() const {
  std::vector<std::uint64_t> reachable;
  for (const auto& [process_number, to] : connected_) reachable.push_back(process_number);
  return reachable;
}

Status Peers::Tell(std::uint64_t peer, std::uint16_t type, net::ConstPiece payload) {
  const auto at = connected_.find(peer);
  if (at == connected_.end()) return Status(Code::kGone, "there is no connection to this member");
  return at->second.connection->Tell(type, payload);
}

void Peers::TellLatest(std::uint64_t peer, std::uint16_t type, net::ConstPiece payload) {
  if (const auto at = connected_.find(peer); at != connected_.end()) TellLatest(at->second, type, payload);
}

// A connection that takes nothing more ends by itself, and the next one begins with what is true then; one
// that is full of other messages may go on.
void Peers::TellLatest(Connected& to, std::uint16_t type, net::ConstPiece payload) {
  if (to.connection->Tell(type, payload).code() == Code::kBusy) {
    to.untold[type].assign(payload.begin(), payload.end());
    behind_.Set();
  } else {
    to.untold.erase(type);
  }
}

Task<void> Peers::TellAgain() {
  for (;;) {
    co_await behind_.Wait();
    behind_.Reset();
    (void)co_await SleepUntil(executor().Now().PlusUs(PeerLimits::kAgainUs));
    for (auto& [process_number, to] : connected_) {
      for (const auto& [type, payload] : std::exchange(to.untold, {})) TellLatest(to, type, payload);
    }
  }
}

Task<Result<std::vector<std::byte>>> Peers::Ask(std::uint64_t peer, std::uint16_t type,
                                                std::vector<std::byte> payload, Instant deadline) {
  const auto at = connected_.find(peer);
  if (at == connected_.end()) co_return Error(Code::kGone, "there is no connection to this member");
  co_return co_await at->second.connection->Ask(type, payload, deadline);
}

std::string Peers::RailAddress(std::uint64_t peer) const {
  const auto at = connected_.find(peer);
  return at == connected_.end() ? std::string() : at->second.rail_address;
}

Task<void> Peers::Accept() {
  struct Served {
    static Task<void> Run(Peers& peers, std::unique_ptr<net::Stream> stream) {
      const Result<std::int64_t> lasted = co_await peers.Serve(std::move(stream), {});
      peers.refused_ = lasted ? Status() : lasted.error();
    }
  };
  for (;;) {
    auto stream = co_await listener_->Accept(Instant::Never());
    if (!stream) {
      (void)co_await SleepUntil(executor().Now().PlusUs(PeerLimits::kLeastPauseUs));
    } else if (serving_ < PeerLimits::kConnections) {
      tasks_.Spawn(Served::Run(*this, std::move(*stream)));
    } else {
      refused_ = Status(Code::kBusy, Text("this node has ", PeerLimits::kConnections,
                                          " connections of other members, the limit"));
    }
  }
}

// What is heard changes the state as well, from each member at each drop: of all members only those of
// another view are looked at.
Task<void> Peers::FollowView() {
  for (;;) {
    const std::uint64_t view = state_.views;
    for (const auto& [id, member] : state_.view.members) {
      if (id > id_ && dialed_.insert(id).second) tasks_.Spawn(Dial(id));
    }
    LookForNear();
    ForgetHeard();
    redial_.Pulse();
    while (view == state_.views && !lost_) co_await state_.changed.Wait();
  }
}

void Peers::LookForNear() {
  near_.clear();
  const auto own = state_.view.members.find(id_);
  if (own == state_.view.members.end() || own->second.zone.empty()) return;
  for (const auto& [id, member] : state_.view.members) {
    if (member.zone == own->second.zone) near_.insert(member.process_number);
  }
}

void Peers::ForgetHeard() {
  lost_ = false;
  std::set<std::uint64_t> starts = {process_number_};
  for (const auto& [id, member] : state_.view.members) starts.insert(member.process_number);
  std::erase_if(ended_, [&](const auto& one) { return !state_.view.members.contains(one.first); });
  std::erase_if(state_.heard, [&](const auto& said) {
    return !starts.contains(said.first) && !connected_.contains(said.first);
  });
}

// The connection to a start that is no more in the view may go on: the next one is dialed all the same.
Task<void> Peers::Dial(std::string id) {
  std::int64_t pause_us = PeerLimits::kLeastPauseUs;
  for (;;) {
    const auto member = state_.view.members.find(id);
    if (member == state_.view.members.end()) break;
    const std::uint64_t process_number = member->second.process_number;
    if (connected_.contains(process_number)) {
      co_await redial_.Wait();
      continue;
    }
    const auto same_start = [&] {
      const auto now = state_.view.members.find(id);
      return now != state_.view.members.end() && now->second.process_number == process_number;
    };
    const auto dialed = std::make_shared<Dialed>();
    tasks_.Spawn(DialOnce(id, member->second.address, dialed));
    while (!dialed->over && same_start()) co_await redial_.Wait();
    if (dialed->lasted_us > PeerLimits::kMostPauseUs) pause_us = PeerLimits::kLeastPauseUs;
    const auto jitter_us = static_cast<std::int64_t>(random_.Below(static_cast<std::uint64_t>(pause_us)));
    const Instant until = executor().Now().PlusUs(pause_us / 2 + jitter_us);
    pause_us = std::min(2 * pause_us, PeerLimits::kMostPauseUs);
    while (same_start() && executor().Now() < until) (void)co_await redial_.Wait(until);
    // One that has started anew has a connection soon, since drops wait for what it says.
    if (!same_start()) pause_us = PeerLimits::kLeastPauseUs;
  }
  dialed_.erase(id);
  not_dialed_.erase(id);
}

Task<void> Peers::DialOnce(std::string id, std::string address, std::shared_ptr<Dialed> dialed) {
  const Instant deadline = executor().Now().PlusUs(PeerLimits::kDialUs);
  auto stream = co_await network_.Connect(address, deadline);
  Status why = stream ? Status() : stream.error();
  if (stream) {
    const Result<std::int64_t> lasted = co_await Serve(std::move(*stream), id);
    if (lasted) dialed->lasted_us = *lasted;
    if (!lasted) why = lasted.error();
  }
  dialed->over = true;
  if (dialed_.contains(id)) not_dialed_[id] = std::move(why);
  redial_.Pulse();
}

std::string Peers::WhyApart(const std::string& id) const {
  const auto member = state_.view.members.find(id);
  const auto own = state_.view.members.find(id_);
  if (member == state_.view.members.end() || own == state_.view.members.end()) return "it is not in the view";
  const std::string& address = member->second.address;
  const auto ended = ended_.find(id);
  const std::string stood =
      ended == ended_.end()
          ? std::string()
          : Text("its connection ended ", network_.executor().Now().UsSince(ended->second.at) / 1'000'000,
                 " s ago (", ended->second.why.message(), "); ");
  if (id > id_) {
    const auto dialed = not_dialed_.find(id);
    const bool why = dialed != not_dialed_.end() && !dialed->second.ok();
    return Text(stood, "it cannot be reached at ", address,
                ", its cell_address: ", why ? dialed->second.message() : std::string_view("no answer yet"));
  }
  const Status& refused = refused_.ok() ? listener_->refused() : refused_;
  const std::string last =
      refused.ok() ? std::string() : Text("; the last one that came: ", refused.message());
  // It knows the way.
  if (!stood.empty()) return Text(stood, "it is to connect anew to this node at ", own->second.address, last);
  return Text("it is to connect to this node at ", own->second.address,
              " (cell_address), and no connection of it stands", last,
              ": is that address, and the port behind it, reachable from ", address, "?");
}

struct Peers::Line {
  explicit Line(Peers& peers) : other(peers) {}
  Other other;
  std::unique_ptr<net::ControlConnection> connection;
};

Task<Result<std::int64_t>> Peers::Serve(std::unique_ptr<net::Stream> stream, std::string dialed) {
  ++serving_;
  auto line = std::make_unique<Line>(*this);
  const Instant began = executor().Now();
  net::Hello own{.process_number = process_number_, .member = id_};
  const Instant deadline = began.PlusUs(PeerLimits::kOpenUs);
  auto opened = co_await net::ControlConnection::Open(executor(), std::move(stream), std::move(own),
                                                      line->other, deadline, answers_);
  if (!opened) co_return Error(opened.error());
  line->connection = std::move(*opened);
  net::ControlConnection& connection = *line->connection;
  const net::Hello& other = connection.other();
  if (const bool itself = other.process_number == process_number_;
      itself || (!dialed.empty() && other.member != dialed)) {
    const std::string who = itself ? "this node itself" : Text("member '", Shown(other.member), "'");
    tasks_.Spawn(End(std::move(line)));
    co_return Error(Code::kMismatch, Text(who, " answers there; give each member its own"));
  }
  // Who dropped the task has dropped what it was connected to.
  struct Listed {
    Peers& peers;
    net::ControlConnection& connection;
    ~Listed() {
      const std::uint64_t process_number = connection.other().process_number;
      const auto at = peers.connected_.find(process_number);
      if (at == peers.connected_.end() || at->second.connection != &connection) return;
      peers.connected_.erase(at);
      peers.ended_.insert_or_assign(connection.other().member,
                                    Ended{connection.status(), peers.executor().Now()});
      peers.lost_ = true;
      if (peers.hears_ != nullptr) peers.hears_->Disconnected(process_number);
    }
  };
  {
    const Listed listed{*this, connection};
    line->other.Serves(connection, !dialed.empty());
    co_await connection.Ended();
  }
  redial_.Pulse();
  Status never;
  if (!line->other.counts()) never = connection.status();
  tasks_.Spawn(End(std::move(line)));
  if (!never.ok()) co_return Error(std::move(never));
  co_return executor().Now().UsSince(began);
}

void Peers::List(std::uint64_t process_number, net::ControlConnection& connection) {
  const bool another = connected_.erase(process_number) > 0;
  if (another && hears_ != nullptr) hears_->Disconnected(process_number);
  connected_[process_number] = {.connection = &connection, .rail_address = {}, .untold = {}};
  ended_.erase(connection.other().member);
  (void)connection.Tell(kAppliedNotice, Encode(state_.own()));
  if (!rail_address_.empty()) (void)connection.Tell(kRailNotice, std::as_bytes(std::span(rail_address_)));
  if (hears_ != nullptr) hears_->Connected(process_number);
}

// What the other side has asked may take long to answer: the next connection does not wait for it.
Task<void> Peers::End(std::unique_ptr<Line> line) { co_await line->connection->Close(); }

}  // namespace cistern::mesh
