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

namespace {

struct Closing {
  Fd socket;
  bool session;
};

// Not by closing it, which another may do later: a loop that watched it has it for a while, and whoever is
// the last throws away what is unread. Stops before descriptors, unless they are to be waited for.
Unread TakeOut(int socket, bool descriptors) {
  Unread next = NextIn(socket);
  while (next == Unread::kMessage || (descriptors && next == Unread::kDescriptors)) {
    char byte;
    static_cast<void>(!recv(socket, &byte, sizeof(byte), MSG_DONTWAIT));
    next = NextIn(socket);
  }
  return next;
}

}  // namespace

// Closed in turn, by a thread that there is as long as there are any.
struct Closer::Line {
  std::deque<Closing> waiting;  // the first is being closed
  bool runs = false;
};

struct Closer::State {
  std::mutex mutex;
  Line plain;
  Line with_descriptors;
  std::size_t sessions = 0;
  std::size_t strangers = 0;

  std::size_t& CountOf(bool session) { return session ? sessions : strangers; }
};

Closer::Closer() : state_(std::make_shared<State>()) {}

void Closer::Take(Fd socket, bool session) {
  if (!socket.valid()) return;
  shutdown(socket.get(), SHUT_RDWR);
  const Unread next = NextIn(socket.get());
  if (next == Unread::kEnd) return;
  std::lock_guard lock(state_->mutex);
  Line& line = next == Unread::kDescriptors ? state_->with_descriptors : state_->plain;
  line.waiting.push_back({std::move(socket), session});
  ++state_->CountOf(session);
  Start(state_, line);
}

std::size_t Closer::sessions() const {
  std::lock_guard lock(state_->mutex);
  return state_->sessions;
}

std::size_t Closer::strangers() const {
  std::lock_guard lock(state_->mutex);
  return state_->strangers;
}

void Closer::Resume() {
  std::lock_guard lock(state_->mutex);
  for (Line* line : {&state_->plain, &state_->with_descriptors}) {
    if (!line->waiting.empty()) Start(state_, *line);
  }
}

// Under the lock.
void Closer::Start(const std::shared_ptr<State>& state, Line& line) {
  if (line.runs) return;
  try {
    std::thread([state, &line] { Run(state, line); }).detach();
    line.runs = true;
  } catch (const std::system_error&) {
    // The system has no more threads: the next one to close tries again, or Resume().
  }
}

void Closer::Run(const std::shared_ptr<State>& state, Line& line) {
  const bool waits = &line == &state->with_descriptors;
  std::unique_lock lock(state->mutex);
  while (!line.waiting.empty()) {
    Closing& first = line.waiting.front();  // stays where it is: others are put behind it
    lock.unlock();
    const bool rest = TakeOut(first.socket.get(), waits) == Unread::kDescriptors;
    if (!rest) first.socket.Close();
    lock.lock();
    if (rest) {
      state->with_descriptors.waiting.push_back(std::move(first));
      Start(state, state->with_descriptors);
    } else {
      --state->CountOf(first.session);
    }
    line.waiting.pop_front();
  }
  line.runs = false;
}

}  // namespace cistern::server
