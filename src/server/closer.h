// SPDX-License-Identifier: Apache-2.0
// Lets go of clients' connections. What nobody has read of one may have descriptors in it of which the node
// is the last owner by then, and letting go of these takes as long as their sender likes, as of a TCP
// connection that lingers: a thread waits for that, and never the core.
#pragma once

#include <cstddef>
#include <memory>

#include "base/fd.h"

namespace cistern::server {

class Closer final {
 public:
  Closer();

  // Its other end sees a hang-up at once, and nothing more comes in. None: does nothing.
  void Close(Fd socket);
  // Not closed yet: whoever bounds connections counts them too.
  std::size_t waiting() const;

 private:
  struct State;
  static void Run(State& state);
  static void Empty(int socket);
  // The thread's too: a node that ends does not wait for it.
  const std::shared_ptr<State> state_;
};

}  // namespace cistern::server
