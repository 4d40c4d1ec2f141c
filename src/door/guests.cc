// SPDX-License-Identifier: Apache-2.0
#include "door/guests.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <optional>

#include "door/handshake.h"

namespace cistern::door {
namespace {

constexpr std::int64_t kNoDescriptorsRetryUs = 100'000;

}  // namespace

Guests::Guests(Loop& loop, std::optional<Listener> listener, Sessions& sessions, std::int64_t hello_us,
               DoorCounters& counters)
    : loop_(loop),
      listener_(std::move(listener)),
      sessions_(sessions),
      hello_us_(hello_us),
      counters_(counters),
      retry_(loop.executor(), [this] { AcceptSome(); }) {}

Guests::Guest::Guest(Guests& guests, Fd connection, const Peer& who)
    : socket(std::move(connection)),
      peer(who),
      timer(guests.loop_.executor(), [&guests, this] { guests.Leave(*this); }) {}

Status Guests::Start() {
  if (!listener_) return Status();
  Result<FdWatch> watch =
      loop_.Watch(listener_->fd(), WatchMode::kEdge, [this](std::uint32_t) { AcceptSome(); });
  if (!watch) return std::move(watch.error());
  watch_ = std::move(*watch);
  retry_.Arm(loop_.executor().Now());
  return Status();
}

void Guests::Close() {
  retry_.Disarm();
  watch_.End();
  guests_.clear();
  if (listener_) listener_->Close();
}

void Guests::AcceptSome() {
  if (!listener_) return;
  for (int i = 0; i < kAcceptsPerStep; ++i) {
    if (guests_.size() >= kMaxGuests) return;  // Leave goes on
    Result<std::optional<Fd>> accepted = listener_->Accept();
    if (!accepted) {
      retry_.Arm(loop_.executor().Now().PlusUs(kNoDescriptorsRetryUs));
      return;
    }
    if (!*accepted) return;
    Welcome(std::move(**accepted));
  }
  retry_.Arm(loop_.executor().Now());
}

void Guests::Welcome(Fd socket) {
  Result<Peer> peer = PeerOf(socket.get());
  Status allowed = peer ? CheckPeer(*peer) : peer.error();
  if (!allowed.ok()) {
    counters_.refused++;
    // Read first: a socket that is closed with something unread takes the answer with it.
    std::array<std::byte, sizeof(Hello)> hello;
    [[maybe_unused]] ssize_t ignored = recv(socket.get(), hello.data(), hello.size(), MSG_DONTWAIT);
    Refuse(socket.get(), allowed);
    return;
  }
  Guest& guest = guests_.emplace_back(*this, std::move(socket), *peer);
  guest.self = std::prev(guests_.end());
  Result<FdWatch> watch =
      loop_.Watch(guest.socket.get(), WatchMode::kEdge, [this, &guest](std::uint32_t) { OnHello(guest); });
  if (!watch) return Leave(guest);
  guest.watch = std::move(*watch);
  guest.timer.Arm(loop_.executor().Now().PlusUs(hello_us_));
}

void Guests::OnHello(Guest& guest) {
  std::array<std::byte, 2 * sizeof(Hello)> message;
  ssize_t got = recv(guest.socket.get(), message.data(), message.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
  if (got <= 0) return Leave(guest);
  Result<HelloText> hello = ReadHello(std::span(message).first(static_cast<std::size_t>(got)));
  if (hello) {
    guest.watch.End();
    sessions_.Admit(std::move(guest.socket), guest.peer, std::move(*hello));
  } else {
    counters_.refused++;
    Refuse(guest.socket.get(), hello.error());
  }
  Leave(guest);
}

void Guests::Leave(Guest& guest) {
  bool was_full = guests_.size() >= kMaxGuests;
  guests_.erase(guest.self);
  if (was_full) retry_.Arm(loop_.executor().Now());
}

}  // namespace cistern::door
