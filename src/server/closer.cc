// SPDX-License-Identifier: Apache-2.0
#include "server/closer.h"

#include <sys/socket.h>

#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "server/handshake.h"

namespace cistern::server {

struct Closer::State {
  std::mutex mutex;
  std::deque<Fd> sockets;  // the first is being closed
  bool runs = false;
};

Closer::Closer() : state_(std::make_shared<State>()) {}

void Closer::Close(Fd socket) {
  if (!socket.valid()) return;
  shutdown(socket.get(), SHUT_RDWR);
  if (NextIn(socket.get()) == Unread::kEnd) return;
  std::lock_guard lock(state_->mutex);
  state_->sockets.push_back(std::move(socket));
  if (state_->runs) return;
  try {
    std::thread([state = state_] { Run(*state); }).detach();
    state_->runs = true;
  } catch (const std::system_error&) {
    // The system has no more threads: the next one to close tries again.
  }
}

std::size_t Closer::waiting() const {
  std::lock_guard lock(state_->mutex);
  return state_->sockets.size();
}

// Not by closing it, which another may do later: a loop that watched it has it for a while, and whoever is
// the last throws away what is unread.
void Closer::Empty(int socket) {
  for (Unread next = NextIn(socket); next == Unread::kMessage || next == Unread::kDescriptors;
       next = NextIn(socket)) {
    char byte;
    static_cast<void>(!recv(socket, &byte, sizeof(byte), MSG_DONTWAIT));
  }
}

void Closer::Run(State& state) {
  std::unique_lock lock(state.mutex);
  while (!state.sockets.empty()) {
    Fd first = std::move(state.sockets.front());
    lock.unlock();
    Empty(first.get());
    first.Close();
    lock.lock();
    state.sockets.pop_front();
  }
  state.runs = false;
}

}  // namespace cistern::server
