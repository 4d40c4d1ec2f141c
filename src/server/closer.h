// SPDX-License-Identifier: Apache-2.0
// Lets go of clients' connections. What nobody has read of one may have descriptors in it of which the node
// is the last owner by then, and letting go of these takes as long as their sender likes, as of a TCP
// connection that lingers: a thread waits for that, and never the core. What has messages alone is let go of
// by another thread, which waits for nobody.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "base/fd.h"

namespace cistern::server {

class Closer final {
 public:
  // Of whom so many are not closed yet, nobody more is accepted.
  static constexpr std::size_t kMaxStrangers = 64;

  Closer();

  // Its other end sees a hang-up at once, and nothing more comes in. None: does nothing. Of one that was no
  // session, and of one that was.
  void Close(Fd socket) { Take(std::move(socket), false); }
  void CloseSession(Fd socket) { Take(std::move(socket), true); }
  // Tries again where the system had no thread for it.
  void Resume();
  // Not closed yet: whoever bounds sessions counts theirs too.
  std::size_t sessions() const;
  std::size_t strangers() const;

 private:
  struct State;
  struct Line;
  void Take(Fd socket, bool session);
  static void Start(const std::shared_ptr<State>& state, Line& line);
  static void Run(const std::shared_ptr<State>& state, Line& line);
  // The thread's too: a node that ends does not wait for it.
  const std::shared_ptr<State> state_;
};

}  // namespace cistern::server
