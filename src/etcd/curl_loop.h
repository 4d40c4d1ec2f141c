// SPDX-License-Identifier: Apache-2.0
// HTTP as a client on an io::Loop, many transfers at once, bodies as they arrive. libcurl's multi interface
// stands behind it, driven by the loop's readiness and the executor's timers: it has no thread of its own but
// the one in which libcurl looks up a name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/event.h"
#include "cistern/status.h"
#include "io/loop.h"

namespace cistern::etcd {

struct CurlOptions {
  std::string authorities_file;            // of certificates, for https; empty: the system's
  std::string certificate_file, key_file;  // who this is, PEM; empty: nobody in particular
  std::int64_t connect_us = 2'000'000;     // at most
};

struct CurlRequest {
  std::string url;
  std::optional<std::string> body;  // of a POST, as JSON; else it is a GET
  std::string token;                // as its Authorization; empty: none. It is in no message
  std::size_t unread_bytes = 0;     // of the answer, at most
};

// One request and its answer. Destroying it ends it.
class CurlTransfer {
 public:
  virtual ~CurlTransfer() = default;

  // Whenever bytes came, or the end.
  Event& news() { return news_; }
  // Nothing more will come.
  bool ended() const { return ended_; }
  // Bytes of the body may have left: who asked cannot know that they did nothing.
  bool sent() const { return sent_; }
  long status() const { return status_; }                  // of HTTP; 0: none has come
  bool too_long() const { return too_long_; }              // which ended it
  const std::string& failure() const { return failure_; }  // why it broke; empty: it did not
  // What has come and was not taken.
  std::string TakeAll();
  // The next line, without its end, of the answer's stream; nothing where it is not all here.
  std::optional<std::string> TakeLine();

 protected:
  CurlTransfer() = default;
  CurlTransfer(const CurlTransfer&) = delete;
  CurlTransfer& operator=(const CurlTransfer&) = delete;

  std::string bytes_;
  std::size_t taken_ = 0, scanned_ = 0;  // of them, for TakeLine
  long status_ = 0;
  bool ended_ = false, sent_ = false, too_long_ = false;
  std::string failure_;
  Event news_;
};

class CurlLoop final {
 public:
  // The loop is borrowed and outlives this; this outlives its transfers. kInvalid: a file that cannot be
  // read.
  static Result<std::unique_ptr<CurlLoop>> Open(io::Loop& loop, CurlOptions options);
  ~CurlLoop();
  CurlLoop(const CurlLoop&) = delete;
  CurlLoop& operator=(const CurlLoop&) = delete;

  // A body is sent at most once, whatever becomes of the connection.
  std::unique_ptr<CurlTransfer> Start(CurlRequest request);

 private:
  friend class CurlTransferBody;
  struct Impl;
  explicit CurlLoop(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cistern::etcd
