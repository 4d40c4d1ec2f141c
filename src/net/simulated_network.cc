// SPDX-License-Identifier: Apache-2.0
#include "net/simulated_network.h"

#include <algorithm>
#include <array>
#include <deque>
#include <vector>

#include "base/event.h"
#include "base/format.h"
#include "net/pieces.h"

namespace cistern::net {

// One direction of a connection.
struct SimulatedNetwork::Pipe {
  Pipe(SimulatedNetwork& network_in, std::string from_in, std::string to_in)
      : network(network_in),
        from(std::move(from_in)),
        to(std::move(to_in)),
        arrival(network.executor_, [this] { Arrive(); }) {}

  // Of bytes and of the end, which is empty.
  struct Sent {
    Instant at;
    std::vector<std::byte> bytes;
  };

  void Add(std::vector<std::byte> bytes) {
    const SimulatedLinkOptions& options = network.options_;
    const auto moving_ns = static_cast<std::int64_t>(bytes.size() * 1'000 / options.bytes_per_us);
    network.FlipSome(from, to, bytes);
    free_at = std::max(free_at, network.executor_.Now()).PlusNs(moving_ns);
    last = std::max({last, free_at, network.Arrival()});
    waiting += bytes.size();
    on_the_way.push_back({last, std::move(bytes)});
    Schedule();
  }
  void Schedule() {
    if (on_the_way.empty() || network.IsCut(from, to)) return arrival.Disarm();
    arrival.Arm(std::max(on_the_way.front().at, network.executor_.Now()));
  }
  void Arrive() {
    while (!on_the_way.empty() && on_the_way.front().at <= network.executor_.Now()) {
      const std::vector<std::byte>& bytes = on_the_way.front().bytes;
      if (bytes.empty()) ended = true;
      here.insert(here.end(), bytes.begin(), bytes.end());
      on_the_way.pop_front();
    }
    readable.Pulse();
    Schedule();
  }
  std::size_t window() const {
    const std::size_t most = network.options_.window_bytes;
    return waiting < most ? most - waiting : 0;
  }

  SimulatedNetwork& network;
  const std::string from, to;
  std::deque<Sent> on_the_way;
  std::deque<std::byte> here;
  std::size_t waiting = 0;  // sent and not received
  bool ended = false;       // and all that was sent before is here
  Instant free_at, last;
  Timer arrival;
  Event readable, writable;
};

// What both ends share.
struct SimulatedNetwork::Connection {
  Connection(SimulatedNetwork& network, const std::string& from, const std::string& to)
      : number(++network.last_connection_), pipes{Pipe(network, from, to), Pipe(network, to, from)} {
    network.connections_[number] = this;
  }
  ~Connection() { pipes[0].network.connections_.erase(number); }
  void Break() {
    broken = true;
    for (Pipe& pipe : pipes) {
      pipe.readable.Pulse();
      pipe.writable.Pulse();
    }
  }
  const std::uint64_t number;
  std::array<Pipe, 2> pipes;  // of who connected, of who accepted
  bool broken = false;
};

class SimulatedStream final : public Stream {
 public:
  SimulatedStream(Executor& runs_on, std::shared_ptr<SimulatedNetwork::Connection> connection, bool accepted,
                  std::string peer)
      : executor_(runs_on),
        connection_(std::move(connection)),
        out_(connection_->pipes[accepted ? 1 : 0]),
        in_(connection_->pipes[accepted ? 0 : 1]),
        peer_(std::move(peer)) {}
  ~SimulatedStream() override { Close(); }

  Executor& executor() override { return executor_; }
  const std::string& peer() const override { return peer_; }

