// SPDX-License-Identifier: Apache-2.0
// What is to be sent on a stream, gathered while earlier bytes are on their way: one Send at a time, and as
// few of them as the network takes.
#pragma once

#include <cstddef>
#include <vector>

#include "net/stream.h"

namespace cistern::net {

class Outbox final {
 public:
  // The stream is borrowed.
  explicit Outbox(Stream& stream) : stream_(stream) {}
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  Executor& executor() { return stream_.executor(); }
  // To be added to at the end.
  std::vector<std::byte>& unsent() { return unsent_; }
  bool flushing() const { return flushing_; }

  // Sends all that is unsent, with one Send. None is under way.
  Task<Status> SendOnce(Instant deadline);
  // Sends all that is unsent, and what is added meanwhile. ok at once where another Flush does: it sends that
  // too, by its own deadline.
  Task<Status> Flush(Instant deadline);

 private:
  Stream& stream_;
  std::vector<std::byte> unsent_, going_;
  bool flushing_ = false;
};

}  // namespace cistern::net
