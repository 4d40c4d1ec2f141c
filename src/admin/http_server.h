// SPDX-License-Identifier: Apache-2.0
// The node's HTTP port: a thread of its own that takes connections, reads one request of each and sends the
// answer. It waits for nobody: a request that is not there in 5 s, an answer that is not made in 2 s or not
// taken in 10 s ends the connection; of more than 32 connections the oldest that has asked for nothing goes.
// Who asked and hung up counts until the answer is made: hanging up makes nobody more to do.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "admin/http_request.h"
#include "base/fd.h"
#include "cistern/status.h"

namespace cistern::admin {

// Where it listens. "PORT" is that of 127.0.0.1; "ADDRESS:PORT" has an address in numbers, that of IPv6 in
// brackets. Port 0: one that is free.
struct HttpAddress {
  std::string host;  // in numbers
  std::uint16_t port = 0;
  bool v6 = false;
  std::string ToText() const;
};
Result<HttpAddress> ParseHttpAddress(std::string_view field, std::string_view text);

class HttpServer final {
 public:
  static constexpr std::size_t kMaxConnections = 32;
  static constexpr std::int64_t kRequestUs = 5'000'000;
  static constexpr std::int64_t kAnswerUs = 2'000'000;
  static constexpr std::int64_t kSendUs = 10'000'000;

  // Made on the server's thread, when its turn comes.
  using Answer = std::move_only_function<HttpAnswer()>;
  // Gives the answer to a request, once, from any thread and at any time; after its server has gone nobody
  // hears it, and what was given is destroyed.
  using Reply = std::function<void(Answer)>;
  // On the server's thread, which it must not keep.
  using Handler = std::function<void(const HttpRequest& request, Reply reply)>;

  // Listens when this returns. kBusy: somebody else does there; kIoError. Throws std::system_error where the
  // system starts no more threads.
  static Result<std::unique_ptr<HttpServer>> Open(const HttpAddress& address, Handler handler);
  // What it refuses of the address; whether somebody listens there is not asked.
  static Status Check(const HttpAddress& address);
  // Ends the thread; no handler runs afterwards.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // With the port that it really has.
  const HttpAddress& address() const { return address_; }

 private:
  class Connections;
  HttpServer(HttpAddress address, std::unique_ptr<Connections> connections);

  HttpAddress address_;
  std::unique_ptr<Connections> connections_;
  std::thread thread_;
};

}  // namespace cistern::admin