  Task<Result<std::size_t>> Receive(std::span<const Piece> into, Instant deadline) override {
    for (;;) {
      if (Status status = Check(); !status.ok()) co_return Error(std::move(status));
      if (!in_.here.empty()) break;
      if (in_.ended) co_return std::size_t{0};
      if (Status status = co_await in_.readable.Wait(deadline); !status.ok()) {
        co_return Error(status.code(), Text(peer_, ": sent nothing before the deadline"));
      }
    }
    std::size_t moved = 0;
    for (const Piece& piece : into) {
      const std::size_t count = std::min(piece.size(), in_.here.size());
      std::copy_n(in_.here.begin(), count, piece.begin());
      in_.here.erase(in_.here.begin(), in_.here.begin() + static_cast<std::ptrdiff_t>(count));
      moved += count;
    }
    in_.waiting -= moved;
    in_.writable.Pulse();
    co_return moved;
  }

  Task<Status> Send(std::span<const ConstPiece> pieces, Instant deadline) override {
    PieceCursor<const std::byte> cursor(pieces);
    while (!cursor.done()) {
      if (Status status = Check(); !status.ok()) co_return status;
      const std::size_t bytes = std::min(cursor.next().size(), out_.window());
      if (bytes > 0) {
        const ConstPiece piece = cursor.next().first(bytes);
        out_.Add({piece.begin(), piece.end()});
        cursor.Advance(bytes);
        continue;
      }
      if (Status status = co_await out_.writable.Wait(deadline); !status.ok()) {
        Close();
        co_return Status(status.code(), Text(peer_, ": took nothing more before the deadline"));
      }
    }
    co_return Status();
  }

  void Close() override {
    if (std::exchange(closed_, true)) return;
    if (!connection_->broken) out_.Add({});
    in_.readable.Pulse();
    out_.writable.Pulse();
  }

 private:
  Status Check() const {
    if (closed_) return Status(Code::kGone, Text(peer_, ": the connection was closed here"));
    if (connection_->broken) return Status(Code::kGone, Text(peer_, ": the connection broke"));
    return Status();
  }

  Executor& executor_;
  std::shared_ptr<SimulatedNetwork::Connection> connection_;
  SimulatedNetwork::Pipe &out_, &in_;
  const std::string peer_;
  bool closed_ = false;
};

class SimulatedListener final : public Listener {
 public:
  SimulatedListener(SimulatedNetwork& network, Executor& runs_on, std::string host, std::string address)
      : network_(network), executor_(runs_on), host_(std::move(host)), address_(std::move(address)) {
    network_.listeners_[address_] = this;
  }
  ~SimulatedListener() override { End(); }

  Executor& executor() override { return executor_; }
  const std::string& address() const override { return address_; }
  const std::string& host() const { return host_; }
  bool ended() const { return ended_; }
  void End() {
    if (!std::exchange(ended_, true)) network_.listeners_.erase(address_);
  }
  void Add(std::unique_ptr<Stream> stream) {
    waiting_.push_back(std::move(stream));
    acceptable_.Pulse();
  }

  Task<Result<std::unique_ptr<Stream>>> Accept(Instant deadline) override {
    while (waiting_.empty()) {
      if (Status status = co_await acceptable_.Wait(deadline); !status.ok()) {
        co_return Error(status.code(), Text(address_, ": nobody connected before the deadline"));
      }
    }
    std::unique_ptr<Stream> first = std::move(waiting_.front());
    waiting_.pop_front();
    co_return first;
  }

 private:
  SimulatedNetwork& network_;
  Executor& executor_;
  const std::string host_, address_;
  std::deque<std::unique_ptr<Stream>> waiting_;
  Event acceptable_;
  bool ended_ = false;
};

class SimulatedHost final : public Network {
 public:
  SimulatedHost(SimulatedNetwork& network, Executor& runs_on, std::string name)
      : network_(network), executor_(runs_on), name_(std::move(name)) {}

  Executor& executor() override { return executor_; }

  Task<Result<std::unique_ptr<Stream>>> Connect(std::string address, Instant deadline) override {
    const std::string to = address.substr(0, address.rfind(':'));
    if (!co_await Arrives(name_, to, deadline) || !co_await Arrives(to, name_, deadline))
      co_return Error(Code::kTooLate, Text(address, ": does not answer"));
    const auto listener = network_.listeners_.find(address);
    if (listener == network_.listeners_.end())
      co_return Error(Code::kIoError, Text(address, ": nobody listens there"));
    auto connection = std::make_shared<SimulatedNetwork::Connection>(network_, name_, to);
    SimulatedListener& there = *listener->second;
    there.Add(std::make_unique<SimulatedStream>(there.executor(), connection, true, name_));
    co_return std::make_unique<SimulatedStream>(executor(), connection, false, std::move(address));
  }

