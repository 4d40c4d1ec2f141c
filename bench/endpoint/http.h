// SPDX-License-Identifier: Apache-2.0
// HTTP as a client, many transfers at once in one thread, bodies as they arrive. libcurl stands behind it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "cistern/status.h"

namespace cistern {

// How a transfer ended, besides what its body said.
struct HttpEnd {
  long status = 0;      // of HTTP; 0: none came
  bool broken = false;  // the connection failed, before or after the status
  std::string reason;   // of broken
};

class HttpListener {
 public:
  virtual ~HttpListener() = default;
  // Bytes of the body, under this HTTP status; false ends the transfer.
  virtual bool OnBytes(long status, std::string_view bytes) = 0;
  // The last call. The listener may go in it, and may start another transfer.
  virtual void OnEnd(const HttpEnd& end) = 0;
};

struct HttpOptions {
  std::string authorities_file;           // of certificates, for https; empty: the system's
  std::string api_key;                    // sent as a bearer token; empty: none. It is in no message
  std::uint64_t connect_us = 10'000'000;  // at most
};

struct HttpAnswer {
  long status = 0;
  std::string body;
};

class HttpClient {
 public:
  static Result<std::unique_ptr<HttpClient>> Open(HttpOptions options);
  ~HttpClient();  // transfers that are left are ended without a call

  using Id = std::uint64_t;
  // A POST of JSON. `listener` stays until OnEnd or Cancel.
  Id Post(const std::string& url, std::string body, HttpListener& listener);
  // Ends a transfer, without a call to its listener.
  void Cancel(Id id);
  // Moves bytes and calls listeners; returns once something happened, `wait_us` passed or `wake_fd` (-1:
  // none) is readable. kIoError: the machinery itself failed.
  Status Run(std::int64_t wait_us, int wake_fd);

  // One transfer and nothing else meanwhile. kTooLate after `timeout_us`, kGone where there is no connection,
  // kDenied once `wake_fd` is readable: the user wants an end.
  Result<HttpAnswer> Get(const std::string& url, std::int64_t timeout_us, int wake_fd);
  Result<HttpAnswer> Post(const std::string& url, std::int64_t timeout_us, int wake_fd);

 private:
  struct Impl;
  explicit HttpClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// "http://host:8000" of "http://host:8000/v1/": kInvalid where it is no http or https URL.
Result<std::string> BaseUrl(std::string_view url);

}  // namespace cistern
