// SPDX-License-Identifier: Apache-2.0
// Connections between hosts as streams of bytes: the seam between what members say to each other and what
// carries it. Two networks exist, TCP (net/tcp_network.h) and a simulated one (net/simulated_network.h); TLS
// (net/tls.h) and sealed chunks (net/sealed_stream.h) are streams over a stream.
//
// All of it belongs to the thread of one executor. A stream outlives the tasks that use it.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/task.h"
#include "cistern/status.h"

namespace cistern::net {

// Bytes that lie apart and follow each other on a stream.
using Piece = std::span<std::byte>;
using ConstPiece = std::span<const std::byte>;

// A connection: bytes in order, both ways, until either side closes. One Receive and one Send may be under
// way at a time.
class Stream {
 public:
  virtual ~Stream() = default;
  Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  virtual Executor& executor() = 0;

  // Waits for bytes and moves as many as are there into the pieces, in order: at least one, or 0 when the
  // other side has closed. kTooLate: none came by the deadline, and later calls go on where this one began.
  // kGone: the connection broke, or was closed here. The pieces are not touched once the task has ended.
  virtual Task<Result<std::size_t>> Receive(std::span<const Piece> into, Instant deadline) = 0;
  // Hands all of the pieces to the network, which has copied them when the task ends. kTooLate: the other
  // side did not take them by the deadline; part of them may have gone, so the stream is closed. kGone as
  // above.
  virtual Task<Status> Send(std::span<const ConstPiece> pieces, Instant deadline) = 0;
  // Ends the connection now: calls under way end with kGone and so do later ones.
  virtual void Close() = 0;

  // The other end's address, for messages.
  virtual const std::string& peer() const = 0;
};

class Listener {
 public:
  virtual ~Listener() = default;
  Listener() = default;
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  virtual Executor& executor() = 0;
  // The next connection. kTooLate: none by the deadline; kBusy: this process has no descriptor for it.
  virtual Task<Result<std::unique_ptr<Stream>>> Accept(Instant deadline) = 0;
  // Why the last one that came was none that Accept gives; ok: it was.
  virtual const Status& refused() const {
    static const Status none;
    return none;
  }
  // Where it listens, with the port that the system chose where 0 was asked for.
  virtual const std::string& address() const = 0;
};

// Addresses are "10.0.0.7:7420" or "[fd00::7]:7420": of a network, not of a name service.
class Network {
 public:
  virtual ~Network() = default;
  Network() = default;
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  virtual Executor& executor() = 0;
  // kInvalid: no address; kTooLate: no answer by the deadline; kIoError: refused or unreachable.
  virtual Task<Result<std::unique_ptr<Stream>>> Connect(std::string address, Instant deadline) = 0;
  // kInvalid: no address of this host; kBusy: somebody listens there; kIoError.
  virtual Result<std::unique_ptr<Listener>> Listen(const std::string& address) = 0;
};

}  // namespace cistern::net
