// SPDX-License-Identifier: Apache-2.0
// What etcd's JSON gateway is asked and answers (API version 3, from etcd 3.4 on): protobuf messages as JSON,
// bytes in base64, 64-bit integers as strings, what is zero or empty left out. A stream is a line of JSON a
// message, in a "result" or an "error".
//
// What is read comes from outside: whatever is no such message is kIoError with the reason, and nothing is
// believed that etcd.h does not promise of it. Reading takes many steps of the executor where it is long; the
// text outlives the task.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/task.h"
#include "etcd/etcd.h"

namespace cistern::etcd {

std::string EncodeBase64(std::string_view bytes);
// Nothing where it is no base64 of RFC 4648, with its padding.
std::optional<std::string> DecodeBase64(std::string_view text);

std::string RangeQuestion(const RangeRequest& request);
std::string CommitQuestion(const Transaction& transaction);
std::string GrantQuestion(std::int64_t ttl_s);
std::string LeaseQuestion(std::int64_t lease);
std::string CompactQuestion(std::int64_t revision);
// In fragments, so that no line is long.
std::string WatchQuestion(const KeyRange& keys, std::int64_t revision);
std::string LoginQuestion(std::string_view user, std::string_view password);

Task<Result<RangeAnswer>> ReadRangeAnswer(Executor& executor, std::string_view text);
Task<Result<TransactionAnswer>> ReadCommitAnswer(Executor& executor, std::string_view text);
// Of a grant and, in a stream's first line, of a renewal.
Task<Result<LeaseAnswer>> ReadLeaseAnswer(Executor& executor, std::string_view text);

// What a failed call or a stream that ends says. The code is gRPC's.
struct GatewayError {
  std::int64_t code = 0;
  std::string message;
};

struct WatchMessage {
  std::optional<GatewayError> error;
  bool cancelled = false;
  std::string reason;                 // of it
  std::int64_t compact_revision = 0;  // of one cancelled for that
  bool goes_on = false;               // its last revision goes on in the next message
  std::vector<WatchEvent> events;     // in order of revisions
};
Task<Result<WatchMessage>> ReadWatchMessage(Executor& executor, std::string_view line);

// These are short.
std::optional<GatewayError> ReadGatewayError(std::string_view text);
Result<std::string> ReadVersion(std::string_view text);  // "3.4.23"
Result<std::string> ReadToken(std::string_view text);

}  // namespace cistern::etcd
