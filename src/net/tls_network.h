// SPDX-License-Identifier: Apache-2.0
// A network whose streams are all protected: who is at the other end of one has proved that it holds the key,
// or a certificate, of the context (net/tls.h). They go on in TLS, or, for rails, in sealed chunks
// (net/sealed_stream.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "net/stream.h"
#include "net/tls.h"

namespace cistern::net {

enum class AfterHandshake : std::uint8_t { kTls, kSealedChunks };

class TlsNetwork final : public Network {
 public:
  // Connections that have not proved themselves yet, of one listener; what comes past it waits in the
  // system's queue.
  static constexpr std::size_t kHandshakes = 64;
  // After which an unproved connection is closed: the less the more of them there are, so that those who say
  // nothing keep nobody out for long.
  static constexpr std::int64_t kHandshakeUs = 2'000'000, kLeastHandshakeUs = 200'000;

  // Both are borrowed and outlive the streams and listeners.
  TlsNetwork(Network& below, const TlsContext& context, AfterHandshake after = AfterHandshake::kTls)
      : below_(below), context_(context), after_(after) {}

  Executor& executor() override { return below_.executor(); }
  // As the network's below; kDenied, kTooLate and kGone of the handshake too.
  Task<Result<std::unique_ptr<Stream>>> Connect(std::string address, Instant deadline) override;
  // Accept gives streams whose other end has proved itself, however long others take to.
  Result<std::unique_ptr<Listener>> Listen(const std::string& address) override;
  // The same over one of the network's below.
  std::unique_ptr<Listener> Over(std::unique_ptr<Listener> below) const;

 private:
  Network& below_;
  const TlsContext& context_;
  const AfterHandshake after_;
};

}  // namespace cistern::net