  Result<std::unique_ptr<Listener>> Listen(const std::string& address) override {
    const std::size_t colon = address.rfind(':');
    if (colon == std::string::npos || address.substr(0, colon) != name_)
      return Error(Code::kInvalid, Text("address: ", address, " is not of host ", name_));
    std::string at = address;
    if (at.ends_with(":0")) at = Text(name_, ":", 1'000'000 + ++network_.last_port_);
    if (network_.listeners_.contains(at))
      return Error(Code::kBusy, Text(at, ": another process listens there; choose another port"));
    return std::make_unique<SimulatedListener>(network_, executor_, name_, std::move(at));
  }

 private:
  // Waits for a message to arrive, or for the deadline if it does not.
  Task<bool> Arrives(std::string from, std::string to, Instant deadline) {
    const Instant at = network_.IsCut(from, to) ? Instant::Never() : network_.Arrival();
    Event never;
    (void)co_await never.Wait(std::min(at, deadline));
    co_return at <= deadline;
  }

  SimulatedNetwork& network_;
  Executor& executor_;
  const std::string name_;
};

SimulatedNetwork::SimulatedNetwork(Executor& executor, std::uint64_t seed,
                                   const SimulatedLinkOptions& options)
    : executor_(executor), random_(seed), options_(options) {}

SimulatedNetwork::~SimulatedNetwork() { CISTERN_ASSERT(connections_.empty() && listeners_.empty()); }

std::unique_ptr<Network> SimulatedNetwork::Host(std::string name, Executor& executor) {
  return std::make_unique<SimulatedHost>(*this, executor, std::move(name));
}

Instant SimulatedNetwork::Arrival() {
  const auto latency_ns = static_cast<std::uint64_t>(options_.latency_us) * 1'000;
  return executor_.Now().PlusNs(static_cast<std::int64_t>(latency_ns / 2 + random_.Below(latency_ns + 1)));
}

void SimulatedNetwork::Cut(const std::string& from, const std::string& to) {
  cuts_.insert({from, to});
  for (const auto& [number, connection] : connections_) {
    for (Pipe& pipe : connection->pipes) pipe.Schedule();
  }
}

void SimulatedNetwork::Heal(const std::string& from, const std::string& to) {
  cuts_.erase({from, to});
  for (const auto& [number, connection] : connections_) {
    for (Pipe& pipe : connection->pipes) pipe.Schedule();
  }
}

void SimulatedNetwork::FlipSome(const std::string& from, const std::string& to,
                                std::vector<std::byte>& bytes) {
  const auto flips = flips_.find({from, to});
  if (flips == flips_.end() || bytes.size() < kFlipBytes || !random_.Chance(flips->second)) return;
  const std::uint64_t bit = random_.Below(bytes.size() * 8);
  bytes[bit / 8] ^= std::byte{1} << bit % 8;
}

template <class Which>
void SimulatedNetwork::BreakConnections(Which&& which) {
  for (const auto& [number, connection] : connections_) {
    if (which(connection->pipes[0])) connection->Break();
  }
}

void SimulatedNetwork::Reset(const std::string& a, const std::string& b) {
  BreakConnections(
      [&](const Pipe& pipe) { return (pipe.from == a && pipe.to == b) || (pipe.from == b && pipe.to == a); });
}

void SimulatedNetwork::Stop(const std::string& host) {
  BreakConnections([&](const Pipe& pipe) { return pipe.from == host || pipe.to == host; });
  std::vector<SimulatedListener*> ended;
  for (const auto& [address, listener] : listeners_) {
    if (listener->host() == host) ended.push_back(listener);
  }
  for (SimulatedListener* listener : ended) listener->End();
}

}  // namespace cistern::net
