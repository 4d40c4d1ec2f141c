// SPDX-License-Identifier: Apache-2.0
#include "server/handshakes.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <optional>

#include "base/format.h"
#include "server/handshake.h"

namespace cistern::server {
namespace {

constexpr std::int64_t kRetryUs = 100'000;

}  // namespace

Handshakes::Handshakes(io::Loop& loop, std::optional<Listener> listener, Sessions& sessions,
                       const ServerOptions& options, ServerCounters& counters)
    : loop_(loop),
      listener_(std::move(listener)),
      sessions_(sessions),
      hello_us_(options.hello_us),
      peers_(options.peers),
      counters_(counters),
      retry_(loop.executor(), [this] { AcceptSome(); }) {}

Handshakes::Handshake::Handshake(Handshakes& handshakes, Fd connection, const Peer& who)
    : closer(handshakes.sessions_.closer()),
      socket(std::move(connection)),
      peer(who),
      timer(handshakes.loop_.executor(), [&handshakes, this] { handshakes.Leave(*this); }) {}

Handshakes::Handshake::~Handshake() {
  watch.End();
  closer.Close(std::move(socket));
}

Status Handshakes::Start() {
  if (!listener_) return Status();
  Result<io::FdWatch> watch =
      loop_.Watch(listener_->fd(), io::WatchMode::kEdge, [this](std::uint32_t) { AcceptSome(); });
  if (!watch) return std::move(watch.error());
  watch_ = std::move(*watch);
  retry_.Arm(loop_.executor().Now());
  return Status();
}

void Handshakes::Close() {
  retry_.Disarm();
  watch_.End();
  handshakes_.clear();
  if (listener_) listener_->Close();
}

void Handshakes::AcceptSome() {
  if (!listener_) return;
  for (int i = 0; i < kAcceptsPerStep; ++i) {
    if (sessions_.closer().strangers() >= Closer::kMaxStrangers)
      return retry_.Arm(loop_.executor().Now().PlusUs(kRetryUs));
    Result<std::optional<Fd>> accepted = listener_->Accept();
    if (!accepted) return retry_.Arm(loop_.executor().Now().PlusUs(kRetryUs));
    if (!*accepted) return;
    Greet(std::move(**accepted));
  }
  retry_.Arm(loop_.executor().Now());
}

void Handshakes::Greet(Fd socket) {
  PrepareToRead(socket.get());
  Result<Peer> peer = PeerOf(socket.get());
  Status allowed = peer ? CheckCredentials(socket.get(), *peer, peers_) : peer.error();
  if (!allowed.ok()) {
    counters_.refused++;
    // Read first: a socket that is closed with something unread takes the answer with it.
    std::array<std::byte, sizeof(wire::Hello)> hello;
    if (NextIn(socket.get()) == Unread::kMessage)
      static_cast<void>(!recv(socket.get(), hello.data(), hello.size(), MSG_DONTWAIT));
    Refuse(socket.get(), allowed);
    return sessions_.closer().Close(std::move(socket));
  }
  // Whose hello has come and is yet to be read is not silent.
  if (handshakes_.size() >= kMaxHandshakes) OnHello(handshakes_.front());
  if (handshakes_.size() >= kMaxHandshakes) {
    counters_.refused++;
    Refuse(handshakes_.front().socket.get(),
           Status(Code::kBusy, Text(kMaxHandshakes,
                                    " connections were open without a word and this one was "
                                    "silent longest: say hello at once")));
    Leave(handshakes_.front());
  }
  Handshake& handshake = handshakes_.emplace_back(*this, std::move(socket), *peer);
  handshake.self = std::prev(handshakes_.end());
  Result<io::FdWatch> watch = loop_.Watch(handshake.socket.get(), io::WatchMode::kEdge,
                                          [this, &handshake](std::uint32_t) { OnHello(handshake); });
  if (!watch) {
    counters_.refused++;
    Refuse(handshake.socket.get(), watch.error());
    return Leave(handshake);
  }
  handshake.watch = std::move(*watch);
  handshake.timer.Arm(loop_.executor().Now().PlusUs(hello_us_));
  // Most have said hello before they are accepted, and are never among the silent.
  OnHello(handshake);
}

void Handshakes::OnHello(Handshake& handshake) {
  if (NextIn(handshake.socket.get()) == Unread::kDescriptors) {
    counters_.refused++;
    Refuse(handshake.socket.get(), Status(Code::kInvalid, kNoDescriptors));
    return Leave(handshake);
  }
  std::array<std::byte, 2 * sizeof(wire::Hello)> message;
  ssize_t got = recv(handshake.socket.get(), message.data(), message.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
  if (got <= 0) return Leave(handshake);
  Result<HelloText> hello = ReadHello(std::span(message).first(static_cast<std::size_t>(got)));
  if (hello) {
    handshake.watch.End();
    sessions_.Admit(std::move(handshake.socket), handshake.peer, std::move(*hello));
  } else {
    counters_.refused++;
    Refuse(handshake.socket.get(), hello.error());
  }
  Leave(handshake);
}

void Handshakes::Leave(Handshake& handshake) { handshakes_.erase(handshake.self); }

}  // namespace cistern::server
