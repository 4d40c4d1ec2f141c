// SPDX-License-Identifier: Apache-2.0
// Two hosts of a simulated network and a connection between them, for tests of what lies on a stream.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "io/simulated_loop.h"
#include "net/simulated_network.h"

namespace cistern::net {

class TestPair {
 public:
  TestPair() { Connect(); }

  // Anew; the former one, if it is still here, is closed.
  void Connect() {
    auto listener = std::move(*there_->Listen("there:0"));
    near = std::move(*loop->BlockOn(here_->Connect(listener->address(), Instant::Never())));
    far = std::move(*loop->BlockOn(listener->Accept(Instant::Never())));
  }
  Instant After(std::int64_t us) const { return clock.Now().PlusUs(us); }
  Executor& executor() { return loop->executor(); }

  SimulatedClock clock;
  io::SimulatedDisk disk{1};
  std::unique_ptr<io::Loop> loop = std::move(*io::SimulatedLoop::Make(clock, disk, 1));
  SimulatedNetwork network{loop->executor(), 1};

 private:
  std::unique_ptr<Network> here_ = network.Host("here"), there_ = network.Host("there");

 public:
  std::unique_ptr<Stream> near, far;
};

inline Task<Status> SendAll(Executor&, Stream& stream, ConstPiece bytes, Instant deadline) {
  co_return co_await stream.Send({&bytes, 1}, deadline);
}

// Until all are there; kGone at the end.
inline Task<Status> ReceiveAll(Executor&, Stream& stream, std::span<std::byte> into, Instant deadline) {
  while (!into.empty()) {
    auto bytes = co_await stream.Receive({&into, 1}, deadline);
    if (!bytes) co_return bytes.error();
    if (*bytes == 0) co_return Status(Code::kGone, "the stream ended");
    into = into.subspan(*bytes);
  }
  co_return Status();
}

}  // namespace cistern::net
