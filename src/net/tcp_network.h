// SPDX-License-Identifier: Apache-2.0
// TCP by the loop of the thread that calls: sockets never block, the loop says when they are ready, and the
// thread itself copies. The bytes of a Receive are in place when it ends; no buffer is the kernel's
// meanwhile.
#pragma once

#include "io/loop.h"
#include "net/stream.h"

namespace cistern::net {

class TcpNetwork final : public Network {
 public:
  // The loop is borrowed and outlives the streams.
  explicit TcpNetwork(io::Loop& loop) : loop_(loop) {}

  Executor& executor() override { return loop_.executor(); }
  Task<Result<std::unique_ptr<Stream>>> Connect(std::string address, Instant deadline) override;
  Result<std::unique_ptr<Listener>> Listen(const std::string& address) override;

 private:
  io::Loop& loop_;
};

}  // namespace cistern::net
